//! QUIC carriers on loopback addresses that are taken away and given by hand.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use whimbrel_base::{EndpointAddr, SecretKey};
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, CloseCode, Config, ConnectError, Connection, ConnectionEvent, Endpoint,
    ListenOptions, ManualMonitor, Stream,
};

const QUIC: Carriers = Carriers::Only(CarrierKind::Quic);
const LIMIT: Duration = Duration::from_secs(20);

fn ip(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 78, last])
}

/// `RUST_LOG=whimbrel=debug` shows what happens.
fn log() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
}

async fn endpoint(last: u8) -> (Endpoint, ManualMonitor) {
    log();
    let monitor = ManualMonitor::new([ip(last)]);
    let builder = Endpoint::builder().monitor(monitor.clone()).carriers(QUIC);
    (builder.bind().await.unwrap(), monitor)
}

/// A server that echoes every stream of whom it lets in.
async fn serve(server: &Endpoint, allow: Allow) {
    let options = ListenOptions::unnamed().allow(allow);
    let mut listener = server.listen(options).await.unwrap();
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            tokio::spawn(echo(connection));
        }
    });
}

async fn echo(connection: Connection) {
    while let Ok(stream) = connection.accept_stream().await {
        tokio::spawn(async move {
            let (mut read, mut write) = stream.into_split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
            let _ = write.shutdown().await;
        });
    }
}

struct Pair {
    client: Endpoint,
    client_at: ManualMonitor,
    server: Endpoint,
    server_at: ManualMonitor,
}

async fn pair(client: u8, server: u8) -> Pair {
    let (client, client_at) = endpoint(client).await;
    let (server, server_at) = endpoint(server).await;
    serve(&server, Allow::Any).await;
    Pair { client, client_at, server, server_at }
}

async fn say(stream: &mut Stream, what: &[u8]) {
    stream.write_all(what).await.unwrap();
    let mut back = vec![0; what.len()];
    tokio::time::timeout(LIMIT, stream.read_exact(&mut back)).await.unwrap().unwrap();
    assert_eq!(back, what);
}

fn carriers(connection: &Connection) -> Vec<CarrierKind> {
    connection.stats().paths.iter().map(|path| path.carrier).collect()
}

