//! From a carrier that came in to a path of a connection. Until the peer has shown who it is and what
//! it wants, it costs bounded memory and time.

mod quic;
mod take_over;
mod tcp;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_base::{ConnectionId, EndpointId, Name, random_bytes};
use whimbrel_proto::{
    CloseCode, Connection as Engine, FirstFlight, JoinError, Open, PathId, PathState, Side, segment,
};

pub(crate) use quic::{Entrance, accept_quic};
pub(crate) use tcp::{accept_fronted, accept_relayed, accept_tcp};

use crate::carrier::CarrierKind;
use crate::cause::DownCause;
use crate::connection::Connection;
use crate::deciding::{Turn, Undecided};
use crate::endpoint_core::EndpointCore;
use crate::incoming::Caller;
use crate::locator::canonical;
use crate::path_io::PathIo;
use crate::punch;
use crate::registry::Added;
use crate::report::EndpointEvent;
use crate::shared::{Shared, State};
use crate::tls::ArrivingSessions;

/// A first flight may bring this much behind its first segment.
const MAX_FIRST_PLAINTEXT: usize = 64 * 1024;
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

/// A carrier that came in, with the peer's first segment whole.
trait Arrival: Sized + Send {
    /// The peer's identity, proved by its key.
    fn peer(&self) -> Option<EndpointId>;

    /// Where it dialled from.
    fn remote(&self) -> SocketAddr;

    /// What has arrived.
    fn plaintext(&self) -> &[u8];

    /// What TLS should remember of it.
    fn sessions(&self) -> &ArrivingSessions;

    /// The carrier as a path, and what has arrived on it.
    fn into_path(self, id: PathId, endpoint: &EndpointCore) -> io::Result<(PathIo, Vec<u8>)>;

    /// Says no, and waits until the peer has read it.
    fn refuse(self, code: CloseCode, reason: &str) -> impl Future<Output = io::Result<()>> + Send;
}

/// The connection, if this endpoint has it. One that is being handed over to it is waited for, for as long as
/// a handshake may take: its client was told to come, and would have to go away and come back.
async fn find(endpoint: &EndpointCore, id: &ConnectionId) -> Option<Arc<Shared>> {
    // In this order: whatever is not coming any more has been registered before, if it ever is.
    let coming = endpoint.coming.find(id);
    match (endpoint.registry.find_accepted(id), coming) {
        (None, Some(coming)) => {
            let _ = tokio::time::timeout(endpoint.config.handshake_timeout, coming.over()).await;
            endpoint.registry.find_accepted(id)
        }
        (found, _) => found,
    }
}

/// Does what the first segment asks for, or says no. Returns the connection if it is new: it needs a driver.
async fn admit(endpoint: &Arc<EndpointCore>, arrival: impl Arrival) -> Option<Arc<Shared>> {
    if endpoint.life.is_passed_on() {
        // What it asks for is elsewhere by now. Without an answer it dials again, and is heard there.
        return None;
    }
    match dispatch(endpoint, arrival).await {
        Ok(opened) => opened,
        Err(refused) => {
            let (arrival, code, reason) = *refused;
            tracing::debug!(%code, %reason, "path refused");
            let _ = tokio::time::timeout(REFUSAL_TIMEOUT, arrival.refuse(code, &reason)).await;
            None
        }
    }
}

/// A peer that is told no, and why.
type Refused<A> = Box<(A, CloseCode, String)>;

fn refused<A>(arrival: A, code: CloseCode, reason: impl Into<String>) -> Refused<A> {
    Box::new((arrival, code, reason.into()))
}

