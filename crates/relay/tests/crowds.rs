//! Crowds of strangers at a relay that runs in a process of its own, and honest peers beside them. A target
//! of its own: it needs most of the files that a process may open.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{Mutex, MutexGuard, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use whimbrel_base::{EndpointAddr, RelayToken, RelayedAddr, SecretKey, Ticket};
use whimbrel_relay::hello::{self, Hello};
use whimbrel_relay::spare::{Key, Offer, START};
use whimbrel_relay::wire::Message;
use whimbrel_relay::{Limits, Relay, Salt, control_name, token_of};
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, Connection, Endpoint, ManualMonitor, RecvHalf, SendHalf,
};

use crate::loopback::{LIMIT, Served, endpoint_at, ip};

/// How many come in `make test`.
const SOME: usize = 1000;
/// How many come in `make eval-reach`.
const MANY: usize = 10_000;
/// A stranger may stay for so long, and a client wait for so long.
const STAY: Duration = Duration::from_secs(5);
/// What a busy machine adds.
const SLACK: Duration = Duration::from_secs(2);
/// An honest client that had to wait until strangers are put out would take longer.
const PROMPT: Duration = Duration::from_secs(4);
/// Addresses that strangers come from. A relay takes 200 clients at once from each.
const SOURCES: usize = 100;
/// Connections that are opened at the same time.
const AT_ONCE: usize = 256;
/// Servers that are of no use to their clients.
const SERVERS: usize = 40;
/// Between two honest clients from one address.
const PAUSE: Duration = Duration::from_millis(100);
/// More honest clients than a server has spares for.
const HONEST: u8 = 24;
/// Set for the process that is the relay: its host, and two of its limits.
const RELAY: &str = "WHIMBREL_TEST_RELAY";

/// Held by each test: together they would need too many files.
static TURN: Mutex<()> = Mutex::const_new(());

async fn turn() -> MutexGuard<'static, ()> {
    let turn = TURN.lock().await;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    turn
}

/// Not a test: the relay. Says where it is, and its figures for each line that it is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_process() {
    let Ok(told) = std::env::var(RELAY) else { return };
    let _turn = turn().await;
    let told: Vec<usize> = told.split(' ').map(|word| word.parse().unwrap()).collect();
    let mut limits = Limits::default();
    (limits.waiting_in_all, limits.splices) = (told[1], told[2]);
    let monitor = ManualMonitor::new([ip(told[0].try_into().unwrap(), 1)]);
    let endpoint = Endpoint::builder().monitor(monitor).config(Relay::config()).bind().await.unwrap();
    let relay = Relay::start(endpoint, Allow::Any, limits, Vec::new()).await.unwrap();
    println!("\nrelay {}", Ticket::from(relay.endpoint().addr()));
    let mut asked = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(_)) = asked.next_line().await {
        let stats = relay.stats();
        println!("\nstats {} {} {}", stats.waiting, stats.splices, stats.clients_refused);
    }
}

/// What a relay says of itself.
#[derive(Debug)]
struct Figures {
    waiting: usize,
    splices: usize,
    refused: usize,
}

/// A relay in a process of its own.
struct RelayProcess {
    child: Child,
    told: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    addr: EndpointAddr,
    /// What it had in memory before anybody came, and the most since.
    memory: (u64, u64),
}

impl RelayProcess {
    async fn start(test: u8, waiting: usize, splices: usize) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "crowds::relay_process", "--nocapture", "--test-threads=1"]);
        command.env(RELAY, format!("{test} {waiting} {splices}")).kill_on_drop(true);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let told = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ticket: Ticket = said(&mut lines, "relay ").await.parse().unwrap();
        let mut relay = Self { child, told, lines, addr: ticket.to_endpoint_addr(), memory: (0, 0) };
        relay.memory.0 = relay.weigh();
        relay
    }

    fn at(&self) -> SocketAddr {
        self.addr.addrs[0]
    }

    async fn figures(&mut self) -> Figures {
        self.told.write_all(b"\n").await.unwrap();
        let line = said(&mut self.lines, "stats ").await;
        let numbers: Vec<usize> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        Figures { waiting: numbers[0], splices: numbers[1], refused: numbers[2] }
    }

    /// What it has in memory, in bytes.
    fn weigh(&mut self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id().unwrap())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        let bytes = line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10;
        self.memory.1 = self.memory.1.max(bytes);
        bytes
    }

    /// What the crowd has cost, in bytes.
    fn grown(&self) -> u64 {
        self.memory.1.saturating_sub(self.memory.0)
    }
}

