//! What attackers try: other keys, old bytes, wrong proofs, garbage, floods and patience.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lab_support::traffic::{Echo, Meter, serve};
use crate::lab_support::{self, ms, secs};
use crate::raw::{
    self, Answer, Identity, RawClient, RawPath, client_config, client_hello, offer, segment_of, with_length,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use whimbrel_base::{ConnectionId, EndpointAddr, Name, Ticket};
use whimbrel_proto::fuzzing::frame::{Frame, Join, Open, PathReport};
use whimbrel_proto::{Params, PathId};
use whimbrel_transport::{
    Allow, CloseCode, Config, ConnectError, Connection, Endpoint, ListenOptions, ManualMonitor,
};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// An endpoint that serves every connection it is given.
struct Target {
    endpoint: Endpoint,
    address: SocketAddr,
    /// Connections that reached the application.
    accepted: Arc<AtomicUsize>,
    uploaded: Meter,
}

async fn endpoint(config: Config) -> Endpoint {
    lab_support::log();
    Endpoint::builder().ip(HERE).config(config).bind().await.unwrap()
}

async fn target(config: Config, allow: Allow) -> Target {
    let endpoint = endpoint(config).await;
    let options = ListenOptions::unnamed().allow(allow);
    let mut listener = endpoint.listen(options).await.unwrap();
    let (accepted, uploaded) = (Arc::new(AtomicUsize::new(0)), Meter::default());
    let (count, meter) = (accepted.clone(), uploaded.clone());
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(serve(connection, meter.clone()));
        }
    });
    let address = SocketAddr::new(HERE, endpoint.port());
    Target { endpoint, address, accepted, uploaded }
}

