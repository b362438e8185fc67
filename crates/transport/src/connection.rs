//! The application's handle to a connection.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_base::{ConnectionId, EndpointId, Name};
use whimbrel_proto::{CloseCode, ClosedBy, Side};

use crate::allow::Allow;
use crate::control::PathControl;
use crate::error::ConnectionError;
use crate::events::Events;
use crate::report::{CloseReason, ConnectionStats, PathInfo};
use crate::shared::{Shared, State};

/// Ends the connection in order when the last handle is dropped.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) name: Option<Name>,
    by_ticket: bool,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.with(|state| state.engine.close(CloseCode::NONE, ""));
    }
}

/// A lasting connection to a peer. Cheap to clone; it is closed in order once every clone and every
/// stream of it is dropped, and lives on through moves of either side until then.
#[derive(Clone)]
pub struct Connection {
    pub(crate) handle: Arc<Handle>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("id", &self.id())
            .field("peer", &self.peer_id())
            .finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(shared: Arc<Shared>, name: Option<Name>) -> Self {
        Self::accepted(shared, name, false)
    }

    pub(crate) fn accepted(shared: Arc<Shared>, name: Option<Name>, by_ticket: bool) -> Self {
        Self { handle: Arc::new(Handle { shared, name, by_ticket }) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// The connection's id, the same on both sides.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        self.shared().id
    }

    /// The peer's identity, proved by its key.
    #[must_use]
    pub fn peer_id(&self) -> EndpointId {
        self.shared().peer()
    }

    /// To whom the peer may hand its end of this connection over. Unless this is said, a peer that dialled
    /// may hand it to whom the listener would let in, were it to connect itself ([`ListenOptions::allow`]);
    /// and one that was dialled to any key, by its own key's signed word. With [`Allow::check`] the
    /// application is asked each time.
    ///
    /// [`ListenOptions::allow`]: crate::ListenOptions::allow
    pub fn allow_hand_over(&self, to: Allow) {
        self.shared().set_heirs(to);
    }

    /// The name that was dialled; on the accepting side the name that the client asked for.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        self.handle.name.as_ref()
    }

    /// Whether the peer was let in, or would have been, because it has a ticket with the listener's
    /// [secret](crate::ListenOptions::ticket_secret).
    #[must_use]
    pub fn is_by_ticket(&self) -> bool {
        self.handle.by_ticket
    }

    /// Which side this is.
    #[must_use]
    pub fn side(&self) -> Side {
        self.shared().lock().engine.side()
    }

    /// Ends the connection: delivers what was written, over further moves if need be, and returns
    /// when the peer has confirmed the end, or with an error after `limit`. The end goes on in the
    /// background then. Cancel-safe.
    ///
    /// # Errors
    /// [`ConnectionError::TimedOut`] after `limit`.
    pub async fn close(&self, code: CloseCode, reason: &str, limit: Duration) -> Result<(), ConnectionError> {
        self.shared().with(|state| state.engine.close(code, reason));
        tokio::time::timeout(limit, self.closed()).await.map(drop).map_err(|_| ConnectionError::TimedOut)
    }

    /// Ends the connection at once; what was not delivered yet is dropped. Does not wait: whoever reads,
    /// writes, opens or accepts streams fails now, and so do senders and receivers of messages, though the
    /// peer may be out of reach and be told later.
    pub fn abort(&self, code: CloseCode, reason: &str) {
        self.shared().with(|state| {
            state.engine.abort(code, reason);
            state.wakers.all_over();
            state.outcomes.all_over();
        });
    }

    /// Waits until the connection is over, and tells why. Cancel-safe.
    pub async fn closed(&self) -> CloseReason {
        loop {
            let settled = self.shared().news.of_connection();
            tokio::pin!(settled);
            settled.as_mut().enable();
            if let Some(reason) = self.shared().close_reason() {
                return reason;
            }
            settled.await;
        }
    }

