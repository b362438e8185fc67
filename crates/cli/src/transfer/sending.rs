//! The sender's side of a transfer.

use futures_util::FutureExt;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;
use tokio::task::{JoinSet, block_in_place};
use whimbrel_transport::{Connection, RecvHalf, SendHalf, Stream};

use super::message::{self, Batch, MAX_SHOWN, Message, ONE_FILE, Offer, VERSION};
use super::tree::{Entry, Tree};
use super::{CHUNK, Trouble, chunk, hash_prefix, sum};
use crate::progress::{Board, Progress};
use crate::tunnel::BROKEN;

/// How long to wait for the reason of a receiver that stopped to read.
const REASON_LIMIT: Duration = Duration::from_secs(5);
/// Files of a batch that are on their way at once: enough to make up for a round trip each.
const PARALLEL: usize = 16;
/// Refusals that are told one by one.
const MOST_TOLD: usize = 5;

/// A file to be sent.
#[derive(Clone)]
pub(crate) enum Outgoing {
    File(Entry),
    /// Standard input, under this name.
    Input(String),
}

/// What a file was, once it has arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) size: u64,
    /// Bytes that the receiver had before.
    pub(crate) resumed_from: u64,
    /// Bytes on the way.
    pub(crate) carried: u64,
    pub(crate) sha256: String,
}

/// Keeps all files together within a rate.
#[derive(Clone)]
pub(crate) struct Pace {
    rate: Option<u64>,
    start: Instant,
    sent: Arc<Mutex<u64>>,
}

impl Pace {
    /// At most so many bytes a second.
    pub(crate) fn new(rate: Option<u64>) -> Self {
        Self { rate, start: Instant::now(), sent: Arc::default() }
    }

    async fn sent(&self, bytes: usize) {
        let Some(rate) = self.rate else { return };
        let due = {
            let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
            *sent += bytes as u64;
            Duration::from_secs_f64(*sent as f64 / rate as f64)
        };
        tokio::time::sleep(due.saturating_sub(self.start.elapsed())).await;
    }
}

/// Sends one file.
pub(crate) async fn send(
    stream: Stream,
    file: &Outgoing,
    pace: &Pace,
    board: &Board,
) -> Result<Sent, Trouble> {
    on(stream, None, file, pace, board).await
}

async fn on(
    stream: Stream,
    batch: Option<u64>,
    file: &Outgoing,
    pace: &Pace,
    board: &Board,
) -> Result<Sent, Trouble> {
    let (mut read, mut write) = stream.into_split();
    let result = exchange(&mut read, &mut write, batch, file, pace, board).await;
    with_reason(&mut read, &write, result).await
}

/// The receiver may have said why, and then stopped to read or ended; its words are here then.
async fn with_reason<T>(
    read: &mut RecvHalf,
    write: &SendHalf,
    result: Result<T, Trouble>,
) -> Result<T, Trouble> {
    match result {
        Err(Trouble::Lost(error)) => match tokio::time::timeout(REASON_LIMIT, message::read(read)).await {
            Ok(Ok(Message::Refuse { reason })) => Err(Trouble::Refused(reason)),
            _ => Err(Trouble::Lost(error)),
        },
        Err(Trouble::Here(error)) => {
            write.stream().reset(BROKEN);
            Err(Trouble::Here(error))
        }
        other => other,
    }
}

