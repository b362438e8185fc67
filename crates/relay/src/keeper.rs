//! The server's side: keeps a reservation with each of its relays, a stock of spares, and a flow for QUIC.

use futures_util::FutureExt;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;
use whimbrel_base::{EndpointAddr, EndpointId, RelayToken, RelayedAddr, SecretKey, Ticket, random_bytes};
use whimbrel_transport::{
    AddressSet, BoxFuture, CloseCode, ConnectError, Connection, Endpoint, Locator, PathState, Proxied,
    Timeouts, Watch, Watched,
};

use self::crossing::Crossing;
use self::end::End;
use self::messages::Messages;
use self::proving::{Proving, outcome};
use self::stock::Stock;
use self::wish::Wish;
use crate::directory::Directory;
use crate::gate::Prover;
use crate::service::control_name;
use crate::spare::Key;
use crate::token::{Salt, token_of};
use crate::wire::{Message, Reserved};
use whimbrel_base::order;

mod crossing;
mod end;
mod messages;
mod proving;
mod stock;
mod wish;

/// Between attempts to get a reservation.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A session that lasted so long was a good one: the next attempt comes soon.
const LASTING: Duration = Duration::from_secs(10);
/// A relay answers a request for a reservation within this.
const ANSWER: Duration = Duration::from_secs(10);
/// A relay that cannot be reached for so long is told to nobody until it can.
const AWAY: Duration = Duration::from_secs(5);
/// An idle control connection is used so often: NAT gateways forget it otherwise, and a relay that has died is to
/// be noticed.
const HEARTBEAT: Duration = Duration::from_secs(20);
/// The same where other relays can take its place: so one that has died without a word is noticed.
const CHECK: Duration = Duration::from_secs(2);
/// There, a relay is left that is silent for so long while this host is not on the move.
const SILENCE: Duration = Duration::from_secs(1);
/// There, a relay is given up that cannot be reached within this.
const REACH: Duration = Duration::from_millis(1500);
/// The same where this network's HTTP proxy may lead there: it is asked after what leads there directly, and
/// what is farther takes a round trip more.
const REACH_BY_PROXY: Duration = Duration::from_secs(4);
/// There, the longest time between attempts.
const LONGEST_BETWEEN_OTHERS: Duration = Duration::from_secs(5);
/// Nobody is told of a reservation for so long, or until its flow for QUIC is open, which takes two round trips to the
/// relay: three of them, within these.
const OPENING: RangeInclusive<Duration> = Duration::from_millis(400)..=Duration::from_secs(2);
/// How often it is looked whether the relay can be reached.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_FOR_OTHERS: Duration = Duration::from_millis(250);
/// Clients and the name service are told within this that a relay is about to stop.
const TELL: Duration = Duration::from_millis(400);
/// Addresses of one relay that clients are told: one of each family.
const PLACES: usize = 2;

/// A relay that holds a reservation and can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Which.
    pub relay: EndpointId,
    /// The round trip to it when that was told last.
    pub rtt: Duration,
    /// Where clients find this server behind it, one of each family.
    pub places: Vec<RelayedAddr>,
    /// Why no client can come through it over TCP, once that is known.
    pub unserved: Option<String>,
}

/// How it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keeping {
    /// Relays that hold a reservation and can be reached.
    pub held: usize,
    /// These, the nearest first: so clients are told.
    pub relays: Vec<Kept>,
    /// Why the last attempt failed, while none does.
    pub problem: Option<String>,
}

/// Keeps reservations until it is dropped. The endpoint tells its peers and the name service of them.
pub struct Keeper {
    endpoint: Endpoint,
    news: Watch<Keeping>,
    /// Ended when this is dropped.
    _tasks: JoinSet<()>,
}

/// What the tasks of all relays share.
struct Places {
    endpoint: Endpoint,
    /// By relation.
    kept: Mutex<Vec<Option<Kept>>>,
    keeping: Watched<Keeping>,
}

impl Places {
    /// So one of the relations stands now.
    fn set(&self, relation: usize, kept: Option<Kept>, problem: Option<String>) {
        let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        all[relation] = kept;
        let mut relays: Vec<Kept> = all.iter().flatten().cloned().collect();
        order::by_key(&mut relays, |kept| kept.rtt);
        let held = relays.len();
        self.endpoint.set_relayed(relays.iter().flat_map(|kept| kept.places.clone()).collect());
        self.keeping.set(Keeping { held, relays, problem: problem.filter(|_| held == 0) });
    }
}

