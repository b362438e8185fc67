//! What relays need of an endpoint, at both ends of what they splice.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use socket2::{Domain, SockRef};
use tokio::net::{TcpSocket, TcpStream};
use whimbrel_base::RelayedAddr;

use super::Endpoint;
use crate::accept::accept_relayed;
use crate::carrier::{CarrierKind, stream_socket, tune};
use crate::dial::fits;
use crate::endpoint_core::lock;
use crate::front::Front;

impl Endpoint {
    /// Has `front` look at TCP connections before this endpoint does. Once; later calls change nothing.
    pub fn set_front(&self, front: Arc<dyn Front>) {
        // The first one stays, as is said.
        let _ = self.inner().front.set(front);
    }

    /// Answers those who ask where the packets of their UDP sockets come from (STUN, RFC 8489), at up to 1000
    /// requests a second.
    pub fn answer_stun(&self) {
        self.inner().answers_stun.store(true, Ordering::Relaxed);
    }

    /// The places behind relays at which this endpoint can be reached, instead of those that were set before.
    /// Its records are published anew, and its peers told.
    pub fn set_relayed(&self, places: Vec<RelayedAddr>) {
        let core = self.inner();
        if std::mem::replace(&mut *lock(&core.relayed), places.clone()) == places {
            return;
        }
        core.observed.keep(&places.iter().map(|place| place.relay).collect::<Vec<_>>());
        core.tell_places();
    }

    /// The places behind relays that were [set](Self::set_relayed).
    #[must_use]
    pub fn relayed(&self) -> Vec<RelayedAddr> {
        lock(&self.inner().relayed).clone()
    }

    /// Serves a TCP connection that this side has opened to a relay, and on which the relay passes on a peer: as
    /// if it had come in. `peer` is where that one is, as the relay says.
    ///
    /// # Errors
    /// When the socket does not take what a path needs.
    pub fn accept_relayed(&self, socket: TcpStream, peer: SocketAddr, at: RelayedAddr) -> io::Result<()> {
        tune(SockRef::from(&socket))?;
        accept_relayed(self.inner(), socket, peer, at);
        Ok(())
    }

    /// Opens a plain TCP connection, from an address that this endpoint may use.
    ///
    /// # Errors
    /// When there is no such address, or nobody accepts there. Has no time limit but the system's.
    pub async fn connect_tcp(&self, remote: SocketAddr) -> io::Result<TcpStream> {
        let socket = stream_socket(Domain::for_address(remote), CarrierKind::Tcp)?;
        let socket = TcpSocket::from_std_stream(socket.into());
        // As for paths: the endpoint may want to listen on the port that the kernel picks.
        socket.set_reuseaddr(true)?;
        let (set, exclusive) = self.inner().sources();
        if exclusive {
            let usable = |local: &&crate::LocalAddress| fits(local, remote.into(), &set, true);
            let local = set.addresses.iter().find(usable).ok_or(io::ErrorKind::AddrNotAvailable)?;
            socket.bind(SocketAddr::new(local.ip, 0))?;
        }
        socket.connect(remote).await
    }
}
