//! The relay itself: an endpoint that sees each TCP connection and each datagram first.
//!
//! What begins as a spare, or as TLS with a token for a server name, is the relay's. All else is the
//! endpoint's: its control connections, and whatever else it serves on the same port, such as names.

use futures_util::FutureExt;
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use whimbrel_base::{Name, NameError, RelayToken};
use whimbrel_transport::{Allow, Config, Endpoint, Fronted, ListenError};

use self::control::Session;
use self::ferry::Ferry;
pub use self::going_on::{Listening, Prepared};
pub use self::leaving::Left;
use self::leaving::{Ends, Halt, Halted, Leftovers};
use self::spliced::Spliced;
use crate::alias::Aliases;
use crate::estate;
use crate::gate::Gate;
use crate::limits::Limits;
use crate::reservations::{Arrived, Match, Refusal, RelayStats, Reservations, Splice};
use crate::sources::Sources;
use crate::spare::encode_start;
use crate::splice::{Direction, Underway};
use crate::traffic::Traffic;
use crate::wire::Message;

mod control;
mod door;
mod ferry;
mod going_on;
mod leaving;
mod spares;
mod spliced;

/// The name that a relay's control connections ask for: it may serve others on the same endpoint.
const CONTROL_NAME: &str = "relay@whimbrel.invalid";
/// Orders to a server that wait to be read. They say the newest state, so what finds no room may be left out.
const ORDERS: usize = 16;

/// The name that a server asks for when it connects to a relay.
///
/// # Errors
/// Never in fact: the name is well-formed.
pub fn control_name() -> Result<Name, NameError> {
    CONTROL_NAME.parse()
}

/// A client whose TLS has begun.
struct Client {
    socket: TcpStream,
    remote: SocketAddr,
    first: Vec<u8>,
    /// When it came.
    since: Instant,
}

/// What the task is told that has a spare's socket.
enum Order {
    /// A client is there.
    Begin(Client, Splice),
    /// Another relay goes on with it.
    Leave(estate::Spare, mpsc::UnboundedSender<(estate::Spare, TcpStream)>),
}

/// How it is told.
type Spare = oneshot::Sender<Order>;
type Table = Reservations<Spare, Client>;

/// What all tasks of a relay use.
struct Shared {
    table: Mutex<Table>,
    /// The servers that hold a reservation.
    servers: Mutex<HashMap<RelayToken, Server>>,
    /// How splices are ended.
    ends: Mutex<Ends>,
    /// What came when another relay was to go on.
    leftovers: Mutex<Leftovers>,
    /// Another relay is to go on with the sessions.
    halting: watch::Sender<bool>,
    /// What passes over TCP.
    traffic: Traffic,
    /// What forwards QUIC.
    ferry: Arc<Ferry>,
    /// Tokens for single clients.
    aliases: Arc<Aliases>,
    /// Where the spares come from that wait.
    sources: Sources,
    /// Where clients dial this relay, if it was said.
    addresses: Vec<SocketAddr>,
    /// Which servers are to prove something, if any are.
    gate: OnceLock<Arc<dyn Gate>>,
}

/// How a server is told something.
struct Server {
    orders: mpsc::Sender<Message>,
    /// Which of the sessions for a token it is.
    session: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running relay. It stops when it is dropped, or in order with [`drain`](Self::drain).
pub struct Relay {
    endpoint: Endpoint,
    shared: Arc<Shared>,
    /// Returns those that are halted.
    accepting: JoinHandle<Vec<Session>>,
}

impl Relay {
    /// Has `endpoint` relay for those whom `allow` names. `addresses` are where clients reach this relay; if
    /// there are none, those that its servers use. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// [`ListenError`] if the endpoint cannot listen, or relays already.
    pub async fn start(
        endpoint: Endpoint,
        allow: Allow,
        limits: Limits,
        addresses: Vec<SocketAddr>,
    ) -> Result<Self, ListenError> {
        let prepared = Prepared::new(endpoint, allow, limits, addresses);
        prepared.stand_before();
        Ok(prepared.listen().await?.go_on(&[]))
    }

    /// How an endpoint that relays is best configured: many connections, each with little memory; strangers
    /// have five seconds to say what they want.
    pub fn config() -> Config {
        Config {
            linger: Duration::from_secs(10 * 60),
            handshake_timeout: Duration::from_secs(5),
            stream_window: 64 << 10,
            window: 64 << 10,
            stream_send_buffer: 64 << 10,
            send_buffer: 64 << 10,
            max_streams: 4,
            ..Config::default()
        }
    }

    /// The endpoint that relays.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// What it gives at most.
    pub fn limits(&self) -> Limits {
        lock(&self.shared.table).limits().clone()
    }

    /// What it has done, and is doing.
    pub fn stats(&self) -> RelayStats {
        self.shared.stats()
    }

    /// Reads the same from elsewhere.
    pub fn stats_reader(&self) -> impl Fn() -> RelayStats + Send + Sync + use<> {
        let shared = self.shared.clone();
        move || shared.stats()
    }