    /// Why the connection ended, if it has.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.shared().close_reason()
    }

    pub(crate) fn closed_error(&self) -> ConnectionError {
        ConnectionError::Closed(self.shared().end_reason().unwrap_or(CloseReason {
            by: ClosedBy::Local,
            code: CloseCode::NONE,
            reason: String::new(),
        }))
    }

    /// Says how the connection uses its paths: handover mode, scheduler, policy, priorities.
    #[must_use]
    pub fn path_control(&self) -> PathControl {
        PathControl { shared: self.shared().clone() }
    }

    /// Reports what happens underneath from now on.
    #[must_use]
    pub fn events(&self) -> Events {
        self.shared().subscribe()
    }

    /// Counters and paths, now.
    #[must_use]
    pub fn stats(&self) -> ConnectionStats {
        stats(self.shared())
    }
}

pub(crate) fn stats(shared: &Shared) -> ConnectionStats {
    let (mut stats, carriers) = {
        let state = shared.lock();
        (stats_of(&state), state.paths())
    };
    // A carrier asks the kernel: not while the engine is locked.
    for path in &mut stats.paths {
        path.carrier_stats = carriers.iter().find(|io| io.id.0 == path.id).and_then(|io| io.stats());
    }
    stats
}

/// All but what carriers know.
fn stats_of(state: &State) -> ConnectionStats {
    let counters = state.engine.stats();
    let engine_paths = state.engine.paths();
    let paths = engine_paths.iter().filter_map(|p| {
        let io = state.paths.iter().find(|io| io.id == p.id)?;
        Some(PathInfo {
            id: p.id.0,
            local: io.local,
            remote: io.remote,
            state: p.state,
            priority: p.priority,
            rate: p.rate,
            srtt: p.srtt,
            bytes_sent: p.bytes_sent,
            bytes_received: p.bytes_received,
            in_flight: p.in_flight,
            age: io.since.elapsed(),
            signal: io.reception.signal(),
            carrier: io.kind(),
            carrier_stats: None,
        })
    });
    ConnectionStats {
        bytes_sent: counters.stream_bytes_sent,
        bytes_resent: counters.stream_bytes_resent,
        bytes_reinjected: counters.stream_bytes_reinjected,
        bytes_received: counters.stream_bytes_received,
        bytes_duplicate: counters.stream_bytes_duplicate,
        messages: state.engine.message_stats(),
        message_delays: state.engine.message_delays(),
        flows: state.engine.flow_stats(),
        handover: state.engine.handover(),
        scheduler: state.engine.scheduler(),
        moves: state.moves,
        last_recovery: state.outage.last(),
        unreachable: state.outage.lasts(Instant::now()),
        looks_for_direct: state.punching.is_looking,
        paths: paths.collect(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use whimbrel_base::SecretKey;
    use whimbrel_proto::{Config, Connection as Engine};

    use super::*;

    /// As in a loop around `select!`, where each turn begins to wait anew.
    #[test]
    fn whoever_waits_again_and_again_is_noted_once() {
        let (client, server) = (SecretKey::generate().id(), SecretKey::generate().id());
        let (id, now) = (ConnectionId::random(), Instant::now());
        let engine = Engine::client(Config::default(), id, client, server, [1; 32], now);
        let connection = Connection::new(
            Shared::new(engine, SecretKey::generate(), Vec::new(), Arc::default(), Arc::default()),
            None,
        );
        let mut cx = Context::from_waker(Waker::noop());
        let mut opened = Vec::new();
        let mut waits = 0;
        while waits < 100 {
            match pin!(connection.open_stream()).poll(&mut cx) {
                Poll::Ready(stream) => opened.push(stream.unwrap()),
                Poll::Pending => waits += 1,
            }
            assert!(pin!(connection.accept_stream()).poll(&mut cx).is_pending());
        }
        let state = connection.shared().lock();
        assert_eq!(state.wakers.waiting_for_streams(), (1, 1));
    }
}