/// What stands behind `what` in the next line that begins so.
async fn said(lines: &mut Lines<BufReader<ChildStdout>>, what: &str) -> String {
    let found = async {
        loop {
            let line = lines.next_line().await.unwrap().expect("the relay has ended");
            if let Some(rest) = line.strip_prefix(what) {
                return rest.to_owned();
            }
        }
    };
    timeout(LIMIT, found).await.expect("the relay says nothing")
}

/// A connection to a relay, from one of the strangers' addresses.
async fn dial(test: u8, number: usize, to: SocketAddr) -> io::Result<TcpStream> {
    let host = u8::try_from(1 + number % SOURCES).unwrap();
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(IpAddr::from([127, 1, test, host]), 0))?;
    socket.connect(to).await
}

/// Opens `count` connections that begin with the bytes that `first` has for each, and waits until the relay
/// has closed them. Each tells for how long it was there, `None` if it could not be opened.
fn strangers(
    test: u8,
    count: usize,
    to: SocketAddr,
    first: impl Fn(usize) -> Vec<u8>,
) -> JoinSet<Option<Duration>> {
    let (mut all, permits) = (JoinSet::new(), Arc::new(Semaphore::new(AT_ONCE)));
    for number in 0..count {
        let (permits, first) = (permits.clone(), first(number));
        all.spawn(async move {
            let permit = permits.acquire_owned().await.unwrap();
            let mut socket = dial(test, number, to).await.ok()?;
            let begun = Instant::now();
            let _ = socket.write_all(&first).await;
            drop(permit);
            // Whatever the relay says is of no interest, and it says nothing.
            while let Ok(1..) = socket.read(&mut [0; 64]).await {}
            Some(begun.elapsed())
        });
    }
    all
}

/// How long the last stranger was there. All have been put out in time.
fn put_out(all: &[Option<Duration>]) -> Duration {
    let (longest, opened) = (all.iter().flatten().max().copied().unwrap(), all.iter().flatten().count());
    assert!(opened * 10 >= all.len() * 9, "only {opened} of {} came to the relay", all.len());
    assert!(longest < STAY + SLACK, "a stranger was there for {longest:?}");
    longest
}

/// What it takes a client of which nobody knows to hear the first byte of a server, over TCP.
async fn first_byte(test: u8, host: u8, to: EndpointAddr) -> Duration {
    let carriers = Carriers::Only(CarrierKind::Tcp);
    let client = endpoint_at(ManualMonitor::new([ip(test, host)]), carriers).await;
    let begun = Instant::now();
    let connection = timeout(LIMIT, client.connect(to)).await.expect("an honest client is kept out").unwrap();
    let (mut read, mut write) = connection.open_stream().await.unwrap().into_split();
    write.write_all(b"?").await.unwrap();
    timeout(LIMIT, read.read_exact(&mut [0; 1])).await.expect("nothing comes back").unwrap();
    let took = begun.elapsed();
    // The server sees an end, as of any client.
    write.shutdown().await.unwrap();
    timeout(LIMIT, read.read_to_end(&mut Vec::new())).await.expect("there is no end").unwrap();
    took
}

/// As many clients at once as a server has not enough spares for. How long the last of them took.
async fn a_crowd_is_served(test: u8, server: &Served) -> Duration {
    let mut clients = JoinSet::new();
    for number in 0..HONEST {
        clients.spawn(first_byte(test, 10 + number, server.behind()));
    }
    clients.join_all().await.into_iter().max().unwrap()
}