/// Makes the carrier a path of `shared`; the first flight goes to the engine.
fn attach(arrival: impl Arrival, endpoint: &Arc<EndpointCore>, shared: &Arc<Shared>, id: PathId) {
    arrival.sessions().admit(shared.peer());
    let from = canonical(arrival.remote());
    let (path, plaintext) = match arrival.into_path(id, endpoint) {
        Ok((path, plaintext)) => (Arc::new(path), plaintext),
        Err(_) => return shared.with(|state| state.engine.path_lost(Instant::now(), id)),
    };
    let may_begin = {
        let mut state = shared.lock();
        let may_begin = is_live(&state, id);
        if may_begin {
            if let Some(remote) = path.remote.direct() {
                state.nearness.met(path.local.ip(), remote.ip());
            }
            if path.kind() != CarrierKind::Quic {
                state.engine.path_proven(id);
            }
            state.engine.state_observed(from);
        }
        may_begin
    };
    if !may_begin {
        return;
    }
    // Before the driver knows of the path: it would read what comes behind this.
    let fed = path.feed(&**shared, &plaintext);
    shared.with(|state| {
        if is_live(state, id) {
            state.paths.push(path.clone());
        }
    });
    let is_relayed = path.remote.relayed().is_some();
    if is_relayed {
        punch::meet(endpoint, shared);
    }
    endpoint.renew_aliases(shared, is_relayed);
    if endpoint.has_lost(path.local.ip()) {
        let cause = DownCause::of_address(&endpoint.addresses(), path.local.ip());
        return shared.with(|state| state.lose_path(Instant::now(), id, cause));
    }
    if let Err(error) = fed {
        shared.path_closed(&path, &error);
    }
    // Answer at once; the driver learns of the path, and of an error if there is one.
    let _ = path.flush(&**shared);
    shared.with(|_| ());
}

/// The peer may have given the path up meanwhile, and said so on another one.
fn is_live(state: &State, id: PathId) -> bool {
    state.engine.path_state(id).is_some_and(|at| at != PathState::Lost)
}

async fn dispatch<A: Arrival>(
    endpoint: &Arc<EndpointCore>,
    arrival: A,
) -> Result<Option<Arc<Shared>>, Refused<A>> {
    let Some(peer) = arrival.peer() else {
        return Err(refused(arrival, CloseCode::NOT_ALLOWED, "no identity"));
    };
    let first = match segment::split(arrival.plaintext()) {
        Ok(Some((body, _))) => FirstFlight::decode(body),
        _ => return Err(refused(arrival, CloseCode::PROTOCOL, "no first segment")),
    };
    match first {
        Ok(FirstFlight::Open(open)) => {
            let opened = open_connection(endpoint, arrival, &open, peer).await;
            opened.inspect_err(|refused| {
                endpoint.bulletin.post(|| refusal_of(peer, &open, refused));
            })
        }
        Ok(first @ (FirstFlight::Join(_) | FirstFlight::Resume(_))) => {
            join_connection(endpoint, arrival, &first, peer).await
        }
        Ok(FirstFlight::TakeOver(take_over)) => take_over::admit(endpoint, arrival, take_over, peer).await,
        Err(error) => {
            tracing::debug!(%error, peer = %peer.short(), "malformed first flight");
            Err(refused(arrival, CloseCode::VERSION, "malformed first flight, or another version"))
        }
    }
}

/// What this endpoint's listeners hear of a peer that was told no.
fn refusal_of<A>(peer: EndpointId, open: &Open, refused: &Refused<A>) -> EndpointEvent {
    let (_, code, reason) = &**refused;
    let name = open.params.target.as_deref().and_then(|name| name.parse().ok());
    let reason = if reason.is_empty() { code.to_string() } else { format!("{code}: {reason}") };
    EndpointEvent::Failed { peer: Some(peer), name, side: Side::Server, reason }
}

async fn join_connection<A: Arrival>(
    endpoint: &Arc<EndpointCore>,
    arrival: A,
    first: &FirstFlight,
    peer: EndpointId,
) -> Result<Option<Arc<Shared>>, Refused<A>> {
    let (connection, path) = match first {
        FirstFlight::Join(join) => (join.connection, join.path),
        FirstFlight::Resume(resume) => (resume.connection, resume.path),
        FirstFlight::Open(open) => (open.connection, open.path),
        FirstFlight::TakeOver(take_over) => (take_over.connection, take_over.path),
    };
    let Some(shared) = find(endpoint, &connection).await else {
        return Err(refused(arrival, CloseCode::UNKNOWN_CONNECTION, ""));
    };
    if shared.peer() != peer {
        return Err(turn_away(arrival, &shared, first, peer));
    }
    let joined = shared.with(|state| match first {
        FirstFlight::Join(join) => state.engine.join(Instant::now(), join),
        FirstFlight::Resume(resume) => state.engine.resume(Instant::now(), resume),
        FirstFlight::Open(_) | FirstFlight::TakeOver(_) => Err(JoinError::BadProof),
    });
    if let Err(error) = joined {
        return Err(refuse_join(arrival, peer, error));
    }
    attach(arrival, endpoint, &shared, path);
    Ok(None)
}

