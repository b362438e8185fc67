//! A connection that goes through three processes, on two hosts, under two keys, while its peer counts on.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::IpAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use whimbrel_base::{EndpointId, SecretKey, Ticket};
use whimbrel_lab::require;
use whimbrel_transport::{
    Allow, CloseCode, Connection, Endpoint, ListenOptions, Listener, Stream, Suspended, Target,
};

use crate::lab_support::log;
use crate::lab_support::net::{Family, LIMIT, Node, Star};
use crate::lab_support::paths::active;

/// Which life of the connection a process is, from 0 on.
const LIFE: &str = "WHIMBREL_TEST_HOP";
/// What the first one dials, and what the others resume.
const FROM: &str = "WHIMBREL_TEST_HOP_FROM";
const MARK: &str = "HOP DONE ";
/// The key of each process.
const KEYS: [u8; 3] = [41, 41, 42];
/// The host of each.
const HOSTS: [usize; 3] = [0, 1, 0];
/// Numbers that a process has counted on before it goes to sleep with one more under way.
const COUNTED: u64 = 20;
/// How long a process may be asleep or at work.
const LIFETIME: Duration = Duration::from_secs(60);

fn key(life: usize) -> SecretKey {
    SecretKey::from_bytes(&[KEYS[life]; 32])
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// Becomes one of the connection's owners, if this program was started again as one.
#[test]
fn hop_process() {
    let (Ok(life), Ok(from)) = (std::env::var(LIFE), std::env::var(FROM)) else { return };
    log();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let lives = async { tokio::time::timeout(LIFETIME, live(life.parse().unwrap(), &from)).await };
    let left = runtime.block_on(lives).expect("a life comes to its end");
    // Nothing that still waits somewhere holds the process up.
    runtime.shutdown_background();
    println!("{MARK}{left}");
}

/// Has the peer count on. Returns the connection as it was written down or, at the end, the last number.
async fn live(life: usize, from: &str) -> String {
    let endpoint = Endpoint::builder().secret_key(key(life)).bind().await.unwrap();
    let (connection, mut stream, mut number) = begin(&endpoint, life, from).await;
    for _ in 0..COUNTED {
        stream.write_u64(number).await.unwrap();
        let next = stream.read_u64().await.unwrap();
        assert_eq!(next, number + 1, "at process {life}");
        number = next;
    }
    if life + 1 == KEYS.len() {
        connection.close(CloseCode::NONE, "counted", LIMIT).await.unwrap();
        return number.to_string();
    }
    // Under way when it sleeps: perhaps not sent, perhaps answered and not read.
    stream.write_u64(number).await.unwrap();
    let next = key(life + 1).id();
    let asleep = if next == endpoint.id() {
        connection.suspend(LIMIT).await.unwrap()
    } else {
        connection.suspend_for(next, LIMIT).await.unwrap()
    };
    endpoint.close(LIMIT).await;
    to_hex(asleep.as_bytes())
}

/// Dials, or goes on where the process before left off; and the number to go on with.
async fn begin(endpoint: &Endpoint, life: usize, from: &str) -> (Connection, Stream, u64) {
    if life == 0 {
        let ticket: Ticket = from.parse().unwrap();
        let connection = endpoint.connect(Target::from(ticket)).await.unwrap();
        let stream = connection.open_stream().await.unwrap();
        return (connection, stream, 0);
    }
    let connection = endpoint.resume(&Suspended::from_bytes(from_hex(from))).await.unwrap();
    let mut streams = connection.streams();
    assert_eq!(streams.len(), 1, "{streams:?}");
    let mut stream = streams.remove(0);
    let number = stream.read_u64().await.unwrap();
    (connection, stream, number)
}

/// Runs one of the processes to its end, and returns what it left.
fn run(node: &Node, life: usize, from: &str) -> String {
    let program = std::env::current_exe().unwrap();
    let command = node.host.command(program.to_str().unwrap());
    let command = command
        .args(["--exact", "lab::hops::hop_process", "--nocapture"])
        .env(LIFE, life.to_string())
        .env(FROM, from)
        .with(|command| _ = command.stdin(Stdio::null()).stdout(Stdio::piped()));
    let mut child = command.spawn().unwrap();
    let mut said = String::new();
    child.child().stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "process {life} failed: {said}");
    let left = said.lines().find_map(|line| Some(line.split_once(MARK)?.1.trim().to_owned()));
    left.unwrap_or_else(|| panic!("process {life} left nothing: {said}"))
}

/// What the peer saw when a number came.
struct Seen {
    number: u64,
    by: EndpointId,
    at: Option<IpAddr>,
}

/// Answers each number with the next one, on the first stream of each connection, and tells what it saw.
async fn count(mut listener: Listener, accepted: Arc<AtomicUsize>, seen: UnboundedSender<Seen>) {
    while let Some(connection) = listener.accept().await {
        accepted.fetch_add(1, Ordering::Relaxed);
        let seen = seen.clone();
        tokio::spawn(async move {
            let mut stream = connection.accept_stream().await.unwrap();
            while let Ok(number) = stream.read_u64().await {
                let at = active(&connection.stats().paths).map(|path| path.remote.address().ip()).next();
                seen.send(Seen { number, by: connection.peer_id(), at }).unwrap();
                if stream.write_u64(number + 1).await.is_err() {
                    return;
                }
            }
        });
    }
}

#[test]
fn a_counter_hops_through_three_processes_two_hosts_and_two_keys_while_its_peer_counts_on() {
    if !require!() {
        return;
    }
    let star = Star::new(Family::V4, ["one", "other", "peer"]);
    let peer = &star.nodes[2];
    let endpoint = peer.endpoint();
    let listener = peer.wait(endpoint.listen(ListenOptions::unnamed().allow(Allow::Any))).unwrap();
    let (accepted, (told, mut seen)) = (Arc::<AtomicUsize>::default(), unbounded_channel());
    peer.runtime.spawn(count(listener, accepted.clone(), told));

    let mut left = Ticket::from(endpoint.addr()).to_string();
    for (life, host) in HOSTS.into_iter().enumerate() {
        left = run(&star.nodes[host], life, &left);
    }
    // Each process has its own, and each but the last one more that was under way.
    let last = KEYS.len() as u64 * (COUNTED + 1) - 1;
    assert_eq!(left, last.to_string());

    let (mut keys, mut hosts) = (Vec::new(), BTreeSet::new());
    for expected in 0..last {
        let Seen { number, by, at } = seen.try_recv().unwrap();
        assert_eq!(number, expected, "the peer sees each number once, in order");
        if keys.last() != Some(&by) {
            keys.push(by);
        }
        hosts.extend(at);
    }
    assert!(seen.try_recv().is_err(), "and none twice");
    assert_eq!(keys, [key(0).id(), key(2).id()]);
    assert_eq!(hosts, BTreeSet::from([star.nodes[0].ip(), star.nodes[1].ip()]));
    assert_eq!(accepted.load(Ordering::Relaxed), 1, "one connection to the peer");
}
