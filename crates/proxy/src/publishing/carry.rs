//! Bytes between a client's socket and a stream, both ways. An idle pair holds no buffer.

use super::desk::{Unreached, answered};
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use whimbrel_transport::{CloseCode, RecvHalf, SendHalf, Stream};

/// What is read at once of a client.
const PIECE: usize = 16 * 1024;
/// How often it is looked whether anything moved, in the time that it may rest.
const LOOKS: u32 = 8;
/// The connection behind the stream broke. The same as in `forward` and `expose`.
const BROKEN: CloseCode = CloseCode::application(1);

/// How it went.
pub(super) enum Carried {
    /// Both directions have ended.
    Whole,
    /// One side broke, and the other one was.
    Broken(io::Error),
    /// The peer did not take the client, which has got nothing yet.
    Unreached(TcpStream, Unreached),
}

/// Carries bytes until both directions have ended, one side breaks, or nothing moves for so long. What breaks
/// breaks on the other side too: half a file must not look like a whole one.
pub(super) async fn carry(mut client: TcpStream, stream: Stream, idle: Duration) -> Carried {
    let (mut read, mut write) = stream.into_split();
    let moved = AtomicU64::new(0);
    let done = {
        let (from, to) = client.split();
        let both = async {
            tokio::try_join!(there(from, &mut write, &moved), back(&mut read, to, &moved)).map(drop)
        };
        tokio::select! {
            done = both => done,
            () = rests(&moved, idle) => Err(Stop::Broken(ErrorKind::TimedOut.into())),
        }
    };
    let Err(stop) = done else { return Carried::Whole };
    write.stream().reset(BROKEN);
    read.stream().stop(BROKEN);
    match stop {
        Stop::Unreached(why) => Carried::Unreached(client, why),
        Stop::Broken(error) => {
            abort(&client);
            Carried::Broken(error)
        }
    }
}

/// Makes the end of a client's connection a reset, when it is dropped.
pub(super) fn abort(client: &TcpStream) {
    // Without it the end is an ordinary one, which is the best that is left then.
    let _ = socket2::SockRef::from(client).set_linger(Some(Duration::ZERO));
}

enum Stop {
    Unreached(Unreached),
    Broken(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// From the client. Its bytes do not wait for the peer's answer.
async fn there(from: ReadHalf<'_>, to: &mut SendHalf, moved: &AtomicU64) -> Result<(), Stop> {
    loop {
        from.readable().await?;
        let mut piece = vec![0; PIECE];
        match from.try_read(&mut piece) {
            Ok(0) => break,
            Ok(count) => {
                to.write_all(&piece[..count]).await?;
                moved.fetch_add(count as u64, Ordering::Relaxed);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(to.shutdown().await?)
}

/// To the client, once the peer has taken it.
async fn back(from: &mut RecvHalf, mut to: WriteHalf<'_>, moved: &AtomicU64) -> Result<(), Stop> {
    answered(from).await.map_err(Stop::Unreached)?;
    while let Some(chunk) = from.read_chunk().await? {
        to.write_all(&chunk).await?;
        moved.fetch_add(chunk.len() as u64, Ordering::Relaxed);
    }
    Ok(to.shutdown().await?)
}

/// Waits until nothing has moved for so long, and less than an eighth longer.
async fn rests(moved: &AtomicU64, idle: Duration) {
    let (mut before, mut looks) = (moved.load(Ordering::Relaxed), 0);
    while looks < LOOKS {
        tokio::time::sleep(idle / LOOKS).await;
        let now = moved.load(Ordering::Relaxed);
        looks = if now == before { looks + 1 } else { 0 };
        before = now;
    }
}