    /// Tells all servers that this relay is about to stop, and waits until they have told their clients, for
    /// at most `limit`. Then what is spliced ends: clients go on through other relays, or directly.
    pub async fn drain(&self, limit: Duration) {
        lock(&self.shared.table).drain();
        self.shared.ferry.drain();
        for server in lock(&self.shared.servers).values() {
            // A server that reads nothing finds out by itself.
            let _ = server.orders.try_send(Message::Draining);
        }
        let released = async {
            while !lock(&self.shared.servers).is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(limit, released).await.is_err() {
            tracing::info!("some servers have not answered that this relay stops");
        }
        lock(&self.shared.ends).end_all();
        self.shared.ferry.clear();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
        lock(&self.shared.table).drain();
        self.shared.ferry.drain();
        lock(&self.shared.ends).end_all();
        self.shared.ferry.clear();
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("id", &self.endpoint.id()).finish_non_exhaustive()
    }
}

impl Shared {
    fn stats(&self) -> RelayStats {
        let of_tcp = {
            let table = lock(&self.table);
            // Under the lock, so that what ends meanwhile is counted once.
            let (stats, running) = (table.stats(), self.traffic.running());
            RelayStats { bytes: stats.bytes + running, ..stats }
        };
        self.ferry.stats(of_tcp)
    }

    /// Gives a client a spare, or has it wait for one.
    fn client(self: Arc<Self>, named: RelayToken, fronted: Fronted) {
        let token = self.aliases.resolve(named);
        let mut leftovers = lock(&self.leftovers);
        if leftovers.is_leaving {
            return leftovers.strangers.push(fronted);
        }
        let Fronted { socket, remote, first } = fronted;
        let mut client = Client { socket, remote, first, since: Instant::now() };
        loop {
            let mut table = lock(&self.table);
            let is_open = |spare: &Spare| !spare.is_closed();
            match table.arrive(token, remote.ip(), client, is_open, Instant::now()) {
                Ok(Arrived::Matched(Match { spare, client: came, splice, displaced })) => {
                    self.end(displaced);
                    match spare.send(Order::Begin(came, splice)) {
                        Err(Order::Begin(came, splice)) => {
                            // The spare ended just now: the next one.
                            table.ended(&splice, 0);
                            client = came;
                        }
                        Ok(()) | Err(Order::Leave(..)) => return,
                    }
                }
                Ok(Arrived::Waits(number)) => {
                    let (waiting, patience) = (table.waiting(token), table.limits().patience);
                    drop((table, leftovers));
                    self.order(token, waiting);
                    tokio::spawn(FutureExt::boxed(
                        self.clone().lose_patience(token, number, remote, patience),
                    ));
                    return;
                }
                Err(refusal) => {
                    tracing::debug!(%remote, %refusal, "client turned away");
                    return;
                }
            }
        }
    }

    /// Turns a client away that still waits then.
    async fn lose_patience(
        self: Arc<Self>,
        token: RelayToken,
        number: u64,
        remote: SocketAddr,
        limit: Duration,
    ) {
        tokio::time::sleep(limit).await;
        if lock(&self.table).expire(token, number).is_some() {
            tracing::debug!(%remote, refusal = %Refusal::Late, "client turned away");
        }
    }

    /// Asks a server for spares.
    fn order(&self, token: RelayToken, count: usize) {
        let count = u16::try_from(count).unwrap_or(u16::MAX);
        if let Some(server) = lock(&self.servers).get(&token) {
            // Those that wait to be read ask for some already.
            let _ = server.orders.try_send(Message::Wanted(count));
        }
    }

    /// Joins a spare and a client, unless what joined them has ended. The server is to be told first that a
    /// client is there.
    fn join(&self, spare: TcpStream, client: Client, at: Splice) -> Option<Box<Spliced>> {
        let Client { socket, remote, first, since } = client;
        let key = {
            let mut table = lock(&self.table);
            let Some(key) = table.key(&at) else {
                table.ended(&at, 0);
                return None;
            };
            table.began(since.elapsed());
            key
        };
        let words = [encode_start(&key, at.number, remote), first].concat();
        let underway = Underway { there: Direction::going_on(words, false), ..Underway::default() };
        let (bytes, since, from) = (AtomicU64::new(0), Instant::now(), remote.ip());
        Some(Box::new(Spliced { at, client: socket, spare, from, underway, bytes, since }))
    }

    /// Splices until either side ends, or this is to stop. What `is_new` is soon taken by its server.
    async fn splice(&self, mut spliced: Box<Spliced>, is_new: bool) {
        let ended = lock(&self.ends).begin(spliced.at);
        let halt = tokio::select! {
            result = spliced.pass_on(is_new, &self.traffic) => {
                tracing::debug!(at = ?spliced.at, ?result, "splice over");
                if let Err(why) = &result {
                    spliced.end_as_told(why);
                }
                None
            }
            // The server has left the address, or the relay stops, or another one goes on.
            halt = ended => halt.ok(),
        };
        self.over(*spliced, halt);
    }

    /// A splice has ended, or halted.
    fn over(&self, spliced: Spliced, halt: Option<Halt>) {
        match halt {
            Some(Halt(gather)) => drop(gather.send(Halted(spliced))),
            None => {
                lock(&self.ends).forget(&spliced.at);
                let (bytes, lasted) = (spliced.bytes.into_inner(), spliced.since.elapsed());
                let mut table = lock(&self.table);
                self.traffic.end(bytes);
                table.lasted(lasted);
                table.ended(&spliced.at, bytes);
            }
        }
    }

    /// Ends what is dead.
    fn end(&self, splices: impl IntoIterator<Item = Splice>) {
        let mut ends = lock(&self.ends);
        for splice in splices {
            ends.forget(&splice);
        }
    }
}

/// Whether a client that waits is still there, as far as its kernel has told.
fn is_open(socket: &TcpStream) -> bool {
    let mut piece = [std::mem::MaybeUninit::uninit(); 1];
    !matches!(socket2::SockRef::from(socket).peek(&mut piece), Ok(0))
}
