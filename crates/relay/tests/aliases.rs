//! What onlookers between clients and a relay see of whom the clients call: a token for each path.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;
use whimbrel_base::relayed::{Place, places};
use whimbrel_base::routing::routed;
use whimbrel_base::{EndpointAddr, RelayToken, RelayedAddr};
use whimbrel_relay::hello::{self, Hello};
use whimbrel_relay::{Limits, Relay};
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, Config, Connection, Endpoint, ManualMonitor, PathState,
};

use crate::loopback::{LIMIT, Served, at, ip, patient_at, round_trip};

const TCP: Carriers = Carriers::Only(CarrierKind::Tcp);
const QUIC: Carriers = Carriers::Only(CarrierKind::Quic);

/// A relay that says it is at `seen_at`, where somebody looks on.
async fn relay_seen_at(endpoint: Endpoint, seen_at: SocketAddr) -> Relay {
    Relay::start(endpoint, Allow::Any, Limits::default(), vec![seen_at]).await.unwrap()
}

async fn relay_endpoint(test: u8, host: u8) -> Endpoint {
    let monitor = ManualMonitor::new([ip(test, host)]);
    Endpoint::builder().monitor(monitor).config(Relay::config()).bind().await.unwrap()
}

/// A server that is told to nobody but behind its relays, once it has aliases there.
async fn server_behind(test: u8, host: u8, relays: &[&Relay]) -> Served {
    let config = Config { private_addresses: false, ..Config::default() };
    let relays_at = relays.iter().map(|relay| at(relay)).collect();
    let server = Served::start_limited(test, host, relays_at, config).await;
    server.held(relays.len()).await;
    let place = place_of(&server);
    let stocked = async {
        // Fewer than 32 are not asked for.
        while server.endpoint.missing_aliases(place) >= 32 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, stocked).await.expect("the relay makes no aliases");
    server
}

fn place_of(server: &Served) -> RelayedAddr {
    match places(&server.behind().addrs)[..] {
        [Place::Relayed(place), ..] => place,
        _ => panic!("no reservation"),
    }
}

async fn connect(client: &Endpoint, to: EndpointAddr) -> Connection {
    timeout(LIMIT, client.connect(to)).await.expect("nobody answers").unwrap()
}

/// The client has another address, and bytes come over a path from there. The first ones are news of what the
/// server tells besides.
async fn move_to(connection: &Connection, monitor: &ManualMonitor, to: IpAddr) {
    monitor.set([to]);
    round_trip(connection, 1000).await;
    let is_there = || {
        let paths = connection.stats().paths;
        paths.iter().any(|path| path.local.ip() == to && path.state == PathState::Active)
    };
    let moved = async {
        while !is_there() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, moved).await.expect("no path from there");
    round_trip(connection, 1000).await;
}

/// What went through one TCP connection first, in both directions.
#[derive(Default)]
struct Said {
    there: Vec<u8>,
    back: Vec<u8>,
}

/// Looks on between clients and what is at `to`, which can be changed.
struct Onlooker {
    at: SocketAddr,
    to: Arc<Mutex<SocketAddr>>,
    heard: Arc<Mutex<Vec<Arc<Mutex<Said>>>>>,
    _accepting: JoinSet<()>,
}

impl Onlooker {
    async fn start(at: IpAddr, to: SocketAddr) -> Self {
        let listener = TcpListener::bind(SocketAddr::new(at, 0)).await.unwrap();
        let (at, to) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(to)));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (target, all) = (to.clone(), heard.clone());
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut passing = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (to, said) = (*target.lock().unwrap(), Arc::<Mutex<Said>>::default());
                all.lock().unwrap().push(said.clone());
                passing.spawn(pass(client, to, said));
            }
        });
        Self { at, to, heard, _accepting: accepting }
    }

    /// From now on it stands before that.
    fn leads_to(&self, to: SocketAddr) {
        *self.to.lock().unwrap() = to;
    }

    /// The tokens that were named so far, in order, by those who said something.
    fn named(&self) -> Vec<RelayToken> {
        let mut named = Vec::new();
        for said in self.heard.lock().unwrap().iter() {
            if let Hello::Named(name) = hello::read(&said.lock().unwrap().there) {
                named.push(name.parse().unwrap());
            }
        }
        named
    }

    /// Of each handshake that was answered, in order, whether a ticket was taken.
    fn resumed(&self) -> Vec<bool> {
        let mut resumed = Vec::new();
        for said in self.heard.lock().unwrap().iter() {
            resumed.extend(is_resumed(&said.lock().unwrap().back));
        }
        resumed
    }
}