async fn exchange(
    read: &mut RecvHalf,
    write: &mut SendHalf,
    part_of: Option<u64>,
    outgoing: &Outgoing,
    pace: &Pace,
    board: &Board,
) -> Result<Sent, Trouble> {
    let version = if part_of.is_none() { ONE_FILE } else { VERSION };
    let entry = match outgoing {
        Outgoing::File(entry) => entry,
        Outgoing::Input(name) => return input(read, write, name, pace, board).await,
    };
    let offer = Offer {
        version,
        name: entry.name.clone(),
        above: entry.above.clone(),
        directory: entry.directory,
        part_of,
        ..Offer::default()
    };
    if entry.directory {
        message::write(write, &Message::Offer(offer)).await.map_err(Trouble::Lost)?;
        done(read).await?;
        return Ok(Sent::default());
    }
    let failed = || format!("cannot read {}", entry.path.display());
    let mut file = File::open(&entry.path).with_context(failed)?;
    let size = file.metadata().with_context(failed)?.len();
    message::write(write, &Message::Offer(Offer { size, ..offer })).await.map_err(Trouble::Lost)?;
    let (offset, theirs, chunks) = match want(read).await? {
        (offset, sha256, chunks) if offset <= size => (offset, sha256, chunks),
        (.., chunks) => (0, String::new(), chunks),
    };
    let (offset, hasher) = common_prefix(&mut file, offset, &theirs).with_context(failed)?;
    let chunks = chunks && size > offset;
    message::write(write, &Message::Start { offset, chunks }).await.map_err(Trouble::Lost)?;
    let mut going = Going {
        write,
        pace,
        hasher,
        packer: chunks.then(chunk::Packer::default),
        carried: 0,
        at: offset,
        progress: board.file(&entry.name, size, offset),
    };
    let mut buffer = vec![0; CHUNK];
    while going.at < size {
        let most = usize::try_from(size - going.at).unwrap_or(CHUNK).min(CHUNK);
        let n = block_in_place(|| file.read(&mut buffer[..most])).with_context(failed)?;
        if n == 0 {
            let error = anyhow!("it became shorter while it was being sent").context(failed());
            return Err(Trouble::Here(error));
        }
        going.send(&buffer[..n]).await?;
    }
    going.end(read, offset).await
}

/// Sends standard input, whose size nobody knows.
async fn input(
    read: &mut RecvHalf,
    write: &mut SendHalf,
    name: &str,
    pace: &Pace,
    board: &Board,
) -> Result<Sent, Trouble> {
    let offer = Offer { version: VERSION, name: name.to_owned(), open_ended: true, ..Offer::default() };
    message::write(write, &Message::Offer(offer)).await.map_err(Trouble::Lost)?;
    want(read).await?;
    message::write(write, &Message::Start { offset: 0, chunks: true }).await.map_err(Trouble::Lost)?;
    let mut going = Going {
        write,
        pace,
        hasher: Sha256::new(),
        packer: Some(chunk::Packer::default()),
        carried: 0,
        at: 0,
        progress: board.file(name, 0, 0),
    };
    let mut from = tokio::io::stdin();
    let mut buffer = vec![0; CHUNK];
    loop {
        let n =
            tokio::io::AsyncReadExt::read(&mut from, &mut buffer).await.context("cannot read the input")?;
        if n == 0 {
            return going.end(read, 0).await;
        }
        going.send(&buffer[..n]).await?;
    }
}

/// A file's bytes on their way.
struct Going<'a> {
    write: &'a mut SendHalf,
    pace: &'a Pace,
    hasher: Sha256,
    packer: Option<chunk::Packer>,
    carried: u64,
    at: u64,
    progress: Progress,
}

impl Going<'_> {
    async fn send(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        self.hasher.update(bytes);
        let packed = self.packer.as_mut().map(|packer| block_in_place(|| packer.pack(bytes)));
        let carried = packed.as_deref().unwrap_or(bytes);
        self.write.write_all(carried).await.map_err(Trouble::Lost)?;
        self.carried += carried.len() as u64;
        self.at += bytes.len() as u64;
        self.progress.at(self.at);
        self.pace.sent(carried.len()).await;
        Ok(())
    }

    async fn end(self, read: &mut RecvHalf, resumed_from: u64) -> Result<Sent, Trouble> {
        if self.packer.is_some() {
            self.write.write_all(&chunk::END).await.map_err(Trouble::Lost)?;
        }
        let sha256 = sum(&self.hasher);
        message::write(self.write, &Message::End { sha256: sha256.clone() }).await.map_err(Trouble::Lost)?;
        done(read).await?;
        Ok(Sent { size: self.at, resumed_from, carried: self.carried, sha256 })
    }
}

async fn want(read: &mut RecvHalf) -> Result<(u64, String, bool), Trouble> {
    match message::read(read).await.map_err(Trouble::Lost)? {
        Message::Want { offset, sha256, chunks } => Ok((offset, sha256, chunks)),
        Message::Refuse { reason } => Err(Trouble::Refused(reason)),
        _ => Err(Trouble::Here(unexpected())),
    }
}

