//! Connections to servers: those that are open and idle, and new ones, by the manager's choice.

mod ahead;
mod deciding;
mod idle;
mod making;
mod reconsidering;

use super::assembly::On;
use super::decided::{Counted, Decided, Offer, REPORT, Route, Unit};
use super::line::{Line, Speaks, speaks_of_the_network};
use super::multiplexed::Multiplexed;
use super::present::{Hearing, Present};
use super::rooms::{Room, Rooms};
use super::secured::Secured;
use super::speaker::Speaker;
use super::turns::{Rules, Turn, Turns};
use crate::networks::Networks;
use crate::upstream::unreached;
use crate::{Destination, Upstream, UpstreamError};
use ahead::Ahead;
use idle::Idle;
use socket2::{SockRef, TcpKeepalive};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use whimbrel_access::Intents;
use whimbrel_multiaccess::Candidate;
use whimbrel_multiaccess::protocol::OpenConnection;

/// A connection that nobody used for so long is closed: servers do so too.
const IDLE: Duration = Duration::from_secs(60);
/// A connection fails when its network neither took anything nor gave a sign of life for so long: what waits
/// for an answer may then go over another one. It is longer than what a network recovers from by itself.
const SILENT: Duration = Duration::from_secs(20);
/// After so long without anything a sign of life is asked for, and again.
const ASKED: Duration = Duration::from_secs(8);
const ASKED_AGAIN: Duration = Duration::from_secs(4);

/// All servers.
pub(super) struct Origins {
    upstream: Arc<dyn Upstream>,
    /// Nothing is said to a server before it has shown who it is. `None`: plain HTTP is spoken.
    secured: Option<Arc<Secured>>,
    idle: Mutex<Idle>,
    turns: Arc<Turns>,
    ahead: Ahead,
    /// For connections that nobody waits for any more.
    left: Arc<Semaphore>,
    networks: Arc<Networks>,
    rooms: Arc<Rooms>,
    hearing: Hearing,
}

/// A connection that carries a message, and the place that it goes back to.
pub(super) struct Lease {
    /// On the heap: it goes from hand to hand.
    line: Box<Line>,
    origins: Arc<Origins>,
    unit: Option<Unit>,
    /// Given back behind the connection, so that the next one finds that. On the heap: mostly there is none.
    turn: Option<Box<Turn>>,
}

impl Lease {
    /// The connection.
    pub(super) fn line(&mut self) -> &mut Line {
        &mut self.line
    }

    /// The way that it was made by, where the manager chose it.
    pub(super) fn by(&self) -> Option<&Candidate> {
        self.line.by()
    }

    /// Which connection it is, where the manager chose its way.
    pub(super) fn on(&self) -> Option<On> {
        Some(On { id: self.line.id(), source: self.line.source()? })
    }

    /// Whether it has carried another message before.
    pub(super) fn was_used(&self) -> bool {
        self.line.was_used()
    }

    /// The same with a turn, which it has until it is released or dropped.
    pub(super) fn with(self, turn: Option<Box<Turn>>) -> Self {
        Self { turn, ..self }
    }

    /// The message has so many bytes, and not as many as it was decided for.
    pub(super) fn resize(&self, bytes: u64) {
        if let Some(mut counted) = self.counted(bytes) {
            counted.resize(bytes);
        }
    }

    /// What the message counts as with the manager, with so many bytes at present.
    pub(super) fn counted(&self, bytes: u64) -> Option<Counted> {
        self.unit.as_ref()?.counted(bytes)
    }

    /// The message has come. The connection carries what belongs to another one.
    pub(super) fn settle(&mut self) {
        self.unit = None;
    }

    /// Whether its connection carries others meanwhile.
    pub(super) fn is_shared(&self) -> bool {
        self.line.is_shared()
    }

    /// What counts as scheduled for the message, with the manager.
    pub(super) fn unit(&self) -> Option<u64> {
        self.unit.as_ref().and_then(Unit::number)
    }

    /// Something of the message came.
    pub(super) fn moved(&self) {
        if let Some(turn) = &self.turn {
            turn.moved();
        }
    }

    /// Nothing is asked for on it for now.
    pub(super) fn rest(&self) {
        if let Some(turn) = &self.turn {
            turn.rest();
        }
    }

    /// Closes the connection. Its turn is left for another one.
    pub(super) fn close(self) -> Option<Box<Turn>> {
        self.turn
    }

    /// The message and its answer have passed, and the connection may carry another. Else it closes when this
    /// is dropped.
    pub(super) fn release(self) {
        self.origins.keep(self.line);
    }
}

impl Origins {
    pub(super) fn new(upstream: Arc<dyn Upstream>, turns: Rules) -> Arc<Self> {
        Self::made(upstream, turns, None, Arc::default(), Arc::default())
    }

    /// Others over TLS. The networks are the same.
    pub(super) fn over_tls(
        &self,
        upstream: Arc<dyn Upstream>,
        turns: Rules,
        secured: Arc<Secured>,
    ) -> Arc<Self> {
        let (networks, rooms) = (Arc::clone(&self.networks), Arc::clone(&self.rooms));
        Self::made(upstream, turns, Some(secured), networks, rooms)
    }

