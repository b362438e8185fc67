//! One client of the manager: lines in, lines out.

mod answers;
mod steering;

use crate::Paths;
use crate::parting::part;
use crate::protocol::{Answer, Ask, Deciding, MAX_LINE};
use crate::refusal::Refusal;
use crate::request::{self, Said};
use crate::shared::{Decisions, Shared};
use crate::target::Target;
use answers::{answer, later, write_line};
use futures_util::FutureExt;
use serde::Serialize;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// While so much waits to be written, nothing more is read, answered or told.
const FULL: usize = 256 << 10;
/// A client that reads nothing for so long, while something waits for it, is dropped.
const STALLED: Duration = Duration::from_secs(10);
/// Questions of one client that wait for names or for another program.
const OUTSTANDING: usize = 256;
/// How much is read at once.
const CHUNK: usize = 16 << 10;

/// The exchange with one client.
pub(crate) struct Session {
    stream: UnixStream,
    number: u64,
    shared: Arc<Shared>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// How much of the output is written.
    written: usize,
    /// Lines of the input are left until there is room for their answers.
    is_held: bool,
    from_client: Direction,
    /// Questions whose answers come later.
    waiting: JoinSet<Vec<u8>>,
    look_ups: Arc<Semaphore>,
    /// Connections that it names are steered while this lives.
    steers: Arc<()>,
    news: Option<watch::Receiver<Arc<Paths>>>,
    decisions: Option<Decisions>,
    questions: Option<mpsc::Receiver<Deciding>>,
    /// Dropped after all that could still add to what is known of this client.
    presence: Presence,
}

/// What is known of a client goes when this is dropped, also if its session panicked.
struct Presence {
    number: u64,
    shared: Arc<Shared>,
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.shared.gone(self.number);
    }
}

/// What still comes from the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Open,
    /// The client said all that it had to say. It may want answers still.
    Ended,
    /// What it says is not looked at any more.
    Refused,
}

/// What happened while a session waited.
enum Event {
    Ready,
    Answered(Vec<u8>),
    News,
    Decided(Result<Arc<str>, u64>),
    Question(Option<Deciding>),
    Stalled,
}

impl Session {
    pub(crate) fn new(stream: UnixStream, number: u64, shared: Arc<Shared>) -> Self {
        let look_ups = shared.look_ups(number);
        Self {
            stream,
            number,
            presence: Presence { number, shared: Arc::clone(&shared) },
            shared,
            input: Vec::with_capacity(CHUNK),
            output: Vec::with_capacity(CHUNK),
            written: 0,
            is_held: false,
            from_client: Direction::Open,
            waiting: JoinSet::new(),
            look_ups,
            steers: Arc::default(),
            news: None,
            decisions: None,
            questions: None,
        }
    }

    /// Serves the client until it leaves or must be dropped.
    pub(crate) async fn run(mut self) {
        let ended = self.exchange().await;
        self.waiting.shutdown().await;
        drop(self.presence);
        match ended {
            Ok(()) if self.from_client == Direction::Refused => part(&mut self.stream).await,
            Ok(()) => {}
            Err(error) => tracing::debug!(client = self.number, %error, "a client is dropped"),
        }
    }

    async fn exchange(&mut self) -> io::Result<()> {
        let mut progress = Instant::now();
        loop {
            if self.write()? {
                progress = Instant::now();
            }
            let pending = self.pending();
            if self.is_held && pending < FULL {
                self.lines();
                continue;
            }
            if pending == 0 && self.is_over() {
                return Ok(());
            }
            let reads = self.from_client == Direction::Open && pending < FULL;
            match self.wait(reads, pending, progress + STALLED).await? {
                Event::Ready => {
                    if reads {
                        self.read()?;
                    }
                }
                Event::Answered(line) => {
                    self.output.extend_from_slice(&line);
                }
                Event::News => self.push_paths(),
                Event::Decided(Ok(line)) => self.push_line(line.as_bytes()),
                Event::Decided(Err(missed)) => {
                    self.push(&Answer { missed: Some(missed), ..Answer::default() });
                }
                Event::Question(Some(question)) => {
                    self.push(&Answer { decide: Some(question), ..Answer::default() });
                }
                Event::Question(None) => {
                    self.questions = None;
                    self.refuse("too many questions in a row were not answered in time");
                }
                Event::Stalled => return Err(ErrorKind::TimedOut.into()),
            }
        }
    }

