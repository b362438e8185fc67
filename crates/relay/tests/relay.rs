//! A relay on loopback, with those who use it and those who misuse it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use whimbrel_base::relayed::{Place, places};
use whimbrel_base::{EndpointAddr, RelayToken, SecretKey};
use whimbrel_relay::spare::{Key, OFFER, Offer};
use whimbrel_relay::{Keeper, Limits, Relay};
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, ConnectError, Connection, Endpoint, Extent, ListenOptions, Locator,
    ManualMonitor,
};

use crate::loopback::{LIMIT, Served, at, endpoint, endpoint_at, ip, relay, round_trip};

fn is_relayed(connection: &Connection) -> bool {
    connection.stats().paths.iter().all(|path| matches!(path.remote, Locator::Relayed(_)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_reached_through_a_relay_as_if_it_were_dialled() {
    let relay = relay(100, 1, Allow::Any, Limits::default()).await;
    let server = Served::start(100, 2, vec![at(&relay)]).await;
    server.held(1).await;
    let client = endpoint(100, 3).await;
    let connection = timeout(LIMIT, client.connect(server.behind())).await.unwrap().unwrap();
    assert_eq!(connection.peer_id(), server.endpoint.id());
    assert!(is_relayed(&connection), "{:?}", connection.stats().paths);
    round_trip(&connection, 8 << 20).await;
    let stats = connection.stats();
    let carrier = stats.paths[0].carrier_stats.expect("TCP tells");
    assert_eq!(carrier.extent, Extent::NextHop);
    let relayed = relay.stats();
    assert_eq!((relayed.reservations, relayed.splices), (1, 1), "{relayed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_with_one_key_keep_places_apart_at_one_relay() {
    let (relay, key) = (relay(117, 1, Allow::Any, Limits::default()).await, SecretKey::generate());
    let mut servers = Vec::new();
    for host in [2, 3] {
        let monitor = ManualMonitor::new([ip(117, host)]);
        let endpoint = Endpoint::builder().secret_key(key.clone()).monitor(monitor).bind().await.unwrap();
        let listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
        let keeper = Keeper::start_apart(endpoint.clone(), vec![at(&relay)], None);
        let mut news = keeper.news();
        timeout(LIMIT, news.wait_for(|now| now.held == 1)).await.expect("no reservation").unwrap();
        servers.push((endpoint, listener, keeper));
    }
    assert_eq!(relay.stats().reservations, 2);
    let client = endpoint(117, 4).await;
    for (endpoint, listener, _keeper) in &mut servers {
        let all = places(&endpoint.addr().addrs).into_iter();
        let relayed = all.filter_map(|place| match place {
            Place::Relayed(relayed) => Some(relayed.pack()),
            Place::Direct(_) => None,
        });
        let behind = EndpointAddr::new(key.id(), relayed.flatten());
        let dialled = timeout(LIMIT, client.connect(behind));
        let (dialled, accepted) = tokio::join!(dialled, timeout(LIMIT, listener.accept()));
        let (dialled, accepted) = (dialled.unwrap().unwrap(), accepted.unwrap().unwrap());
        assert!(is_relayed(&dialled), "{:?}", dialled.stats().paths);
        assert_eq!(dialled.id(), accepted.id());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_comes_at_once_is_served_beyond_the_stock_of_spares() {
    let relay = relay(101, 1, Allow::Any, Limits::default()).await;
    let server = Served::start(101, 2, vec![at(&relay)]).await;
    server.held(1).await;
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..40 {
        let (target, from) = (server.behind(), endpoint(101, 10 + number).await);
        clients.spawn(async move {
            let connection = timeout(LIMIT, from.connect(target)).await.unwrap().unwrap();
            round_trip(&connection, 10_000).await;
            (connection, from)
        });
    }
    assert_eq!(clients.join_all().await.len(), 40);
    assert!(relay.stats().spliced >= 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_is_served_where_no_more_than_one_spare_may_wait_of_an_address() {
    let mut limits = Limits::default();
    limits.spares_per_address = 1;
    let relay = relay(118, 1, Allow::Any, limits).await;
    let server = Served::start(118, 2, vec![at(&relay)]).await;
    server.held(1).await;
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..10 {
        let (target, monitor) = (server.behind(), ManualMonitor::new([ip(118, 10 + number)]));
        let from = endpoint_at(monitor, Carriers::Only(CarrierKind::Tcp)).await;
        clients.spawn(async move {
            let connection = timeout(LIMIT, from.connect(target)).await.unwrap().unwrap();
            round_trip(&connection, 10_000).await;
            (connection, from)
        });
    }
    assert_eq!(clients.join_all().await.len(), 10);
    assert!(relay.stats().spliced >= 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_stops_sends_its_servers_and_clients_to_another_one_within_a_second() {
    let first = relay(102, 1, Allow::Any, Limits::default()).await;
    let second = relay(102, 2, Allow::Any, Limits::default()).await;
    let server = Served::start(102, 3, vec![at(&first), at(&second)]).await;
    server.held(2).await;
    let client = endpoint(102, 4).await;
    let connection = timeout(LIMIT, client.connect(server.behind())).await.unwrap().unwrap();
    round_trip(&connection, 100_000).await;
    // It may have begun over QUIC, through either.
    let used = |relay: &Relay| relay.stats().splices > 0;
    let carried = async {
        while !used(&first) && !used(&second) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, carried).await.unwrap();
    let stopping = if used(&first) { &first } else { &second };
    let begun = Instant::now();
    stopping.drain(LIMIT).await;
    // It waits until the server has told its clients, which takes half a second: with others on the machine,
    // more.
    assert!(begun.elapsed() < LIMIT / 4, "the server has not answered");
    server.held(1).await;
    assert_eq!(places(&server.behind().addrs).len(), 1, "its place is told to nobody any more");
    round_trip(&connection, 100_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_comes_back_is_used_again() {
    let (key, at) = (SecretKey::generate(), ManualMonitor::new([ip(108, 1)]));
    let start = async |port| {
        let builder = Endpoint::builder().secret_key(key.clone()).monitor(at.clone()).port(port);
        let endpoint = builder.config(Relay::config()).bind().await.unwrap();
        Relay::start(endpoint, Allow::Any, Limits::default(), Vec::new()).await.unwrap()
    };
    let first = start(0).await;
    let (addr, port) = (first.endpoint().addr(), first.endpoint().port());
    let server = Served::start(108, 2, vec![Arc::new(addr)]).await;
    server.held(1).await;
    let token = server.token();
    let client = endpoint(108, 3).await;
    let connection = timeout(LIMIT, client.connect(server.behind())).await.unwrap().unwrap();
    let stopped = first.endpoint().clone();
    drop(first);
    stopped.close(Duration::from_secs(1)).await;
    drop(stopped);
    server.held(0).await;
    let second = start(port).await;
    server.held(1).await;
    assert_eq!(server.token(), token, "the same at all times");
    round_trip(&connection, 100_000).await;
    let again = timeout(LIMIT, endpoint(108, 4).await.connect(server.behind())).await.unwrap().unwrap();
    round_trip(&again, 1000).await;
    assert!(second.stats().splices > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_those_who_are_allowed_get_a_reservation() {
    let friend = SecretKey::generate();
    let relay = relay(103, 1, Allow::only([friend.id()]), Limits::default()).await;
    let stranger = Served::start(103, 2, vec![at(&relay)]).await;
    let mut news = stranger.keeper.news();
    let told = timeout(LIMIT, news.wait_for(|now| now.problem.is_some())).await.unwrap().unwrap();
    let problem = told.problem.unwrap();
    assert!(problem.contains("not on the list"), "{problem}");
    assert_eq!(relay.stats().reservations, 0);
    assert_eq!(stranger.behind().addrs, []);
}

/// What the relay answers to bytes: nothing, and closes.
async fn is_closed(mut socket: TcpStream, within: Duration) -> bool {
    let mut answer = [0; 64];
    match timeout(within, socket.read(&mut answer)).await {
        Ok(Ok(count)) => count == 0,
        Ok(Err(_)) => true,
        Err(_) => false,
    }
}

async fn say(to: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(to).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_spares_and_unknown_tokens_are_cut_off_and_the_relay_connects_nowhere() {
    let relay = relay(104, 1, Allow::Any, Limits::default()).await;
    let server = Served::start(104, 2, vec![at(&relay)]).await;
    server.held(1).await;
    let to = relay.endpoint().addr().addrs[0];
    let soon = Duration::from_secs(5);
    for token in [server.token(), RelayToken::from_bytes([9; 10])] {
        let forged = Offer { token, origin: 0, number: 1 << 40 }.encode(&Key::new(&[7; 32]));
        assert_eq!(forged.len(), OFFER);
        assert!(is_closed(say(to, &forged).await, soon).await);
    }
    // What would have an open proxy connect elsewhere.
    assert!(is_closed(say(to, b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n\r\n").await, soon).await);
    assert_eq!(relay.stats().spares_refused, 2);
    // A client's TLS with a token that nobody has.
    let nobody = whimbrel_base::RelayedAddr { relay: to, token: RelayToken::from_bytes([9; 10]) };
    let target = EndpointAddr::new(server.endpoint.id(), nobody.pack());
    let client = endpoint(104, 3).await;
    assert!(timeout(Duration::from_secs(2), client.connect(target)).await.is_err(), "there is nobody");
    assert!(relay.stats().clients_refused > 0);
    // The server is still reached.
    let connection = timeout(LIMIT, client.connect(server.behind())).await.unwrap().unwrap();
    round_trip(&connection, 1000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_another_server_leads_to_that_one_whose_key_is_not_accepted() {
    let relay = relay(105, 1, Allow::Any, Limits::default()).await;
    let honest = Served::start(105, 2, vec![at(&relay)]).await;
    honest.held(1).await;
    let liar = SecretKey::generate().id();
    let client = endpoint(105, 3).await;
    let stolen = EndpointAddr::new(liar, honest.behind().addrs);
    let attempt = timeout(Duration::from_secs(2), client.connect(stolen)).await;
    assert!(!matches!(attempt, Ok(Ok(_))), "the honest server was taken for the liar");
    assert!(!matches!(attempt, Ok(Err(ConnectError::Refused { .. }))), "{attempt:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_strangers_are_cut_off_and_keep_nobody_out() {
    let relay = relay(106, 1, Allow::Any, Limits::default()).await;
    let server = Served::start(106, 2, vec![at(&relay)]).await;
    server.held(1).await;
    let to = relay.endpoint().addr().addrs[0];
    // More than there are places: the first bytes of a ClientHello, of a spare, and nothing at all.
    let mut slow = Vec::new();
    for number in 0..1200 {
        let first: &[u8] = [&[22, 3, 1, 2, 0, 1, 0][..], b"WHR1", b""][number % 3];
        slow.push(say(to, first).await);
    }
    let client = endpoint(106, 3).await;
    let connection = timeout(LIMIT, client.connect(server.behind())).await.unwrap().unwrap();
    round_trip(&connection, 1000).await;
    for socket in slow {
        assert!(is_closed(socket, Duration::from_secs(5)).await, "a stranger may stay for long");
    }
}

/// Between the client and the relay: passes everything on, and changes the byte `at` of what goes to the
/// server.
async fn corrupting(listener: TcpListener, relay: SocketAddr, at: usize) {
    while let Ok((mut client, _)) = listener.accept().await {
        let mut server = TcpStream::connect(relay).await.unwrap();
        tokio::spawn(async move {
            let (mut from_client, mut to_client) = client.split();
            let (mut from_server, mut to_server) = server.split();
            let there = async {
                let (mut piece, mut passed) = (vec![0; 4096], 0);
                while let Ok(count @ 1..) = from_client.read(&mut piece).await {
                    if (passed..passed + count).contains(&at) {
                        piece[at - passed] ^= 1;
                    }
                    passed += count;
                    if to_server.write_all(&piece[..count]).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = there => {}
                _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_changes_a_byte_is_noticed_and_delivers_nothing_false() {
    let relay = relay(107, 1, Allow::Any, Limits::default()).await;
    let server = Served::start(107, 2, vec![at(&relay)]).await;
    server.held(1).await;
    let listener = TcpListener::bind(SocketAddr::new(ip(107, 9), 0)).await.unwrap();
    let place = whimbrel_base::RelayedAddr { relay: listener.local_addr().unwrap(), token: server.token() };
    // Once in each connection, behind the handshake: the path breaks, another one is made, and no byte is
    // wrong.
    tokio::spawn(corrupting(listener, relay.endpoint().addr().addrs[0], 100_000));
    let client = endpoint(107, 3).await;
    let target = EndpointAddr::new(server.endpoint.id(), place.pack());
    let connection = timeout(LIMIT, client.connect(target)).await.unwrap().unwrap();
    round_trip(&connection, 300_000).await;
    assert!(relay.stats().spliced > 1 || !is_relayed(&connection), "the change broke the path");
}