/// Passes a connection on, and notes how it begins.
async fn pass(client: TcpStream, to: SocketAddr, said: Arc<Mutex<Said>>) {
    let Ok(server) = TcpStream::connect(to).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let there = async {
        let mut piece = vec![0; 4096];
        while let Ok(count @ 1..) = from_client.read(&mut piece).await {
            note(&mut said.lock().unwrap().there, &piece[..count]);
            if to_server.write_all(&piece[..count]).await.is_err() {
                break;
            }
        }
        let _ = to_server.shutdown().await;
    };
    let back = async {
        let mut piece = vec![0; 4096];
        while let Ok(count @ 1..) = from_server.read(&mut piece).await {
            note(&mut said.lock().unwrap().back, &piece[..count]);
            if to_client.write_all(&piece[..count]).await.is_err() {
                break;
            }
        }
        let _ = to_client.shutdown().await;
    };
    tokio::join!(there, back);
}

fn note(said: &mut Vec<u8>, piece: &[u8]) {
    let room = 8192_usize.saturating_sub(said.len()).min(piece.len());
    said.extend_from_slice(&piece[..room]);
}

/// Whether a ServerHello (RFC 8446 §4.1.3) takes a ticket: it has the extension `pre_shared_key`. `None` if
/// that is not here as a whole.
fn is_resumed(answer: &[u8]) -> Option<bool> {
    // A record's header, a message's, version and random; then the session id, behind its length.
    let fixed = 5 + 4 + 2 + 32;
    let length = usize::from(u16::from_be_bytes([*answer.get(3)?, *answer.get(4)?]));
    if answer.len() < 5 + length || length < fixed || answer[0] != 22 || answer[5] != 2 {
        return None;
    }
    let mut at = fixed + 1 + usize::from(answer[fixed]) + 2 + 1;
    let u16_at = |at: usize| usize::from(u16::from_be_bytes([answer[at], answer[at + 1]]));
    let end = at + 2 + u16_at(at);
    at += 2;
    while at < end {
        if u16_at(at) == 41 {
            return Some(true);
        }
        at += 4 + u16_at(at + 2);
    }
    Some(false)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_path_of_a_client_names_another_token_and_only_strangers_name_the_servers() {
    const TEST: u8 = 211;
    let relaying = relay_endpoint(TEST, 1).await;
    let onlooker = Onlooker::start(ip(TEST, 9), relaying.addr().addrs[0]).await;
    let relay = relay_seen_at(relaying, onlooker.at).await;
    let server = server_behind(TEST, 2, &[&relay]).await;
    let token = server.token();
    let mut seen = HashSet::new();
    for host in [10, 20] {
        let monitor = ManualMonitor::new([ip(TEST, host)]);
        let client = patient_at(monitor.clone(), TCP).await;
        let connection = connect(&client, server.behind()).await;
        round_trip(&connection, 1000).await;
        round_trip(&connection, 1000).await;
        for moved in 1..=3 {
            move_to(&connection, &monitor, ip(TEST, host + moved)).await;
        }
        // Another connection of the same client is no stranger's.
        let another = connect(&client, server.behind()).await;
        round_trip(&another, 1000).await;
        let of_client: HashSet<_> = onlooker.named().into_iter().filter(|name| *name != token).collect();
        let own: HashSet<_> = of_client.difference(&seen).copied().collect();
        // Three moves, and the other connection.
        assert!(own.len() >= 4, "{own:?} of {:?}", onlooker.named());
        seen.extend(own);
    }
    let named = onlooker.named();
    // The first of all is a stranger's. Where a machine is so busy that a path counts as failed, the client
    // dials by the server's token once more, but not in each of the eight dials that are no strangers'.
    assert_eq!(named[0], token);
    let strangers = 2;
    let of_token = named.iter().filter(|name| **name == token).count();
    assert!((strangers..strangers + 6).contains(&of_token), "{of_token} of {named:?}");
    // A relay that had not known one would have refused it.
    assert_eq!(relay.stats().clients_refused, 0, "{:?}", relay.stats());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_direct_path_over_tcp_resumes_by_a_ticket_that_came_through_a_relay() {
    const TEST: u8 = 212;
    let relaying = relay_endpoint(TEST, 1).await;
    let onlooker = Onlooker::start(ip(TEST, 9), relaying.addr().addrs[0]).await;
    let relay = relay_seen_at(relaying, onlooker.at).await;
    let server = server_behind(TEST, 2, &[&relay]).await;
    let direct = Onlooker::start(ip(TEST, 8), SocketAddr::new(ip(TEST, 2), server.endpoint.port())).await;
    let client = patient_at(ManualMonitor::new([ip(TEST, 3)]), TCP).await;
    let relayed = connect(&client, server.behind()).await;
    // Twice, so that the tickets are here.
    round_trip(&relayed, 1000).await;
    round_trip(&relayed, 1000).await;
    let connection = connect(&client, EndpointAddr::new(server.endpoint.id(), [direct.at])).await;
    round_trip(&connection, 1000).await;
    assert!(!onlooker.resumed()[0], "the very first handshake is a full one");
    let on_direct = direct.resumed();
    assert!(!on_direct.is_empty() && on_direct.iter().all(|resumed| *resumed), "{on_direct:?}");
    assert_eq!(direct.named(), [], "a direct path names nobody");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_whose_alias_a_relay_does_not_know_comes_by_the_servers_token() {
    const TEST: u8 = 213;
    let (one, other) = (relay_endpoint(TEST, 1).await, relay_endpoint(TEST, 2).await);
    let [at_one, at_other] = [&one, &other].map(|relay| relay.addr().addrs[0]);
    let onlooker = Onlooker::start(ip(TEST, 9), at_one).await;
    // Both say that they are there: of the aliases that the server has for that place, each relay knows its
    // own.
    let (one, other) = (relay_seen_at(one, onlooker.at).await, relay_seen_at(other, onlooker.at).await);
    let server = server_behind(TEST, 3, &[&one, &other]).await;
    let monitor = ManualMonitor::new([ip(TEST, 10)]);
    let client = patient_at(monitor.clone(), TCP).await;
    let connection = connect(&client, server.behind()).await;
    round_trip(&connection, 1000).await;
    for moved in 1..=6 {
        onlooker.leads_to(if moved <= 3 { at_one } else { at_other });
        move_to(&connection, &monitor, ip(TEST, 10 + moved)).await;
    }
    // No more does who begins another connection with an alias of the wrong relay.
    for to in [at_one, at_other] {
        onlooker.leads_to(to);
        let another = connect(&client, server.behind()).await;
        round_trip(&another, 1000).await;
    }
    let refused = one.stats().clients_refused + other.stats().clients_refused;
    assert!(refused > 0, "no alias was unknown where it was named: {:?}", onlooker.named());
    assert_eq!(connection.peer_id(), server.endpoint.id());
}

/// Passes datagrams on between clients and `relay`, and notes what ids of the clients' packets name: whether
/// it is a packet of a handshake, and the token.
async fn look_on(socket: UdpSocket, relay: SocketAddr, named: Arc<Mutex<Vec<(bool, RelayToken)>>>) {
    let socket = Arc::new(socket);
    let mut clients: HashMap<SocketAddr, Arc<UdpSocket>> = HashMap::new();
    let (mut back, mut piece) = (JoinSet::new(), vec![0; 2048]);
    while let Ok((size, client)) = socket.recv_from(&mut piece).await {
        let upstream = match clients.get(&client) {
            Some(upstream) => upstream.clone(),
            None => {
                let upstream = UdpSocket::bind(SocketAddr::new(relay.ip(), 0)).await.unwrap();
                upstream.connect(relay).await.unwrap();
                let upstream = Arc::new(upstream);
                clients.insert(client, upstream.clone());
                let (from, to) = (upstream.clone(), socket.clone());
                back.spawn(async move {
                    let mut piece = vec![0; 2048];
                    while let Ok(size) = from.recv(&mut piece).await {
                        // The client may have moved.
                        let _ = to.send_to(&piece[..size], client).await;
                    }
                });
                upstream
            }
        };
        if let Some(routed) = routed(&piece[..size]) {
            named.lock().unwrap().push((piece[0] & 0x80 != 0, routed.token));
        }
        let _ = upstream.send(&piece[..size]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_quic_ids_name_the_servers_token_in_a_strangers_handshake_alone() {
    const TEST: u8 = 214;
    let relaying = relay_endpoint(TEST, 1).await;
    let inside = UdpSocket::bind(SocketAddr::new(ip(TEST, 9), 0)).await.unwrap();
    let (seen_at, named) = (inside.local_addr().unwrap(), Arc::<Mutex<Vec<_>>>::default());
    let mut looking = JoinSet::new();
    looking.spawn(look_on(inside, relaying.addr().addrs[0], named.clone()));
    let relay = relay_seen_at(relaying, seen_at).await;
    let server = server_behind(TEST, 2, &[&relay]).await;
    let token = server.token();
    let monitor = ManualMonitor::new([ip(TEST, 3)]);
    let client = patient_at(monitor.clone(), QUIC).await;
    let connection = connect(&client, server.behind()).await;
    round_trip(&connection, 100_000).await;
    round_trip(&connection, 1000).await;
    let before = named.lock().unwrap().clone();
    assert_eq!(before[0], (true, token), "a stranger knows no other");
    move_to(&connection, &monitor, ip(TEST, 4)).await;
    let all = named.lock().unwrap().clone();
    let short: Vec<_> = all.iter().filter(|(is_handshake, _)| !is_handshake).collect();
    assert!(
        !short.is_empty() && short.iter().all(|(_, name)| *name != token),
        "the server's own ids name it"
    );
    // The first packet of the next handshake has the id that the client has made.
    let begun = all[before.len()..].iter().find(|(is_handshake, _)| *is_handshake);
    assert!(begun.is_some_and(|(_, name)| *name != token), "after a move: {:?}", &all[before.len()..]);
    assert_eq!(server.accepted.load(std::sync::atomic::Ordering::Relaxed), 1);
}
