//! A server that has relays tells clients apart by their own addresses, which its relays convey.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use whimbrel_base::{EndpointAddr, RelayedAddr};
use whimbrel_relay::Limits;
use whimbrel_transport::{Allow, CarrierKind, Carriers, Config, ManualMonitor};

use crate::loopback::{LIMIT, Served, at, endpoint, endpoint_at, ip, relay, round_trip};

const TEST: u8 = 150;
/// Peers that the server lets be in a handshake.
const MAX: usize = 8;

/// What a client of the server begins with: one record of TLS.
async fn hello(server: &Served) -> Vec<u8> {
    let listener = TcpListener::bind(SocketAddr::new(ip(TEST, 9), 0)).await.unwrap();
    let place = RelayedAddr { relay: listener.local_addr().unwrap(), token: server.token() };
    let target = EndpointAddr::new(server.endpoint.id(), place.pack());
    let carriers = Carriers::Only(CarrierKind::Tcp);
    let client = endpoint_at(ManualMonitor::new([ip(TEST, 8)]), carriers).await;
    let mut dialling = JoinSet::new();
    dialling.spawn(async move { client.connect(target).await.map(drop) });
    let (mut socket, _) = timeout(LIMIT, listener.accept()).await.unwrap().unwrap();
    let mut record = vec![0; 5];
    timeout(LIMIT, socket.read_exact(&mut record)).await.unwrap().unwrap();
    let length = usize::from(u16::from_be_bytes([record[3], record[4]]));
    record.resize(5 + length, 0);
    timeout(LIMIT, socket.read_exact(&mut record[5..])).await.unwrap().unwrap();
    record
}

/// A client that says no more than its first words, once the server has answered these.
async fn half_open(from: IpAddr, relay: SocketAddr, hello: &[u8]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(from, 0)).unwrap();
    let mut socket = timeout(LIMIT, socket.connect(relay)).await.unwrap().unwrap();
    socket.write_all(hello).await.unwrap();
    let answered = timeout(LIMIT, socket.read_u8()).await.expect("the server does not answer");
    answered.expect("the server does not take it");
    socket
}

/// Waits for the end of a connection, so long at most.
async fn ends(socket: &mut TcpStream, within: Duration) -> bool {
    let mut rest = [0; 1024];
    let end = async { while matches!(socket.read(&mut rest).await, Ok(1..)) {} };
    timeout(within, end).await.is_ok()
}

/// To the server all of them come from the relay. If it counted them so, the oldest would make room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_one_address_sends_through_a_relay_make_room_among_themselves() {
    let relay = relay(TEST, 1, Allow::Any, Limits::default()).await;
    // No client is to be dropped because it takes long.
    let patient = Duration::from_secs(600);
    let config = Config { max_half_open: MAX, handshake_timeout: patient, ..Config::default() };
    let server = Served::start_limited(TEST, 2, vec![at(&relay)], config).await;
    server.held(1).await;
    let (hello, to) = (hello(&server).await, relay.endpoint().addr().addrs[0]);

    let mut oldest = half_open(ip(TEST, 60), to, &hello).await;
    let mut flood = Vec::new();
    for _ in 0..3 * MAX {
        flood.push(half_open(ip(TEST, 50), to, &hello).await);
    }
    // Beside the oldest one there is room for one less than the limit.
    let gone = flood.len() - (MAX - 1);
    for (number, socket) in flood[..gone].iter_mut().enumerate() {
        assert!(ends(socket, LIMIT).await, "{number} of {gone} stays");
    }
    assert!(!ends(&mut oldest, Duration::from_millis(200)).await, "another address had to make room");
    let client = endpoint(TEST, 61).await;
    let connection = timeout(LIMIT, client.connect(server.behind())).await.unwrap().unwrap();
    round_trip(&connection, 1000).await;
}