impl Keeper {
    /// Keeps a reservation for `endpoint` with each of the relays, as the holder of its `key`. Must run inside a
    /// tokio runtime.
    pub fn start(endpoint: Endpoint, key: &SecretKey, relays: Vec<Arc<dyn Directory>>) -> Self {
        Self::start_with(endpoint, key, relays, None)
    }

    /// As [`start`](Self::start), with what is shown to relays that want a proof.
    pub fn start_with(
        endpoint: Endpoint,
        key: &SecretKey,
        relays: Vec<Arc<dyn Directory>>,
        prover: Option<Arc<dyn Prover>>,
    ) -> Self {
        Self::begin(endpoint, (key.id(), Salt::of(key)), relays, prover)
    }

    /// As [`start_with`](Self::start_with), at places of its own that last no longer than this: other endpoints with
    /// the same key, in this process or others, keep theirs at the same relays.
    pub fn start_apart(
        endpoint: Endpoint,
        relays: Vec<Arc<dyn Directory>>,
        prover: Option<Arc<dyn Prover>>,
    ) -> Self {
        let id = endpoint.id();
        Self::begin(endpoint, (id, Salt(random_bytes())), relays, prover)
    }

    fn begin(
        endpoint: Endpoint,
        (id, salt): (EndpointId, Salt),
        relays: Vec<Arc<dyn Directory>>,
        prover: Option<Arc<dyn Prover>>,
    ) -> Self {
        let proving = Proving(prover);
        let token = token_of(id, &salt);
        let kept = Mutex::new(vec![None; relays.len()]);
        let keeping = Watched::new(Keeping::default());
        let news = keeping.watch();
        let places = Arc::new(Places { endpoint: endpoint.clone(), kept, keeping });
        let mut tasks = JoinSet::new();
        for (index, directory) in relays.into_iter().enumerate() {
            let (endpoint, places, proving) = (endpoint.clone(), places.clone(), proving.clone());
            let relation = Relation { endpoint, places, index, directory, salt, token, proving };
            tasks.spawn(FutureExt::boxed(relation.run()));
        }
        Self { endpoint, news, _tasks: tasks }
    }

    /// How it stands, now and as it changes.
    pub fn news(&self) -> Watch<Keeping> {
        self.news.clone()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.endpoint.set_relayed(Vec::new());
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("news", &self.news.current()).finish_non_exhaustive()
    }
}

/// What is between this server and one relay.
struct Relation {
    endpoint: Endpoint,
    places: Arc<Places>,
    index: usize,
    directory: Arc<dyn Directory>,
    salt: Salt,
    token: RelayToken,
    proving: Proving,
}

