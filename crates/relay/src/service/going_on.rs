//! How a relay begins, with what another one left.

use futures_util::FutureExt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use whimbrel_base::RelayToken;
use whimbrel_transport::{
    Allow, Connection, Endpoint, Fronted, ListenError, ListenOptions, Listener, Outlet,
};

use super::control::{self, Session};
use super::door::Door;
use super::ferry::Ferry;
use super::leaving::{Ends, Leftovers};
use super::{Client, Order, Relay, Shared, Spliced, Table, control_name, lock};
use crate::alias::Aliases;
use crate::estate::{self, BadEstate, Estate, Head, Piece, before};
use crate::gate::Gate;
use crate::limits::Limits;
use crate::reservations::{Holding, RelayStats};
use crate::sources::Sources;
use crate::splice::{Direction, Underway, tune};
use crate::traffic::{Line, Traffic};

/// What an endpoint's key for aliases is derived for.
const ALIAS_KEY: &str = "whimbrel relay alias v1";

/// A relay that has everything and does nothing yet, but that it passes QUIC on.
pub struct Prepared {
    endpoint: Endpoint,
    shared: Arc<Shared>,
    allow: Allow,
    spares: Vec<(TcpStream, oneshot::Receiver<Order>)>,
    splices: Vec<Spliced>,
    strangers: Vec<Fronted>,
    clients: Vec<(RelayToken, u64, SocketAddr, Duration)>,
    controls: Vec<Asleep>,
    /// Reservations, and their sessions.
    held: Vec<(Holding, u64)>,
}

/// A session whose connection sleeps.
struct Asleep {
    head: estate::Control,
    came: Vec<u8>,
    unsaid: Vec<u8>,
}

impl Relay {
    /// Has `endpoint` relay as [`start`](Self::start) does, with what another relay has [left](Self::leave).
    /// Clients of QUIC are served from now on, all others [later](Prepared::listen). Must run inside a tokio
    /// runtime.
    ///
    /// # Errors
    /// [`BadEstate`] if it does not fit together: nothing was changed then but that some datagrams may be
    /// lost.
    pub fn prepare(
        endpoint: Endpoint,
        allow: Allow,
        limits: Limits,
        addresses: Vec<SocketAddr>,
        estate: Estate,
    ) -> Result<Prepared, BadEstate> {
        let mut prepared = Prepared::new(endpoint, allow, limits, addresses);
        let now = Instant::now();
        estate.into_pieces().into_iter().try_for_each(|piece| prepared.take(piece, now))?;
        prepared.stand_before();
        Ok(prepared)
    }
}

fn socket(socket: OwnedFd) -> Result<TcpStream, BadEstate> {
    let socket = std::net::TcpStream::from(socket);
    let registered = socket.set_nonblocking(true).and_then(|()| TcpStream::from_std(socket));
    let registered = registered.and_then(|socket| tune(&socket).map(|()| socket));
    registered.map_err(|_| BadEstate::Malformed("a socket"))
}

/// Cuts bytes in two.
fn cut(mut bytes: Vec<u8>, at: usize) -> Result<(Vec<u8>, Vec<u8>), BadEstate> {
    if at > bytes.len() {
        return Err(BadEstate::Malformed("lengths"));
    }
    let behind = bytes.split_off(at);
    Ok((bytes, behind))
}

