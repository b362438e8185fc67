//! Relays that lie: what they do with connections that they should pass on, and what they show to those who
//! look on.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use whimbrel_base::{EndpointAddr, RelayedAddr, SecretKey, Ticket};
use whimbrel_relay::hello::{self, Hello};
use whimbrel_relay::wire::Message;
use whimbrel_relay::{Limits, Relay, control_name, token_of};
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, ConnectError, Connection, Endpoint, Locator, ManualMonitor,
};

use crate::loopback::{LIMIT, Served, at, endpoint_at, ip, relay, round_trip};

/// What a client over TCP has said before its peer can answer has come within this.
const FLIGHT: Duration = Duration::from_millis(30);
/// An attempt to connect that must fail is given this.
const SOON: Duration = Duration::from_secs(2);

/// What becomes of a client's TCP connection.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// It is passed on to where it should go.
    None,
    /// It is passed on to another server.
    Swap(SocketAddr),
    /// Each piece is passed on so much later.
    Delay(Duration),
    /// So many bytes are passed on to the client, and nothing after them.
    Stall(usize),
    /// What the client says first is sent from another connection before, and from yet another one after it.
    Replay,
}

/// A relay that lies, in front of an honest one. What it takes new connections for can be changed.
struct Liar {
    at: SocketAddr,
    lie: Arc<Mutex<Lie>>,
    /// How many connections came.
    came: Arc<AtomicUsize>,
    /// The first bytes of each.
    first: Arc<Mutex<Vec<Vec<u8>>>>,
    connections: Arc<Mutex<JoinSet<()>>>,
    _accepting: JoinSet<()>,
}

impl Liar {
    async fn start(test: u8, host: u8, to: SocketAddr) -> Self {
        let listener = TcpListener::bind(SocketAddr::new(ip(test, host), 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        let lie = Arc::new(Mutex::new(Lie::None));
        let (came, first) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let connections = Arc::new(Mutex::new(JoinSet::new()));
        let mut accepting = JoinSet::new();
        let (told, all, number, said) = (lie.clone(), connections.clone(), came.clone(), first.clone());
        accepting.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                number.fetch_add(1, Ordering::Relaxed);
                let (lie, said) = (*told.lock().unwrap(), said.clone());
                all.lock().unwrap().spawn(async move {
                    // Either side may leave whenever it likes.
                    let _ = serve(client, to, lie, &said).await;
                });
            }
        });
        Self { at, lie, came, first, connections, _accepting: accepting }
    }

    /// From now on.
    fn lies(&self, lie: Lie) {
        *self.lie.lock().unwrap() = lie;
    }

    /// Ends what it passes on now.
    fn cut(&self) {
        self.connections.lock().unwrap().abort_all();
    }

    fn came(&self) -> usize {
        self.came.load(Ordering::Relaxed)
    }

    /// A server's place behind it.
    fn place(&self, server: &Served) -> EndpointAddr {
        let place = RelayedAddr { relay: self.at, token: server.token() };
        EndpointAddr::new(server.endpoint.id(), place.pack())
    }

    /// Whether a connection goes through it.
    fn carries(&self, connection: &Connection) -> bool {
        connection.stats().paths.iter().any(|path| path.remote.address() == self.at)
    }
}

async fn serve(client: TcpStream, to: SocketAddr, lie: Lie, said: &Mutex<Vec<Vec<u8>>>) -> io::Result<()> {
    let (to, delay) = match lie {
        Lie::Swap(other) => (other, Duration::ZERO),
        Lie::Delay(delay) => (to, delay),
        Lie::None | Lie::Stall(_) | Lie::Replay => (to, Duration::ZERO),
    };
    let limit = if let Lie::Stall(limit) = lie { limit } else { usize::MAX };
    let (mut from_client, to_client) = client.into_split();
    let mut flight = Vec::new();
    from_client.read_buf(&mut flight).await?;
    tokio::time::sleep(FLIGHT).await;
    while let Ok(1..) = from_client.try_read_buf(&mut flight) {}
    said.lock().unwrap().push(flight.clone());
    let mut replayed = JoinSet::new();
    let mut replay = async || {
        let mut again = TcpStream::connect(to).await?;
        again.write_all(&flight).await?;
        replayed.spawn(async move {
            // What is answered is of no use to it, as it has no key.
            while let Ok(1..) = again.read(&mut [0; 4096]).await {}
        });
        tokio::time::sleep(FLIGHT).await;
        io::Result::Ok(())
    };
    if let Lie::Replay = lie {
        replay().await?;
    }
    let (from_server, mut to_server) = TcpStream::connect(to).await?.into_split();
    to_server.write_all(&flight).await?;
    if let Lie::Replay = lie {
        replay().await?;
    }
    let there = pump(from_client, to_server, delay, usize::MAX);
    let back = pump(from_server, to_client, delay, limit);
    tokio::try_join!(there, back).map(|_| ())
}