impl Relation {
    async fn run(self) {
        let mut pause = FIRST_PAUSE;
        let mut addresses = self.endpoint.watch_addresses();
        let mut stock = Stock::new(self.endpoint.clone());
        let mut crossing = Crossing::new(self.endpoint.clone(), &self.salt);
        loop {
            let begun = tokio::time::Instant::now();
            let mut held = false;
            let end = match self.directory.locate().await {
                Ok(addr) => {
                    let Err(end) = self.session(&addr, &mut stock, &mut crossing, &mut held).await;
                    self.directory.failed(addr.id);
                    end
                }
                Err(error) => End::Unknown(error),
            };
            self.places.set(self.index, None, Some(end.to_string()));
            if matches!(&end, End::Unreachable(ConnectError::EndpointClosed)) {
                return;
            }
            tracing::info!(%end, "no reservation with a relay");
            let has_others = self.directory.has_others();
            if begun.elapsed() >= LASTING {
                pause = FIRST_PAUSE;
            }
            if held && has_others && begun.elapsed() >= SILENCE {
                // Another one takes its place.
                continue;
            }
            let longest = if has_others { LONGEST_BETWEEN_OTHERS } else { LONGEST_PAUSE };
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(longest),
                _ = addresses.changed() => pause = FIRST_PAUSE,
            }
        }
    }

    async fn connect(&self, addr: &EndpointAddr, has_others: bool) -> Result<Ended, End> {
        let name = control_name().map_err(io::Error::other)?;
        let connecting = self.endpoint.connect(Ticket::new(addr.id, addr.addrs.clone(), Some(name)));
        let reach = if self.endpoint.may_use_proxy(&addr.addrs) { REACH_BY_PROXY } else { REACH };
        let connection = match has_others {
            true => tokio::time::timeout(reach, connecting).await.map_err(|_| End::Silent)??,
            false => connecting.await?,
        };
        let heartbeat = if has_others { CHECK } else { HEARTBEAT };
        // Within its range, so it is taken.
        let _ = connection.set_timeouts(Timeouts { heartbeat, ..connection.timeouts() });
        Ok(Ended(connection))
    }

    /// Gets a reservation, and serves it for as long as it lasts. Says whether it was `held`.
    async fn session(
        &self,
        addr: &EndpointAddr,
        stock: &mut Stock,
        crossing: &mut Crossing,
        held: &mut bool,
    ) -> Result<std::convert::Infallible, End> {
        let has_others = self.directory.has_others();
        let connection = self.connect(addr, has_others).await?;
        let (read, mut write) = connection.0.open_stream().await.map_err(io::Error::from)?.into_split();
        write.write_all(&Message::Reserve(self.salt).encode()).await?;
        let mut messages = Messages::of(read);
        let reserved = self.proving.answer(&mut messages, &mut write).await?;
        let places = self.places_of(&reserved, addr, &connection.0);
        let Some(first) = places.first().copied() else {
            return Err(End::Unknown(io::ErrorKind::AddrNotAvailable.into()));
        };
        let key = Key::new(&reserved.key);
        stock.begin(key.clone(), reserved.spares, first);
        crossing.begin(key, first);
        follow(&connection.0, stock, crossing);
        // A client's first packet would be lost before. Where UDP is blocked, there is TCP.
        let limit = round_trip(&connection.0).saturating_mul(3).clamp(*OPENING.start(), *OPENING.end());
        let _ = tokio::time::timeout(limit, crossing.opened()).await;
        let kept = |unserved| {
            let (relay, rtt) = (addr.id, round_trip(&connection.0));
            Some(Kept { relay, rtt, places: places.clone(), unserved })
        };
        self.places.set(self.index, kept(None), None);
        *held = true;
        tracing::info!(relay = %first.relay, "reserved");
        let mut look = tokio::time::interval(if has_others { LOOK_FOR_OTHERS } else { LOOK });
        let (mut is_told, mut told) = (true, None);
        let (addresses, mut moved) = (self.endpoint.watch_addresses(), tokio::time::Instant::now());
        let mut set = addresses.current();
        let mut proof: Option<BoxFuture<'_, Result<Vec<u8>, End>>> = None;
        let mut wish = Wish::default();
        loop {
            follow(&connection.0, stock, crossing);
            if let Some(wanted) = wish.next(&self.endpoint, &places, crossing) {
                write.write_all(&wanted.encode()).await?;
            }
            tokio::select! {
                message = messages.next() => match message? {
                    Message::Wanted(count) => stock.wanted(count),
                    Message::Aliases(came) => wish.came(came, &self.endpoint, &places, crossing),
                    // However often it asks, it is shown one after another.
                    Message::Prove if proof.is_some() => {}
                    Message::Prove => proof = Some(self.proving.proof().boxed()),
                    Message::Refused(reason) => return Err(End::Refused(reason)),
                    Message::Draining => {
                        self.places.set(self.index, None, Some(End::Draining.to_string()));
                        tokio::time::sleep(TELL).await;
                        crossing.end();
                        write.write_all(&Message::Released.encode()).await?;
                        let _ = tokio::time::timeout(ANSWER, write.stream().drained()).await;
                        return Err(End::Draining);
                    }
                    _ => return Err(End::Lost(io::ErrorKind::InvalidData.into())),
                },
                made = outcome(&mut proof) => {
                    proof = None;
                    match made {
                        Ok(made) => write.write_all(&Message::Proof(made).encode()).await?,
                        // It asks again.
                        Err(error) => tracing::info!(%error, "nothing to show to the relay"),
                    }
                }
                never = crossing.work() => match never {},
                left = stock.news() => {
                    for origin in left {
                        write.write_all(&Message::Left(origin).encode()).await?;
                    }
                }
                _ = look.tick() => {
                    let silence = connection.0.stats().unreachable.unwrap_or_default();
                    let present = addresses.current();
                    if present != set {
                        (set, moved) = (present, tokio::time::Instant::now());
                    }
                    // A host that has just moved, or is nowhere, has itself to blame.
                    let is_here = !set.addresses.is_empty() && moved.elapsed() >= SILENCE;
                    if has_others && is_here && silence >= SILENCE {
                        return Err(End::Silent);
                    }
                    let away = silence >= AWAY;
                    // A relay that is silent takes no spares either, which says nothing of TCP.
                    let unserved = if silence.is_zero() { stock.problem() } else { told.clone() };
                    if away == is_told || unserved != told {
                        (is_told, told) = (!away, unserved);
                        let problem = away.then(|| "the relay cannot be reached".to_owned());
                        self.places.set(self.index, kept(told.clone()).filter(|_| is_told), problem);
                    }
                }
            }
        }
    }

    /// Where clients find this server: behind the relay's own addresses if it tells them, else behind those that
    /// this server knows, that of the present path first.
    fn places_of(
        &self,
        reserved: &Reserved,
        addr: &EndpointAddr,
        connection: &Connection,
    ) -> Vec<RelayedAddr> {
        let known = || {
            let direct = Locator::list(&addr.addrs).into_iter().map(|place| place.address());
            way_of(connection, None).map(relay_of).into_iter().chain(direct).collect()
        };
        let all = if reserved.addresses.is_empty() { known() } else { reserved.addresses.clone() };
        let mut places: Vec<RelayedAddr> = Vec::new();
        for relay in all {
            let is_new = !places.iter().any(|place| place.relay.is_ipv4() == relay.is_ipv4());
            if is_new && places.len() < PLACES {
                places.push(RelayedAddr { relay, token: self.token });
            }
        }
        places
    }
}

