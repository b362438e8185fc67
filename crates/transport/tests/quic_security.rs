//! What attackers try over QUIC: other keys, wrong proofs, first flights played again, silence in crowds.
#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lab_support::traffic::{Echo, Meter, serve};
use crate::lab_support::{self, ms, secs};
use crate::raw::{Answer, Identity, PROTOCOL, RawClient, client_config, segment_of, with_length};
use quinn::crypto::rustls::QuicClientConfig;
use tokio::net::UdpSocket;
use whimbrel_base::{ConnectionId, EndpointAddr, SecretKey};
use whimbrel_proto::fuzzing::frame::{Frame, Join, Open};
use whimbrel_proto::{Params, PathId, segment};
use whimbrel_transport::{Allow, CarrierKind, Carriers, CloseCode, Config, Endpoint, ListenOptions};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LIMIT: Duration = Duration::from_secs(20);

/// An endpoint that serves every connection it is given.
struct Target {
    endpoint: Endpoint,
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

async fn endpoint(config: Config) -> Endpoint {
    lab_support::log();
    Endpoint::builder().ip(HERE).config(config).bind().await.unwrap()
}

fn quic() -> Config {
    Config { carriers: Carriers::Only(CarrierKind::Quic), ..Config::default() }
}

async fn target(config: Config) -> Target {
    let endpoint = endpoint(config).await;
    let mut listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = accepted.clone();
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(serve(connection, Meter::default()));
        }
    });
    let address = SocketAddr::new(HERE, endpoint.port());
    Target { endpoint, address, accepted }
}

impl Target {
    /// How many paths the server has on that connection.
    fn paths(&self, client: &RawClient) -> usize {
        let all = self.endpoint.connections();
        all.iter().find(|info| info.id == client.engine.id()).map_or(0, |info| info.stats.paths.len())
    }

    /// Connections that the server has with a peer.
    fn connections_of(&self, peer: &Endpoint) -> usize {
        self.endpoint.connections().iter().filter(|info| info.peer == peer.id()).count()
    }

    /// An ordinary client is served, and how soon.
    async fn serves(&self) -> Duration {
        let client = endpoint(quic()).await;
        let began = Instant::now();
        let connection = client.connect(self.endpoint.addr()).await.unwrap();
        Echo::open(&connection).await;
        began.elapsed()
    }
}

/// QUIC, and not a byte of the protocol.
async fn dial(
    key: Option<&SecretKey>,
    server: SocketAddr,
) -> Result<quinn::Connection, quinn::ConnectionError> {
    let endpoint = quinn::Endpoint::client(SocketAddr::new(HERE, 0)).unwrap();
    let tls = QuicClientConfig::try_from(client_config(key, PROTOCOL)).unwrap();
    let config = quinn::ClientConfig::new(Arc::new(tls));
    endpoint.connect_with(config, server, "peer.invalid").unwrap().await
}

/// Offers a first segment on a fresh QUIC connection.
async fn say(key: &SecretKey, server: SocketAddr, segment: &[u8]) -> Option<Answer> {
    let connection = dial(Some(key), server).await.unwrap();
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.write_all(segment).await.unwrap();
    let mut heard = Vec::new();
    let answer = async {
        loop {
            if let Some((body, _)) = segment::split(&heard).unwrap() {
                return Some(Answer::read(body));
            }
            heard.extend_from_slice(&recv.read_chunk(4096, true).await.ok()??.bytes);
        }
    };
    tokio::time::timeout(LIMIT, answer).await.unwrap()
}

