//! One attempt over TCP.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef};
use tokio::net::{TcpSocket, TcpStream};

use super::{Candidate, Carrier, Dialled, Dialler, HttpProxy, SegmentSize, bind_device};
use crate::carrier::{CarrierKind, SMALL_SEGMENT, kind_of, spread, stream_socket, tune};
use crate::locator::{Locator, Proxied};
use crate::tls::{TlsChannel, TlsError};

/// The longest that one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);
/// A server's part of the handshake fits in one.
const READ_SIZE: usize = 4096;
/// Of TLS, with its header, and as much again for what follows it.
const LONGEST_RECORD: usize = 2 * (5 + 16 * 1024 + 256);
/// Sockets of one attempt that wait to be connected at the same time.
const MOST_SOCKETS: usize = 4;

/// A socket that is being connected, and then how long that took.
type Connecting = Pin<Box<dyn Future<Output = io::Result<(TcpStream, Duration)>> + Send>>;

/// A socket that is connected, and TLS on it.
pub(super) struct TcpChannel {
    pub(super) socket: TcpStream,
    pub(super) tls: TlsChannel,
    pub(super) kind: CarrierKind,
    /// What was read and not used: an incomplete record, or what follows the handshake.
    pub(super) read: Vec<u8>,
}

impl TcpChannel {
    /// Goes on with the handshake until this side may speak. Cancel-safe.
    pub(super) async fn shake_hands(&mut self) -> io::Result<()> {
        let mut buffer = [0; READ_SIZE];
        while !self.tls.is_open() {
            self.write_out().await?;
            self.socket.readable().await?;
            match self.socket.try_read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.read.extend_from_slice(&buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            let mut has_spoken = false;
            let mut sink = |plain: &[u8]| has_spoken |= !plain.is_empty();
            let used = self.tls.receive(&mut self.read, &mut sink).map_err(io::Error::other)?;
            self.read.drain(..used);
            if has_spoken || self.read.len() > LONGEST_RECORD {
                return Err(io::Error::other("the server speaks before it is asked"));
            }
        }
        Ok(())
    }

    async fn write_out(&mut self) -> io::Result<()> {
        let records = self.tls.outgoing();
        while !records.waiting().is_empty() {
            self.socket.writable().await?;
            match self.socket.try_write(records.waiting()) {
                Ok(n) => records.wrote(n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Connects, and prepares the TLS handshake.
pub(super) async fn attempt(
    candidate: Candidate,
    kind: CarrierKind,
    segments: SegmentSize,
    who: Arc<Dialler>,
) -> io::Result<Dialled> {
    let remote = candidate.remote.address();
    let local = candidate.local.as_ref().map(|local| local.ip);
    let small = segments == SegmentSize::Small || who.sizes.are_doubtful(local, remote, Instant::now());
    if small {
        tracing::debug!(%remote, "large packets may vanish on the way: segments are kept small");
    }
    let connecting = async {
        let (mut socket, mut rtt) = connect(&candidate, kind, small, who.again).await?;
        if let (Some(proxy), Some(Proxied { place, .. })) = (&who.proxy, candidate.remote.proxied()) {
            let start = Instant::now();
            proxy.ask(&mut socket, Locator::from(place).address()).await?;
            rtt += start.elapsed();
        }
        Ok::<_, io::Error>((socket, rtt))
    };
    let (socket, rtt) = tokio::time::timeout(ATTEMPT, connecting)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    tune(SockRef::from(&socket))?;
    spread(&socket);
    let local = socket.local_addr()?;
    let tls = channel(&who, candidate.remote).map_err(io::Error::other)?;
    let kind = kind_of(&socket, kind);
    let segments = if small { SegmentSize::Small } else { SegmentSize::Usual };
    let carrier = Carrier::Tcp(Box::new(TcpChannel { socket, tls, kind, read: Vec::new() }));
    Ok(Dialled { carrier, rtt: Some(rtt), local, way: candidate, segments, peer: who.peer })
}

/// Connects along a way. While nothing is heard another socket begins `again` and again: the kernel waits for
/// seconds before it repeats a first packet, and for so long nobody would notice that the way is open.
async fn connect(
    way: &Candidate,
    kind: CarrierKind,
    small: bool,
    again: Option<Duration>,
) -> io::Result<(TcpStream, Duration)> {
    let mut sockets = vec![begin(way, kind, small)?];
    loop {
        let pause = async {
            match again {
                Some(again) => tokio::time::sleep(again).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            connected = first_of(&mut sockets) => return connected,
            () = pause => {
                if sockets.len() == MOST_SOCKETS {
                    // The first one stays: round trips may take longer than they did.
                    drop(sockets.remove(1));
                }
                sockets.extend(begin(way, kind, small));
            }
        }
    }
}

fn begin(way: &Candidate, kind: CarrierKind, small: bool) -> io::Result<Connecting> {
    let (socket, remote, start) = (socket(way, kind)?, way.remote.address(), Instant::now());
    if small {
        // If it cannot be set, the path may fall silent as the one before did.
        let _ = SockRef::from(&socket).set_tcp_mss(SMALL_SEGMENT);
    }
    Ok(Box::pin(async move { Ok((socket.connect(remote).await?, start.elapsed())) }))
}

/// The first one that is connected, or refused. Cancel-safe.
async fn first_of(sockets: &mut [Connecting]) -> io::Result<(TcpStream, Duration)> {
    poll_fn(|cx| {
        let ends = sockets.iter_mut().find_map(|socket| match socket.as_mut().poll(cx) {
            Poll::Ready(end) => Some(end),
            Poll::Pending => None,
        });
        ends.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// A socket that is to be connected along a way.
fn socket(way: &Candidate, kind: CarrierKind) -> io::Result<TcpSocket> {
    let socket = stream_socket(Domain::for_address(way.remote.address()), kind)?;
    let socket = TcpSocket::from_std_stream(socket.into());
    // Our listener may be moving to this address too, and the kernel may pick the very port that it wants
    // there. With this option on both, one may listen on a port that the other dials from.
    socket.set_reuseaddr(true)?;
    if let Some(local) = &way.local {
        bind_device(&socket, local);
        socket.bind(SocketAddr::new(local.ip, 0))?;
    }
    Ok(socket)
}

/// What a round trip along a way takes: how long it takes to connect, or where a `proxy` leads there, to have
/// that connect. Nothing is said to the other end, and there is no limit but the system's.
pub(crate) async fn round_trip(way: &Candidate, proxy: Option<&HttpProxy>) -> io::Result<Duration> {
    let socket = socket(way, CarrierKind::Tcp)?;
    let start = Instant::now();
    let mut socket = socket.connect(way.remote.address()).await?;
    let Some(Proxied { place, .. }) = way.remote.proxied() else { return Ok(start.elapsed()) };
    let proxy = proxy.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "there is no HTTP proxy"))?;
    // To the proxy it would count twice: what it answers comes from behind it.
    let start = Instant::now();
    proxy.ask(&mut socket, Locator::from(place).address()).await?;
    Ok(start.elapsed())
}

/// TLS with the peer, whose name is told to nobody but a relay.
fn channel(who: &Dialler, remote: Locator) -> Result<TlsChannel, TlsError> {
    match remote.behind() {
        None => TlsChannel::client(who.clients.direct(who.peer)?, who.peer),
        Some(place) => {
            let named = who.aliases.name(who.peer, place, Instant::now());
            TlsChannel::relayed_client(who.clients.relayed(who.peer)?, named)
        }
    }
}
