//! An endpoint that another one goes on with, in this process or another one of this host: no connection is
//! lost, and nobody who comes meanwhile is turned away.

use std::time::Duration;

use whimbrel_base::ConnectionId;
use whimbrel_proto::CloseCode;

use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::endpoint_core::lock;
use crate::sockets::{OpenSockets, OpenSocketsError};
use crate::suspend::Suspended;
use crate::tls::TlsSessions;

/// How long peers may take to hear of the end of what is not passed on, and QUIC to say that its paths end.
const FAREWELL: Duration = Duration::from_millis(250);
const LOOK: Duration = Duration::from_millis(2);

/// What an endpoint leaves to another one with the same key.
#[derive(Debug)]
#[non_exhaustive]
pub struct PassedOn {
    /// Its sockets, for [`Builder::sockets`](crate::Builder::sockets). Who comes meanwhile waits in them.
    /// `None` if they are closed already.
    pub sockets: Option<OpenSockets>,
    /// Its connections, for [`Endpoint::wake`].
    pub connections: Vec<(ConnectionId, Suspended)>,
    /// What its clients have tickets for, for [`Builder::sessions`](crate::Builder::sessions).
    pub sessions: TlsSessions,
}

/// An endpoint that lets nobody in any more, and is to be passed on.
#[derive(Debug)]
#[must_use = "nobody listens any more"]
pub struct Leaving {
    endpoint: Endpoint,
    sockets: Option<OpenSockets>,
}

impl Endpoint {
    /// Lets nobody in any more: who comes from now on waits in the endpoint's sockets, and is answered by the
    /// endpoint that they are [passed on](Leaving::pass_on) to. Connections go on.
    ///
    /// # Errors
    /// [`OpenSocketsError`] if the system has no more descriptors. Nothing has changed then.
    pub fn stop_listening(&self) -> Result<Leaving, OpenSocketsError> {
        let core = self.inner();
        let sockets = lock(&core.sockets).copies()?;
        core.life.pass_on();
        lock(&core.sockets).stop_accepting();
        Ok(Leaving { endpoint: self.clone(), sockets })
    }
}

impl Leaving {
    /// Ends the endpoint so that another one goes on with `connections`. They are put to sleep as by
    /// [`Connection::suspend`], but their peers are not told: to them it looks like a path that broke. Those
    /// that are not established, and all that are not passed on, end in order. Takes a quarter of a second at
    /// most.
    ///
    /// Until the other endpoint goes on nothing is lost, and this process may [do so itself](Endpoint::wake)
    /// if that one does not.
    pub async fn pass_on(self, connections: &[Connection]) -> PassedOn {
        let Self { endpoint, sockets } = self;
        let core = endpoint.inner();
        core.life.close();
        core.listeners.clear();
        let asleep = |connection: &Connection| Some((connection.id(), connection.sleep_unannounced().ok()?));
        let connections = connections.iter().filter_map(asleep).collect();
        for shared in core.registry.all() {
            shared.with(|state| state.engine.close(CloseCode::GOING_AWAY, ""));
        }
        let _ = tokio::time::timeout(FAREWELL, async {
            while !core.registry.is_empty() {
                tokio::time::sleep(LOOK).await;
            }
        })
        .await;
        for shared in core.registry.all() {
            shared.give_up(CloseCode::GOING_AWAY, "");
        }
        // Two endpoints that read one socket would take each other's packets.
        let bound = lock(&core.sockets).take_all();
        for bound in bound {
            bound.close().await;
        }
        core.stop_if_done();
        // A handshake that is under way here still finds none of them from now on.
        PassedOn { sockets, connections, sessions: core.tls.give_sessions_away() }
    }
}
