//! One attempt over TCP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::net::TcpSocket;

use super::{Candidate, Carrier, Dialled, Dialler};
use crate::carrier::tune;
use crate::monitor::LocalAddress;
use crate::tls::TlsChannel;

/// The longest that one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);

/// Connects, and prepares the TLS handshake.
pub(super) async fn attempt(candidate: Candidate, who: Arc<Dialler>) -> io::Result<Dialled> {
    let remote = candidate.remote;
    let socket = if remote.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Our listener may be moving to this address too, and the kernel may pick the very port that it wants there. With
    // this option on both, one may listen on a port that the other dials from.
    socket.set_reuseaddr(true)?;
    if let Some(local) = &candidate.local {
        bind_device(&socket, local);
        socket.bind(SocketAddr::new(local.ip, 0))?;
    }
    let start = Instant::now();
    let socket = tokio::time::timeout(ATTEMPT, socket.connect(remote))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let rtt = start.elapsed();
    tune(SockRef::from(&socket))?;
    let local = socket.local_addr()?;
    let tls = TlsChannel::client(who.tls.clone(), who.peer).map_err(io::Error::other)?;
    Ok(Dialled { carrier: Carrier::Tcp(socket, Box::new(tls)), rtt, local, remote })
}

/// Binds to the interface too, so that the path really uses it, whatever the routes prefer.
fn bind_device(socket: &TcpSocket, local: &LocalAddress) {
    #[cfg(target_os = "linux")]
    if let Some(interface) = &local.interface
        && let Err(error) = SockRef::from(socket).bind_device(Some(interface.as_bytes()))
    {
        // Older kernels allow it to root only; the source address alone often suffices.
        tracing::debug!(%interface, %error, "cannot bind to the interface");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, local);
}