/// A ClientHello with this server name, and as large as TLS makes it today (padded, RFC 7685). No server
/// takes it.
fn false_hello(name: &str) -> Vec<u8> {
    let sized = |bytes: Vec<u8>| [&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat();
    let extension = |kind: u16, body| [&kind.to_be_bytes()[..], &sized(body)].concat();
    let names = sized([&[0][..], &sized(name.as_bytes().to_vec())].concat());
    let extensions = [extension(0, names), extension(21, vec![0; 1400])].concat();
    // Version, random, no session, one suite, no compression.
    let head = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 0x01, 1, 0]].concat();
    let body = [head, sized(extensions)].concat();
    let [_, length @ ..] = (body.len() as u32).to_be_bytes();
    [&[22, 3, 1][..], &sized([&[1][..], &length, &body].concat())].concat()
}

/// What a client begins with that dials the server: the server answers, and waits for the client's next
/// words.
async fn true_hello(test: u8, server: &Served) -> Vec<u8> {
    let listener = TcpListener::bind(SocketAddr::new(ip(test, 9), 0)).await.unwrap();
    let place = RelayedAddr { relay: listener.local_addr().unwrap(), token: server.token() };
    let target = EndpointAddr::new(server.endpoint.id(), place.pack());
    let carriers = Carriers::Only(CarrierKind::Tcp);
    let client = endpoint_at(ManualMonitor::new([ip(test, 8)]), carriers).await;
    let mut dialling = JoinSet::new();
    dialling.spawn(async move { client.connect(target).await.map(drop) });
    let (mut socket, _) = timeout(LIMIT, listener.accept()).await.unwrap().unwrap();
    let mut first = Vec::new();
    while hello::read(&first) == Hello::Partial {
        timeout(LIMIT, socket.read_buf(&mut first)).await.unwrap().unwrap();
    }
    assert_eq!(hello::read(&first), Hello::Named(server.token().to_string()));
    first
}

/// A server that has a reservation, and does what it likes.
struct Idler {
    relay: SocketAddr,
    token: RelayToken,
    key: Key,
    _control: (Endpoint, Connection, RecvHalf, SendHalf),
}

impl Idler {
    async fn reserve(test: u8, relay: &EndpointAddr) -> Self {
        let key = SecretKey::generate();
        let monitor = ManualMonitor::new([ip(test, 200)]);
        let endpoint = Endpoint::builder().secret_key(key.clone()).monitor(monitor).bind().await.unwrap();
        let ticket = Ticket::new(relay.id, relay.addrs.clone(), Some(control_name().unwrap()));
        let connection = timeout(LIMIT, endpoint.connect(ticket)).await.unwrap().unwrap();
        let (mut read, mut write) = connection.open_stream().await.unwrap().into_split();
        let salt = Salt::of(&key);
        write.write_all(&Message::Reserve(salt).encode()).await.unwrap();
        let reserved = match timeout(LIMIT, Message::read(&mut read)).await.unwrap().unwrap() {
            Message::Reserved(reserved) => reserved,
            other => panic!("no reservation: {other:?}"),
        };
        let (token, key) = (token_of(key.id(), &salt), Key::new(&reserved.key));
        Self { relay: relay.addrs[0], token, key, _control: (endpoint, connection, read, write) }
    }

    async fn many(test: u8, relay: &EndpointAddr) -> Vec<Self> {
        let mut all = Vec::new();
        for _ in 0..SERVERS {
            all.push(Self::reserve(test, relay).await);
        }
        all
    }
}

async fn slow_hellos(test: u8, count: usize) {
    let _turn = turn().await;
    let mut relay = RelayProcess::start(test, 4096, 50_000).await;
    let server = Served::start(test, 2, vec![Arc::new(relay.addr.clone())]).await;
    server.held(1).await;
    let alone = first_byte(test, 3, server.behind()).await;
    relay.weigh();
    // A record of a ClientHello that goes on, a spare's first word, the first bytes of a whole ClientHello.
    let begun =
        [vec![22, 3, 1, 2, 0, 1, 0], b"WHR1".to_vec(), false_hello("yyyyyyyyyyyyyyyy")[..700].to_vec()];
    let mut strangers = strangers(test, count, relay.at(), |number| begun[number % begun.len()].clone());
    let (mut beside, mut over, end) = (Vec::new(), Vec::new(), Instant::now() + STAY + LIMIT);
    while over.len() < count {
        assert!(Instant::now() < end, "{} strangers stay", count - over.len());
        beside.push(first_byte(test, 3, server.behind()).await);
        relay.weigh();
        while let Some(lasted) = strangers.try_join_next() {
            over.push(lasted.unwrap());
        }
        tokio::time::sleep(PAUSE).await;
    }
    let longest = put_out(&over);
    beside.sort_unstable();
    let (median, worst) = (beside[beside.len() / 2], beside[beside.len() - 1]);
    println!(
        "{count} slow ClientHellos: the last was there for {longest:?}; first byte of an honest client {alone:?} \
         before, then {median:?} (median of {}), {worst:?} at most; the relay grew by {} KiB",
        beside.len(),
        relay.grown() >> 10,
    );
    assert!(worst < PROMPT, "an honest client waited for {worst:?}");
    // 1024 have a place, with a few KiB each.
    assert!(relay.grown() < 32 << 20, "{} KiB", relay.grown() >> 10);
}

