//! QUIC through a relay on loopback, by those who use it and those who misuse it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::time::timeout;
use whimbrel_base::routing::routed_id;
use whimbrel_base::{EndpointAddr, RelayedAddr};
use whimbrel_relay::spare::Key;
use whimbrel_relay::udp::wire;
use whimbrel_relay::{Limits, Relay};
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, Connection, Endpoint, Extent, Locator, ManualMonitor,
};

use crate::loopback::{LIMIT, Served, at, endpoint_at, ip, patient_at, relay, round_trip};

const QUIC: Carriers = Carriers::Only(CarrierKind::Quic);

/// A client that dials with QUIC alone.
async fn quic_client(test: u8, host: u8) -> Endpoint {
    endpoint_at(ManualMonitor::new([ip(test, host)]), QUIC).await
}

async fn connect(client: &Endpoint, to: EndpointAddr) -> Connection {
    timeout(LIMIT, client.connect(to)).await.expect("nobody answers").unwrap()
}

/// The only path, which is one of QUIC through a relay.
fn quic_path(connection: &Connection) -> u64 {
    match &connection.stats().paths[..] {
        [path] if path.carrier == CarrierKind::Quic && matches!(path.remote, Locator::Relayed(_)) => path.id,
        paths => panic!("{paths:?}"),
    }
}