impl Target {
    fn client(&self, identity: &Identity) -> RawClient {
        RawClient::open(identity, self.address, self.endpoint.id())
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// How many paths the server has on that connection.
    fn paths(&self, client: &RawClient) -> usize {
        let all = self.endpoint.connections();
        let found = all.iter().find(|info| info.id == client.engine.id());
        found.map_or(0, |info| info.stats.paths.len())
    }

    /// An ordinary client is served, and how soon.
    async fn serves(&self) -> Duration {
        let client = endpoint(Config::default()).await;
        let began = Instant::now();
        let connection = client.connect(self.endpoint.addr()).await.unwrap();
        Echo::open(&connection).await;
        began.elapsed()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_genuine_join_is_accepted() {
    let target = target(Config::default(), Allow::Any).await;
    let identity = Identity::new();
    let mut client = target.client(&identity);
    let join = client.join();
    assert_eq!(offer(&identity, target.address, join), Answer::Joined);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_with_another_key_is_refused() {
    let target = target(Config::default(), Allow::Any).await;
    let mut client = target.client(&Identity::new());
    let stolen = client.join();
    let answer = offer(&Identity::new(), target.address, stolen);
    // Not even that the connection exists is told.
    assert_eq!(answer, Answer::Refused(CloseCode::UNKNOWN_CONNECTION));
    assert_eq!(target.paths(&client), 1);
    assert!(client.is_alive());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_with_the_right_key_and_the_wrong_secret_is_refused() {
    let target = target(Config::default(), Allow::Any).await;
    let identity = Identity::new();
    let mut client = target.client(&identity);
    let genuine = client.join();
    for proof in [[0; 32], flipped(genuine.proof)] {
        let forged = Join { proof, ..genuine.clone() };
        assert_eq!(offer(&identity, target.address, forged), Answer::Refused(CloseCode::BAD_PROOF));
    }
    assert_eq!(target.paths(&client), 1);
    assert!(client.is_alive());
    // A forgery does not use the path id up.
    assert_eq!(offer(&identity, target.address, genuine), Answer::Joined);
}

fn flipped(mut proof: [u8; 32]) -> [u8; 32] {
    proof[31] ^= 1;
    proof
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_with_a_used_path_id_is_refused() {
    let target = target(Config::default(), Allow::Any).await;
    let identity = Identity::new();
    let mut client = target.client(&identity);
    let (first, second) = (client.join(), client.join());
    let mut path = identity.dial(target.address).unwrap();
    path.send(&segment_of(&Frame::Join(second.clone()))).unwrap();
    assert_eq!(path.answer().unwrap(), Answer::Joined);
    // The one in use; one below it, which may have been overtaken, the second time; and one whose path is
    // gone.
    let again = || offer(&identity, target.address, second.clone());
    assert_eq!(again(), Answer::Refused(CloseCode::PATH_ID_REUSED));
    assert_eq!(offer(&identity, target.address, first.clone()), Answer::Joined);
    assert_eq!(offer(&identity, target.address, first), Answer::Refused(CloseCode::PATH_ID_REUSED));
    drop(path);
    while target.paths(&client) > 1 {
        tokio::time::sleep(ms(5)).await;
    }
    assert_eq!(again(), Answer::Refused(CloseCode::PATH_ID_REUSED));
    assert!(client.is_alive());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_for_another_connection_is_refused() {
    let target = target(Config::default(), Allow::Any).await;
    let (mine, theirs) = (Identity::new(), Identity::new());
    let mut one = target.client(&mine);
    let mut other = target.client(&mine);
    let mut foreign = target.client(&theirs);
    let genuine = one.join();
    let aimed_at = |connection| Join { connection, ..genuine.clone() };
    let own = offer(&mine, target.address, aimed_at(other.engine.id()));
    assert_eq!(own, Answer::Refused(CloseCode::BAD_PROOF));
    let others = offer(&mine, target.address, aimed_at(foreign.engine.id()));
    assert_eq!(others, Answer::Refused(CloseCode::UNKNOWN_CONNECTION));
    let nobodys = offer(&mine, target.address, aimed_at(ConnectionId::random()));
    assert_eq!(nobodys, Answer::Refused(CloseCode::UNKNOWN_CONNECTION));
    for client in [&mut one, &mut other, &mut foreign] {
        assert_eq!(target.paths(client), 1);
        assert!(client.is_alive());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_for_an_open_connection_is_refused() {
    let target = target(Config::default(), Allow::Any).await;
    let mut client = target.client(&Identity::new());
    let thief = Identity::new();
    let mut path = thief.dial(target.address).unwrap();
    let open = Open { connection: client.engine.id(), path: PathId(1), ..open() };
    path.send(&segment_of(&Frame::Open(open))).unwrap();
    assert_eq!(path.answer().unwrap(), Answer::Refused(CloseCode::UNKNOWN_CONNECTION));
    assert_eq!(target.accepted(), 1);
    assert!(client.is_alive());
}

/// A valid OPEN.
fn open() -> Open {
    Open {
        connection: ConnectionId::random(),
        path: PathId(0),
        random: [3; 32],
        lost: Vec::new(),
        params: Params::default(),
    }
}

/// What predecessors sent before they had noted the connection (`docs/lessons.md`, 4).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_path_may_come_the_moment_the_first_is_answered() {
    let target = target(Config::default(), Allow::Any).await;
    let identity = Identity::new();
    for _ in 0..50 {
        let mut second = identity.dial(target.address).unwrap();
        let mut client = target.client(&identity);
        let join = client.join();
        second.send(&segment_of(&Frame::Join(join))).unwrap();
        assert_eq!(second.answer().unwrap(), Answer::Joined);
    }
}

/// A client that dials on several carriers sends OPEN on each of them, and does not know which arrives first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opens_that_race_become_paths_of_one_connection() {
    let target = target(Config::default(), Allow::Any).await;
    let identity = Identity::new();
    for round in 1..=30 {
        let connection = ConnectionId::random();
        let start = Arc::new(std::sync::Barrier::new(2));
        let racers = [PathId(0), PathId(1)].map(|id| {
            let mut path = identity.dial(target.address).unwrap();
            let params = Params { retire: true, ..Params::default() };
            let open = segment_of(&Frame::Open(Open { connection, path: id, params, ..open() }));
            let start = start.clone();
            tokio::task::spawn_blocking(move || {
                start.wait();
                path.send(&open).unwrap();
                let answer = path.answer().unwrap();
                (path, answer)
            })
        });
        let mut held = Vec::new();
        for racer in racers {
            let (path, answer) = racer.await.unwrap();
            assert_eq!(answer, Answer::Accepted, "round {round}");
            held.push(path);
        }
        let all = target.endpoint.connections();
        let stats = &all.iter().find(|info| info.id == connection).unwrap().stats;
        assert_eq!(stats.paths.len(), 2, "round {round}");
        // The application may be a little behind.
        while target.accepted() < round {
            tokio::time::sleep(ms(1)).await;
        }
        assert_eq!(target.accepted(), round);
    }
}

/// What a client sent on one TCP connection.
#[derive(Clone, Default)]
struct Recording {
    bytes: Vec<u8>,
    /// How much of it was sent before the server's first answer.
    first_flight: Option<usize>,
}

/// Passes bytes on to the server and keeps what each client sent.
struct Relay {
    address: SocketAddr,
    recordings: Arc<Mutex<Vec<Recording>>>,
}

impl Relay {
    async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((HERE, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let recordings = Arc::new(Mutex::new(Vec::new()));
        let kept = recordings.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = {
                    let mut kept = kept.lock().unwrap();
                    kept.push(Recording::default());
                    kept.len() - 1
                };
                tokio::spawn(pass_on(client, server, kept.clone(), number));
            }
        });
        Self { address, recordings }
    }
}

async fn pass_on(
    client: tokio::net::TcpStream,
    server: SocketAddr,
    kept: Arc<Mutex<Vec<Recording>>>,
    number: usize,
) {
    let server = tokio::net::TcpStream::connect(server).await.unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let answered = kept.clone();
    tokio::spawn(async move {
        if from_server.readable().await.is_ok() {
            // A server far away: however busy this machine, the client has said by now what it can say early.
            tokio::time::sleep(ms(300)).await;
            let recording = &mut answered.lock().unwrap()[number];
            recording.first_flight = Some(recording.bytes.len());
        }
        tokio::io::copy(&mut from_server, &mut to_client).await
    });
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = from_client.read(&mut buffer).await {
        kept.lock().unwrap()[number].bytes.extend_from_slice(&buffer[..n]);
        if to_server.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

/// Plays recorded bytes to the server, and waits until it has enough of them.
fn play(server: SocketAddr, bytes: &[u8]) {
    let mut socket = TcpStream::connect(server).unwrap();
    socket.set_read_timeout(Some(secs(10))).unwrap();
    // The server may close before it has read everything.
    let _ = socket.write_all(bytes);
    let _ = socket.shutdown(Shutdown::Write);
    if let Err(error) = std::io::copy(&mut socket, &mut std::io::sink()) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replayed_first_flight_opens_nothing_and_delivers_nothing() {
    const UPLOAD: usize = 5000;
    let config = Config { handshake_timeout: secs(2), ..Config::default() };
    let target = target(config, Allow::Any).await;
    let relay = Relay::start(target.address).await;
    let through_relay = EndpointAddr::new(target.endpoint.id(), [relay.address]);
    let client = endpoint(Config::default()).await;

    // The first connection fetches the tickets, the second sends its bytes as early data.
    let known = client.connect(through_relay.clone()).await.unwrap();
    Echo::open(&known).await;
    let connection = client.connect_early(through_relay).await.unwrap();
    upload(&connection, UPLOAD).await;
    target.uploaded.reach(UPLOAD as u64).await;
    assert_eq!(target.accepted(), 2);

    let recordings = relay.recordings.lock().unwrap().clone();
    assert_eq!(recordings.len(), 2);
    let first_flights = recordings.iter().map(|r| &r.bytes[..r.first_flight.unwrap()]);
    let first_flights: Vec<_> = first_flights.collect();
    assert!(first_flights[1].len() > UPLOAD, "the bytes did not travel as early data");
    let replay = || {
        for recording in recordings.iter().map(|r| &r.bytes[..]).chain(first_flights.clone()) {
            (0..3).for_each(|_| play(target.address, recording));
        }
        assert_eq!(target.accepted(), 2, "a replay opened a connection");
        assert_eq!(target.uploaded.get(), UPLOAD as u64, "a replay delivered bytes");
    };
    replay();
    for connection in [connection, known] {
        Echo::open(&connection).await;
        connection.close(CloseCode::NONE, "", secs(5)).await.unwrap();
    }
    // Now the server does not know the connections any more, and nothing but its TLS remembers the bytes.
    while !target.endpoint.connections().is_empty() {
        tokio::time::sleep(ms(5)).await;
    }
    replay();
}

/// One upload, written at once.
async fn upload(connection: &Connection, size: usize) {
    let mut stream = connection.open_stream().await.unwrap();
    let mut bytes = vec![b'U'; size + 1];
    lab_support::traffic::fill(&mut bytes[1..], 0);
    stream.write_all(&bytes).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read_u64().await.unwrap(), size as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused_before_the_application_hears_of_them() {
    let friend = endpoint(Config::default()).await;
    let target = target(Config::default(), Allow::only([friend.id()])).await;
    for _ in 0..3 {
        let stranger = endpoint(Config::default()).await;
        match stranger.connect(target.endpoint.addr()).await {
            Err(ConnectError::Refused { code: CloseCode::NOT_ALLOWED, .. }) => {}
            other => panic!("{other:?}"),
        }
        // Nor do bytes that travel with the first flight arrive.
        let connection = stranger.connect_early(target.endpoint.addr()).await.unwrap();
        if let Ok(mut stream) = connection.open_stream().await {
            let _ = stream.write_all(b"U0123456").await;
        }
        assert_eq!(connection.closed().await.code, CloseCode::NOT_ALLOWED);
    }
    assert_eq!((target.accepted(), target.uploaded.get()), (0, 0));
    let connection = friend.connect(target.endpoint.addr()).await.unwrap();
    Echo::open(&connection).await;
    assert_eq!(target.accepted(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_cannot_tell_names_that_are_listened_under_from_others() {
    let (server, friend) = (endpoint(Config::default()).await, endpoint(Config::default()).await);
    let guest = endpoint(Config::default()).await;
    let [ssh, web, none] =
        ["ssh", "web", "none"].map(|service| format!("{service}.ada@example.org").parse::<Name>().unwrap());
    let (friends, guests) = (friend.id(), guest.id());
    let options = [
        ListenOptions::named(ssh.clone()).allow(Allow::only([friends])),
        ListenOptions::named(web.clone()).allow(Allow::check(move |peer| async move { peer == guests })),
    ];
    let mut listeners = Vec::new();
    for options in options {
        listeners.push(server.listen(options.unpublished()).await.unwrap());
    }
    let refusal = async |client: &Endpoint, name: &Name| {
        let ticket = Ticket::new(server.id(), server.addr().addrs, Some(name.clone()));
        match client.connect(ticket).await {
            Err(ConnectError::Refused { code, reason, .. }) => (code, reason),
            other => panic!("{other:?}"),
        }
    };
    let stranger = endpoint(Config::default()).await;
    let [there, checked, absent] =
        [refusal(&stranger, &ssh).await, refusal(&stranger, &web).await, refusal(&stranger, &none).await];
    assert_eq!(there.0, CloseCode::NOT_ALLOWED);
    assert_eq!((&checked, &absent), (&there, &there));
    // Those who are let in somewhere learn that they asked for the wrong name.
    assert_eq!(refusal(&friend, &none).await.0, CloseCode::NO_LISTENER);
    assert_eq!(refusal(&guest, &none).await.0, CloseCode::NO_LISTENER);
    assert_eq!(refusal(&guest, &ssh).await, there);
    drop(listeners);
    assert_eq!(refusal(&stranger, &none).await.0, CloseCode::NO_LISTENER);
}

/// Reads to the end; true unless the server is still there when the time is over.
fn is_cut_off(socket: &mut TcpStream, limit: Duration) -> bool {
    socket.set_read_timeout(Some(limit)).unwrap();
    match std::io::copy(socket, &mut std::io::sink()) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_instead_of_tls_is_cut_off() {
    let target = target(Config::default(), Allow::Any).await;
    let mut endless_record = vec![0x16, 3, 1, 0xff, 0xff];
    endless_record.resize(100_000, 0);
    let mut noise = vec![0; 100_000];
    lab_support::traffic::fill(&mut noise, 0);
    let flights: [&[u8]; 4] =
        [b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", &endless_record, &noise, &[0; 64]];
    for flight in flights {
        let mut socket = TcpStream::connect(target.address).unwrap();
        // The server may close before it has read everything.
        let _ = socket.write_all(flight);
        // At once, not only when the time for handshakes is over.
        assert!(is_cut_off(&mut socket, secs(5)), "{:?}…", &flight[..8]);
    }
    assert_eq!(target.accepted(), 0);
    target.serves().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_key_or_with_another_protocol_nobody_gets_in() {
    let target = target(Config::default(), Allow::Any).await;
    let key = whimbrel_base::SecretKey::generate();
    for config in [client_config(None, raw::PROTOCOL), client_config(Some(&key), b"h2")] {
        let answer = RawPath::dial(target.address, config).and_then(|mut path| {
            path.send(&segment_of(&Frame::Open(open())))?;
            path.answer()
        });
        assert!(answer.is_err(), "{answer:?}");
    }
    assert_eq!(target.accepted(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_first_flights_are_refused() {
    let target = target(Config::default(), Allow::Any).await;
    let identity = Identity::new();
    let stranger_version = {
        let mut bytes = segment_of(&Frame::Open(open()));
        // Segment length, frame kind, frame length, version.
        bytes[5] = 99;
        bytes
    };
    let truncated = {
        let bytes = segment_of(&Frame::Open(open()));
        with_length(&bytes[2..bytes.len() - 7])
    };
    let many_reports = Open { lost: vec![PathReport { path: PathId(9), received: 1 }; 1000], ..open() };
    let refused = [
        segment_of(&Frame::Ping),
        segment_of(&Frame::Close { code: CloseCode::NONE, reason: "" }),
        segment_of(&Frame::Open(many_reports)),
        with_length(&[0xff; 1000]),
        with_length(&[]),
        stranger_version,
        truncated,
    ];
    for (number, flight) in refused.iter().enumerate() {
        let mut path = identity.dial(target.address).unwrap();
        path.send(flight).unwrap();
        assert_eq!(path.answer().unwrap(), Answer::Refused(CloseCode::VERSION), "flight {number}");
    }
    // Longer than a segment may be: cut off without a word.
    for length in [[0x80, 0x00, 0x40, 0x01], [0xbf, 0xff, 0xff, 0xff]] {
        let mut path = identity.dial(target.address).unwrap();
        path.send(&[&length[..], &[0; 30_000]].concat()).unwrap();
        assert!(path.answer().is_err());
    }
    assert_eq!(target.accepted(), 0);
    target.serves().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_that_drag_on_are_cut_off() {
    let limit = secs(1);
    let config = Config { handshake_timeout: limit, ..Config::default() };
    let target = target(config, Allow::Any).await;
    let address = target.address;
    let silent = move || wait_for_end(TcpStream::connect(address).unwrap(), &[]);
    let trickling = move || wait_for_end(TcpStream::connect(address).unwrap(), &client_hello());
    let half = move || {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(&client_hello()).unwrap();
        wait_for_end(socket, &[]);
    };
    // TLS stands, and then the first segment comes a byte at a time.
    let dawdling = move || {
        let mut path = Identity::new().dial(address).unwrap();
        for byte in segment_of(&Frame::Open(open())) {
            std::thread::sleep(ms(50));
            if path.send(&[byte]).is_err() {
                break;
            }
        }
        assert!(path.answer().is_err());
    };
    type Attack = Box<dyn FnOnce() + Send>;
    let attackers: [(&str, Attack); 4] = [
        ("silent", Box::new(silent)),
        ("trickling", Box::new(trickling)),
        ("half", Box::new(half)),
        ("dawdling", Box::new(dawdling)),
    ];
    let began = Instant::now();
    let attackers = attackers.map(|(name, attack)| {
        let timed = move || {
            attack();
            began.elapsed()
        };
        (name, tokio::task::spawn_blocking(timed))
    });
    for (name, attack) in attackers {
        let took = attack.await.unwrap();
        eprintln!("{name}: cut off after {took:?}");
        assert!(took >= limit && took < limit + secs(3), "{name}: {took:?}");
    }
    assert_eq!(target.accepted(), 0);
    target.serves().await;
}

/// Sends a byte now and then until the server ends the connection.
fn wait_for_end(mut socket: TcpStream, bytes: &[u8]) {
    socket.set_read_timeout(Some(ms(50))).unwrap();
    let began = Instant::now();
    let mut bytes = bytes.iter();
    while began.elapsed() < secs(8) {
        if let Some(byte) = bytes.next()
            && socket.write_all(&[*byte]).is_err()
        {
            return;
        }
        match socket.read(&mut [0; 4096]) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
    }
    panic!("never cut off");
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Sockets that this process may have open on top of those it needs otherwise.
fn socket_budget() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| limit as usize).saturating_sub(3000)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_half_open_peers_cost_bounded_memory_and_an_honest_one_is_served() {
    const ATTACKERS: usize = 10_000;
    let target = target(Config::default(), Allow::Any).await;
    let max_half_open = Config::default().max_half_open;
    let at_once = socket_budget().min(ATTACKERS);
    assert!(at_once > 2 * max_half_open, "only {at_once} sockets can be open at once");
    eprintln!("served after {:?} before the attack", target.serves().await);

    let before = resident();
    let address = target.address;
    // They say hello, hear the server's answer (the expensive part), and never go on.
    let attack = tokio::task::spawn_blocking(move || {
        let hello = client_hello();
        let mut held = VecDeque::new();
        for _ in 0..ATTACKERS {
            if held.len() == at_once {
                held.pop_front();
            }
            let mut socket = TcpStream::connect(address).unwrap();
            socket.write_all(&hello).unwrap();
            socket.read_exact(&mut [0]).unwrap();
            held.push_back(socket);
        }
        held
    });
    let (mut served, mut peak) = (Vec::new(), 0);
    while !attack.is_finished() {
        served.push(target.serves().await);
        peak = peak.max(resident());
    }
    let held = attack.await.unwrap();
    // All of them still hold on to what they have.
    for _ in 0..5 {
        served.push(target.serves().await);
    }
    peak = peak.max(resident());
    let grown = peak.saturating_sub(before);
    eprintln!(
        "{ATTACKERS} half-open peers, {} of them at once: {} MiB more, honest peers served after at most {:?} ({} of them)",
        held.len(),
        grown >> 20,
        served.iter().max().unwrap(),
        served.len()
    );
    assert!(grown < 128 << 20, "{} MiB", grown >> 20);
    assert!(served.iter().all(|took| *took < secs(2)), "{served:?}");
}

/// Connections that the server has with a peer.
fn connections_of(server: &Endpoint, peer: &Endpoint) -> usize {
    server.connections().iter().filter(|info| info.peer == peer.id()).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_greedy_peer_gets_its_share_of_connections_and_an_honest_one_is_served() {
    const SHARE: usize = 8;
    let config = Config { max_connections: 20, max_connections_per_peer: SHARE, ..Config::default() };
    let target = target(config, Allow::Any).await;
    let greedy = endpoint(Config::default()).await;
    let (mut held, mut refused) = (Vec::new(), 0);
    for _ in 0..40 {
        match greedy.connect(target.endpoint.addr()).await {
            Ok(connection) => held.push(connection),
            Err(ConnectError::Refused { code: CloseCode::BUSY, .. }) => refused += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!((held.len(), refused), (SHARE, 40 - SHARE));
    target.serves().await;
    for connection in &held {
        Echo::open(connection).await;
    }
    // What it gives back it may have again.
    held.pop().unwrap().close(CloseCode::NONE, "", secs(5)).await.unwrap();
    while connections_of(&target.endpoint, &greedy) == SHARE {
        tokio::time::sleep(ms(5)).await;
    }
    Echo::open(&greedy.connect(target.endpoint.addr()).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_greedy_peer_cannot_have_more_bytes_kept_than_its_share() {
    const EACH: usize = 1 << 20;
    // More than is granted to one stream that nobody reads, less than to sixteen.
    let server = endpoint(Config { max_bytes_per_peer: 400 << 10, ..Config::default() }).await;
    let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    // An application that is slow to read.
    let held = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Some(connection) = listener.accept().await {
            held.push(connection);
        }
    });
    let (greedy, honest) = (endpoint(Config::default()).await, endpoint(Config::default()).await);
    let write = async |client: &Endpoint, streams| {
        let connection = client.connect(server.addr()).await.unwrap();
        for _ in 0..streams {
            // Once it was given up, there is nothing more to open.
            let Ok(mut stream) = connection.open_stream().await else { break };
            tokio::spawn(async move {
                let _ = stream.write_all(&vec![1; EACH]).await;
                std::future::pending::<()>().await;
            });
        }
        connection
    };
    let kept = write(&honest, 1).await;
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(write(&greedy, 16).await);
    }
    let began = Instant::now();
    while connections_of(&server, &greedy) > 1 {
        assert!(began.elapsed() < secs(30), "{} are kept", connections_of(&server, &greedy));
        tokio::time::sleep(ms(20)).await;
    }
    assert_eq!(connections_of(&server, &honest), 1);
    assert!(kept.close_reason().is_none());
    held.abort();
}

/// Datagrams that arrive within that time from the first one on.
fn count(socket: &UdpSocket, window: Duration) -> usize {
    let mut buffer = [0; 2000];
    socket.set_read_timeout(Some(secs(10))).unwrap();
    socket.recv_from(&mut buffer).unwrap();
    let (end, mut count) = (Instant::now() + window, 1);
    socket.set_read_timeout(Some(ms(100))).unwrap();
    while Instant::now() < end {
        count += usize::from(socket.recv_from(&mut buffer).is_ok());
    }
    count
}

#[tokio::test]
async fn many_clients_that_name_one_victim_have_it_sent_no_more_than_a_listener_sends_at_all() {
    let [before, after] = [1, 2].map(|last| IpAddr::from([127, 0, 93, last]));
    let monitor = ManualMonitor::new([before]);
    let endpoint = Endpoint::builder().monitor(monitor.clone()).bind().await.unwrap();
    let mut listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Some(connection) = listener.accept().await {
            kept.push(connection);
        }
    });
    let victim = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
    let port = victim.local_addr().unwrap().port();
    let named: Vec<_> = (1..=16).map(|last| SocketAddr::from(([127, 0, 94, last], port))).collect();
    let (at, id) = (SocketAddr::new(before, endpoint.port()), endpoint.id());
    let dial = move || RawClient::open_hearing(&Identity::new(), at, id, named.clone());
    let clients = tokio::task::spawn_blocking(move || (0..100).map(|_| dial()).collect::<Vec<_>>());
    let _clients = clients.await.unwrap();
    let counting = tokio::task::spawn_blocking(move || count(&victim, secs(3)));
    monitor.set([after]);
    let heard = counting.await.unwrap();
    eprintln!("{heard} notices in three seconds");
    // Each client is told within a second and a half for the fifth time: 8000 notices.
    assert!((1600..4500).contains(&heard), "{heard} notices in three seconds");
}

#[tokio::test]
async fn a_ticket_that_names_nothing_but_a_clouds_metadata_service_has_nothing_dialled() {
    let own = ManualMonitor::new([IpAddr::from([127, 0, 0, 1])]);
    let client = Endpoint::builder().monitor(own).bind().await.unwrap();
    let peer = whimbrel_base::SecretKey::generate().id();
    let places = vec!["169.254.169.254:80".parse().unwrap(), "[::ffff:169.254.169.254]:443".parse().unwrap()];
    let refused = client.connect(EndpointAddr::new(peer, places)).await;
    assert!(matches!(refused, Err(ConnectError::NoAddress(id)) if id == peer), "{refused:?}");
}