async fn servers_that_never_come(test: u8, count: usize) {
    let _turn = turn().await;
    let places = count * 4 / 10;
    let mut relay = RelayProcess::start(test, places, 50_000).await;
    let server = Served::start(test, 2, vec![Arc::new(relay.addr.clone())]).await;
    server.held(1).await;
    let alone = first_byte(test, 3, server.behind()).await;
    let idlers = Idler::many(test, &relay.addr).await;
    relay.weigh();
    let names: Vec<String> = idlers.iter().map(|idler| idler.token.to_string()).collect();
    let strangers = strangers(test, count, relay.at(), |number| false_hello(&names[number % SERVERS]));
    let full = async {
        while relay.figures().await.waiting < places {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(STAY, full).await.expect("too few wait at once");
    let last = a_crowd_is_served(test, &server).await;
    relay.weigh();
    let all = timeout(STAY + LIMIT, strangers.join_all()).await.expect("strangers stay");
    let longest = put_out(&all);
    let after = relay.figures().await;
    println!(
        "{count} clients of {SERVERS} servers that never come, {places} of which may wait: the last was there for \
         {longest:?}; first byte of an honest client {alone:?} before, {last:?} for the last of {HONEST} at once; \
         the relay grew by {} KiB",
        relay.grown() >> 10,
    );
    assert!(last < PROMPT, "an honest client waited for {last:?}");
    assert!(relay.grown() < 64 << 20, "{} KiB", relay.grown() >> 10);
    assert_eq!((after.waiting, after.splices), (0, 0), "{after:?}");
    assert!(after.refused >= count * 9 / 10, "{after:?}");
}

/// There is room for half of what comes.
async fn servers_that_fall_silent(test: u8, count: usize) {
    let _turn = turn().await;
    let places = count / 2;
    let mut relay = RelayProcess::start(test, 4096, places).await;
    let server = Served::start(test, 2, vec![Arc::new(relay.addr.clone())]).await;
    server.held(1).await;
    let alone = first_byte(test, 3, server.behind()).await;
    let idlers = Idler::many(test, &relay.addr).await;
    relay.weigh();
    let (mut silent, at) = (JoinSet::new(), relay.at());
    for (first, idler) in idlers.iter().enumerate() {
        let (token, key) = (idler.token, idler.key.clone());
        silent.spawn(async move {
            let mut held = JoinSet::new();
            for number in (first..count).step_by(SERVERS) {
                let offer = Offer { token, origin: 0, number: number as u64 }.encode(&key);
                let mut spare = dial(test, number, at).await.unwrap();
                spare.write_all(&offer).await.unwrap();
                let mut client = dial(test, number, at).await.unwrap();
                let _ = client.write_all(&false_hello(&token.to_string())).await;
                // Both are silent from now on, and go when the relay has them go.
                held.spawn(async move {
                    let mut start = [0; START];
                    if spare.read_exact(&mut start).await.is_ok() {
                        while let Ok(1..) = spare.read(&mut [0; 2048]).await {}
                    }
                    while let Ok(1..) = client.read(&mut [0; 64]).await {}
                });
            }
            held.join_all().await
        });
    }
    let full = async {
        while relay.figures().await.splices < places {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, full).await.expect("too few are spliced");
    let last = a_crowd_is_served(test, &server).await;
    relay.weigh();
    let beside = relay.figures().await;
    println!(
        "{count} half-open splices by {SERVERS} servers, {places} of which have a place: first byte of an honest \
         client {alone:?} before, {last:?} for the last of {HONEST} at once; the relay grew by {} KiB",
        relay.grown() >> 10,
    );
    assert!(last < PROMPT, "an honest client waited for {last:?}");
    assert!(beside.splices <= places, "{beside:?}");
    assert!(relay.grown() < 64 << 20, "{} KiB", relay.grown() >> 10);
    silent.abort_all();
}

/// Strangers that know a server's token, begin TLS with it and are silent then.
async fn clients_that_fall_silent(test: u8, count: usize) {
    let _turn = turn().await;
    let mut relay = RelayProcess::start(test, 4096, 50_000).await;
    let server = Served::start(test, 2, vec![Arc::new(relay.addr.clone())]).await;
    server.held(1).await;
    let alone = first_byte(test, 3, server.behind()).await;
    relay.weigh();
    let first = true_hello(test, &server).await;
    let mut strangers = strangers(test, count, relay.at(), |_| first.clone());
    let mut beside = Vec::new();
    for number in 0..HONEST {
        beside.push(first_byte(test, 10 + number, server.behind()).await);
        relay.weigh();
        tokio::time::sleep(PAUSE).await;
    }
    let figures = relay.figures().await;
    beside.sort_unstable();
    let (median, worst) = (beside[beside.len() / 2], beside[beside.len() - 1]);
    println!(
        "{count} clients of a server that fall silent, {} of which are spliced: first byte of another one {alone:?} \
         before, then {median:?} (median of {HONEST}), {worst:?} at most; the relay grew by {} KiB",
        figures.splices,
        relay.grown() >> 10,
    );
    assert!(worst < PROMPT, "an honest client waited for {worst:?}");
    assert!(relay.grown() < 64 << 20, "{} KiB", relay.grown() >> 10);
    assert!(figures.splices > 0, "the strangers are not there");
    assert!(figures.splices <= 4096 && figures.waiting <= 256, "{figures:?}");
    strangers.abort_all();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_fall_silent_keep_no_other_from_the_same_server() {
    clients_that_fall_silent(137, SOME).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_slow_client_hellos_end_in_five_seconds_and_honest_clients_are_served_meanwhile() {
    slow_hellos(130, SOME).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_servers_that_never_come_keep_no_honest_one_waiting() {
    servers_that_never_come(131, SOME).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_fill_a_relay_with_silent_splices_make_room_for_honest_ones() {
    servers_that_fall_silent(132, SOME).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "some ten seconds each: make eval-reach"]
async fn ten_thousand_of_each_kind_are_bounded_and_honest_clients_are_served() {
    slow_hellos(133, MANY).await;
    servers_that_never_come(134, MANY).await;
    servers_that_fall_silent(135, MANY).await;
    clients_that_fall_silent(138, MANY).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_whose_spare_dies_is_told_so_and_no_place_is_left_behind() {
    let _turn = turn().await;
    let mut relay = RelayProcess::start(136, 4096, 50_000).await;
    let idler = Idler::reserve(136, &relay.addr).await;
    let offer = async |number| {
        let offer = Offer { token: idler.token, origin: 0, number }.encode(&idler.key);
        let mut spare = dial(136, 1, idler.relay).await.unwrap();
        spare.write_all(&offer).await.unwrap();
        spare
    };
    // Before a client comes: the next one gets one that lives.
    for number in 0..8 {
        drop(offer(number).await);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    for number in 8..18 {
        let mut spare = offer(number).await;
        let mut client = dial(136, 2, idler.relay).await.unwrap();
        client.write_all(&false_hello(&idler.token.to_string())).await.unwrap();
        timeout(LIMIT, spare.read_exact(&mut [0; START])).await.expect("another spare was taken").unwrap();
        drop(spare);
        let told = timeout(SLACK, client.read(&mut [0; 1])).await.expect("the client is not told");
        assert!(matches!(told, Ok(0) | Err(_)), "{told:?}");
    }
    let empty = async {
        while relay.figures().await.splices > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SLACK, empty).await.expect("a splice is left");
}