/// The only path once it is another one.
async fn next_quic_path(connection: &Connection, before: u64) -> u64 {
    let begun = Instant::now();
    while !matches!(&connection.stats().paths[..], [path] if path.id != before) {
        assert!(begun.elapsed() < LIMIT, "{:?}", connection.stats().paths);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    quic_path(connection)
}

fn udp_of(relay: &Relay) -> SocketAddr {
    relay.endpoint().addr().addrs[0]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_goes_through_a_relay_and_each_side_moves() {
    let relay = relay(109, 1, Allow::Any, Limits::default()).await;
    let (home, abroad) = (ManualMonitor::new([ip(109, 2)]), ManualMonitor::new([ip(109, 3)]));
    let server = Served::start_behind(home.clone(), vec![at(&relay)]).await;
    server.held(1).await;
    let client = patient_at(abroad.clone(), QUIC).await;
    let connection = connect(&client, server.behind()).await;
    assert_eq!(connection.peer_id(), server.endpoint.id());
    let first = quic_path(&connection);
    let carrier = connection.stats().paths[0].carrier_stats.expect("QUIC tells");
    assert_eq!(carrier.extent, Extent::EndToEnd);
    round_trip(&connection, 8 << 20).await;
    let stats = relay.stats();
    assert_eq!((stats.flows, stats.spliced), (1, 0), "{stats:?}");
    assert!(stats.bytes > 16 << 20, "{stats:?}");
    // The client is another flow then: that its path is lost and that it has another address is told apart,
    // and it may dial for each.
    abroad.set([ip(109, 4)]);
    next_quic_path(&connection, first).await;
    round_trip(&connection, 100_000).await;
    let (second, flowed) = (next_quic_path(&connection, first).await, relay.stats().flowed);
    assert!((2..=3).contains(&flowed), "{flowed} flows");
    // The server's own move is none of QUIC's business.
    home.set([ip(109, 5)]);
    round_trip(&connection, 100_000).await;
    assert_eq!((next_quic_path(&connection, first).await, relay.stats().flowed), (second, flowed));
}

/// Between the client and the relay: a gateway that gives the client another port when it is told to.
async fn gateway(inside: UdpSocket, relay: SocketAddr, outside: SocketAddr, rebind: Arc<Notify>) {
    let bind = async || {
        let socket = UdpSocket::bind(outside).await.unwrap();
        socket.connect(relay).await.unwrap();
        socket
    };
    let (mut there, mut back) = (vec![0; 2048], vec![0; 2048]);
    let (mut socket, mut client) = (bind().await, None);
    loop {
        tokio::select! {
            Ok((size, from)) = inside.recv_from(&mut there) => {
                client = Some(from);
                let _ = socket.send(&there[..size]).await;
            }
            Ok(size) = socket.recv(&mut back) => {
                if let Some(client) = client {
                    let _ = inside.send_to(&back[..size], client).await;
                }
            }
            () = rebind.notified() => socket = bind().await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_its_gateway_gives_another_port_goes_on_through_the_relay() {
    let relay = relay(110, 1, Allow::Any, Limits::default()).await;
    let server = Served::start(110, 2, vec![at(&relay)]).await;
    server.held(1).await;
    let inside = UdpSocket::bind(SocketAddr::new(ip(110, 9), 0)).await.unwrap();
    let place = RelayedAddr { relay: inside.local_addr().unwrap(), token: server.token() };
    let rebind = Arc::new(Notify::new());
    let outside = SocketAddr::new(ip(110, 8), 0);
    let between = tokio::spawn(gateway(inside, udp_of(&relay), outside, rebind.clone()));
    let client = patient_at(ManualMonitor::new([ip(110, 3)]), QUIC).await;
    let connection = connect(&client, EndpointAddr::new(server.endpoint.id(), place.pack())).await;
    round_trip(&connection, 100_000).await;
    let path = quic_path(&connection);
    for flows in 2..4 {
        rebind.notify_one();
        round_trip(&connection, 1 << 20).await;
        assert_eq!((quic_path(&connection), relay.stats().flowed), (path, flows));
    }
    between.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_stops_sends_clients_of_quic_to_another_one_within_a_second() {
    let first = relay(111, 1, Allow::Any, Limits::default()).await;
    let second = relay(111, 2, Allow::Any, Limits::default()).await;
    let server = Served::start(111, 3, vec![at(&first), at(&second)]).await;
    server.held(2).await;
    let client = quic_client(111, 4).await;
    let connection = connect(&client, server.behind()).await;
    round_trip(&connection, 100_000).await;
    let stopping = if first.stats().flows > 0 { &first } else { &second };
    let begun = Instant::now();
    stopping.drain(LIMIT).await;
    // It waits until the server has told its clients, which takes half a second: with others on the machine,
    // more.
    assert!(begun.elapsed() < LIMIT / 4, "the server has not answered");
    round_trip(&connection, 100_000).await;
    // Or it finds the server itself, whose own address it has been told: on this host that answers, too.
    let stats = connection.stats();
    let [path] = &stats.paths[..] else { panic!("{stats:?}") };
    assert_eq!(path.carrier, CarrierKind::Quic);
    let is_relayed = matches!(path.remote, Locator::Relayed(_));
    assert!(!is_relayed || (first.stats().flowed > 0 && second.stats().flowed > 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_comes_back_forwards_again() {
    let (key, monitor) = (whimbrel_base::SecretKey::generate(), ManualMonitor::new([ip(112, 1)]));
    let start = async |port| {
        let builder = Endpoint::builder().secret_key(key.clone()).monitor(monitor.clone()).port(port);
        let endpoint = builder.config(Relay::config()).bind().await.unwrap();
        Relay::start(endpoint, Allow::Any, Limits::default(), Vec::new()).await.unwrap()
    };
    let first = start(0).await;
    let (addr, port) = (first.endpoint().addr(), first.endpoint().port());
    let server = Served::start(112, 2, vec![Arc::new(addr)]).await;
    server.held(1).await;
    let client = quic_client(112, 3).await;
    let connection = connect(&client, server.behind()).await;
    round_trip(&connection, 1000).await;
    let stopped = first.endpoint().clone();
    drop(first);
    stopped.close(Duration::from_secs(1)).await;
    drop(stopped);
    server.held(0).await;
    let second = start(port).await;
    server.held(1).await;
    round_trip(&connection, 100_000).await;
    let again = connect(&quic_client(112, 4).await, server.behind()).await;
    round_trip(&again, 1000).await;
    // The first one may have found the server itself meanwhile.
    quic_path(&again);
    assert!(second.stats().flowed >= 1, "{:?}", second.stats());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_flows_of_servers_are_refused_and_packets_of_strangers_go_nowhere() {
    let relay = relay(113, 1, Allow::Any, Limits::default()).await;
    let server = Served::start(113, 2, vec![at(&relay)]).await;
    server.held(1).await;
    let client = patient_at(ManualMonitor::new([ip(113, 3)]), QUIC).await;
    let connection = connect(&client, server.behind()).await;
    round_trip(&connection, 1000).await;
    let stranger = UdpSocket::bind(SocketAddr::new(ip(113, 9), 0)).await.unwrap();
    let (to, before) = (udp_of(&relay), relay.stats());
    // Says that it is the server, and sends to flows that it has not.
    let open = wire::open(&Key::new(&[7; 32]), server.token(), u64::MAX);
    stranger.send_to(&open, to).await.unwrap();
    for flow in [0, 1, u32::MAX] {
        let mut data = wire::data_header(flow).to_vec();
        data.extend([0x40; 1200]);
        stranger.send_to(&data, to).await.unwrap();
        stranger.send_to(&wire::unknown(flow), to).await.unwrap();
    }
    // Looks like a packet of a client that hears the server.
    let mut short = vec![0x40];
    short.extend(routed_id(server.token(), [9; 20]));
    short.extend([0; 1000]);
    stranger.send_to(&short, to).await.unwrap();
    let mut answer = [0; 2048];
    let heard = timeout(Duration::from_millis(300), stranger.recv(&mut answer)).await;
    if let Ok(Ok(size)) = heard {
        assert!(size <= short.len(), "it was sent more than it has sent");
    }
    assert_eq!(relay.stats().dropped, before.dropped + 4);
    round_trip(&connection, 100_000).await;
    assert_eq!(relay.stats().flowed, 2, "the client's, and the stranger's own");
}