impl Prepared {
    pub(super) fn new(endpoint: Endpoint, allow: Allow, limits: Limits, addresses: Vec<SocketAddr>) -> Self {
        let line = Line::new(&limits);
        // The same after a restart, and in the process that goes on in this one's place: aliases are good for
        // as long.
        let aliases = Arc::new(Aliases::new(&endpoint.derive_secret(ALIAS_KEY)));
        let ferry = Arc::new(Ferry::new(limits.clone(), line.clone(), aliases.clone()));
        let shared = Arc::new(Shared {
            table: Mutex::new(Table::new(limits)),
            servers: Mutex::default(),
            ends: Mutex::new(Ends::default()),
            leftovers: Mutex::new(Leftovers::default()),
            halting: watch::Sender::new(false),
            traffic: Traffic::new(line),
            ferry,
            aliases,
            sources: Sources::default(),
            addresses,
            gate: OnceLock::new(),
        });
        Self {
            endpoint,
            shared,
            allow,
            spares: Vec::new(),
            splices: Vec::new(),
            strangers: Vec::new(),
            clients: Vec::new(),
            controls: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Has servers prove that they may have a reservation, where the gate wants that. The first gate stays.
    pub fn set_gate(&self, gate: Arc<dyn Gate>) {
        let _ = self.shared.gate.set(gate);
    }

    /// Sees connections and datagrams before the endpoint does.
    pub(super) fn stand_before(&self) {
        self.endpoint.set_front(Arc::new(Door(self.shared.clone())));
        self.endpoint.set_datagram_front(self.shared.ferry.clone());
    }

    fn take(&mut self, piece: Piece, now: Instant) -> Result<(), BadEstate> {
        let Piece { head, body, sockets } = piece;
        let mut sockets = sockets.into_iter();
        let mut next = || socket(sockets.next().ok_or(BadEstate::Malformed("sockets"))?);
        let mut table = lock(&self.shared.table);
        match head {
            Head::Relay(counters) => {
                table.go_on(&counters);
                self.shared.ferry.flows().go_on(&counters);
            }
            Head::Turns(turns) if turns.quic => self.shared.ferry.flows().go_on_with_turns(&turns, now),
            Head::Turns(turns) => table.go_on_with_turns(&turns, now),
            Head::Reservation(left) => {
                let holding = table.go_on_with(&left).ok_or(BadEstate::Malformed("a token twice"))?;
                // Packets name aliases before the sessions go on.
                self.shared.aliases.hold(holding.to_parts().0);
                self.held.push((holding, control::number()));
            }
            Head::Control(head) => {
                let (came, unsaid) = cut(body, head.came)?;
                self.controls.push(Asleep { head, came, unsaid });
            }
            Head::Spare(left) => {
                let (begin, begun) = oneshot::channel();
                if table.go_on_with_spare(&left, begin) {
                    self.spares.push((next()?, begun));
                }
            }
            Head::Client(estate::Client { token, number, remote, ago_ms }) => {
                let (token, since) = (RelayToken::from_bytes(token), before(now, ago_ms));
                let client = Client { socket: next()?, remote, first: body, since };
                let patience = table.limits().patience.saturating_sub(now - since);
                if table.go_on_with_client(token, number, client) {
                    self.clients.push((token, number, remote, patience));
                }
            }
            Head::Splice(left) => {
                let (there, back) = cut(body, left.there.waiting)?;
                let at = table.go_on_with_splice(&left).ok_or(BadEstate::Malformed("a splice twice"))?;
                let underway = Underway {
                    there: Direction::going_on(there, left.there.ended),
                    back: Direction::going_on(back, left.back.ended),
                };
                let (client, spare) = (next()?, next()?);
                let bytes = AtomicU64::new(left.bytes);
                // One that has gone is as good as any.
                let from = client.peer_addr().map_or(IpAddr::from([0; 4]), |at| at.ip());
                self.shared.traffic.begin(left.bytes);
                self.splices.push(Spliced { at, client, spare, from, underway, bytes, since: now });
            }
            Head::Stranger { remote } => {
                self.strangers.push(Fronted { socket: next()?, remote, first: body });
            }
            Head::Server(left) => {
                let token = RelayToken::from_bytes(left.token);
                let held = self.held.iter().find(|(holding, _)| holding.to_parts().0 == token);
                let (_, session) = held.ok_or(BadEstate::Malformed("a server without a reservation"))?;
                let mut flows = self.shared.ferry.flows();
                flows.go_on_with_server(&left, *session, |out| outlet(&self.endpoint, out), now);
            }
            Head::Flows(left) => {
                let mut flows = self.shared.ferry.flows();
                for flow in &left {
                    // One that is reached from nowhere any more begins anew.
                    let _ = flows.go_on_with_flow(flow, |out| outlet(&self.endpoint, out), now);
                }
            }
        }
        Ok(())
    }

    /// Reads what the relay does, now and when it has gone on.
    pub fn stats_reader(&self) -> impl Fn() -> RelayStats + Send + Sync + use<> {
        let shared = self.shared.clone();
        move || shared.stats()
    }

    /// Lets servers and clients in: those that have waited meanwhile, and further ones.
    ///
    /// # Errors
    /// [`ListenError`] if the endpoint cannot listen, or relays already.
    pub async fn listen(self) -> Result<Listening, ListenError> {
        self.endpoint.answer_stun();
        let options = ListenOptions::named(control_name()?).unpublished().allow(self.allow.clone());
        let listener = self.endpoint.listen(options).await?;
        Ok(Listening { prepared: self, listener })
    }
}

/// A relay that lets servers and clients in, and has not gone on with those that are there.
#[derive(Debug)]
pub struct Listening {
    prepared: Prepared,
    listener: Listener,
}

impl Listening {
    /// Goes on. `connections` are those that were passed on beside, awake, and in the same order.
    pub fn go_on(self, connections: &[Connection]) -> Relay {
        let Self { prepared, listener } = self;
        let Prepared { endpoint, shared, spares, splices, strangers, clients, controls, held, .. } = prepared;
        let mut free = held;
        let sessions = controls.into_iter().filter_map(|Asleep { head, came, unsaid }| {
            let connection = connections.get(head.connection)?.clone();
            let holds = head.holds.and_then(|(token, generation)| {
                let is_it = |(holding, _): &(Holding, u64)| {
                    holding.to_parts() == (RelayToken::from_bytes(token), generation)
                };
                let at = free.iter().position(is_it)?;
                Some(free.swap_remove(at))
            });
            Some(Session::going_on(connection, &shared, head.stream, (came, unsaid), holds))
        });
        let sessions: Vec<_> = sessions.collect();
        for (holding, session) in free {
            // Its server has gone.
            lock(&shared.table).release(holding);
            shared.ferry.release(holding.to_parts().0, session);
            shared.aliases.release(holding.to_parts().0);
        }
        for (socket, begun) in spares {
            let from = socket.peer_addr().ok();
            let place = from.and_then(|from| shared.sources.enter(from.ip(), usize::MAX));
            tokio::spawn(FutureExt::boxed(shared.clone().spare(socket, begun, place)));
        }
        for spliced in splices {
            let shared = shared.clone();
            tokio::spawn(FutureExt::boxed(async move { shared.splice(Box::new(spliced), false).await }));
        }
        for (token, number, remote, patience) in clients {
            // The server may not have been told.
            let waiting = lock(&shared.table).waiting(token);
            shared.order(token, waiting);
            tokio::spawn(FutureExt::boxed(shared.clone().lose_patience(token, number, remote, patience)));
        }
        strangers.into_iter().for_each(|stranger| endpoint.accept_fronted(stranger));
        let accepting = tokio::spawn(FutureExt::boxed(control::accept(listener, shared.clone(), sessions)));
        Relay { endpoint, shared, accepting }
    }
}

/// What sends as another relay's did.
fn outlet(endpoint: &Endpoint, out: &estate::Out) -> Option<Outlet> {
    endpoint.outlet(out.bound, out.source)
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("id", &self.endpoint.id()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// The key of its reservation stayed in it, and all that its client said.
    #[tokio::test]
    async fn the_task_of_a_spare_holds_less_than_a_kilobyte_while_it_waits_and_while_it_is_spliced() {
        let endpoint = Endpoint::builder().ip([127, 0, 0, 1].into()).bind().await.unwrap();
        let Prepared { shared, .. } = Prepared::new(endpoint, Allow::Any, Limits::default(), Vec::new());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (_begin, begun) = oneshot::channel();
        // A future has room for the largest of its states.
        let size = size_of_val(&shared.spare(socket, begun, None));
        assert!(size < 1024, "{size} bytes");
    }
}
