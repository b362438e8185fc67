//! The receiver's side of a transfer.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;
use tokio::task::block_in_place;
use whimbrel_transport::{CloseCode, Connection, RecvHalf, SendHalf, Stream};

use super::message::{self, Message, VERSION};
use super::partial::{Locked, Partial, target};
use super::{CHUNK, Trouble, hash_prefix, sum};
use crate::progress::Board;
use crate::tunnel::BROKEN;

/// How long the sender may take to hear why its file is refused.
const TOLD: Duration = Duration::from_secs(3);
/// How long a transfer that is replaced may take to let go of its file.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(5);
const TAKEOVER_PAUSE: Duration = Duration::from_millis(20);

/// Where files go.
pub(crate) struct Inbox {
    directory: PathBuf,
    overwrite: bool,
    board: Board,
    /// What is on its way just now, by the files' names.
    coming: Mutex<HashMap<String, Connection>>,
}

impl Inbox {
    pub(crate) fn new(directory: PathBuf, overwrite: bool, board: Board) -> Self {
        Self { directory, overwrite, board, coming: Mutex::default() }
    }

    /// Opens a file for a transfer on `connection`. A sender that died and was started again finds
    /// its own old transfer, which would wait for it for a day: that one is ended.
    async fn open(&self, target: PathBuf, name: &str, new: &Connection) -> anyhow::Result<Partial> {
        let old = {
            let mut all = self.coming.lock().unwrap_or_else(PoisonError::into_inner);
            let old = all.get(name);
            if old.is_some_and(|old| old.peer_id() != new.peer_id() || old.id() == new.id()) {
                bail!("{name} is being received already");
            }
            all.insert(name.to_owned(), new.clone())
        };
        if let Some(old) = old {
            old.abort(CloseCode::EVICTED, "the sender sends the file anew");
        }
        let start = Instant::now();
        loop {
            match Partial::open(target.clone(), self.overwrite) {
                Err(error) if !error.is::<Locked>() || start.elapsed() > TAKEOVER_LIMIT => {
                    self.forget(name, new);
                    return Err(error);
                }
                Err(_) => tokio::time::sleep(TAKEOVER_PAUSE).await,
                Ok(partial) => return Ok(partial),
            }
        }
    }

    fn forget(&self, name: &str, connection: &Connection) {
        let mut all = self.coming.lock().unwrap_or_else(PoisonError::into_inner);
        if all.get(name).is_some_and(|known| known.id() == connection.id()) {
            all.remove(name);
        }
    }
}

/// A file that arrived.
pub(crate) struct Received {
    pub(crate) file: PathBuf,
    pub(crate) size: u64,
    /// Bytes that were there before.
    pub(crate) resumed_from: u64,
    pub(crate) sha256: String,
}

/// Receives one file.
pub(crate) async fn receive(stream: Stream, inbox: &Inbox) -> Result<Received, Trouble> {
    let (mut read, mut write) = stream.into_split();
    let result = exchange(&mut read, &mut write, inbox).await;
    if let Err(Trouble::Here(error)) = &result {
        // The sender is told where it is asked next; what it sends until then is dropped.
        let reason = crate::failure::line(error);
        if message::write(&mut write, &Message::Refuse { reason }).await.is_ok() {
            read.stream().stop(BROKEN);
            // If it is gone meanwhile, it needs no reason.
            let _ = write.stream().finish();
            let _ = tokio::time::timeout(TOLD, write.stream().drained()).await;
        }
    }
    result
}

async fn exchange(read: &mut RecvHalf, write: &mut SendHalf, inbox: &Inbox) -> Result<Received, Trouble> {
    let offer = message::read(read).await.map_err(Trouble::Lost)?;
    let (name, size) = match offer {
        Message::Offer { version: VERSION, name, size } => (name, size),
        Message::Offer { .. } => {
            return Err(Trouble::Here(anyhow!("the sender's program is too new; update this one")));
        }
        _ => {
            return Err(Trouble::Here(anyhow!("the sender does not offer a file; is it a `whimbrel send`?")));
        }
    };
    let target = target(&inbox.directory, &name)?;
    if !inbox.overwrite && fs::symlink_metadata(&target).is_ok() {
        return compare(read, write, target, size).await;
    }
    let connection = read.stream().connection();
    let mut partial = inbox.open(target, &name, &connection).await?;
    // The same sender may begin anew: that aborts this connection.
    let result = fill(read, write, &mut partial, size, &name, inbox).await;
    inbox.forget(&name, &connection);
    match result {
        Ok((resumed_from, sha256)) => {
            let file = block_in_place(|| partial.finish())?;
            // The file is whole: that the sender may not hear of it is the sender's trouble only.
            let _ = message::write(write, &Message::Done).await;
            let _ = write.stream().finish();
            Ok(Received { file, size, resumed_from, sha256 })
        }
        Err(trouble) => {
            partial.discard();
            Err(trouble)
        }
    }
}

