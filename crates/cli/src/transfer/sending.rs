//! The sender's side of a transfer.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;
use whimbrel_transport::{RecvHalf, SendHalf, Stream};

use super::message::{self, Message, VERSION};
use super::{CHUNK, Trouble, hash_prefix, sum};
use crate::progress::{Board, Progress};
use crate::tunnel::BROKEN;

/// How long to wait for the reason of a receiver that stopped to read.
const REASON_LIMIT: Duration = Duration::from_secs(5);

/// A file to be sent.
pub(crate) struct Outgoing {
    pub(crate) path: PathBuf,
    /// What it is to be called there.
    pub(crate) name: String,
    /// At most so many bytes a second.
    pub(crate) rate: Option<u64>,
}

/// A file that arrived.
pub(crate) struct Sent {
    pub(crate) size: u64,
    /// Bytes that the receiver had before.
    pub(crate) resumed_from: u64,
    pub(crate) sha256: String,
}

/// Sends a file.
pub(crate) async fn send(stream: Stream, file: &Outgoing, board: &Board) -> Result<Sent, Trouble> {
    let (mut read, mut write) = stream.into_split();
    let result = exchange(&mut read, &mut write, file, board).await;
    match result {
        // The receiver may have said why, and then stopped to read or ended; its words are here then.
        Err(Trouble::Lost(error)) => {
            match tokio::time::timeout(REASON_LIMIT, message::read(&mut read)).await {
                Ok(Ok(Message::Refuse { reason })) => Err(Trouble::Refused(reason)),
                _ => Err(Trouble::Lost(error)),
            }
        }
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
    outgoing: &Outgoing,
    board: &Board,
) -> Result<Sent, Trouble> {
    let Outgoing { path, name, rate } = outgoing;
    let failed = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(failed)?;
    let size = file.metadata().with_context(failed)?.len();
    let offer = Message::Offer { version: VERSION, name: name.clone(), size };
    message::write(write, &offer).await.map_err(Trouble::Lost)?;
    let (offset, theirs) = match message::read(read).await.map_err(Trouble::Lost)? {
        Message::Want { offset, sha256 } if offset <= size => (offset, sha256),
        Message::Want { .. } => (0, String::new()),
        Message::Refuse { reason } => return Err(Trouble::Refused(reason)),
        _ => {
            return Err(Trouble::Here(anyhow!(
                "the receiver answers something else; is it a `whimbrel receive`?"
            )));
        }
    };
    let (offset, hasher) = common_prefix(&mut file, offset, &theirs).with_context(failed)?;
    message::write(write, &Message::Start { offset }).await.map_err(Trouble::Lost)?;
    let hasher = send_rest(write, &mut file, (offset, size, *rate), hasher, board.file(name, size, offset))
        .await
        .map_err(|trouble| match trouble {
            Trouble::Here(error) => Trouble::Here(error.context(failed())),
            other => other,
        })?;
    let sha256 = sum(&hasher);
    message::write(write, &Message::End { sha256: sha256.clone() }).await.map_err(Trouble::Lost)?;
    match message::read(read).await.map_err(Trouble::Lost)? {
        Message::Done => Ok(Sent { size, resumed_from: offset, sha256 }),
        Message::Refuse { reason } => Err(Trouble::Refused(reason)),
        _ => Err(Trouble::Here(anyhow!("the receiver answers something else"))),
    }
}

/// How far the receiver's bytes are the beginning of ours: all of them, or none.
fn common_prefix(file: &mut File, offset: u64, theirs: &str) -> io::Result<(u64, Sha256)> {
    if offset > 0 {
        let hasher = tokio::task::block_in_place(|| hash_prefix(file, offset))?;
        if sum(&hasher) == theirs {
            return Ok((offset, hasher));
        }
        file.rewind()?;
    }
    Ok((0, Sha256::new()))
}

async fn send_rest(
    write: &mut SendHalf,
    file: &mut File,
    (offset, size, rate): (u64, u64, Option<u64>),
    mut hasher: Sha256,
    mut progress: Progress,
) -> Result<Sha256, Trouble> {
    let mut buffer = vec![0; CHUNK];
    let (mut sent, start) = (offset, Instant::now());
    while sent < size {
        let most = usize::try_from(size - sent).unwrap_or(CHUNK).min(CHUNK);
        let n = tokio::task::block_in_place(|| file.read(&mut buffer[..most])).map_err(anyhow::Error::new)?;
        if n == 0 {
            return Err(Trouble::Here(anyhow!("it became shorter while it was being sent")));
        }
        hasher.update(&buffer[..n]);
        write.write_all(&buffer[..n]).await.map_err(Trouble::Lost)?;
        sent += n as u64;
        progress.at(sent);
        if let Some(rate) = rate {
            let due = Duration::from_secs_f64((sent - offset) as f64 / rate as f64);
            tokio::time::sleep(due.saturating_sub(start.elapsed())).await;
        }
    }
    Ok(hasher)
}