/// Waits until the connection is down to one path: the one before may be there for a moment beside the next.
async fn settled(connection: &Connection) -> Vec<CarrierKind> {
    let one = async {
        while connection.stats().paths.len() > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LIMIT, one).await.expect("one path at a time, in mode single");
    carriers(connection)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_echoes_and_closes() {
    let pair = pair(1, 2).await;
    let connection = pair.client.connect(pair.server.addr()).await.unwrap();
    assert_eq!(connection.peer_id(), pair.server.id());
    assert_eq!(carriers(&connection), [CarrierKind::Quic]);
    let mut stream = connection.open_stream().await.unwrap();
    say(&mut stream, b"hello").await;
    let stats = connection.stats().paths[0].carrier_stats.unwrap();
    assert!(stats.cwnd > 0 && !stats.srtt.is_zero() && stats.since_ack.unwrap() < LIMIT, "{stats:?}");
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty());
    let start = Instant::now();
    connection.close(CloseCode::NONE, "", Duration::from_secs(5)).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn megabytes_arrive_exactly() {
    let pair = pair(3, 4).await;
    let connection = pair.client.connect(pair.server.addr()).await.unwrap();
    let stream = connection.open_stream().await.unwrap();
    let data: Vec<u8> = (0..30_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (mut read, mut write) = stream.into_split();
    let sent = data.clone();
    let writer = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    let start = Instant::now();
    read.read_to_end(&mut back).await.unwrap();
    println!("{:.0} Mbit/s each way", back.len() as f64 * 8e-6 / start.elapsed().as_secs_f64());
    writer.await.unwrap();
    assert!(back == data);
}

/// Does what makes the connection move, and waits until it has.
async fn moved(connection: &Connection, to: IpAddr, change: impl FnOnce()) -> Duration {
    let (mut events, began) = (connection.events(), Instant::now());
    change();
    let wait = async {
        loop {
            // The path before may still be there: then nothing had to recover.
            if let ConnectionEvent::PathUp { local, remote, .. } = events.next().await.unwrap()
                && [local.ip(), remote.ip()].contains(&to)
            {
                return began.elapsed();
            }
        }
    };
    tokio::time::timeout(LIMIT, wait).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_moves() {
    let pair = pair(5, 6).await;
    let connection = pair.client.connect(pair.server.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    say(&mut stream, b"before").await;
    let took = moved(&connection, ip(7), || pair.client_at.set([ip(7)])).await;
    println!("client move: {took:?}");
    say(&mut stream, b"after").await;
    assert_eq!(settled(&connection).await, [CarrierKind::Quic]);
    assert_eq!(connection.stats().paths[0].local.ip(), ip(7));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_moves() {
    let pair = pair(8, 9).await;
    let connection = pair.client.connect(pair.server.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    say(&mut stream, b"before").await;
    let took = moved(&connection, ip(10), || pair.server_at.set([ip(10)])).await;
    println!("server move: {took:?}");
    say(&mut stream, b"after").await;
    settled(&connection).await;
    assert_eq!(connection.stats().paths[0].remote.ip(), ip(10));
    // And back: the port at the first address was freed, whatever still used its socket.
    moved(&connection, ip(9), || pair.server_at.set([ip(9)])).await;
    say(&mut stream, b"back").await;
}

/// A server that was started again knows no tickets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_data_that_is_not_taken_is_sent_again() {
    let key = SecretKey::generate();
    let (client, _) = endpoint(11).await;
    let start = |port| {
        let monitor = ManualMonitor::new([ip(12)]);
        Endpoint::builder().secret_key(key.clone()).port(port).monitor(monitor).bind()
    };
    let first = start(0).await.unwrap();
    serve(&first, Allow::Any).await;
    let connection = client.connect(first.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    say(&mut stream, b"hello").await;
    // With a ticket it works early.
    let early = client.connect_early(first.addr()).await.unwrap();
    say(&mut early.open_stream().await.unwrap(), b"early").await;
    drop((stream, connection, early));
    first.close(Duration::from_secs(2)).await;
    let address = first.addr();
    drop(first);
    let mut tries = 100;
    let second = loop {
        match start(address.addrs[0].port()).await {
            Ok(endpoint) => break endpoint,
            Err(error) if tries == 0 => panic!("{error}"),
            Err(_) => tries -= 1,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    serve(&second, Allow::Any).await;
    let connection = client.connect_early(address).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    say(&mut stream, &[7; 10_000]).await;
    assert_eq!(connection.stats().moves, 0, "on the first path");
    assert_eq!(carriers(&connection), [CarrierKind::Quic]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_may_not_connect_is_told_so() {
    let ((client, _), (server, _)) = (endpoint(13).await, endpoint(14).await);
    serve(&server, Allow::only([])).await;
    match client.connect(server.addr()).await {
        Err(ConnectError::Refused { code, .. }) => assert_eq!(code, CloseCode::NOT_ALLOWED),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_another_key_is_not_connected_to() {
    let (server, _) = endpoint(15).await;
    serve(&server, Allow::Any).await;
    let config = Config { connect_timeout: Duration::from_secs(1), carriers: QUIC, ..Config::default() };
    let monitor = ManualMonitor::new([ip(16)]);
    let client = Endpoint::builder().monitor(monitor).config(config).bind().await.unwrap();
    let expected = EndpointAddr::new(SecretKey::generate().id(), server.addr().addrs);
    assert!(matches!(client.connect(expected).await, Err(ConnectError::TimedOut { .. })));
    assert!(server.connections().is_empty());
}

/// An endpoint that only dials answers nobody, and one that listens lets nobody in over a closed port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_listen_is_not_reached() {
    let ((client, _), (deaf, _)) = (endpoint(17).await, endpoint(18).await);
    let addr = EndpointAddr::new(deaf.id(), vec![SocketAddr::new(ip(18), deaf.port())]);
    let connecting = tokio::time::timeout(Duration::from_secs(1), client.connect(addr.clone())).await;
    assert!(connecting.is_err(), "{connecting:?}");
    serve(&deaf, Allow::Any).await;
    client.connect(addr).await.unwrap();
}

/// A fixed sequence, so that every run tries the same.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// Noise, things that begin like QUIC packets of any kind, and things that begin like notices.
fn garbage(random: &mut Random) -> Vec<u8> {
    let length = (random.next() % 1500) as usize;
    let mut datagram = random.bytes(length);
    let first: &[u8] = match random.next() % 6 {
        0 => &[0xc3, 0, 0, 0, 1, 8],
        1 => &[0xd3, 0, 0, 0, 1, 20],
        2 => &[0xf0, 0, 0, 0, 1, 8],
        3 => &[0x40, 0x80],
        4 => b"WHN1",
        _ => &[],
    };
    let n = first.len().min(datagram.len());
    datagram[..n].copy_from_slice(&first[..n]);
    datagram
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_datagrams_harm_nobody() {
    let pair = pair(19, 20).await;
    let connection = pair.client.connect(pair.server.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    let target = SocketAddr::new(ip(20), pair.server.port());
    let attacker = UdpSocket::bind((ip(21), 0)).unwrap();
    let mut random = Random(0x5851_f42d_4c95_7f2d);
    for _ in 0..20 {
        for _ in 0..200 {
            let _ = attacker.send_to(&garbage(&mut random), target);
        }
        say(&mut stream, b"still there").await;
    }
    let another = pair.client.connect(pair.server.addr()).await.unwrap();
    say(&mut another.open_stream().await.unwrap(), b"and others too").await;
}
