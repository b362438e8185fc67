//! The relay itself: an endpoint that sees each TCP connection and each datagram first.
//!
//! What begins as a spare, or as TLS with a token for a server name, is the relay's. All else is the endpoint's:
//! its control connections, and whatever else it serves on the same port, such as names.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use whimbrel_base::{Name, NameError, RelayToken};
use whimbrel_transport::{Allow, Config, Endpoint, Front, Fronted, ListenError, ListenOptions, Look};

use self::ferry::Ferry;
use crate::hello::{self, Hello};
use crate::reservations::{Arrived, Limits, Match, Refusal, RelayStats, Reservations, Splice};
use crate::spare::{OFFER, OFFERS, encode_start};
use crate::splice::{splice, tune};
use crate::wire::Message;

mod control;
mod ferry;

/// The name that a relay's control connections ask for: it may serve others on the same endpoint.
const CONTROL_NAME: &str = "relay@whimbrel.invalid";
/// A spare takes a ClientHello within this.
const FIRST_WORDS: Duration = Duration::from_secs(10);
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
}

/// How the task that has a spare's socket is told of a client.
type Spare = oneshot::Sender<(Client, Splice)>;
type Table = Reservations<Spare, Client>;

/// What all tasks of a relay use.
struct Shared {
    table: Mutex<Table>,
    /// The servers that hold a reservation.
    servers: Mutex<HashMap<RelayToken, Server>>,
    /// Dropped to end a splice.
    ends: Mutex<HashMap<Splice, oneshot::Sender<()>>>,
    /// What forwards QUIC.
    ferry: Arc<Ferry>,
    /// Where clients dial this relay, if it was said.
    addresses: Vec<SocketAddr>,
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
    accepting: AbortHandle,
}

impl Relay {
    /// Has `endpoint` relay for those whom `allow` names. `addresses` are where clients reach this relay; if there
    /// are none, those that its servers use. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// [`ListenError`] if the endpoint cannot listen, or relays already.
    pub async fn start(
        endpoint: Endpoint,
        allow: Allow,
        limits: Limits,
        addresses: Vec<SocketAddr>,
    ) -> Result<Self, ListenError> {
        let ferry = Arc::new(Ferry::new(limits.clone()));
        let shared = Arc::new(Shared {
            table: Mutex::new(Table::new(limits)),
            servers: Mutex::default(),
            ends: Mutex::default(),
            ferry: ferry.clone(),
            addresses,
        });
        endpoint.set_front(Arc::new(Door(shared.clone())));
        endpoint.set_datagram_front(ferry);
        endpoint.answer_stun();
        let options = ListenOptions::named(control_name()?).unpublished().allow(allow);
        let listener = endpoint.listen(options).await?;
        let accepting = tokio::spawn(control::accept(listener, shared.clone())).abort_handle();
        Ok(Self { endpoint, shared, accepting })
    }

    /// How an endpoint that relays is best configured: many connections, each with little memory; strangers have
    /// five seconds to say what they want.
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

    /// Tells all servers that this relay is about to stop, and waits until they have told their clients, for at
    /// most `limit`. Then what is spliced ends: clients go on through other relays, or directly.
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
        lock(&self.shared.ends).clear();
        self.shared.ferry.clear();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
        lock(&self.shared.table).drain();
        self.shared.ferry.drain();
        lock(&self.shared.ends).clear();
        self.shared.ferry.clear();
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("id", &self.endpoint.id()).finish_non_exhaustive()
    }
}

/// What sees each TCP connection first.
struct Door(Arc<Shared>);

/// What a connection is, by its first bytes.
enum Kind {
    Partial,
    Spare,
    Client(RelayToken),
    Other,
}

fn kind(first: &[u8]) -> Kind {
    if first.starts_with(OFFERS) || OFFERS.starts_with(first) {
        return if first.len() < OFFER { Kind::Partial } else { Kind::Spare };
    }
    match hello::read(first) {
        Hello::Partial => Kind::Partial,
        Hello::Named(name) => name.parse().map_or(Kind::Other, Kind::Client),
        Hello::Other => Kind::Other,
    }
}

impl Front for Door {
    fn look(&self, first: &[u8]) -> Look {
        match kind(first) {
            Kind::Partial => Look::More,
            Kind::Spare | Kind::Client(_) => Look::Take,
            Kind::Other => Look::Pass,
        }
    }

    fn take(&self, fronted: Fronted) {
        let shared = self.0.clone();
        if tune(&fronted.socket).is_err() {
            return;
        }
        match kind(&fronted.first) {
            Kind::Spare => drop(tokio::spawn(shared.spare(fronted))),
            Kind::Client(token) => shared.client(token, fronted),
            Kind::Partial | Kind::Other => {}
        }
    }
}