    fn made(
        upstream: Arc<dyn Upstream>,
        turns: Rules,
        secured: Option<Arc<Secured>>,
        networks: Arc<Networks>,
        rooms: Arc<Rooms>,
    ) -> Arc<Self> {
        let (idle, turns, ahead) = (Mutex::default(), Turns::new(turns), Ahead::default());
        let (left, hearing) = (Arc::new(Semaphore::new(making::MOST)), Hearing::default());
        Arc::new(Self { upstream, secured, idle, turns, ahead, left, networks, rooms, hearing })
    }

    /// What passes over each network.
    pub(super) fn networks(&self) -> &Arc<Networks> {
        &self.networks
    }

    /// What may be asked for over each network.
    pub(super) fn rooms(&self) -> &Rooms {
        &self.rooms
    }

    /// Waits until so many bytes may be asked for on this connection. `None`: however many are. Cancel-safe.
    pub(super) async fn room(&self, lease: &Lease, bytes: u64) -> Option<Room> {
        self.rooms.take(lease.by()?.interface.as_deref()?, bytes).await
    }

    /// Which networks there are, from now on. `None`: no manager leads there.
    pub(super) fn present(&self, to: &Destination) -> Option<Present> {
        Some(self.hearing.present(self.upstream.manager(to)?))
    }

    /// Waits for a turn with this server on this network. What `has_begun` goes first. `None`: it goes on
    /// without.
    pub(super) async fn turn(&self, to: &Destination, network: &str, has_begun: bool) -> Option<Box<Turn>> {
        if !self.turns.are_here() && self.upstream.is_here(to) {
            return None;
        }
        // On the heap: what is on this host has no turns, and no need of the memory.
        Box::pin(self.turns.take(to, network, has_begun)).await.map(Box::new)
    }

    /// How everything else is reached.
    pub(super) fn upstream(&self) -> &dyn Upstream {
        &*self.upstream
    }

    /// Gives a connection for a message: an idle one, or a new one, as was decided.
    pub(super) async fn lease(
        self: &Arc<Self>,
        to: &Destination,
        intents: &Intents,
        decided: Decided,
    ) -> Result<Lease, UpstreamError> {
        let Decided { alone, beside, .. } = decided;
        // Where the manager may choose a gateway or not, and says nothing now, what it chose before is left.
        let is_apart = decided.routes.is_empty() && self.upstream.choose(to, intents).is_some();
        let fits = |line: &Line, _| line.serves(alone) && !(is_apart && line.by().is_some());
        let line = match decided.routes.is_empty() {
            true => match self.take(to, fits).await {
                Some(line) => line,
                // On the heap: most messages find a connection, and have no need of the memory to make one.
                None => Box::pin(self.reach(to, intents, alone)).await?,
            },
            false => Box::pin(self.by_routes(to, intents, decided.routes, (alone, beside))).await?,
        };
        Ok(Lease { line, origins: Arc::clone(self), unit: decided.unit, turn: None })
    }

    /// Gives a new connection for a message, by the first of these ways that works; without any, however the
    /// server is reached. It is `alone` if it has to become something else than HTTP.
    pub(super) async fn lease_new(
        self: &Arc<Self>,
        to: &Destination,
        intents: &Intents,
        ways: Vec<Candidate>,
        alone: bool,
    ) -> Result<Lease, UpstreamError> {
        let line = match ways.is_empty() {
            true => Box::pin(self.reach(to, intents, alone)).await?,
            false => Box::pin(self.connect(to, intents, ways, alone)).await?,
        };
        Ok(Lease { line, origins: Arc::clone(self), unit: None, turn: None })
    }

    /// Tells the manager of a way that does not work any more, so that it is not the next one, and lets go of
    /// what is open there.
    pub(super) async fn failed(&self, to: &Destination, by: &Candidate) {
        self.leave(to, by);
        if let (Some(client), Some(report)) = (self.upstream.manager(to), by.failure()) {
            let _ = tokio::time::timeout(REPORT, client.report(report)).await;
        }
    }

    /// The same where nobody can wait.
    pub(super) fn failed_meanwhile(&self, to: &Destination, by: &Candidate) {
        self.leave(to, by);
        if let (Some(client), Some(report)) = (self.upstream.manager(to), by.failure()) {
            client.tell(report);
        }
    }

    /// No other message is to take a connection to this server over the network of this way: each would be
    /// found dead anew.
    fn leave(&self, to: &Destination, by: &Candidate) {
        if let Some(network) = &by.interface {
            let left = self.lock().leave(to, network);
            // They close without the lock.
            drop(left);
        }
    }

