//! What relays need of an endpoint, at both ends of what they splice.

use futures_util::FutureExt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use quinn::TokioRuntime;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use whimbrel_base::{RelayState, RelayToken, RelayedAddr};

use super::Endpoint;
use crate::accept::{Entrance, accept_fronted, accept_quic, accept_relayed};
use crate::carrier::quic::{DatagramFront, Envelope, NO_ERROR, Outlet, QuicSocket};
use crate::carrier::tune;
use crate::endpoint_core::lock;
use crate::front::{Front, Fronted};
use crate::observing::answer_beside;

impl Endpoint {
    /// Has `front` look at TCP connections before this endpoint does. Once; later calls change nothing.
    pub fn set_front(&self, front: Arc<dyn Front>) {
        // The first one stays, as is said.
        let _ = self.inner().front.set(front);
    }

    /// Has `front` look at datagrams before this endpoint does. Once; later calls change nothing.
    pub fn set_datagram_front(&self, front: Arc<dyn DatagramFront>) {
        // The first one stays, as is said.
        let _ = self.inner().datagram_front.set(front);
    }

    /// Serves a TCP connection that came to this endpoint's sockets while another endpoint had them, and of
    /// which it could not be told [yet](Front::leave) what is to be done with it. Must run inside a tokio
    /// runtime.
    pub fn accept_fronted(&self, fronted: Fronted) {
        accept_fronted(self.inner(), fronted);
    }

    /// What sends from the socket that is bound there, and from `source` if that is one of several addresses,
    /// as [another endpoint's](Outlet::place) did. `None` if there is no such socket.
    #[must_use]
    pub fn outlet(&self, bound: SocketAddr, source: Option<IpAddr>) -> Option<Outlet> {
        lock(&self.inner().sockets).outlet(bound, source)
    }

    /// Answers those who ask where the packets of their UDP sockets come from (STUN, RFC 8489), at up to 1000
    /// requests a second. Beside the endpoint's own port, one that the system picks answers too, so that they
    /// learn whether their gateway shows them to each at another port. Must run inside a tokio runtime.
    pub fn answer_stun(&self) {
        if self.inner().stun.begin() {
            answer_beside(self.inner());
        }
    }

    /// What this endpoint says of itself as a relay of a group, instead of what was set before: its records
    /// are published anew.
    pub fn set_relay_state(&self, state: Option<RelayState>) {
        let core = self.inner();
        if core.places.set_relay_state(state) {
            // Publishers look whenever this changes.
            core.bound.send_modify(|_| {});
        }
    }

    /// What this endpoint says of itself as a relay, if that was [set](Self::set_relay_state).
    #[must_use]
    pub fn relay_state(&self) -> Option<RelayState> {
        self.inner().places.relay_state()
    }

    /// The places behind relays at which this endpoint can be reached, instead of those that were set before.
    /// Its records are published anew, and its peers told.
    pub fn set_relayed(&self, places: Vec<RelayedAddr>) {
        let core = self.inner();
        let relays: Vec<_> = places.iter().map(|place| place.relay).collect();
        if core.places.set_relayed(places) {
            core.observed.keep(&relays);
            core.tell_places();
        }
    }

    /// The places behind relays that were [set](Self::set_relayed).
    #[must_use]
    pub fn relayed(&self) -> Vec<RelayedAddr> {
        self.inner().places.relayed()
    }

    /// Takes tokens that lead to a place behind a relay as its own token does, as that relay has made them.
    /// Each client is told one of its own, and another one whenever it came through a relay, so that
    /// onlookers cannot tell by it which client comes, nor to which server. Beyond 256 of one place, and for
    /// places that were not [set](Self::set_relayed), they are left out.
    pub fn add_aliases(&self, place: RelayedAddr, aliases: Vec<RelayToken>) {
        if self.inner().places.add_aliases(place, aliases) {
            self.inner().tell_peers();
        }
    }

    /// How many more [aliases](Self::add_aliases) of a place there is room for.
    #[must_use]
    pub fn missing_aliases(&self, place: RelayedAddr) -> usize {
        self.inner().places.missing_aliases(place)
    }