async fn offer(key: &SecretKey, server: SocketAddr, join: Join) -> Option<Answer> {
    say(key, server, &segment_of(&Frame::Join(join))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_genuine_join_is_accepted() {
    let target = target(Config::default()).await;
    let identity = Identity::new();
    let (id, server) = (target.endpoint.id(), target.address);
    let (identity, mut client) = tokio::task::spawn_blocking(move || {
        let client = RawClient::open(&identity, server, id);
        (identity, client)
    })
    .await
    .unwrap();
    let genuine = client.join();
    let stranger = SecretKey::generate();
    let refused = |code| Some(Answer::Refused(code));
    // Not even that the connection exists is told.
    let stolen = offer(&stranger, server, genuine.clone()).await;
    assert_eq!(stolen, refused(CloseCode::UNKNOWN_CONNECTION));
    for bit in [0, 255] {
        let mut forged = genuine.clone();
        forged.proof[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(offer(&identity.key, server, forged).await, refused(CloseCode::BAD_PROOF));
    }
    assert_eq!(target.paths(&client), 1);
    assert_eq!(offer(&identity.key, server, genuine.clone()).await, Some(Answer::Joined));
    let again = offer(&identity.key, server, genuine).await;
    assert_eq!(again, refused(CloseCode::PATH_ID_REUSED));
    assert_eq!(target.accepted.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_without_a_key_gets_in() {
    let target = target(Config::default()).await;
    match dial(None, target.address).await {
        // The server's refusal may come after the client's side of the handshake is complete.
        Ok(connection) => drop(tokio::time::timeout(LIMIT, connection.closed()).await.unwrap()),
        Err(error) => drop(error),
    }
    assert!(target.endpoint.connections().is_empty());
    target.serves().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_first_segment_is_refused() {
    let target = target(Config::default()).await;
    let key = SecretKey::generate();
    assert_eq!(
        say(&key, target.address, &with_length(&[0x3f; 40])).await,
        Some(Answer::Refused(CloseCode::VERSION))
    );
    // Longer than any segment may be: not worth an answer.
    assert_eq!(say(&key, target.address, &[0xbf; 2000]).await, None);
    assert!(target.endpoint.connections().is_empty());
    target.serves().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_says_nothing_is_dropped_in_time() {
    let target = target(Config { handshake_timeout: ms(500), ..Config::default() }).await;
    let silent = dial(Some(&SecretKey::generate()), target.address).await.unwrap();
    let mut endless =
        dial(Some(&SecretKey::generate()), target.address).await.unwrap().open_bi().await.unwrap();
    endless.0.write_all(&[0x40]).await.unwrap();
    let began = Instant::now();
    tokio::time::timeout(LIMIT, silent.closed()).await.unwrap();
    assert!(tokio::time::timeout(LIMIT, endless.1.read_chunk(1, true)).await.unwrap().is_err());
    assert!(began.elapsed() < secs(10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_says_nothing_is_bounded_and_keeps_nobody_out() {
    const MAX: usize = 16;
    let target = target(Config { max_half_open: MAX, ..Config::default() }).await;
    let mut crowd = Vec::new();
    for _ in 0..3 * MAX {
        crowd.push(dial(Some(&SecretKey::generate()), target.address).await.unwrap());
    }
    let began = Instant::now();
    let waiting = || crowd.iter().filter(|connection| connection.close_reason().is_none()).count();
    while waiting() > MAX {
        assert!(began.elapsed() < secs(5), "{} wait", waiting());
        tokio::time::sleep(ms(20)).await;
    }
    assert!(waiting() > 0, "there was room for some");
    target.serves().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_was_let_in_cannot_send_what_nobody_reads() {
    let target = target(Config::default()).await;
    let key = SecretKey::generate();
    let connection = dial(Some(&key), target.address).await.unwrap();
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    let open = Open {
        connection: ConnectionId::random(),
        path: PathId(0),
        random: [3; 32],
        lost: Vec::new(),
        params: Params::default(),
    };
    send.write_all(&segment_of(&Frame::Open(open))).await.unwrap();
    assert!(recv.read_chunk(1, true).await.unwrap().is_some(), "it is let in");
    assert_eq!(target.endpoint.connections().len(), 1);
    for opened in [
        tokio::time::timeout(ms(500), connection.open_uni()).await.map(drop),
        tokio::time::timeout(ms(500), connection.open_bi()).await.map(drop),
    ] {
        assert!(opened.is_err(), "there is one stream, which is read");
    }
    connection.send_datagram(vec![0x40; 10].into()).unwrap();
    let over = async {
        while !target.endpoint.connections().is_empty() {
            tokio::time::sleep(ms(5)).await
        }
    };
    assert!(tokio::time::timeout(LIMIT, over).await.is_ok(), "what is no message ends the connection");
}

/// What QUIC may hold of an idle path is its peer's, as what is written and read is: at least its first
/// window of 80 KiB. The kernel bounds what TCP holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_quic_may_hold_counts_in_its_peers_share() {
    const OPENED: usize = 8;
    const FITTING: usize = 3;
    let target = target(Config { max_bytes_per_peer: 300 << 10, ..Config::default() }).await;
    let tcp = Config { carriers: Carriers::Only(CarrierKind::Tcp), ..Config::default() };
    let (over_quic, over_tcp) = (endpoint(quic()).await, endpoint(tcp).await);
    let connect = async |client: &Endpoint| {
        let mut held = Vec::new();
        for _ in 0..OPENED {
            // One that is given up for others may be so before it is there.
            held.extend(client.connect(target.endpoint.addr()).await);
        }
        held
    };
    let (by_tcp, by_quic) = (connect(&over_tcp).await, connect(&over_quic).await);
    assert!(by_quic.len() >= FITTING, "only {} were let in", by_quic.len());
    let began = Instant::now();
    while target.connections_of(&over_quic) > FITTING {
        assert!(began.elapsed() < LIMIT, "{} are kept", target.connections_of(&over_quic));
        tokio::time::sleep(ms(5)).await;
    }
    assert!(target.connections_of(&over_quic) > 0, "those that fit stay");
    assert_eq!((by_tcp.len(), target.connections_of(&over_tcp)), (OPENED, OPENED));
}

/// Between clients and a server: passes datagrams on, and keeps those of clients.
struct Tap {
    address: SocketAddr,
    kept: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Tap {
    async fn start(server: SocketAddr) -> Self {
        let socket = UdpSocket::bind(SocketAddr::new(HERE, 0)).await.unwrap();
        let tap = Self { address: socket.local_addr().unwrap(), kept: Arc::default() };
        let kept = tap.kept.clone();
        tokio::spawn(async move {
            let (mut client, mut buffer) = (None, [0; 2048]);
            while let Ok((n, from)) = socket.recv_from(&mut buffer).await {
                let to = if from == server {
                    client
                } else {
                    client = Some(from);
                    kept.lock().unwrap().push(buffer[..n].to_vec());
                    Some(server)
                };
                if let Some(to) = to {
                    let _ = socket.send_to(&buffer[..n], to).await;
                }
            }
        });
        tap
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_flight_that_is_played_again_reaches_nobody() {
    let target = target(Config::default()).await;
    let tap = Tap::start(target.address).await;
    let client = endpoint(quic()).await;
    let addr = EndpointAddr::new(target.endpoint.id(), vec![tap.address]);
    // For the ticket.
    let first = client.connect(addr.clone()).await.unwrap();
    Echo::open(&first).await;
    first.close(CloseCode::NONE, "", secs(5)).await.unwrap();
    while !target.endpoint.connections().is_empty() {
        tokio::time::sleep(ms(10)).await;
    }
    tap.kept.lock().unwrap().clear();
    let second = client.connect_early(addr).await.unwrap();
    let mut echo = Echo::open(&second).await;
    let flight = std::mem::take(&mut *tap.kept.lock().unwrap());
    // It begins with an Initial packet (RFC 9000 §17.2.2).
    assert_eq!(flight[0][0] & 0xb0, 0x80);
    let accepted = target.accepted.load(Ordering::Relaxed);
    assert_eq!(accepted, 2);
    let attacker = UdpSocket::bind(SocketAddr::new(HERE, 0)).await.unwrap();
    for _ in 0..3 {
        for datagram in &flight {
            attacker.send_to(datagram, target.address).await.unwrap();
        }
        tokio::time::sleep(ms(100)).await;
    }
    assert_eq!(target.accepted.load(Ordering::Relaxed), accepted);
    assert_eq!(target.endpoint.connections().len(), 1);
    echo.say(b"nobody noticed").await;
    assert_eq!(second.stats().moves, 0);
}
