//! The server's side: keeps a reservation with each of its relays, a stock of spares, and a flow for QUIC.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use whimbrel_base::{EndpointAddr, RelayToken, RelayedAddr, SecretKey, Ticket};
use whimbrel_transport::{
    AddressSet, BoxFuture, CloseCode, ConnectError, Connection, Endpoint, Locator, RecvHalf, Timeouts, Watch,
    Watched,
};

use self::crossing::Crossing;
use self::stock::Stock;
use crate::service::control_name;
use crate::spare::Key;
use crate::token::{Salt, token_of};
use crate::wire::{Message, Reserved};

mod crossing;
mod stock;

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
/// Nobody is told of a reservation for so long, or until its flow for QUIC is open.
const OPENING: Duration = Duration::from_millis(400);
/// How often it is looked whether the relay can be reached.
const LOOK: Duration = Duration::from_secs(1);
/// Clients and the name service are told within this that a relay is about to stop.
const TELL: Duration = Duration::from_millis(400);
/// Addresses of one relay that clients are told: one of each family.
const PLACES: usize = 2;

/// Where a relay is. The door for those who choose relays by other means than their addresses.
pub trait Directory: Send + Sync + 'static {
    /// Where it is now.
    fn locate(&self) -> BoxFuture<'_, io::Result<EndpointAddr>>;
}

impl Directory for EndpointAddr {
    fn locate(&self) -> BoxFuture<'_, io::Result<EndpointAddr>> {
        let addr = self.clone();
        Box::pin(async move { Ok(addr) })
    }
}

/// How it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keeping {
    /// Relays that hold a reservation and can be reached.
    pub held: usize,
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
    /// By relay.
    places: Mutex<Vec<Vec<RelayedAddr>>>,
    keeping: Watched<Keeping>,
}

impl Places {
    /// The places behind one of the relays are these now.
    fn set(&self, relay: usize, places: Vec<RelayedAddr>, problem: Option<String>) {
        let mut all = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        all[relay] = places;
        let held = all.iter().filter(|places| !places.is_empty()).count();
        self.endpoint.set_relayed(all.concat());
        self.keeping.set(Keeping { held, problem: problem.filter(|_| held == 0) });
    }
}