/// Passes pieces on, each after `delay`; after `limit` bytes nothing any more.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    delay: Duration,
    limit: usize,
) -> io::Result<()> {
    let (sender, mut pieces) = mpsc::channel::<(tokio::time::Instant, Vec<u8>)>(256);
    let reading = async move {
        let (mut piece, mut passed) = (vec![0; 16 * 1024], 0);
        loop {
            let count = from.read(&mut piece).await?;
            if count == 0 {
                return io::Result::Ok(());
            }
            passed += count;
            if passed > limit {
                std::future::pending::<()>().await;
            }
            if sender.send((tokio::time::Instant::now() + delay, piece[..count].to_vec())).await.is_err() {
                return Ok(());
            }
        }
    };
    let writing = async move {
        while let Some((due, piece)) = pieces.recv().await {
            tokio::time::sleep_until(due).await;
            to.write_all(&piece).await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(reading, writing).map(|_| ())
}

async fn tcp_client(test: u8, host: u8) -> Endpoint {
    let monitor = ManualMonitor::new([ip(test, host)]);
    endpoint_at(monitor, Carriers::Only(CarrierKind::Tcp)).await
}

async fn connect(client: &Endpoint, to: EndpointAddr) -> Connection {
    timeout(LIMIT, client.connect(to)).await.expect("nobody answers").unwrap()
}

/// A server with a reservation at an honest relay, and one that lies in front of that.
async fn lied_to(test: u8) -> (Relay, Served, Liar) {
    let relay = relay(test, 1, Allow::Any, Limits::default()).await;
    let server = Served::start(test, 2, vec![at(&relay)]).await;
    server.held(1).await;
    let liar = Liar::start(test, 9, relay.endpoint().addr().addrs[0]).await;
    (relay, server, liar)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_passes_a_client_on_to_another_server_is_noticed_and_the_connection_goes_on() {
    let (_relay, server, liar) = lied_to(140).await;
    let other = Served::start(140, 3, Vec::new()).await;
    let client = tcp_client(140, 4).await;
    let connection = connect(&client, liar.place(&server)).await;
    assert!(liar.carries(&connection), "{:?}", connection.stats().paths);
    round_trip(&connection, 100_000).await;
    // The client has tickets of its server, and sends early data with them, which the other one cannot read.
    liar.lies(Lie::Swap(other.endpoint.addr().addrs[0]));
    liar.cut();
    // By the honest relay, which the server has told it of: at once if that is nearer, or once it has seen
    // through.
    round_trip(&connection, 300_000).await;
    assert!(!liar.carries(&connection), "{:?}", connection.stats().paths);
    assert_eq!(connection.peer_id(), server.endpoint.id());
    // A client that has nowhere else to go is not connected, whether it has tickets and sends early data or
    // not.
    let stranger = tcp_client(140, 5).await;
    for dialler in [&client, &stranger] {
        let came = liar.came();
        let attempt = timeout(SOON, dialler.connect(liar.place(&server))).await;
        assert!(!matches!(attempt, Ok(Ok(_) | Err(ConnectError::Refused { .. }))), "{attempt:?}");
        assert!(liar.came() > came, "it was not dialled");
    }
    assert_eq!(other.accepted.load(Ordering::Relaxed), 0, "the other server was given somebody");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_delays_is_only_slow_and_one_that_stalls_is_left() {
    let (_relay, server, liar) = lied_to(141).await;
    let client = tcp_client(141, 4).await;
    liar.lies(Lie::Delay(Duration::from_millis(200)));
    let connection = connect(&client, liar.place(&server)).await;
    round_trip(&connection, 1 << 20).await;
    // Whatever comes first: the next path stalls in the middle of what comes back, and has no end.
    liar.lies(Lie::Stall(100_000));
    liar.cut();
    let begun = Instant::now();
    round_trip(&connection, 4 << 20).await;
    round_trip(&connection, 4 << 20).await;
    assert!(begun.elapsed() < 2 * LIMIT, "{:?}", begun.elapsed());
    assert_eq!(server.accepted.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_plays_first_flights_again_before_and_after_has_nothing_delivered_twice() {
    let (_relay, server, liar) = lied_to(142).await;
    let client = tcp_client(142, 4).await;
    liar.lies(Lie::Replay);
    let first = connect(&client, liar.place(&server)).await;
    round_trip(&first, 100_000).await;
    // JOIN in early data, which is read on the copy: what the client itself says has no ticket any more.
    for _ in 0..3 {
        liar.cut();
        round_trip(&first, 100_000).await;
    }
    // OPEN and the first bytes of a stream in early data.
    let second = connect(&client, liar.place(&server)).await;
    round_trip(&second, 50_000).await;
    round_trip(&first, 50_000).await;
    assert!(liar.came() > 1, "{}", liar.came());
    let accepted = server.accepted.load(Ordering::Relaxed);
    assert_eq!(accepted, 2, "a copy of what opens a connection has opened another one");
}

/// Between a client and the relay: every seventh datagram is changed, every fifth comes twice, and every
/// eleventh only after the ten that follow it, in both directions.
async fn garble(inside: UdpSocket, relay: SocketAddr, outside: SocketAddr) {
    let socket = UdpSocket::bind(outside).await.unwrap();
    socket.connect(relay).await.unwrap();
    let (mut there, mut back) = (Garbler::default(), Garbler::default());
    let (mut up, mut down, mut client) = (vec![0; 2048], vec![0; 2048], None);
    loop {
        tokio::select! {
            Ok((size, from)) = inside.recv_from(&mut up) => {
                client = Some(from);
                for datagram in there.of(&up[..size]) {
                    let _ = socket.send(&datagram).await;
                }
            }
            Ok(size) = socket.recv(&mut down) => {
                if let Some(client) = client {
                    for datagram in back.of(&down[..size]) {
                        let _ = inside.send_to(&datagram, client).await;
                    }
                }
            }
        }
    }
}

#[derive(Default)]
struct Garbler {
    count: usize,
    held: Option<(usize, Vec<u8>)>,
}

impl Garbler {
    /// What comes of a datagram.
    fn of(&mut self, datagram: &[u8]) -> Vec<Vec<u8>> {
        self.count += 1;
        let mut datagram = datagram.to_vec();
        if self.count.is_multiple_of(7) {
            let at = self.count % datagram.len();
            datagram[at] ^= 1;
        }
        let mut out = Vec::new();
        if self.count.is_multiple_of(11) {
            out.extend(self.held.replace((self.count + 10, datagram)).map(|(_, held)| held));
            return out;
        }
        out.push(datagram.clone());
        if self.count.is_multiple_of(5) {
            out.push(datagram);
        }
        out.extend(self.held.take_if(|(due, _)| *due <= self.count).map(|(_, held)| held));
        out
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_changes_repeats_and_holds_back_packets_of_quic_delivers_nothing_false() {
    let relay = relay(143, 1, Allow::Any, Limits::default()).await;
    let server = Served::start(143, 2, vec![at(&relay)]).await;
    server.held(1).await;
    let inside = UdpSocket::bind(SocketAddr::new(ip(143, 9), 0)).await.unwrap();
    let place = RelayedAddr { relay: inside.local_addr().unwrap(), token: server.token() };
    let mut between = JoinSet::new();
    between.spawn(garble(inside, relay.endpoint().addr().addrs[0], SocketAddr::new(ip(143, 8), 0)));
    let monitor = ManualMonitor::new([ip(143, 3)]);
    let client = endpoint_at(monitor, Carriers::Only(CarrierKind::Quic)).await;
    let connection = connect(&client, EndpointAddr::new(server.endpoint.id(), place.pack())).await;
    assert!(matches!(connection.stats().paths[0].remote, Locator::Relayed(_)));
    for size in [10, 100_000, 1 << 20] {
        round_trip(&connection, size).await;
    }
    assert_eq!(server.accepted.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stolen_salt_reserves_a_token_of_the_thiefs_own_and_takes_nobody_away() {
    let relay = relay(144, 1, Allow::Any, Limits::default()).await;
    let server = Served::start(144, 2, vec![at(&relay)]).await;
    server.held(1).await;
    // Every relay of a server knows its salt. One of them asks another one for what that server has there.
    let thief = SecretKey::generate();
    let monitor = ManualMonitor::new([ip(144, 3)]);
    let endpoint = Endpoint::builder().secret_key(thief.clone()).monitor(monitor).bind().await.unwrap();
    let addr = relay.endpoint().addr();
    let control = Ticket::new(addr.id, addr.addrs, Some(control_name().unwrap()));
    let connection = timeout(LIMIT, endpoint.connect(control)).await.unwrap().unwrap();
    let (mut read, mut write) = connection.open_stream().await.unwrap().into_split();
    write.write_all(&Message::Reserve(server.salt).encode()).await.unwrap();
    let answer = timeout(LIMIT, Message::read(&mut read)).await.unwrap().unwrap();
    assert!(matches!(answer, Message::Reserved(_)), "{answer:?}");
    assert_eq!(token_of(server.endpoint.id(), &server.salt), server.token());
    assert_ne!(token_of(thief.id(), &server.salt), server.token());
    assert_eq!(relay.stats().reservations, 2, "another one's was replaced");
    // It is the server that is reached, which has not noticed anything.
    let client = tcp_client(144, 4).await;
    let reached = connect(&client, server.behind()).await;
    assert_eq!(reached.peer_id(), server.endpoint.id());
    round_trip(&reached, 1000).await;
}

/// What the ClientHellos say that went through a relay. A client that only measures the way to a relay says
/// nothing.
fn names(liar: &Liar) -> Vec<Hello> {
    let first = liar.first.lock().unwrap();
    first.iter().filter(|first| !first.is_empty()).map(|first| hello::read(first)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_onlooker_sees_the_servers_token_on_relayed_paths_and_no_name_on_direct_ones() {
    let (_relay, server, on_the_way) = lied_to(145).await;
    let monitor = ManualMonitor::new([ip(145, 4)]);
    let client = endpoint_at(monitor.clone(), Carriers::Only(CarrierKind::Tcp)).await;
    let connection = connect(&client, on_the_way.place(&server)).await;
    round_trip(&connection, 1000).await;
    let token = Hello::Named(server.token().to_string());
    assert_eq!(names(&on_the_way), std::slice::from_ref(&token));
    // From another network, and by another client: the same, which tells neither client from others.
    monitor.set([ip(145, 5)]);
    round_trip(&connection, 1000).await;
    let other = tcp_client(145, 6).await;
    round_trip(&connect(&other, on_the_way.place(&server)).await, 1000).await;
    let all = names(&on_the_way);
    assert!(all.len() >= 2 && all.iter().all(|name| *name == token), "{all:?}");
    // No part of a key is in clear: neither side's.
    for first in on_the_way.first.lock().unwrap().iter() {
        for id in [server.endpoint.id(), client.id(), other.id()] {
            assert!(!first.windows(32).any(|bytes| bytes == id.as_bytes()), "an id is shown");
        }
    }
    let direct = Liar::start(145, 8, server.endpoint.addr().addrs[0]).await;
    let at = EndpointAddr::new(server.endpoint.id(), [direct.at]);
    round_trip(&connect(&tcp_client(145, 7).await, at).await, 1000).await;
    let all = names(&direct);
    assert!(!all.is_empty() && all.iter().all(|name| *name == Hello::Other), "{all:?}");
}
