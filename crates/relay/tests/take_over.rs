//! A relay goes on in place of another one on loopback, as a newer process would: with its sockets, what is
//! under way between them, its reservations and its flows.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use whimbrel_base::SecretKey;
use whimbrel_base::relayed::places;
use whimbrel_relay::estate::{Head, Piece};
use whimbrel_relay::{Directory, Estate, Left, Limits, Relay, RelayStats};
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, Connection, Endpoint, Locator, ManualMonitor, OpenSockets,
};

use crate::loopback::{LIMIT, Served, endpoint, endpoint_at, ip, round_trip};

const MIB: usize = 1 << 20;
/// A download of this size at this speed is under way for two seconds.
const SIZE: usize = 32 * MIB;
const SPEED: f64 = 16.0 * MIB as f64;

/// A relay that can be replaced.
struct Replaced {
    key: SecretKey,
    monitor: ManualMonitor,
    relay: Option<Relay>,
}

impl Replaced {
    async fn start(test: u8) -> Self {
        let (key, monitor) = (SecretKey::generate(), ManualMonitor::new([ip(test, 1)]));
        let mut this = Self { key, monitor, relay: None };
        let endpoint = this.endpoint(None).await;
        let relay = Relay::start(endpoint, Allow::Any, Limits::default(), Vec::new()).await.unwrap();
        this.relay = Some(relay);
        this
    }

    async fn endpoint(&self, sockets: Option<OpenSockets>) -> Endpoint {
        let mut config = Relay::config();
        config.handshake_timeout = Duration::from_secs(2);
        let builder = Endpoint::builder().secret_key(self.key.clone()).monitor(self.monitor.clone());
        let builder = builder.config(config);
        match sockets {
            Some(sockets) => builder.sockets(sockets).bind().await.unwrap(),
            None => builder.bind().await.unwrap(),
        }
    }

    fn relay(&self) -> &Relay {
        self.relay.as_ref().unwrap()
    }

    fn stats(&self) -> RelayStats {
        self.relay().stats()
    }

    async fn leave(&mut self) -> Left {
        let relay = self.relay.take().unwrap();
        let leaving = relay.endpoint().stop_listening().unwrap();
        relay.leave(leaving).await
    }

    /// Goes on with what was left, as another process would.
    async fn go_on(&mut self, left: Left) {
        let Left { passed_on, estate, .. } = left;
        let endpoint = self.endpoint(passed_on.sockets).await;
        let (allow, limits) = (Allow::Any, Limits::default());
        let prepared = Relay::prepare(endpoint.clone(), allow, limits, Vec::new(), copy(&estate)).unwrap();
        let asleep: Vec<_> = passed_on.connections.into_iter().map(|(_, asleep)| asleep).collect();
        let waking = endpoint.wake(&asleep).unwrap();
        // The sockets are there once more, as in the process before.
        drop(estate);
        let listening = prepared.listen().await.unwrap();
        let connections = waking.begin().unwrap();
        self.relay = Some(listening.go_on(&connections));
    }

    async fn replace(&mut self) {
        let left = self.leave().await;
        self.go_on(left).await;
    }
}

/// The same as bytes and descriptors, and read again.
fn copy(estate: &Estate) -> Estate {
    let mut copy = Estate::default();
    estate.check().unwrap();
    for piece in estate.pieces() {
        let head: Head = postcard::from_bytes(&postcard::to_stdvec(&piece.head).unwrap()).unwrap();
        assert_eq!(head, piece.head);
        let sockets = piece.sockets.iter().map(|socket| socket.try_clone().unwrap()).collect();
        copy.add(Piece { head, body: piece.body.clone(), sockets }).unwrap();
    }
    copy
}