impl Keeper {
    /// Keeps a reservation for `endpoint` with each of the relays, as the holder of its `key`. Must run inside a
    /// tokio runtime.
    pub fn start(endpoint: Endpoint, key: &SecretKey, relays: Vec<Arc<dyn Directory>>) -> Self {
        let salt = Salt::of(key);
        let token = token_of(key.id(), &salt);
        let places = Mutex::new(vec![Vec::new(); relays.len()]);
        let keeping = Watched::new(Keeping::default());
        let news = keeping.watch();
        let places = Arc::new(Places { endpoint: endpoint.clone(), places, keeping });
        let mut tasks = JoinSet::new();
        for (index, directory) in relays.into_iter().enumerate() {
            let (endpoint, places) = (endpoint.clone(), places.clone());
            tasks.spawn(Relation { endpoint, places, index, directory, salt, token }.run());
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

/// Why a session with a relay ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the relay cannot be found: {0}")]
    Unknown(io::Error),
    #[error("the relay cannot be reached: {0}")]
    Unreachable(#[from] ConnectError),
    #[error("the relay gives no reservation: {0}")]
    Refused(String),
    #[error("the relay is about to stop")]
    Draining,
    #[error("the connection to the relay ended: {0}")]
    Lost(#[from] io::Error),
}

/// What is between this server and one relay.
struct Relation {
    endpoint: Endpoint,
    places: Arc<Places>,
    index: usize,
    directory: Arc<dyn Directory>,
    salt: Salt,
    token: RelayToken,
}

impl Relation {
    async fn run(self) {
        let mut pause = FIRST_PAUSE;
        let mut addresses = self.endpoint.watch_addresses();
        let mut stock = Stock::new(self.endpoint.clone());
        let mut crossing = Crossing::new(self.endpoint.clone());
        loop {
            let begun = tokio::time::Instant::now();
            let Err(end) = self.session(&mut stock, &mut crossing).await;
            self.places.set(self.index, Vec::new(), Some(end.to_string()));
            if matches!(&end, End::Unreachable(ConnectError::EndpointClosed)) {
                return;
            }
            tracing::info!(%end, "no reservation with a relay");
            if begun.elapsed() >= LASTING {
                pause = FIRST_PAUSE;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                _ = addresses.changed() => pause = FIRST_PAUSE,
            }
        }
    }

    /// Gets a reservation, and serves it for as long as it lasts.
    async fn session(
        &self,
        stock: &mut Stock,
        crossing: &mut Crossing,
    ) -> Result<std::convert::Infallible, End> {
        let addr = self.directory.locate().await.map_err(End::Unknown)?;
        let name = control_name().map_err(io::Error::other)?;
        let connection = self.endpoint.connect(Ticket::new(addr.id, addr.addrs.clone(), Some(name))).await?;
        let connection = Ended(connection);
        // Within its range, so it is taken.
        let _ = connection.0.set_timeouts(Timeouts { heartbeat: HEARTBEAT, ..connection.0.timeouts() });
        let (read, mut write) = connection.0.open_stream().await.map_err(io::Error::from)?.into_split();
        write.write_all(&Message::Reserve(self.salt).encode()).await?;
        let mut messages = Messages::of(read);
        let answer = tokio::time::timeout(ANSWER, messages.next()).await.map_err(io::Error::from)??;
        let reserved = match answer {
            Message::Reserved(reserved) => reserved,
            Message::Refused(reason) => return Err(End::Refused(reason)),
            _ => return Err(End::Lost(io::ErrorKind::InvalidData.into())),
        };
        let places = self.places_of(&reserved, &addr, &connection.0);
        let Some(first) = places.first().copied() else {
            return Err(End::Unknown(io::ErrorKind::AddrNotAvailable.into()));
        };
        let key = Key::new(&reserved.key);
        let relay = at(&connection.0).unwrap_or(first.relay);
        stock.begin(key.clone(), reserved.spares, first);
        stock.dial_from(relay);
        stock.fill();
        crossing.begin(key, first);
        crossing.dial_from(relay);
        // A client's first packet would be lost before. Where UDP is blocked, there is TCP.
        let _ = tokio::time::timeout(OPENING, crossing.opened()).await;
        self.places.set(self.index, places.clone(), None);
        tracing::info!(relay = %first.relay, "reserved");
        let mut look = tokio::time::interval(LOOK);
        let mut is_told = true;
        loop {
            let relay = at(&connection.0).unwrap_or(first.relay);
            stock.dial_from(relay);
            stock.fill();
            crossing.dial_from(relay);
            tokio::select! {
                message = messages.next() => match message? {
                    Message::Wanted(count) => stock.wanted(count),
                    Message::Draining => {
                        self.places.set(self.index, Vec::new(), Some(End::Draining.to_string()));
                        tokio::time::sleep(TELL).await;
                        crossing.end();
                        write.write_all(&Message::Released.encode()).await?;
                        let _ = tokio::time::timeout(ANSWER, write.stream().drained()).await;
                        return Err(End::Draining);
                    }
                    _ => return Err(End::Lost(io::ErrorKind::InvalidData.into())),
                },
                never = crossing.work() => match never {},
                left = stock.news() => {
                    for origin in left {
                        write.write_all(&Message::Left(origin).encode()).await?;
                    }
                }
                _ = look.tick() => {
                    let away = connection.0.stats().unreachable.is_some_and(|time| time >= AWAY);
                    if away == is_told {
                        is_told = !away;
                        let told = if is_told { places.clone() } else { Vec::new() };
                        let problem = away.then(|| "the relay cannot be reached".to_owned());
                        self.places.set(self.index, told, problem);
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
            at(connection).into_iter().chain(direct).collect()
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

/// Where the relay was reached last.
fn at(connection: &Connection) -> Option<SocketAddr> {
    connection.stats().paths.first().map(|path| path.remote.address())
}

/// A connection that ends with its session.
struct Ended(Connection);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort(CloseCode::NONE, "");
    }
}

/// What the relay says, read in a task of its own: to read a message is not cancel-safe.
struct Messages {
    read: mpsc::Receiver<io::Result<Message>>,
    _task: JoinSet<()>,
}

impl Messages {
    fn of(mut stream: RecvHalf) -> Self {
        let (sender, read) = mpsc::channel(16);
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                let message = Message::read(&mut stream).await;
                let is_last = message.is_err();
                if sender.send(message).await.is_err() || is_last {
                    return;
                }
            }
        });
        Self { read, _task: task }
    }

    /// The next message. Cancel-safe.
    async fn next(&mut self) -> io::Result<Message> {
        self.read.recv().await.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))
    }
}