/// Another peer learns no more than that it does not have this connection, unless it has had it.
fn turn_away<A>(arrival: A, shared: &Shared, first: &FirstFlight, peer: EndpointId) -> Refused<A> {
    let why = shared.lock().engine.turn_away(peer, first);
    refused(arrival, why.map_or(CloseCode::UNKNOWN_CONNECTION, JoinError::code), "")
}

/// Refuses a path of a connection that `owner` has.
fn refuse_join<A: Arrival>(arrival: A, owner: EndpointId, error: JoinError) -> Refused<A> {
    // Paths that were dialled at the same time may arrive in another order.
    if error == JoinError::PathIdReused {
        tracing::debug!(%error, "path refused");
        // Its owner was let in before, and will use the tickets that it was given now: they are its newest.
        // If its first flight was played before it came, the next one had better be of no use to anybody
        // else.
        if arrival.peer() == Some(owner) && !arrival.sessions().came_in_vain() {
            arrival.sessions().admit(owner);
        }
    } else {
        tracing::warn!(%error, "path refused");
    }
    refused(arrival, error.code(), "")
}

async fn open_connection<A: Arrival>(
    endpoint: &Arc<EndpointCore>,
    arrival: A,
    open: &Open,
    peer: EndpointId,
) -> Result<Option<Arc<Shared>>, Refused<A>> {
    if let Some(shared) = endpoint.registry.find_accepted(&open.connection) {
        return reopen_connection(endpoint, arrival, open, peer, &shared);
    }
    let target = open.params.target.as_deref().map(str::parse::<Name>).transpose();
    let found = target.ok().and_then(|target| Some((endpoint.listeners.find(target.as_ref())?, target)));
    let Some((door, target)) = found else {
        let (code, reason) = endpoint.listeners.refusal_of_unlisted(open, peer).await;
        return Err(refused(arrival, code, reason));
    };
    let decision = match door.asks().then(|| endpoint.deciding.begin(peer, open.connection)) {
        Some(Turn::After(first)) => return follow_first(endpoint, arrival, open, peer, first).await,
        Some(Turn::First(decision)) => Some(decision),
        None => None,
    };
    let by_ticket = door.knows_ticket(open, peer);
    let caller = Caller { peer, name: target.clone(), remote: Some(arrival.remote().into()), by_ticket };
    let slot = match door.admit(caller).await {
        Ok(slot) => slot,
        Err(refusal) => {
            decision.inspect(|decision| decision.refuse(&refusal));
            return Err(refused(arrival, refusal.0, refusal.1));
        }
    };
    let config = endpoint.engine_config(None);
    let engine = Engine::server(config, open, endpoint.id, peer, random_bytes(), Instant::now());
    let shared = endpoint.shared(engine, Vec::new());
    match endpoint.registry.add_accepted(&shared) {
        Added::Yes => {}
        // Another OPEN of the same connection was quicker.
        Added::Exists(first) => return reopen_connection(endpoint, arrival, open, peer, &first),
        Added::Full => return Err(refused(arrival, CloseCode::BUSY, "too many connections")),
    }
    shared.accepted();
    // Registered before the first answer leaves, so that a second path finds it.
    attach(arrival, endpoint, &shared, open.path);
    slot.send(Connection::accepted(shared.clone(), target, by_ticket));
    Ok(Some(shared))
}

/// Waits for what becomes of the first OPEN of a connection, and adds the path if that was let in.
async fn follow_first<A: Arrival>(
    endpoint: &Arc<EndpointCore>,
    arrival: A,
    open: &Open,
    peer: EndpointId,
    first: Undecided,
) -> Result<Option<Arc<Shared>>, Refused<A>> {
    let refusal = first.wait().await;
    match endpoint.registry.find_accepted(&open.connection) {
        Some(shared) => reopen_connection(endpoint, arrival, open, peer, &shared),
        None => {
            let (code, reason) = refusal.unwrap_or((CloseCode::BUSY, String::new()));
            Err(refused(arrival, code, reason))
        }
    }
}

