//! One connection to a manager: lines out, and each answer to whoever waits for it.

use super::lines::Lines;
use crate::protocol::{Answer, Request};
use futures_util::FutureExt;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// Questions under way.
const MOST: usize = 4096;

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Answer>>>>;
/// Is told the unit of a decision that nobody waits for any more.
type Unwanted = Arc<dyn Fn(u64) + Send + Sync>;

pub(super) struct Link {
    writer: tokio::sync::Mutex<OwnedWriteHalf>,
    next: AtomicU64,
    waiting: Waiting,
    unwanted: Unwanted,
    lives: Arc<AtomicBool>,
    reader: AbortHandle,
    /// Whether the manager's settings name a gateway, once that was asked.
    pub(super) names_gateway: OnceLock<bool>,
}

impl Link {
    /// The one over this connection to a manager. Must run inside a tokio runtime.
    pub(super) fn over(stream: UnixStream, unwanted: Unwanted) -> Self {
        let (reader, writer) = stream.into_split();
        let waiting = Waiting::default();
        let lives = Arc::new(AtomicBool::new(true));
        let reading = read(reader, Arc::clone(&waiting), Arc::clone(&lives), Arc::clone(&unwanted));
        Self {
            writer: tokio::sync::Mutex::new(writer),
            next: AtomicU64::new(1),
            waiting,
            unwanted,
            lives,
            reader: tokio::spawn(FutureExt::boxed(reading)).abort_handle(),
            names_gateway: OnceLock::new(),
        }
    }

    pub(super) fn lives(&self) -> bool {
        self.lives.load(Ordering::Acquire)
    }

    /// Sends a request and waits for its answer. Cancel-safe, as long as no half a line went: then the
    /// connection ends.
    pub(super) async fn exchange(&self, mut request: Request) -> io::Result<Answer> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        request.id = Some(id);
        let mut line = serde_json::to_vec(&request)?;
        line.push(b'\n');
        let (sender, answer) = oneshot::channel();
        {
            let mut waiting = lock(&self.waiting);
            if waiting.len() >= MOST {
                let why = format!("{MOST} questions of this program are under way; ask again later");
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
            waiting.insert(id, sender);
        }
        let mut asked = Asked { link: self, id, answer };
        {
            let mut writer = self.writer.lock().await;
            let whole = Whole { lives: &self.lives, is_whole: false };
            writer.write_all(&line).await?;
            whole.done();
        }
        if !self.lives() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        (&mut asked.answer).await.map_err(|_| io::ErrorKind::UnexpectedEof.into())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// A connection with half a line in it is of no use any more.
struct Whole<'a> {
    lives: &'a AtomicBool,
    is_whole: bool,
}

impl Whole<'_> {
    fn done(mut self) {
        self.is_whole = true;
    }
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        if !self.is_whole {
            self.lives.store(false, Ordering::Release);
        }
    }
}

/// A question that is taken back when this is dropped.
struct Asked<'a> {
    link: &'a Link,
    id: u64,
    answer: oneshot::Receiver<Answer>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        lock(&self.link.waiting).remove(&self.id);
        // It may have been answered in this moment.
        self.answer.close();
        self.answer.try_recv().into_iter().for_each(|answer| throw_away(answer, &self.link.unwanted));
    }
}

/// A unit that was decided for nobody would count as scheduled until the manager forgets it.
fn throw_away(answer: Answer, unwanted: &Unwanted) {
    if let Some(unit) = answer.decision.and_then(|decision| decision.unit) {
        unwanted(unit);
    }
}

fn lock(waiting: &Waiting) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Answer>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn read(reader: OwnedReadHalf, waiting: Waiting, lives: Arc<AtomicBool>, unwanted: Unwanted) {
    let mut lines = Lines::of(reader);
    while let Ok(line) = lines.next().await {
        // What a newer manager says beside is no answer to us.
        let Ok(answer) = serde_json::from_slice::<Answer>(line) else { continue };
        let Some(id) = answer.id else { continue };
        let sender = lock(&waiting).remove(&id);
        // The caller may have dropped its future.
        let heard = match sender {
            Some(sender) => sender.send(answer),
            None => Err(answer),
        };
        if let Err(answer) = heard {
            throw_away(answer, &unwanted);
        }
    }
    lives.store(false, Ordering::Release);
    // All that wait hear of the end.
    lock(&waiting).clear();
}