async fn done(read: &mut RecvHalf) -> Result<(), Trouble> {
    match message::read(read).await.map_err(Trouble::Lost)? {
        Message::Done => Ok(()),
        Message::Refuse { reason } => Err(Trouble::Refused(reason)),
        _ => Err(Trouble::Here(unexpected())),
    }
}

fn unexpected() -> anyhow::Error {
    anyhow!("the receiver answers something else; is it a `whimbrel receive`?")
}

/// How far the receiver's bytes are the beginning of ours: all of them, or none.
fn common_prefix(file: &mut File, offset: u64, theirs: &str) -> io::Result<(u64, Sha256)> {
    if offset > 0 {
        let hasher = block_in_place(|| hash_prefix(file, offset))?;
        if sum(&hasher) == theirs {
            return Ok((offset, hasher));
        }
        file.rewind()?;
    }
    Ok((0, Sha256::new()))
}

/// Sends everything in a tree on one connection.
pub(crate) async fn send_all(
    connection: &Connection,
    first: Stream,
    id: u64,
    tree: &Tree,
    pace: &Pace,
    board: &Board,
) -> Result<Sent, Trouble> {
    let (mut read, mut write) = first.into_split();
    let result = all(connection, (&mut read, &mut write), id, tree, pace, board).await;
    with_reason(&mut read, &write, result).await
}

async fn all(
    connection: &Connection,
    (read, write): (&mut RecvHalf, &mut SendHalf),
    id: u64,
    tree: &Tree,
    pace: &Pace,
    board: &Board,
) -> Result<Sent, Trouble> {
    let entries = tree.entries.len() as u64;
    let shown = tree.roots.iter().take(MAX_SHOWN).cloned().collect();
    let batch = Batch { id, entries, names: tree.roots.len() as u64, shown };
    let size = tree.size();
    let name = format!("{entries} files");
    let offer = Offer { version: VERSION, name, size, batch: Some(batch), ..Offer::default() };
    message::write(write, &Message::Offer(offer)).await.map_err(Trouble::Lost)?;
    match message::read(read).await.map_err(Trouble::Lost)? {
        Message::Accept => {}
        Message::Refuse { reason } => return Err(Trouble::Refused(reason)),
        _ => return Err(Trouble::Here(unexpected())),
    }
    let mut progress = board.file(&format!("{entries} files"), size, 0);
    let (mut sent, mut refused) = (Sent::default(), Vec::new());
    let mut running = JoinSet::new();
    let mut left = tree.entries.iter();
    loop {
        while running.len() < PARALLEL
            && let Some(entry) = left.next()
        {
            let (connection, entry, pace) = (connection.clone(), entry.clone(), pace.clone());
            let quiet = board.nowhere();
            running.spawn(FutureExt::boxed(async move {
                let shown = entry.above.iter().chain([&entry.name]).cloned().collect::<Vec<_>>().join("/");
                let result = match connection.open_stream().await {
                    Ok(stream) => on(stream, Some(id), &Outgoing::File(entry), &pace, &quiet).await,
                    Err(error) => Err(Trouble::Lost(io::Error::other(error))),
                };
                (shown, result)
            }));
        }
        let Some(finished) = running.join_next().await else { break };
        match finished.map_err(|error| Trouble::Here(error.into()))? {
            (_, Ok(one)) => {
                sent.size += one.size;
                sent.resumed_from += one.resumed_from;
                sent.carried += one.carried;
                progress.at(sent.size);
            }
            (_, Err(Trouble::Lost(error))) => return Err(Trouble::Lost(error)),
            (shown, Err(Trouble::Refused(reason))) => refused.push(format!("{shown}: {reason}")),
            (shown, Err(Trouble::Here(error))) => {
                refused.push(format!("{shown}: {}", crate::failure::line(&error)));
            }
        }
    }
    let complete = refused.is_empty();
    message::write(write, &Message::BatchEnd { complete }).await.map_err(Trouble::Lost)?;
    done(read).await?;
    if complete {
        return Ok(sent);
    }
    let more = match refused.len().saturating_sub(MOST_TOLD) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    refused.truncate(MOST_TOLD);
    Err(Trouble::Refused(format!("{}{more}", refused.join("; "))))
}
