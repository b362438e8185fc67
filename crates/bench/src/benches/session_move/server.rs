//! An ordinary server: it sends what it is asked for, and knows nothing of devices.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use socket2::SockRef;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::lab::Spoke;
use crate::sys::{self, Sender};

const PORT: u16 = 80;
/// A kind, and an offset.
const REQUEST: usize = 9;
/// A voice as telephones carry it (G.711): 64 kbit/s.
const PIECE: usize = 160;
const PIECE_EVERY: Duration = Duration::from_millis(20);
/// Of a connection that loads the gateway: 100 kbit/s.
const LOT: usize = 12_500;
const LOT_EVERY: Duration = Duration::from_secs(1);

/// What a server does when it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Sends all from an offset on, as fast as it can.
    Bulk(u64),
    /// The same as somebody talks.
    Talk,
    /// Sends some every second, without an end.
    Load,
    /// Says nothing.
    Rest,
}

impl Work {
    /// What a program says.
    pub(super) fn request(self) -> Vec<u8> {
        let (kind, from) = match self {
            Self::Bulk(from) => (0, from),
            Self::Talk => (1, 0),
            Self::Load => (2, 0),
            Self::Rest => (3, 0),
        };
        [&[kind][..], &u64::to_be_bytes(from)].concat()
    }

    fn read(request: [u8; REQUEST]) -> Result<Self> {
        let [kind, from @ ..] = request;
        Ok(match kind {
            0 => Self::Bulk(u64::from_be_bytes(from)),
            1 => Self::Talk,
            2 => Self::Load,
            3 => Self::Rest,
            other => anyhow::bail!("there is no work {other}"),
        })
    }

    /// Whether it is what a trial is about.
    pub(super) fn is_watched(self) -> bool {
        matches!(self, Self::Bulk(_) | Self::Talk)
    }
}

/// Something that was said, and when.
#[derive(Debug, Clone, Copy)]
pub(super) struct Said {
    pub(super) offset: usize,
    pub(super) at: Instant,
}

#[derive(Default)]
struct Seen {
    /// Connections that a trial is about.
    watched: Vec<Arc<TcpStream>>,
    said: Vec<Said>,
}

/// The server. It ends when this is dropped.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) content: Arc<Vec<u8>>,
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// One that has so many bytes.
    pub(super) fn start(spoke: &Spoke, size: usize) -> Result<Self> {
        let address = SocketAddr::new(spoke.own, PORT);
        let listening = spoke.site.host.run(|| -> Result<std::net::TcpListener> {
            let listener = std::net::TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = listening.context("the server does not listen")?;
        let (content, seen) = (content(size), Arc::<Mutex<Seen>>::default());
        let serving = serve(listener, content.clone(), seen.clone());
        let task = spoke.site.runtime.spawn(async move {
            if let Err(error) = serving.await {
                tracing::warn!(%error, "the server ended");
            }
        });
        Ok(Self { address, content, seen, task })
    }

    /// Connections of the trial.
    pub(super) fn connections(&self) -> usize {
        lock(&self.seen).watched.len()
    }

    /// The kernel's view of the trial's connection.
    pub(super) fn sender(&self) -> Result<Sender> {
        let seen = lock(&self.seen);
        ensure!(seen.watched.len() == 1, "the server saw {} connections", seen.watched.len());
        Sender::of(&*seen.watched[0])
    }

    /// How often a retransmission timer of this server ended.
    pub(super) fn timeouts(&self, spoke: &Spoke) -> Result<u64> {
        spoke.site.host.run(sys::retransmission_timeouts)
    }

    /// The first thing that was said at this moment or later.
    pub(super) fn said_from(&self, moment: Instant) -> Option<Said> {
        lock(&self.seen).said.iter().find(|said| said.at >= moment).copied()
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that are the same each time, and never repeat.
fn content(size: usize) -> Arc<Vec<u8>> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    Arc::new(words.take(size.div_ceil(8)).flatten().take(size).collect())
}

async fn serve(listener: std::net::TcpListener, content: Arc<Vec<u8>>, seen: Arc<Mutex<Seen>>) -> Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (socket, _) = listener.accept().await?;
        let (content, seen) = (content.clone(), seen.clone());
        tokio::spawn(async move {
            if let Err(error) = answer(socket, &content, &seen).await {
                tracing::debug!(%error, "a connection of the server broke");
            }
        });
    }
}

async fn answer(mut socket: TcpStream, content: &[u8], seen: &Mutex<Seen>) -> Result<()> {
    socket.set_nodelay(true)?;
    let mut request = [0; REQUEST];
    socket.read_exact(&mut request).await?;
    let work = Work::read(request)?;
    let socket = Arc::new(socket);
    if work.is_watched() {
        lock(seen).watched.push(socket.clone());
    }
    match work {
        Work::Bulk(from) => {
            let from = usize::try_from(from)?;
            send(&socket, content.get(from..).context("it asks beyond the end")?).await?;
        }
        Work::Talk => talk(&socket, content, seen).await?,
        Work::Load => load(&socket, content).await?,
        Work::Rest => {}
    }
    if work.is_watched() {
        SockRef::from(&*socket).shutdown(std::net::Shutdown::Write)?;
    }
    // Until the other side ends it.
    while socket.readable().await.is_ok() {
        match socket.try_read(&mut [0; 64]) {
            Ok(0) => break,
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => break,
            _ => {}
        }
    }
    Ok(())
}

/// Says a piece now and then, and notes when.
async fn talk(socket: &TcpStream, content: &[u8], seen: &Mutex<Seen>) -> Result<()> {
    let mut turns = interval(PIECE_EVERY);
    for (number, piece) in content.chunks(PIECE).enumerate() {
        turns.tick().await;
        lock(seen).said.push(Said { offset: number * PIECE, at: Instant::now() });
        send(socket, piece).await?;
    }
    Ok(())
}

async fn load(socket: &TcpStream, content: &[u8]) -> Result<()> {
    let mut turns = interval(LOT_EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        turns.tick().await;
        send(socket, &content[..LOT.min(content.len())]).await?;
    }
}

async fn send(socket: &TcpStream, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        socket.writable().await?;
        match socket.try_write(bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The bytes of a talk of so many seconds.
pub(super) fn talk_of(length: Duration) -> usize {
    (length.as_millis() / PIECE_EVERY.as_millis()) as usize * PIECE
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_what_is_asked_for() {
        for work in [Work::Bulk(70_000), Work::Talk, Work::Load, Work::Rest] {
            let request = work.request().try_into().unwrap();
            assert_eq!(Work::read(request).unwrap(), work);
        }
        assert!(Work::read([9; REQUEST]).is_err());
    }

    #[test]
    fn content_is_the_same_each_time_and_a_voice_is_64_kbit() {
        assert_eq!(content(100)[..], content(200)[..100]);
        assert_ne!(content(200)[..100], content(200)[100..]);
        assert_eq!(talk_of(Duration::from_secs(1)) * 8, 64_000);
    }
}