    /// A secret that nobody knows who does not have this endpoint's key: always the same for one purpose.
    #[must_use]
    pub fn derive_secret(&self, purpose: &str) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.inner().key.to_bytes());
        let mut secret = [0; 32];
        secret.copy_from_slice(hmac::sign(&key, purpose.as_bytes()).as_ref());
        secret
    }

    /// How often a UDP flow to there must be used so that this network's gateway keeps it, as was measured
    /// with a relay at which this endpoint is [reached](Self::set_relayed); 10 to 60 s. `None` before it was.
    #[must_use]
    pub fn refresh_after(&self, to: SocketAddr) -> Option<Duration> {
        self.inner().observed.refresh_after(to)
    }

    /// What a round trip to a relay takes, if this endpoint has measured it since this host moved last: it
    /// does so where it has connected through one of several relays of a server.
    #[must_use]
    pub fn round_trip_to_relay(&self, relay: SocketAddr) -> Option<Duration> {
        self.inner().distances.to_relay(relay)
    }

    /// Serves a TCP connection that this side has opened to a relay, and on which the relay passes on a peer:
    /// as if it had come in. `peer` is where that one is, as the relay says.
    ///
    /// # Errors
    /// When the socket does not take what a path needs.
    pub fn accept_relayed(&self, socket: TcpStream, peer: SocketAddr, at: RelayedAddr) -> io::Result<()> {
        tune(SockRef::from(&socket))?;
        accept_relayed(self.inner(), socket, peer, at);
        Ok(())
    }

    /// Serves QUIC connections that a relay passes on over one UDP socket, as if they had come in, until what
    /// is returned is dropped. `envelope` says which peers datagrams are of. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// When there is no address to send from, or the system has no more sockets.
    pub fn accept_relayed_quic(
        &self,
        remote: SocketAddr,
        at: RelayedAddr,
        envelope: Arc<dyn Envelope>,
    ) -> io::Result<RelayedQuic> {
        let core = self.inner();
        let (config, server) = (core.quic.relayed(at.token, envelope.clone()), core.quic.server());
        let socket = QuicSocket::relayed(self.connect_udp(remote)?, envelope)?;
        let quic = quinn::Endpoint::new_with_abstract_socket(
            config,
            Some(server.clone()),
            socket.clone(),
            Arc::new(TokioRuntime),
        )?;
        let serving = accept_quic(core.clone(), quic.clone(), server, Entrance::Relay(at));
        let accepting = tokio::spawn(FutureExt::boxed(serving));
        Ok(RelayedQuic { endpoint: self.clone(), socket, quic, accepting: accepting.abort_handle() })
    }

    /// A socket that sends to and hears one place only, from an address that this endpoint may use.
    fn connect_udp(&self, remote: SocketAddr) -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(remote), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        if let Some(local) = self.source_for(remote)? {
            socket.bind(&local.into())?;
        }
        socket.connect(&remote.into())?;
        Ok(socket)
    }
}

/// What accepts the QUIC connections that one relay passes on. Dropped, it accepts no further ones.
#[derive(Debug)]
pub struct RelayedQuic {
    endpoint: Endpoint,
    socket: Arc<QuicSocket>,
    quic: quinn::Endpoint,
    accepting: AbortHandle,
}

impl RelayedQuic {
    /// Sends the relay a datagram of this side's own, if the kernel takes it now.
    ///
    /// # Errors
    /// Those of send(2), and of datagrams before.
    pub fn send(&self, datagram: &[u8]) -> io::Result<()> {
        self.socket.send(datagram)
    }

    /// The address that the present socket sends from.
    ///
    /// # Errors
    /// When the socket is closed.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.bound_to()
    }

    /// Goes on from another socket: this host has moved, or the relay is reached elsewhere. Connections stay.
    ///
    /// # Errors
    /// When there is no address to send from, or the system has no more sockets.
    pub fn reopen(&self, remote: SocketAddr) -> io::Result<()> {
        self.socket.replace(self.endpoint.connect_udp(remote)?)
    }

    /// Tells all peers that their paths end.
    pub fn end(&self) {
        self.quic.close(NO_ERROR, b"");
    }
}

impl Drop for RelayedQuic {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
