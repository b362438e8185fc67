//! One attempt over TCP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef};
use tokio::net::TcpSocket;

use super::{Candidate, Carrier, Dialled, Dialler, SegmentSize, bind_device};
use crate::carrier::{CarrierKind, SMALL_SEGMENT, kind_of, stream_socket, tune};
use crate::locator::{Locator, Proxied};
use crate::tls::{TlsChannel, TlsError};

/// The longest that one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);

/// Connects, and prepares the TLS handshake.
pub(super) async fn attempt(
    candidate: Candidate,
    kind: CarrierKind,
    segments: SegmentSize,
    who: Arc<Dialler>,
) -> io::Result<Dialled> {
    let remote = candidate.remote.address();
    let socket = socket(&candidate, kind)?;
    let local = candidate.local.as_ref().map(|local| local.ip);
    let small = segments == SegmentSize::Small || who.sizes.are_doubtful(local, remote, Instant::now());
    if small {
        tracing::debug!(%remote, "large packets may vanish on the way: segments are kept small");
        // If it cannot be set, the path may fall silent as the one before did.
        let _ = SockRef::from(&socket).set_tcp_mss(SMALL_SEGMENT);
    }
    let start = Instant::now();
    let connecting = async {
        let mut socket = socket.connect(remote).await?;
        if let (Some(proxy), Some(Proxied { place, .. })) = (&who.proxy, candidate.remote.proxied()) {
            proxy.ask(&mut socket, Locator::from(place).address()).await?;
        }
        Ok::<_, io::Error>(socket)
    };
    let socket = tokio::time::timeout(ATTEMPT, connecting)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let rtt = start.elapsed();
    tune(SockRef::from(&socket))?;
    let local = socket.local_addr()?;
    let tls = channel(&who, candidate.remote).map_err(io::Error::other)?;
    let kind = kind_of(&socket, kind);
    let segments = if small { SegmentSize::Small } else { SegmentSize::Usual };
    let carrier = Carrier::Tcp(socket, Box::new(tls), kind);
    Ok(Dialled { carrier, rtt: Some(rtt), local, way: candidate, segments, peer: who.peer })
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

/// How long it takes to connect along a way. Nothing is said, and there is no limit but the system's.
pub(crate) async fn round_trip(way: &Candidate) -> io::Result<Duration> {
    let socket = socket(way, CarrierKind::Tcp)?;
    let start = Instant::now();
    socket.connect(way.remote.address()).await?;
    Ok(start.elapsed())
}

/// TLS with the peer, whose name is told to nobody but a relay.
fn channel(who: &Dialler, remote: Locator) -> Result<TlsChannel, TlsError> {
    match remote.token() {
        None => TlsChannel::client(who.tls.clone(), who.peer),
        Some(token) => {
            let config = who.relayed.config(who.peer, token)?;
            TlsChannel::relayed_client(config, token)
        }
    }
}