fn byte(at: usize) -> u8 {
    ((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// So many bytes there and back, each of them compared; read at a speed.
struct Transfer {
    came: Arc<AtomicUsize>,
    /// Returns the longest pause between two reads.
    task: JoinHandle<Duration>,
}

impl Transfer {
    fn start(connection: &Connection, size: usize, speed: f64) -> Self {
        let came = Arc::new(AtomicUsize::new(0));
        Self { task: transfer(connection, size, speed, came.clone()), came }
    }

    /// Waits until so many bytes have come, and not all.
    async fn until(&self, size: usize) {
        while self.came.load(Ordering::Relaxed) < size {
            assert!(!self.task.is_finished(), "it has ended");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!self.task.is_finished(), "it has ended");
    }
}

fn transfer(
    connection: &Connection,
    size: usize,
    speed: f64,
    total: Arc<AtomicUsize>,
) -> JoinHandle<Duration> {
    let connection = connection.clone();
    tokio::spawn(async move {
        let (mut read, mut write) = connection.open_stream().await.unwrap().into_split();
        let writing = tokio::spawn(async move {
            for start in (0..size).step_by(MIB) {
                let piece: Vec<u8> = (start..size.min(start + MIB)).map(byte).collect();
                write.write_all(&piece).await.unwrap();
            }
            write.shutdown().await.unwrap();
        });
        let (mut came, mut piece, begun) = (0usize, vec![0; 256 * 1024], Instant::now());
        let (mut longest, mut told) = (Duration::ZERO, 0);
        loop {
            let waits = Instant::now();
            let count = loop {
                match timeout(Duration::from_secs(1), read.read(&mut piece)).await {
                    Ok(count) => break count.unwrap(),
                    Err(_) => println!("{came} bytes, nothing for a second: {:?}", connection.stats().paths),
                }
                assert!(waits.elapsed() < LIMIT, "nothing comes");
            };
            longest = longest.max(waits.elapsed());
            if count == 0 {
                break;
            }
            assert!(piece[..count].iter().enumerate().all(|(n, got)| *got == byte(came + n)), "at {came}");
            came += count;
            total.store(came, Ordering::Relaxed);
            if begun.elapsed().as_secs() > told {
                told = begun.elapsed().as_secs();
                println!("{told} s: {came} bytes: {:?}", connection.stats().paths);
            }
            let due = Duration::from_secs_f64(came as f64 / speed);
            tokio::time::sleep(due.saturating_sub(begun.elapsed())).await;
        }
        assert_eq!(came, size);
        writing.await.unwrap();
        println!("{came} bytes in {:?}, the longest pause was {longest:?}", begun.elapsed());
        longest
    })
}

async fn connect(client: &Endpoint, server: &Served) -> Connection {
    timeout(LIMIT, client.connect(server.behind())).await.expect("nobody answers").unwrap()
}

async fn goes_on_under_transfers(test: u8, carrier: CarrierKind) {
    let mut relay = Replaced::start(test).await;
    let directory: Arc<dyn Directory> = Arc::new(relay.relay().endpoint().addr());
    let server = Served::start_behind(ManualMonitor::new([ip(test, 2)]), vec![directory]).await;
    server.held(1).await;
    let client = endpoint_at(ManualMonitor::new([ip(test, 3)]), Carriers::Only(carrier)).await;
    let connection = connect(&client, &server).await;
    round_trip(&connection, 1000).await;
    let path = connection.stats().paths[0].id;
    let mut news = server.keeper.news();
    let lost = tokio::spawn(async move { news.wait_for(|now| now.held == 0).await });
    let before = relay.stats();
    let under_way = Transfer::start(&connection, SIZE, SPEED);
    for number in 0..3 {
        under_way.until(SIZE / 4 * (usize::from(number) + 1) - SIZE / 8).await;
        let begun = Instant::now();
        relay.replace().await;
        println!("replaced within {:?}", begun.elapsed());
        // Another client comes at once.
        let next = endpoint_at(ManualMonitor::new([ip(test, 10 + number)]), Carriers::Only(carrier)).await;
        let asked = Instant::now();
        round_trip(&connect(&next, &server).await, 1000).await;
        println!("a new client was served within {:?}", asked.elapsed());
    }
    let longest = under_way.task.await.unwrap();
    assert!(longest < Duration::from_secs(3), "a pause of {longest:?}");
    match (&connection.stats().paths[..], carrier) {
        // What is spliced is the same connection of TCP to both ends.
        ([only], CarrierKind::Tcp) => assert_eq!(only.id, path),
        ([only], _) => assert!(matches!(only.remote, Locator::Relayed(_)), "{only:?}"),
        (paths, _) => assert!(!paths.is_empty()),
    }
    let stats = relay.stats();
    assert_eq!(stats.reservations, 1, "{stats:?}");
    assert!(!lost.is_finished(), "the server has lost its reservation");
    lost.abort();
    let counted = if carrier == CarrierKind::Tcp { stats.spliced } else { stats.flowed };
    assert!(counted >= 4 && stats.bytes >= before.bytes, "counts go on: {stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_over_tcp_goes_on_while_its_relay_is_replaced() {
    goes_on_under_transfers(160, CarrierKind::Tcp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_over_quic_goes_on_while_its_relay_is_replaced() {
    goes_on_under_transfers(161, CarrierKind::Quic).await;
}

/// Those that have sent half of their first words, clients that wait, and spares that wait for clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spares_and_those_who_wait_or_have_said_little_are_served_by_the_next_one() {
    let mut relay = Replaced::start(162).await;
    let at = relay.relay().endpoint().addr();
    let server = Served::start(162, 2, vec![Arc::new(at.clone())]).await;
    server.held(1).await;
    let spares = async {
        while relay.stats().spares < 8 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, spares).await.expect("spares come");
    // Begins as TLS does, and ends in the middle of the record's length.
    let mut silent = TcpStream::connect(at.addrs[0]).await.unwrap();
    silent.write_all(&[22, 3, 1]).await.unwrap();
    let sent = Instant::now();
    tokio::time::sleep(Duration::from_millis(100)).await;
    relay.replace().await;
    assert_eq!(relay.stats().spares, 8, "{:?}", relay.stats());
    // It is no client: the next relay looks at the rest of it, and gives it up in time.
    silent.write_all(&[2, 0]).await.unwrap();
    assert_eq!(timeout(LIMIT, silent.read(&mut [0; 9])).await.unwrap().unwrap_or(0), 0);
    assert!(sent.elapsed() > Duration::from_secs(1), "it was looked at, after {:?}", sent.elapsed());
    let spliced = relay.stats().spliced;
    let client = endpoint(162, 3).await;
    round_trip(&connect(&client, &server).await, 100_000).await;
    assert!(relay.stats().spliced > spliced || relay.stats().flowed > 0);
    assert!(!places(&server.behind().addrs).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn if_the_next_one_fails_half_way_the_first_goes_on() {
    let mut relay = Replaced::start(163).await;
    let server = Served::start(163, 2, vec![Arc::new(relay.relay().endpoint().addr())]).await;
    server.held(1).await;
    let mut under_way = Vec::new();
    let mut clients = Vec::new();
    for (host, carrier) in [(3, CarrierKind::Tcp), (4, CarrierKind::Quic)] {
        let client = endpoint_at(ManualMonitor::new([ip(163, host)]), Carriers::Only(carrier)).await;
        let connection = connect(&client, &server).await;
        under_way.push(Transfer::start(&connection, 8 * MIB, SPEED / 4.0));
        clients.push((client, connection));
    }
    for transfer in &under_way {
        transfer.until(MIB).await;
    }
    let left = relay.leave().await;
    {
        // The next one has read everything, and dies.
        let sockets = left.passed_on.sockets.as_ref().unwrap();
        let tcp = sockets.tcp().map(|socket| socket.try_clone_to_owned().unwrap().into()).collect();
        let udp = sockets.udp().map(|socket| socket.try_clone_to_owned().unwrap().into()).collect();
        let endpoint = relay.endpoint(Some(OpenSockets::inherited(tcp, udp, false).unwrap())).await;
        let (allow, limits) = (Allow::Any, Limits::default());
        let prepared = Relay::prepare(endpoint.clone(), allow, limits, Vec::new(), copy(&left.estate));
        let asleep: Vec<_> = left.passed_on.connections.iter().map(|(_, asleep)| asleep.clone()).collect();
        drop((endpoint.wake(&asleep).unwrap(), prepared.unwrap()));
        endpoint.close(Duration::ZERO).await;
    }
    relay.go_on(left).await;
    for transfer in under_way {
        let longest = timeout(LIMIT, transfer.task).await.expect("it ends").unwrap();
        assert!(longest < Duration::from_secs(3), "a pause of {longest:?}");
    }
    server.held(1).await;
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let piece = |head| Piece { head, body: Vec::new(), sockets: Vec::new() };
    let stranger = || Head::Stranger { remote: "192.0.2.1:5".parse().unwrap() };
    let mut estate = Estate::default();
    let error = estate.add(piece(Head::Flows(Vec::new()))).unwrap_err();
    assert!(error.to_string().contains("order"), "{error}");
    estate.add(piece(Head::Relay(Default::default()))).unwrap();
    assert!(estate.add(piece(Head::Relay(Default::default()))).is_err(), "twice");
    assert!(estate.add(piece(stranger())).is_err(), "without its socket");
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into();
    let large = Piece { head: stranger(), body: vec![0; 300 << 10], sockets: vec![socket] };
    let error = estate.add(large).unwrap_err();
    assert!(error.to_string().contains("256 KiB"), "{error}");
}
