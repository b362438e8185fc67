//! QUIC connections that come in, up to their first whole segment.

use futures_util::FutureExt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use quinn::{Connection, Incoming, RecvStream, SendStream, ServerConfig};
use whimbrel_base::{EndpointId, RelayedAddr};
use whimbrel_proto::{CloseCode, PathId, refusal, segment};

use super::{Arrival, MAX_FIRST_PLAINTEXT, admit};
use crate::attend::spawn_driver;
use crate::carrier::quic::{Accepting, NO_ERROR, Observed, QuicCarrier, QuicChannel, QuicSocket, peer};
use crate::endpoint_core::EndpointCore;
use crate::locator::Locator;
use crate::path_io::PathIo;
use crate::tls::ArrivingSessions;

const READ_SIZE: usize = 16 * 1024;

/// Where peers come in.
#[derive(Debug, Clone)]
pub(crate) enum Entrance {
    /// At this socket, which they have dialled.
    Socket(Arc<QuicSocket>),
    /// A relay passes them on.
    Relay(RelayedAddr),
}

/// Accepts until the socket's task is aborted.
pub(crate) async fn accept_quic(
    endpoint: Arc<EndpointCore>,
    quic: quinn::Endpoint,
    config: ServerConfig,
    entrance: Entrance,
) {
    while let Some(incoming) = quic.accept().await {
        let max = endpoint.config.max_half_open;
        // Addresses can be forged (RFC 9000 §8.1.2). Asking for a proof costs a round trip, so it is done
        // only when there is a crowd.
        if endpoint.half_open.is_crowded(max) && incoming.may_retry() && !incoming.remote_address_validated()
        {
            let _ = incoming.retry();
            continue;
        }
        let from = incoming.remote_address().ip();
        let place = endpoint.half_open.add(from, max);
        tokio::spawn(FutureExt::boxed(place.hold(handshake(
            endpoint.clone(),
            incoming,
            config.clone(),
            entrance.clone(),
        ))));
    }
}

async fn handshake(
    endpoint: Arc<EndpointCore>,
    incoming: Incoming,
    config: ServerConfig,
    entrance: Entrance,
) {
    let counted = endpoint.handshakes.begin();
    let Accepting { config, observed, sessions } = endpoint.quic.accepted(&config);
    let Ok(connecting) = incoming.accept_with(config) else { return };
    // A server can always answer before the handshake is complete. What it says goes to the holder of the
    // ticket, whom it knows; without a ticket there is no first segment before the client has shown its key.
    let Ok((connection, _)) = connecting.into_0rtt() else { return };
    let arrival = Arrived::new(connection, entrance, observed, sessions);
    match tokio::time::timeout(endpoint.config.handshake_timeout, arrival).await {
        Ok(Ok(arrival)) => {
            counted.done();
            if let Some(opened) = admit(&endpoint, arrival).await {
                spawn_driver(&endpoint, &opened);
            }
        }
        Ok(Err(error)) => tracing::debug!(%error, "handshake failed"),
        Err(_) => {}
    }
}

/// A peer that has not shown yet what it wants.
struct Arrived {
    connection: Connection,
    entrance: Entrance,
    send: SendStream,
    recv: RecvStream,
    observed: Arc<Observed>,
    sessions: Arc<ArrivingSessions>,
    plaintext: Vec<u8>,
}

impl Arrived {
    /// Reads until a whole first segment is there.
    async fn new(
        connection: Connection,
        entrance: Entrance,
        observed: Arc<Observed>,
        sessions: Arc<ArrivingSessions>,
    ) -> io::Result<Self> {
        let (send, mut recv) = connection.accept_bi().await?;
        let mut plaintext = Vec::new();
        while segment::split(&plaintext).map_err(io::Error::other)?.is_none() {
            if plaintext.len() > MAX_FIRST_PLAINTEXT {
                return Err(io::Error::other("first segment too long"));
            }
            let chunk = recv.read_chunk(READ_SIZE, true).await.map_err(io::Error::other)?;
            let chunk = chunk.ok_or(io::ErrorKind::UnexpectedEof)?;
            plaintext.extend_from_slice(&chunk.bytes);
        }
        Ok(Self { connection, entrance, send, recv, observed, sessions, plaintext })
    }
}

impl Arrival for Arrived {
    fn peer(&self) -> Option<EndpointId> {
        peer(&self.connection)
    }

    fn remote(&self) -> SocketAddr {
        self.connection.remote_address()
    }

    fn plaintext(&self) -> &[u8] {
        &self.plaintext
    }

    fn sessions(&self) -> &ArrivingSessions {
        &self.sessions
    }

    fn into_path(self, id: PathId, endpoint: &EndpointCore) -> io::Result<(PathIo, Vec<u8>)> {
        let Self { connection, entrance, send, recv, observed, plaintext, .. } = self;
        let (ip, remote, hint): (IpAddr, Locator, _) = match entrance {
            // What the relay sends goes to wherever this host is.
            Entrance::Relay(at) if at.relay.is_ipv4() => {
                (Ipv4Addr::UNSPECIFIED.into(), Locator::Relayed(at), None)
            }
            Entrance::Relay(at) => (Ipv6Addr::UNSPECIFIED.into(), Locator::Relayed(at), None),
            Entrance::Socket(socket) => {
                let ip = connection.local_ip().ok_or(io::ErrorKind::AddrNotAvailable)?;
                let remote = connection.remote_address();
                (ip, remote.into(), socket.hint(remote))
            }
        };
        let local = SocketAddr::new(ip, endpoint.port());
        let channel = QuicChannel { connection, send, recv, observed, early: None, hint };
        Ok((PathIo::quic(id, local, remote, QuicCarrier::new(id, channel)), plaintext))
    }

    async fn refuse(mut self, code: CloseCode, reason: &str) -> io::Result<()> {
        self.send.write_all(&refusal(code, reason)).await.map_err(io::Error::other)?;
        self.send.finish().map_err(io::Error::other)?;
        // Closing now would drop what is on its way.
        let _ = self.send.stopped().await;
        self.connection.close(NO_ERROR, b"");
        Ok(())
    }
}