/// Receives what is missing.
async fn fill(
    read: &mut RecvHalf,
    write: &mut SendHalf,
    partial: &mut Partial,
    size: u64,
    name: &str,
    inbox: &Inbox,
) -> Result<(u64, String), Trouble> {
    let failed = || format!("cannot read what has arrived of {name}");
    let (present, mut hasher) = block_in_place(|| partial.present()).with_context(failed)?;
    let want = Message::Want { offset: present, sha256: sum(&hasher) };
    message::write(write, &want).await.map_err(Trouble::Lost)?;
    let offset = start(read, present).await?;
    if offset == 0 {
        partial.clear().with_context(failed)?;
        hasher = Sha256::new();
    }
    let mut progress = inbox.board.file(name, size, offset);
    let mut buffer = vec![0; CHUNK];
    let mut received = offset;
    while received < size {
        let most = usize::try_from(size - received).unwrap_or(CHUNK).min(CHUNK);
        let n = read.read(&mut buffer[..most]).await.map_err(Trouble::Lost)?;
        if n == 0 {
            return Err(Trouble::Lost(io::ErrorKind::UnexpectedEof.into()));
        }
        block_in_place(|| partial.write(&buffer[..n]))?;
        hasher.update(&buffer[..n]);
        received += n as u64;
        progress.at(received);
    }
    let sha256 = sum(&hasher);
    match message::read(read).await.map_err(Trouble::Lost)? {
        Message::End { sha256: theirs } if theirs == sha256 => Ok((offset, sha256)),
        Message::End { .. } => {
            partial.clear().with_context(failed)?;
            Err(Trouble::Here(anyhow!("{name} arrived damaged and was dropped; send it again")))
        }
        _ => Err(Trouble::Here(anyhow!("the sender says something else"))),
    }
}

async fn start(read: &mut RecvHalf, present: u64) -> Result<u64, Trouble> {
    match message::read(read).await.map_err(Trouble::Lost)? {
        Message::Start { offset } if offset == 0 || offset == present => Ok(offset),
        _ => Err(Trouble::Here(anyhow!("the sender begins somewhere else"))),
    }
}

/// A file of this name is there. It may be the very one: then the sender did not hear that it had
/// arrived.
async fn compare(
    read: &mut RecvHalf,
    write: &mut SendHalf,
    file: PathBuf,
    size: u64,
) -> Result<Received, Trouble> {
    let exists = || anyhow!("{} exists; move it away, or receive with --overwrite", file.display());
    let metadata = fs::symlink_metadata(&file).context("cannot look at the file")?;
    if !metadata.is_file() || metadata.len() != size {
        return Err(Trouble::Here(exists()));
    }
    let hasher = block_in_place(|| hash(&file, size)).with_context(exists)?;
    let sha256 = sum(&hasher);
    let want = Message::Want { offset: size, sha256: sha256.clone() };
    message::write(write, &want).await.map_err(Trouble::Lost)?;
    if start(read, size).await? != size {
        return Err(Trouble::Here(exists()));
    }
    match message::read(read).await.map_err(Trouble::Lost)? {
        Message::End { sha256: theirs } if theirs == sha256 => {}
        _ => return Err(Trouble::Here(exists())),
    }
    // As above.
    let _ = message::write(write, &Message::Done).await;
    let _ = write.stream().finish();
    Ok(Received { file, size, resumed_from: size, sha256 })
}

fn hash(file: &Path, size: u64) -> io::Result<Sha256> {
    hash_prefix(&mut File::open(file)?, size)
}
