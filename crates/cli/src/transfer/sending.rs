//! The sender's side of a transfer.

use std::fs::File;
use std::io;

use anyhow::Context as _;
use futures_util::FutureExt;
use sha2::{Digest as _, Sha256};
use tokio::task::{JoinSet, block_in_place};
use whimbrel_transport::{Connection, RecvHalf, SendHalf, Stream};

use super::answers::{Wanted, done, unexpected, want, with_reason};
use super::message::{self, Batch, MAX_SHOWN, Message, ONE_FILE, Offer, VERSION};
use super::outflow::{Begun, Input, Origin, Outflow, Part, Sent};
use super::pace::Pace;
use super::tree::{Entry, Tree};
use super::{Trouble, hash_prefix, sum};
use crate::progress::Board;

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

/// Begins to send one file: what the receiver does not have of it is to be poured then.
pub(crate) async fn begin(stream: Stream, file: &Outgoing) -> Result<Outflow, Trouble> {
    on(stream, None, file).await
}

async fn on(stream: Stream, part_of: Option<u64>, file: &Outgoing) -> Result<Outflow, Trouble> {
    let (mut read, mut write) = stream.into_split();
    let begun = match file {
        Outgoing::File(entry) => begin_file(&mut read, &mut write, part_of, entry).await,
        Outgoing::Input(name) => begin_input(&mut read, &mut write, name).await,
    };
    let begun = with_reason(&mut read, &write, begun).await?;
    let name = match file {
        Outgoing::File(Entry { name, .. }) | Outgoing::Input(name) => name.clone(),
    };
    Ok(Outflow::new((read, write), name, begun))
}

/// Sends what is a part of a batch.
async fn part(stream: Stream, batch: u64, entry: Entry, pace: &Pace, board: &Board) -> Result<Sent, Trouble> {
    if entry.directory {
        let (mut read, mut write) = stream.into_split();
        let result = directory(&mut read, &mut write, offer(Some(batch), &entry)).await;
        return with_reason(&mut read, &write, result).await;
    }
    on(stream, Some(batch), &Outgoing::File(entry)).await?.send(pace, board).await
}

fn offer(part_of: Option<u64>, entry: &Entry) -> Offer {
    Offer {
        version: if part_of.is_none() { ONE_FILE } else { VERSION },
        name: entry.name.clone(),
        above: entry.above.clone(),
        directory: entry.directory,
        part_of,
        ..Offer::default()
    }
}

/// Sends a directory that has nothing in it.
async fn directory(read: &mut RecvHalf, write: &mut SendHalf, offer: Offer) -> Result<Sent, Trouble> {
    message::write(write, &Message::Offer(offer)).await.map_err(Trouble::Lost)?;
    done(read).await?;
    Ok(Sent::default())
}

async fn begin_file(
    read: &mut RecvHalf,
    write: &mut SendHalf,
    part_of: Option<u64>,
    entry: &Entry,
) -> Result<Begun, Trouble> {
    let failed = || format!("cannot read {}", entry.path.display());
    let mut file = File::open(&entry.path).with_context(failed)?;
    let size = file.metadata().with_context(failed)?.len();
    let offer = Offer { size, ..offer(part_of, entry) };
    message::write(write, &Message::Offer(offer)).await.map_err(Trouble::Lost)?;
    let wanted = match want(read).await? {
        wanted if wanted.offset <= size => wanted,
        wanted => Wanted { offset: 0, sha256: String::new(), ..wanted },
    };
    let (from, hasher) = common_prefix(&mut file, wanted.offset, &wanted.sha256).with_context(failed)?;
    let chunks = wanted.chunks && size > from;
    message::write(write, &Message::Start { offset: from, chunks }).await.map_err(Trouble::Lost)?;
    let origin = Origin::File(Part::new(file, entry.path.display().to_string(), (0, size)));
    Ok(Begun { origin, hasher, from, chunks })
}

/// Begins to send standard input, whose size nobody knows.
async fn begin_input(read: &mut RecvHalf, write: &mut SendHalf, name: &str) -> Result<Begun, Trouble> {
    let offer = Offer { version: VERSION, name: name.to_owned(), open_ended: true, ..Offer::default() };
    message::write(write, &Message::Offer(offer)).await.map_err(Trouble::Lost)?;
    want(read).await?;
    message::write(write, &Message::Start { offset: 0, chunks: true }).await.map_err(Trouble::Lost)?;
    let origin = Origin::Input(Input::new(tokio::io::stdin()));
    Ok(Begun { origin, hasher: Sha256::new(), from: 0, chunks: true })
}

/// How far the receiver's bytes are the beginning of ours: all of them, or none.
fn common_prefix(file: &mut File, offset: u64, theirs: &str) -> io::Result<(u64, Sha256)> {
    if offset > 0 {
        let hasher = block_in_place(|| hash_prefix(file, offset))?;
        if sum(&hasher) == theirs {
            return Ok((offset, hasher));
        }
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
                    Ok(stream) => part(stream, id, entry, &pace, &quiet).await,
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
