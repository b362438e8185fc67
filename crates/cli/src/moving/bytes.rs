//! What a device has of a file goes to the other one, before the connection does: what has arrived, or what
//! is left to send.
//!
//! ```text
//! the one that has it                 the one that will have it
//! given: how far the file is       →
//!                                  ←  yes: it keeps it, or no: why not
//! the bytes                        →
//!                                  ←  yes: it has them, or no: why not
//! ```

use std::io;
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::block_in_place;
use whimbrel_transport::{CloseCode, Stream};

use super::wire::{self, Answer, Keeps, MAX_ASK, State};
use super::{GONE, WORD_LIMIT};
use crate::plain::plain;

/// Bytes that are read and said at once.
const PIECE: usize = 256 * 1024;
/// For so many to be taken, or to come.
const PIECE_LIMIT: Duration = Duration::from_secs(30);
/// For all of them: the peer waits.
const ALL_LIMIT: Duration = Duration::from_secs(15 * 60);
/// Characters that are shown of what the other device says.
const LONGEST: usize = 200;
/// The other device does not want more of it.
const ENOUGH: CloseCode = CloseCode::application(5);

const SLOW: &str = "the other device takes too long";

/// Reads the next bytes of what goes; 0 at the end. Blocks.
pub(super) type Read<'a> = dyn FnMut(&mut [u8]) -> io::Result<usize> + Send + 'a;

/// Takes the next bytes of what comes. Blocks.
pub(super) type Keep<'a> = dyn FnMut(&[u8]) -> Result<()> + Send + 'a;

/// Says how far a file is, and brings so many bytes of it.
///
/// # Errors
/// For people: why the other device does not have it.
pub(super) async fn bring(
    stream: &mut Stream,
    (state, length): (State, u64),
    read: &mut Read<'_>,
) -> Result<(), String> {
    let bringing = async {
        soon(WORD_LIMIT, wire::say(stream, &Answer::Given(state))).await.map_err(in_words)?;
        is_kept(stream).await?;
        match write(stream, length, read).await {
            Ok(()) => is_kept(stream).await,
            Err(Broken::Here(why)) => Err(why),
            // It may have said why. It has not all of them, whatever else it says.
            Err(Broken::There(error)) => {
                is_kept(stream).await?;
                Err(in_words(error))
            }
        }
    };
    tokio::time::timeout(ALL_LIMIT, bringing).await.unwrap_or_else(|_| Err(SLOW.to_owned()))
}

/// Why not all bytes went.
enum Broken {
    /// They cannot be read.
    Here(String),
    /// The other device does not take them.
    There(io::Error),
}

/// Writes so many bytes. Does not wait until they are there: the other device says that itself, and may have
/// ended its stream by then.
async fn write(stream: &mut Stream, length: u64, read: &mut Read<'_>) -> Result<(), Broken> {
    let mut piece = vec![0; PIECE];
    let mut left = length;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let read = block_in_place(|| read(&mut piece[..most]));
        let n = read.map_err(|error| Broken::Here(format!("cannot read what is here: {error}")))?;
        if n == 0 {
            return Err(Broken::Here("what is here became shorter".to_owned()));
        }
        soon(PIECE_LIMIT, stream.write_all(&piece[..n])).await.map_err(Broken::There)?;
        left -= n as u64;
    }
    Ok(())
}

async fn is_kept(stream: &mut Stream) -> Result<(), String> {
    match soon(PIECE_LIMIT, wire::hear(stream, MAX_ASK)).await {
        Ok(Keeps::Yes) => Ok(()),
        Ok(Keeps::No(why)) => Err(plain(&why, LONGEST)),
        Err(error) => Err(in_words(error)),
    }
}

/// Says that the file is kept, and has `keep` take the bytes that come.
///
/// # Errors
/// When they do not come, or are not kept: that is said.
pub(super) async fn fetch(stream: &mut Stream, length: u64, keep: &mut Keep<'_>) -> Result<()> {
    let fetched = tokio::time::timeout(ALL_LIMIT, fetch_all(stream, length, keep)).await;
    fetched.unwrap_or_else(|_| Err(lost(io::ErrorKind::TimedOut.into())))
}

async fn fetch_all(stream: &mut Stream, length: u64, keep: &mut Keep<'_>) -> Result<()> {
    soon(WORD_LIMIT, wire::say(stream, &Keeps::Yes)).await.map_err(lost)?;
    let mut piece = vec![0; PIECE];
    let mut left = length;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        let n = soon(PIECE_LIMIT, stream.read(&mut piece[..most])).await.map_err(lost)?;
        if n == 0 {
            return Err(lost(io::ErrorKind::UnexpectedEof.into()));
        }
        if let Err(error) = block_in_place(|| keep(&piece[..n])) {
            stream.stop(ENOUGH);
            refuse(stream, &crate::failure::line(&error)).await;
            return Err(error);
        }
        left -= n as u64;
    }
    soon(WORD_LIMIT, wire::say(stream, &Keeps::Yes)).await.map_err(lost)
}

/// Says why a file is not kept, and waits until that was heard.
pub(super) async fn refuse(stream: &mut Stream, why: &str) {
    let saying = async {
        wire::say(stream, &Keeps::No(plain(why, LONGEST))).await?;
        stream.finish()?;
        stream.drained().await
    };
    // One that is gone needs no reason.
    let _ = soon(WORD_LIMIT, saying).await;
}

/// Waits until all that was said was heard, or that cannot be known.
pub(super) async fn until_heard(stream: &mut Stream) {
    let hearing = async {
        stream.finish()?;
        stream.drained().await
    };
    if let Err(error) = soon(WORD_LIMIT, hearing).await {
        tracing::debug!(%error, "whether the other device has heard it is not known");
    }
}

async fn soon<T>(limit: Duration, doing: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(limit, doing).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn in_words(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => SLOW.to_owned(),
        _ => {
            tracing::info!(%error, "a file does not go to the other device");
            GONE.to_owned()
        }
    }
}

fn lost(error: io::Error) -> anyhow::Error {
    anyhow::Error::new(error).context("the file stays at the other device")
}
