//! Follows all running commands of this user at the same time, those that start later included. None of them
//! can hold the others up: each has a task, and what comes of each waits its turn.

use futures_util::FutureExt;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::answer::{Follow, Request};
use super::ask::sockets;
use super::{Event, LIMIT, MAX_REPORT, Report, What};

/// Between two looks for new commands.
const LOOK: Duration = Duration::from_millis(300);
/// A command that could not be followed is asked again after this time.
const AGAIN: Duration = Duration::from_secs(1);
/// Lines that wait to be shown.
const BACKLOG: usize = 256;
/// A command is called silent when it is so much later than it should be.
const SILENT: Duration = Duration::from_secs(5);

/// What a command said, as it said it. What a newer program says has no [`Event`] here.
pub(crate) struct Heard {
    pub(crate) value: Value,
    pub(crate) event: Option<Event>,
}

impl Heard {
    fn of(event: Event) -> serde_json::Result<Self> {
        Ok(Self { value: serde_json::to_value(&event)?, event: Some(event) })
    }
}

/// Follows all commands until what is returned is dropped; statistics come every `interval`.
///
/// # Errors
/// When the directory of the sockets cannot be trusted.
pub(crate) fn follow_all(interval: Duration) -> Result<mpsc::Receiver<Heard>> {
    sockets()?;
    let (sender, receiver) = mpsc::channel(BACKLOG);
    tokio::spawn(FutureExt::boxed(look(interval, sender)));
    Ok(receiver)
}

async fn look(interval: Duration, sender: mpsc::Sender<Heard>) {
    let mut following: JoinSet<PathBuf> = JoinSet::new();
    // Those that are followed (`None`), and those that are not before some time.
    let mut known: HashMap<PathBuf, Option<Instant>> = HashMap::new();
    loop {
        let found = sockets().unwrap_or_default();
        known.retain(|file, later| later.is_none() || found.contains(file));
        for file in found {
            if known.get(&file).is_some_and(|later| later.is_none_or(|at| Instant::now() < at)) {
                continue;
            }
            known.insert(file.clone(), None);
            let sender = sender.clone();
            following.spawn(FutureExt::boxed(async move {
                if let Err(error) = follow(&file, interval, &sender).await {
                    tracing::info!(file = %file.display(), %error, "a command cannot be followed");
                }
                file
            }));
        }
        tokio::select! {
            () = sender.closed() => return,
            () = tokio::time::sleep(LOOK) => {}
            Some(Ok(file)) = following.join_next() => {
                known.insert(file, Some(Instant::now() + AGAIN));
            }
        }
    }
}

/// Follows one command until it ends. An older program only tells its state: it is asked again and again.
async fn follow(file: &Path, interval: Duration, sender: &mpsc::Sender<Heard>) -> io::Result<()> {
    let mut socket = match tokio::time::timeout(LIMIT, UnixStream::connect(file)).await? {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            // Nobody listens any more.
            let _ = std::fs::remove_file(file);
            return Ok(());
        }
        connected => connected?,
    };
    let follow = Follow { interval_ms: u64::try_from(interval.as_millis()).unwrap_or(u64::MAX) };
    let mut request = serde_json::to_vec(&Request { events: Some(follow), ..Request::default() })?;
    request.push(b'\n');
    socket.write_all(&request).await?;
    // An older program answers only then.
    socket.shutdown().await?;
    let mut lines = Lines::of(socket);
    let mut who: Option<(u32, String, Option<String>)> = None;
    let mut heard_at = Instant::now();
    let mut is_silent = false;
    loop {
        let line = tokio::select! {
            line = lines.next() => line,
            () = tokio::time::sleep_until((heard_at + interval + SILENT).into()), if !is_silent => {
                is_silent = true;
                let (pid, command, name) = who.clone().unwrap_or_else(|| (pid_of(file), String::new(), None));
                let what = What::Silent { for_ms: heard_at.elapsed().as_secs_f64() * 1e3 };
                put(sender, Heard::of(Event::about(pid, command, name, what))?).await?;
                continue;
            }
        };
        let value: Option<Value> = match line {
            Ok(Some(line)) => serde_json::from_slice(line).ok(),
            // What a process that was killed had begun to say counts as its end.
            Ok(None) | Err(_) => break,
        };
        (heard_at, is_silent) = (Instant::now(), false);
        let Some(value) = value else { continue };
        if value.get("event").is_some_and(Value::is_string) {
            let event = serde_json::from_value::<Event>(value.clone()).ok();
            if let Some(event) = &event {
                who = Some((event.pid, event.command.clone(), event.name.clone()));
            }
            put(sender, Heard { value, event }).await?;
        } else if let Ok(report) = serde_json::from_value::<Report>(value) {
            let (pid, command, name) = (report.pid, report.command.clone(), report.name.clone());
            let what = What::Statistics { report: Box::new(report) };
            put(sender, Heard::of(Event::about(pid, command, name, what))?).await?;
            tokio::time::sleep(interval).await;
            return Ok(());
        }
    }
    match who {
        Some((pid, command, name)) => {
            put(sender, Heard::of(Event::about(pid, command, name, What::Ended))?).await
        }
        None => Err(ErrorKind::UnexpectedEof.into()),
    }
}

/// Waits for a turn among all commands.
async fn put(sender: &mpsc::Sender<Heard>, heard: Heard) -> io::Result<()> {
    sender.send(heard).await.map_err(|_| ErrorKind::BrokenPipe.into())
}

fn pid_of(file: &Path) -> u32 {
    file.file_stem().and_then(|stem| stem.to_str()?.parse().ok()).unwrap_or_default()
}

/// Lines of a socket, none of them longer than a report may be. The last may end with the socket.
/// Cancel-safe: what was read of a line is kept.
struct Lines {
    socket: BufReader<UnixStream>,
    line: Vec<u8>,
    ended: bool,
}

impl Lines {
    fn of(socket: UnixStream) -> Self {
        Self { socket: BufReader::new(socket), line: Vec::new(), ended: false }
    }

    async fn next(&mut self) -> io::Result<Option<&[u8]>> {
        if self.ended {
            return Ok(None);
        }
        if self.line.last() == Some(&b'\n') {
            self.line.clear();
        }
        let room = MAX_REPORT.saturating_sub(self.line.len() as u64);
        (&mut self.socket).take(room).read_until(b'\n', &mut self.line).await?;
        if self.line.last() == Some(&b'\n') {
            return Ok(Some(&self.line));
        }
        if self.line.len() as u64 >= MAX_REPORT {
            return Err(ErrorKind::InvalidData.into());
        }
        self.ended = true;
        Ok(Some(&self.line[..]).filter(|line| !line.is_empty()))
    }
}
