//! A program that decides in the place of the policy: questions to it, its answers, and a limit of time.

use crate::protocol::{Chosen, Deciding};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Questions that wait until the program reads them.
const WAITING: usize = 256;
/// So many questions in a row without an answer in time, and the program is dismissed.
const MOST_MISSES: u32 = 8;
/// The longest name of its policy.
const LONGEST_NAME: usize = 64;

/// The place for one program.
pub(crate) struct External {
    /// `None`: no program may decide.
    limit: Option<Duration>,
    next: AtomicU64,
    program: Mutex<Option<Program>>,
}

struct Program {
    client: u64,
    name: String,
    questions: mpsc::Sender<Deciding>,
    asked: HashMap<u64, oneshot::Sender<Chosen>>,
    misses: u32,
}

/// What came of a question.
pub(crate) enum Said {
    /// The program chose.
    Chosen(String, Chosen),
    /// It did not; why, in words.
    Nothing(String),
}

impl External {
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self { limit, next: AtomicU64::new(1), program: Mutex::new(None) }
    }

    /// A client offers to decide: these are the questions to it.
    ///
    /// # Errors
    /// Why it may not.
    pub(crate) fn offer(&self, client: u64, name: &str) -> Result<mpsc::Receiver<Deciding>, String> {
        if self.limit.is_none() {
            return Err(
                "no program may decide here: start the manager with `external`, a limit of time".into()
            );
        }
        if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
            return Err(format!("the name of a policy has 1 to {LONGEST_NAME} printable characters"));
        }
        let mut program = self.program();
        if let Some(other) = &*program {
            return Err(format!("another program, {}, decides already", other.name));
        }
        let (questions, receiver) = mpsc::channel(WAITING);
        let name = name.to_owned();
        *program = Some(Program { client, name, questions, asked: HashMap::new(), misses: 0 });
        Ok(receiver)
    }

    /// Whether a program decides.
    pub(crate) fn is_there(&self) -> bool {
        self.limit.is_some() && self.program().is_some()
    }

    /// Asks the program, and waits as long as it may take.
    pub(crate) async fn ask(&self, question: impl FnOnce(u64) -> Deciding) -> Option<Said> {
        let limit = self.limit?;
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        let question = question(n);
        let (name, answer) = {
            let mut program = self.program();
            let program = program.as_mut()?;
            let (sender, answer) = oneshot::channel();
            if program.questions.try_send(question).is_err() {
                return Some(Said::Nothing(format!(
                    "{} reads no questions; the policy decided",
                    program.name
                )));
            }
            program.asked.insert(n, sender);
            (program.name.clone(), answer)
        };
        // Also when whoever asked goes away in the meantime.
        let forgetting = Forgetting { external: self, n };
        let chosen = tokio::time::timeout(limit, answer).await;
        drop(forgetting);
        match chosen {
            Ok(Ok(chosen)) => Some(Said::Chosen(name, chosen)),
            Ok(Err(_)) => Some(Said::Nothing(format!("{name} has left; the policy decided"))),
            Err(_) => {
                self.missed();
                let limit = limit.as_millis();
                Some(Said::Nothing(format!("{name} said nothing within {limit} ms; the policy decided")))
            }
        }
    }

    /// What the program of this client chose. False if nobody waits for it any more.
    pub(crate) fn chosen(&self, client: u64, chosen: Chosen) -> bool {
        let mut program = self.program();
        let Some(program) = program.as_mut().filter(|program| program.client == client) else { return false };
        match program.asked.remove(&chosen.n) {
            Some(sender) => {
                program.misses = 0;
                sender.send(chosen).is_ok()
            }
            None => false,
        }
    }

    /// A client is gone.
    pub(crate) fn gone(&self, client: u64) {
        let mut program = self.program();
        if program.as_ref().is_some_and(|program| program.client == client) {
            *program = None;
        }
    }

    /// One more question without an answer. A program that never answers is dismissed: its questions end.
    fn missed(&self) {
        let mut place = self.program();
        if let Some(program) = place.as_mut() {
            program.misses += 1;
            if program.misses >= MOST_MISSES {
                *place = None;
            }
        }
    }

    fn program(&self) -> MutexGuard<'_, Option<Program>> {
        self.program.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a question back when it is dropped.
struct Forgetting<'a> {
    external: &'a External,
    n: u64,
}

impl Drop for Forgetting<'_> {
    fn drop(&mut self) {
        if let Some(program) = self.external.program().as_mut() {
            program.asked.remove(&self.n);
        }
    }
}