/// Adds the path of a further OPEN to the connection that the first one made: a client may send several, on
/// several carriers, before it hears an answer to any.
fn reopen_connection<A: Arrival>(
    endpoint: &Arc<EndpointCore>,
    arrival: A,
    open: &Open,
    peer: EndpointId,
    shared: &Arc<Shared>,
) -> Result<Option<Arc<Shared>>, Refused<A>> {
    // Another peer learns no more than that it does not have this connection.
    if shared.peer() != peer {
        return Err(refused(arrival, CloseCode::UNKNOWN_CONNECTION, ""));
    }
    let reopened = shared.with(|state| state.engine.reopen(Instant::now(), open));
    if let Err(error) = reopened {
        return Err(refuse_join(arrival, peer, error));
    }
    attach(arrival, endpoint, shared, open.path);
    Ok(None)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rustls::ServerConfig;
    use rustls::server::StoresServerSessions;
    use tokio::net::{TcpListener, TcpStream};
    use whimbrel_base::SecretKey;
    use whimbrel_proto::Config;

    use super::*;
    use crate::Endpoint;
    use crate::carrier::TcpCarrier;
    use crate::tls::TlsChannel;

    /// A carrier that came in over TCP.
    struct Came(TcpStream, Arc<ServerConfig>, Arc<ArrivingSessions>, EndpointId);

    impl Arrival for Came {
        fn peer(&self) -> Option<EndpointId> {
            Some(self.3)
        }

        fn remote(&self) -> SocketAddr {
            self.0.peer_addr().unwrap()
        }

        fn plaintext(&self) -> &[u8] {
            &[]
        }

        fn sessions(&self) -> &ArrivingSessions {
            &self.2
        }

        fn into_path(self, id: PathId, _: &EndpointCore) -> io::Result<(PathIo, Vec<u8>)> {
            let (local, remote) = (self.0.local_addr()?, self.0.peer_addr()?);
            let tls = TlsChannel::server(self.1).map_err(io::Error::other)?;
            let carrier = TcpCarrier::new(id, CarrierKind::Tcp, self.0, tls, Vec::new());
            Ok((PathIo::tcp(id, local, remote.into(), carrier), Vec::new()))
        }

        async fn refuse(self, _: CloseCode, _: &str) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn tickets_of_a_path_that_was_too_late_are_good_and_those_of_a_liar_or_of_one_that_was_played_before_are_not()
     {
        let inner = Endpoint::builder().ip([127, 0, 0, 1].into()).bind().await.unwrap().inner().clone();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (owner, other) = (SecretKey::generate().id(), SecretKey::generate().id());
        let late = JoinError::PathIdReused;
        for (peer, error, was_played, is_good) in [
            (owner, late, false, true),
            (other, late, false, false),
            (owner, late, true, false),
            (owner, JoinError::BadProof, false, false),
        ] {
            let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (config, sessions) = inner.tls.server.arriving();
            let ticket = SecretKey::generate().id().to_string().into_bytes();
            assert!(sessions.put(ticket.clone(), b"session".to_vec()));
            if was_played {
                assert_eq!(sessions.take(b"a ticket that was used"), None);
            }
            drop(refuse_join(Came(client, config, sessions.clone(), peer), owner, error));
            assert_eq!(sessions.get(&ticket).is_some(), is_good, "{error}");
        }
    }

    /// Between the JOIN and its carrier the peer says, on another path, that it gave this one up. Nobody
    /// would ever take such a carrier away again, and once it ended the driver would try it without end.
    #[tokio::test]
    async fn a_path_that_was_lost_before_its_carrier_is_there_leaves_nothing_behind() {
        let endpoint = Endpoint::builder().ip([127, 0, 0, 1].into()).bind().await.unwrap();
        let inner = endpoint.inner();
        let (now, path, peer) = (Instant::now(), PathId(0), SecretKey::generate().id());
        let mut dialling =
            Engine::client(Config::default(), ConnectionId::random(), peer, inner.id, [1; 32], now);
        dialling.open_path(now, None, u64::MAX).unwrap();
        let mut wire = Vec::new();
        assert!(dialling.poll_transmit(now, path, &mut wire));
        let (body, _) = segment::split(&wire).unwrap().unwrap();
        let Ok(FirstFlight::Open(open)) = FirstFlight::decode(body) else { panic!("no OPEN") };
        let engine = Engine::server(Config::default(), &open, inner.id, peer, [2; 32], now);
        let shared = inner.shared(engine, Vec::new());

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        shared.with(|state| state.engine.path_lost(now, path));
        let (config, sessions) = inner.tls.server.arriving();
        attach(Came(server, config, sessions, peer), inner, &shared, path);
        assert!(shared.lock().paths.is_empty());
        drop(client);
    }
}