impl Shared {
    fn stats(&self) -> RelayStats {
        let of_tcp = lock(&self.table).stats();
        self.ferry.stats(of_tcp)
    }

    /// Keeps a spare until a client comes for it, and then splices.
    async fn spare(self: Arc<Self>, Fronted { socket, remote, first }: Fronted) {
        let (begin, mut begun) = oneshot::channel();
        let is_waiting = |spare: &Spare| !spare.is_closed();
        let offered = lock(&self.table).offer(&first, begin, |client| is_open(&client.socket), is_waiting);
        let (client, splice) = match offered {
            Ok(Some(Match { client, splice, displaced, .. })) => {
                self.end(displaced);
                (client, splice)
            }
            Ok(None) => {
                let came = tokio::select! {
                    biased;
                    came = &mut begun => came,
                    // Nothing is said on a spare before a client is there: it has ended, or is no spare.
                    () = ended(&socket) => return,
                };
                match came {
                    Ok(came) => came,
                    // The server has left the address that it came from, or the reservation has ended.
                    Err(_) => return,
                }
            }
            Err(refusal) => {
                tracing::debug!(%remote, %refusal, "spare turned away");
                return;
            }
        };
        self.splice(socket, client, splice).await;
    }

    /// Gives a client a spare, or has it wait for one.
    fn client(self: Arc<Self>, token: RelayToken, Fronted { socket, remote, first }: Fronted) {
        let mut client = Client { socket, remote, first };
        loop {
            let mut table = lock(&self.table);
            let is_open = |spare: &Spare| !spare.is_closed();
            match table.arrive(token, remote.ip(), client, is_open, Instant::now()) {
                Ok(Arrived::Matched(Match { spare, client: came, splice, displaced })) => {
                    self.end(displaced);
                    match spare.send((came, splice)) {
                        Ok(()) => return,
                        // The spare ended just now: the next one.
                        Err((came, splice)) => {
                            table.ended(&splice, 0);
                            client = came;
                        }
                    }
                }
                Ok(Arrived::Waits(number)) => {
                    let (waiting, patience) = (table.waiting(token), table.limits().patience);
                    drop(table);
                    self.order(token, waiting);
                    tokio::spawn(async move {
                        tokio::time::sleep(patience).await;
                        if lock(&self.table).expire(token, number).is_some() {
                            tracing::debug!(%remote, refusal = %Refusal::Late, "client turned away");
                        }
                    });
                    return;
                }
                Err(refusal) => {
                    tracing::debug!(%remote, %refusal, "client turned away");
                    return;
                }
            }
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

    async fn splice(&self, spare: TcpStream, client: Client, at: Splice) {
        let (end, ended) = oneshot::channel();
        lock(&self.ends).insert(at, end);
        let bytes = AtomicU64::new(0);
        let result = tokio::select! {
            result = self.pass_on(spare, client, at, &bytes) => result,
            // The server has left the address, or the relay stops.
            _ = ended => Ok(()),
        };
        tracing::debug!(?at, ?result, "splice over");
        lock(&self.ends).remove(&at);
        lock(&self.table).ended(&at, bytes.load(Ordering::Relaxed));
    }

    async fn pass_on(
        &self,
        mut spare: TcpStream,
        client: Client,
        at: Splice,
        bytes: &AtomicU64,
    ) -> std::io::Result<()> {
        let Client { socket, remote, first } = client;
        let mut words = {
            let key = lock(&self.table).key(&at).ok_or(std::io::ErrorKind::NotConnected)?;
            encode_start(&key, at.number, remote)
        };
        words.extend(first);
        tokio::time::timeout(FIRST_WORDS, spare.write_all(&words)).await??;
        // A connection that is idle for long holds nothing that it needs no more.
        drop(words);
        splice(&socket, &spare, bytes).await
    }

    /// Ends what is dead.
    fn end(&self, splices: impl IntoIterator<Item = Splice>) {
        let mut ends = lock(&self.ends);
        for splice in splices {
            ends.remove(&splice);
        }
    }
}

/// Waits until something comes of a socket, its end or a break. That it is readable may be said without a reason.
async fn ended(socket: &TcpStream) {
    while socket.readable().await.is_ok() {
        let read = socket.try_read(&mut [0]);
        if !read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock) {
            return;
        }
    }
}

/// Whether a client that waits is still there, as far as its kernel has told.
fn is_open(socket: &TcpStream) -> bool {
    let mut piece = [std::mem::MaybeUninit::uninit(); 1];
    !matches!(socket2::SockRef::from(socket).peek(&mut piece), Ok(0))
}