    /// Whether nothing more will be said: by the client, and to it.
    fn is_over(&self) -> bool {
        match self.from_client {
            Direction::Open => false,
            // One who watches is gone when nothing can be written to it.
            Direction::Ended => self.waiting.is_empty() && self.news.is_none(),
            Direction::Refused => true,
        }
    }

    /// Whatever makes the output longer waits while that is full: decisions that a slow client misses are
    /// counted meanwhile, and paths are the newest afterwards.
    async fn wait(&mut self, reads: bool, pending: usize, stalled: Instant) -> io::Result<Event> {
        let (writes, has_room) = (pending > 0, pending < FULL);
        let interest = match (reads, writes) {
            (true, true) => Some(Interest::READABLE | Interest::WRITABLE),
            (true, false) => Some(Interest::READABLE),
            (false, true) => Some(Interest::WRITABLE),
            (false, false) => None,
        };
        let stream = &self.stream;
        let ready = async {
            match interest {
                Some(interest) => stream.ready(interest).await.map(drop),
                None => std::future::pending().await,
            }
        };
        let news = async {
            match &mut self.news {
                Some(news) => news.changed().await,
                None => std::future::pending().await,
            }
        };
        let decided = async {
            match &mut self.decisions {
                Some(decisions) => decisions.next().await,
                None => std::future::pending().await,
            }
        };
        let question = async {
            match &mut self.questions {
                Some(questions) => questions.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ready = ready => ready.map(|()| Event::Ready),
            Some(answer) = self.waiting.join_next(), if has_room => match answer {
                Ok(line) => Ok(Event::Answered(line)),
                Err(error) => Err(io::Error::other(error)),
            },
            question = question, if has_room => Ok(Event::Question(question)),
            Ok(()) = news, if has_room => Ok(Event::News),
            decided = decided, if has_room => Ok(Event::Decided(decided)),
            () = tokio::time::sleep_until(stalled), if writes => Ok(Event::Stalled),
        }
    }

    /// Reads what has come, and answers the lines that are complete.
    fn read(&mut self) -> io::Result<()> {
        self.input.reserve(CHUNK);
        match self.stream.try_read_buf(&mut self.input) {
            Ok(0) => {
                // A client that shut its sending direction down still reads its answers.
                self.from_client = Direction::Ended;
                let rest = std::mem::take(&mut self.input);
                if !rest.is_empty() {
                    self.line(&rest);
                }
                Ok(())
            }
            Ok(_) => {
                self.lines();
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Answers the lines that are complete, as long as there is room for answers.
    fn lines(&mut self) {
        let mut input = std::mem::take(&mut self.input);
        let mut from = 0;
        self.is_held = false;
        while self.from_client == Direction::Open
            && let Some(length) = input[from..].iter().position(|byte| *byte == b'\n')
        {
            if length >= MAX_LINE {
                break;
            }
            if self.pending() >= FULL {
                self.is_held = true;
                break;
            }
            self.line(&input[from..from + length]);
            from += length + 1;
        }
        input.drain(..from);
        if input.len() >= MAX_LINE && !self.is_held && self.from_client == Direction::Open {
            self.refuse(&format!("a line has at most {MAX_LINE} bytes"));
        }
        self.input = input;
    }

    /// Writes what waits. True if some of it went, or nothing waits.
    fn write(&mut self) -> io::Result<bool> {
        let mut went = self.written == self.output.len();
        while self.written < self.output.len() {
            match self.stream.try_write(&self.output[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.written += count;
                    went = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if self.written == self.output.len() {
            self.output.clear();
            self.output.shrink_to(FULL);
            self.written = 0;
        } else if self.written >= FULL {
            self.output.drain(..self.written);
            self.written = 0;
        }
        Ok(went)
    }

    /// How much waits to be written.
    fn pending(&self) -> usize {
        self.output.len() - self.written
    }

    fn line(&mut self, line: &[u8]) {
        let (id, said) = match request::decode(line) {
            Ok(Some(said)) => said,
            Ok(None) => return,
            Err(error) => return self.refuse(&error),
        };
        match said {
            Said::Ask(ask) => self.ask(id, ask),
            Said::Report(report) => {
                let noted = self.shared.note(self.number, report);
                self.push_noted(id, noted);
            }
            Said::Watch(watching) => {
                let news = self.shared.follow();
                self.news = Some(news);
                self.decisions = watching.decisions.then(|| self.shared.watch_decisions(self.number));
                self.push_noted(id, Ok(()));
                self.push_paths();
            }
            Said::Policy(offer) => {
                let offered = match self.shared.is_apart(self.number) {
                    true => {
                        Err("on the host's manager a program of root may decide, and no other".to_owned())
                    }
                    false => self.shared.external.offer(self.number, &offer.name),
                };
                let noted = offered.map(|questions| self.questions = Some(questions));
                self.push_noted(id, noted);
            }
            Said::Steer(steer) => self.steer(id, steer),
            Said::Choose(chosen) => {
                // One that comes late is no fault of the form: the question was decided meanwhile.
                let _ = self.shared.external.chosen(self.number, chosen);
            }
        }
    }

    /// Decides at once where all is known; else when it is.
    fn ask(&mut self, id: Option<u64>, ask: Ask) {
        let target = match request::target(&ask) {
            Ok(target) => target,
            Err(refusal) => return self.push(&answer(id, Err(refusal))),
        };
        let known = match &target {
            Target::Addresses(candidates) => Some((None, &candidates[..])),
            Target::Endpoint(name) => Some((Some(name), &[][..])),
            Target::Name { .. } => None,
        };
        match known.filter(|_| !self.shared.external.is_there()) {
            Some((endpoint, candidates)) => {
                let verdict = self.shared.answer(self.number, &ask, endpoint, candidates, None);
                self.push(&answer(id, verdict.map_err(Refusal::wrong)));
            }
            None => {
                if self.waiting.len() >= OUTSTANDING {
                    let why = format!("{OUTSTANDING} questions of yours wait already; ask again later");
                    return self.push(&answer(id, Err(Refusal::busy(why))));
                }
                let (shared, number) = (Arc::clone(&self.shared), self.number);
                let look_ups = Arc::clone(&self.look_ups);
                self.waiting.spawn(FutureExt::boxed(async move {
                    let verdict = later(&shared, number, &ask, target, &look_ups).await;
                    let mut line = Vec::new();
                    write_line(&mut line, &answer(id, verdict));
                    line
                }));
            }
        }
    }

    fn push_noted(&mut self, id: Option<u64>, noted: Result<(), String>) {
        let (ok, error) = (noted.is_ok(), noted.err());
        self.push(&Answer { id, ok, error, ..Answer::default() });
    }

    fn push_paths(&mut self) {
        let paths = self.news.as_mut().map(|news| news.borrow_and_update().report());
        self.push(&Answer { paths, ..Answer::default() });
    }

    /// Says what is wrong, and hangs up behind it.
    fn refuse(&mut self, error: &str) {
        self.push(&Answer { error: Some(error.to_owned()), ..Answer::default() });
        self.from_client = Direction::Refused;
    }

    fn push(&mut self, answer: &impl Serialize) {
        write_line(&mut self.output, answer);
    }

    fn push_line(&mut self, line: &[u8]) {
        self.output.extend_from_slice(line);
        self.output.push(b'\n');
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