/// Whether this host no longer has the address.
fn is_gone(set: &AddressSet, ip: IpAddr) -> bool {
    // All of 127/8 is there, although one address of it is listed.
    let all_loopback = ip.is_loopback() && set.contains(Ipv4Addr::LOCALHOST.into());
    !set.contains(ip) && !all_loopback
}

/// How the relay is reached by a connection, as [`way_among`] its paths.
fn way_of(connection: &Connection, before: Option<Locator>) -> Option<Locator> {
    let paths: Vec<_> = connection.stats().paths.iter().map(|path| (path.state, path.remote)).collect();
    way_among(&paths, before)
}

/// As before, if that works, else by the first path that does: on one that was not answered nobody has shown a
/// key, and one that fell silent may lead nowhere any more.
fn way_among(paths: &[(PathState, Locator)], before: Option<Locator>) -> Option<Locator> {
    let works = |way: &Locator| paths.contains(&(PathState::Active, *way));
    let first = paths.iter().find(|(state, _)| *state == PathState::Active).map(|(_, way)| *way);
    before.filter(works).or(first)
}

/// Has spares and datagrams go where the control connection goes, or went last: there the relay has shown its
/// key. Where it says to be is for clients, and may be anybody's.
fn follow(connection: &Connection, stock: &mut Stock, crossing: &mut Crossing) {
    if let Some(way) = way_of(connection, stock.way()) {
        stock.dial_by(way);
        crossing.dial_from(relay_of(way));
    }
    stock.fill();
}

/// The relay's own address, also where an HTTP proxy leads there: that is no place for clients, and passes no
/// datagrams on.
fn relay_of(remote: Locator) -> SocketAddr {
    match remote {
        Locator::Proxied(Proxied { place, .. }) => Locator::from(place).address(),
        other => other.address(),
    }
}

/// What the relay is away, over the path that is best now.
fn round_trip(connection: &Connection) -> Duration {
    connection.stats().paths.iter().map(|path| path.srtt).min().unwrap_or(Duration::MAX)
}

/// A connection that ends with its session.
struct Ended(Connection);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort(CloseCode::NONE, "");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_base::Place;

    use super::*;

    #[test]
    fn a_relay_that_an_http_proxy_leads_to_is_where_it_is_and_not_at_the_proxy() {
        let (proxy, relay) = ("10.1.0.1:8888".parse().unwrap(), "203.0.113.5:443".parse().unwrap());
        let place = Place::Direct(relay);
        assert_eq!(relay_of(Locator::Proxied(Proxied { proxy, place })), relay);
        assert_eq!(relay_of(Locator::Direct(relay)), relay);
    }

    #[test]
    fn spares_go_where_the_relay_answers_and_stay_there_while_it_does() {
        let way = |port: u16| Locator::Direct(SocketAddr::from(([203, 0, 113, 5], port)));
        let (opening, old, new) =
            ((PathState::Opening, way(1)), (PathState::Active, way(2)), (PathState::Active, way(3)));
        assert_eq!(way_among(&[opening], None), None, "nobody has shown a key there");
        assert_eq!(way_among(&[opening, old, new], None), Some(way(2)));
        assert_eq!(way_among(&[opening, old, new], Some(way(3))), Some(way(3)));
        for gone in [PathState::Suspect, PathState::Retiring] {
            assert_eq!(way_among(&[(gone, way(2)), new], Some(way(2))), Some(way(3)));
        }
        assert_eq!(way_among(&[], Some(way(2))), None);
    }
}
