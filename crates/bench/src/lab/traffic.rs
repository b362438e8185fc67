//! Steady traffic from a server to its clients that tells when each message was written.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use whimbrel_transport::{Connection, Listener, RecvHalf, Stream};

use super::{LIMIT, Node};

/// A message: [`nanos`] when it was written.
const MESSAGE: usize = size_of::<u64>();
const READ_SIZE: usize = 512 * MESSAGE;

/// The time, on a clock that all hosts of the lab share.
fn nanos() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    u64::try_from(BEGAN.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The server's application: on each stream that a client opens, a message every now and then, and
/// one at once when prompted.
pub(crate) struct Speakers {
    prompt: watch::Sender<()>,
    task: JoinHandle<()>,
}

impl Speakers {
    pub(crate) fn start(node: &Node, listener: Listener, every: Duration) -> Self {
        let (prompt, prompts) = watch::channel(());
        Self { prompt, task: node.runtime.spawn(accept(listener, every, prompts)) }
    }

    /// Writes one message on each stream now.
    pub(crate) fn prompt(&self) {
        self.prompt.send_replace(());
    }
}

impl Drop for Speakers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(mut listener: Listener, every: Duration, prompts: watch::Receiver<()>) {
    while let Some(connection) = listener.accept().await {
        let prompts = prompts.clone();
        tokio::spawn(async move {
            if let Ok(stream) = connection.accept_stream().await
                && let Err(error) = speak(stream, every, prompts).await
            {
                // The client's end says more, unless the trial is over.
                tracing::debug!(%error, "a stream ended");
            }
        });
    }
}

async fn speak(mut stream: Stream, every: Duration, mut prompts: watch::Receiver<()>) -> io::Result<()> {
    // The client opens the stream with a byte.
    stream.read_u8().await?;
    prompts.mark_unchanged();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            Ok(()) = prompts.changed() => {}
        }
        stream.write_all(&nanos().to_be_bytes()).await?;
        stream.flush().await?;
    }
}

/// The clients' application: hears the messages, and reports the first new one of each connection.
pub(crate) struct Ears {
    shared: Arc<Shared>,
    heard: mpsc::Receiver<Instant>,
    count: usize,
}

struct Shared {
    /// Messages written from here on are new.
    since: AtomicU64,
    reports: mpsc::Sender<Instant>,
}

impl Ears {
    /// For at most `connections`.
    pub(crate) fn new(connections: usize) -> Self {
        let (reports, heard) = mpsc::channel(connections.max(1));
        let shared = Arc::new(Shared { since: AtomicU64::new(u64::MAX), reports });
        Self { shared, heard, count: 0 }
    }

    /// Begins to listen to one more connection.
    pub(crate) async fn listen(&mut self, connection: Connection) -> Result<()> {
        let stream = connection.open_stream().await?;
        let (read, mut write) = stream.into_split();
        write.write_u8(0).await?;
        write.flush().await?;
        let shared = self.shared.clone();
        tokio::spawn(async move {
            // Both keep the connection open.
            let (_connection, _write) = (connection, write);
            if let Err(error) = hear(read, &shared).await {
                tracing::debug!(%error, "a connection is lost");
            }
        });
        self.count += 1;
        Ok(())
    }

    /// From now on only messages that are written later are new. To be called while the old way is
    /// closed already: whatever is new has come by the new one.
    pub(crate) fn expect_new(&self) {
        self.shared.since.store(nanos(), Ordering::Release);
    }

    /// When each connection heard its first new message, in the order of these moments.
    pub(crate) async fn first_new(&mut self) -> Result<Vec<Instant>> {
        let deadline = tokio::time::Instant::now() + LIMIT;
        let mut moments = Vec::with_capacity(self.count);
        while moments.len() < self.count {
            let next = tokio::time::timeout_at(deadline, self.heard.recv()).await;
            let silent = self.count - moments.len();
            let missing = || format!("{silent} of {} connections hear nothing after {LIMIT:?}", self.count);
            moments.push(next.with_context(missing)?.context("no connection listens")?);
        }
        moments.sort();
        Ok(moments)
    }
}

async fn hear(mut read: RecvHalf, shared: &Shared) -> io::Result<()> {
    let mut buffer = vec![0; READ_SIZE];
    let (mut held, mut reported) = (0, u64::MAX);
    loop {
        let n = read.read(&mut buffer[held..]).await?;
        let now = Instant::now();
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        held += n;
        let since = shared.since.load(Ordering::Acquire);
        let (messages, rest) = buffer[..held].as_chunks::<MESSAGE>();
        let is_new = messages.iter().any(|message| u64::from_be_bytes(*message) >= since);
        let rest = rest.len();
        if is_new && since != reported {
            reported = since;
            // There is room for one report of each connection.
            let _ = shared.reports.try_send(now);
        }
        buffer.copy_within(held - rest..held, 0);
        held = rest;
    }
}