    async fn by_routes(
        self: &Arc<Self>,
        to: &Destination,
        intents: &Intents,
        routes: Vec<Route>,
        (alone, beside): (bool, bool),
    ) -> Result<Box<Line>, UpstreamError> {
        let Some(best) = routes.first().cloned() else {
            return self.reach(to, &Intents::default(), alone).await;
        };
        if let Some(id) = best.way.reuse
            && let Some(line) = self.take(to, |line, _| line.id() == id && line.serves(alone)).await
        {
            return Ok(line);
        }
        let mut ways = Vec::new();
        for Route { way, by, .. } in routes {
            // An open one behind another way in the ranking is not waited for.
            if way.reuse.is_none() || ways.is_empty() {
                ways.extend(by);
            }
        }
        // Another message may have taken it, or one has become idle while this one waited.
        let fits = |line: &Line, since| best.takes(line.by(), since) && line.serves(alone);
        self.connect_or_take(to, intents, ways, (alone, beside), fits).await
    }

    async fn connect(
        &self,
        to: &Destination,
        intents: &Intents,
        candidates: Vec<Candidate>,
        alone: bool,
    ) -> Result<Box<Line>, UpstreamError> {
        let Some(client) = self.upstream.manager(to).filter(|_| !candidates.is_empty()) else {
            return self.reach(to, &Intents::default(), alone).await;
        };
        let mut candidates = candidates;
        loop {
            let (host, port) = (to.host(), to.port());
            let connected = client.connect_by_these_or_others(candidates.clone(), host, port, *intents).await;
            let connected = connected.map_err(|error| unreached(to, error))?;
            client.have_steered(&connected, intents);
            // What is passed on is not held back until there is more of it.
            let _ = connected.stream.set_nodelay(true);
            watch(&connected.stream);
            let source = connected.stream.local_addr().ok().map(|address| address.ip());
            let by = connected.by;
            let made = self.line(to, Box::new(connected.stream), source, Some(by.clone()), alone).await;
            let Err(UpstreamError::Unreachable { source: why, .. }) = &made else { return made };
            if !speaks_of_the_network(why) {
                return made;
            }
            // It has gone under the handshake of TLS. Nothing was asked for yet: another one may carry it.
            self.failed(to, &by).await;
            let before = candidates.len();
            candidates.retain(|other| other.interface != by.interface);
            // Where the manager was asked for others already, none of these works.
            if candidates.is_empty() || candidates.len() == before {
                return made;
            }
        }
    }

    async fn reach(
        &self,
        to: &Destination,
        intents: &Intents,
        alone: bool,
    ) -> Result<Box<Line>, UpstreamError> {
        let reached = self.upstream.reach(to, intents).await?;
        self.line(to, reached.stream, None, None, alone).await
    }

    async fn line(
        &self,
        to: &Destination,
        stream: Box<dyn crate::Duplex>,
        source: Option<IpAddr>,
        by: Option<Candidate>,
        alone: bool,
    ) -> Result<Box<Line>, UpstreamError> {
        let id = self.lock().number();
        let network = by.as_ref().and_then(|by| by.interface.as_deref());
        let stream = self.networks.counted(network, stream);
        let (stream, carries_several) = match &self.secured {
            Some(secured) => secured.secure(to, stream, alone).await?,
            None => (stream, false),
        };
        let speaks = match carries_several {
            true => Multiplexed::start(stream).await.map(Speaks::Several),
            false => Speaker::start(stream).await.map(Speaks::One),
        };
        let speaks =
            speaks.map_err(|error| UpstreamError::NoWay { to: to.to_string(), why: error.to_string() })?;
        let line = Box::new(Line::new(id, to.clone(), speaks, source, by));
        if let Some(for_others) = line.share() {
            self.lock().put(Box::new(for_others));
        }
        Ok(line)
    }

    /// The idle connections to this server, for the manager.
    fn offers(&self, to: &Destination) -> Vec<Offer> {
        let mut idle = self.lock();
        idle.good(to).iter().filter(|(line, _)| line.has_room()).filter_map(|(line, _)| offer(line)).collect()
    }

    /// Takes an idle connection out that still works, or one that carries several messages and has room: the
    /// newest one that fits, and has been idle since then.
    async fn take(&self, to: &Destination, fits: impl Fn(&Line, Instant) -> bool) -> Option<Box<Line>> {
        loop {
            let mut line = self.lock().take(to, &fits)?;
            if line.is_ready().await {
                return Some(line);
            }
        }
    }

    fn keep(&self, line: Box<Line>) {
        if line.is_shared() {
            self.lock().rests(&line);
        } else if line.can_rest() {
            self.lock().put(line);
        }
    }

    /// Closes what has been idle for too long.
    pub(super) fn tidy(&self) {
        self.lock().tidy();
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets the kernel notice that a network is dead. Where it has no such options, its own limits count.
fn watch(stream: &tokio::net::TcpStream) {
    let socket = SockRef::from(stream);
    let asking = TcpKeepalive::new().with_time(ASKED).with_interval(ASKED_AGAIN);
    let _ = socket.set_tcp_keepalive(&asking);
    let _ = socket.set_tcp_user_timeout(Some(SILENT));
}

/// What the manager is told of a connection that carries nothing.
fn offer(line: &Line) -> Option<Offer> {
    let open = OpenConnection { id: line.id(), source: line.source()?, scheduled: 0 };
    Some(Offer { open, by: line.by().cloned() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
