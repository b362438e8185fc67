//! Two processes that send each other durable messages and are killed at random instants (`kill -9`). Each
//! keeps a log of what it was about to send, what `send` confirmed, what it got, and what `ack` confirmed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use whimbrel::{
    Allow, DurableFlow, DurablePeer, Endpoint, EndpointId, Identity, ListenOptions, State, StateError, Ticket,
};

/// The directory of a process that the test starts.
const DIRECTORY: &str = "WHIMBREL_TEST_PEER";
/// Whom it dials; otherwise it listens at the port of its file `port`.
const TICKET: &str = "WHIMBREL_TEST_TICKET";
/// How often processes are killed.
const KILLS: &str = "WHIMBREL_KILLS";
const LIMIT: Duration = Duration::from_secs(60);

/// Each line is written at once, and is the kernel's from then on.
#[derive(Clone)]
struct Log(Arc<Mutex<File>>);

impl Log {
    fn write(&self, what: &str, number: u64) {
        self.0.lock().unwrap().write_all(format!("{what} {number}\n").as_bytes()).unwrap();
    }
}

fn read_log(directory: &Path) -> Vec<(String, u64)> {
    let text = std::fs::read_to_string(directory.join("log")).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let entry = |line: &str| {
        let (what, number) = line.split_once(' ').unwrap();
        (what.to_owned(), number.parse().unwrap())
    };
    whole.lines().map(entry).collect()
}

fn numbers(log: &[(String, u64)], what: &str) -> BTreeSet<u64> {
    log.iter().filter(|(of, _)| of == what).map(|(_, number)| *number).collect()
}

/// What a process does that the test starts; does nothing in the test itself.
#[test]
#[ignore = "a process of the test beside it"]
fn peer() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(live(Path::new(&directory)));
    }
}

async fn live(directory: &Path) {
    let file = OpenOptions::new().append(true).create(true).open(directory.join("log")).unwrap();
    let log = Log(Arc::new(Mutex::new(file)));
    let number = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    let (ticket, port) = (std::env::var(TICKET).ok(), number("port").parse().unwrap());
    let builder =
        || Endpoint::builder().identity_file(directory.join("identity")).ip(Ipv4Addr::LOCALHOST.into());
    let endpoint = builder().port(port).bind().await.unwrap();
    let state = endpoint.open_state(directory.join("state")).await.unwrap();
    let peer: DurablePeer = match ticket {
        Some(ticket) => state.dial(ticket).await.unwrap(),
        None => {
            let id: EndpointId = number("peer").parse().unwrap();
            serve(&endpoint, &state).await;
            state.expect(id).await.unwrap()
        }
    };
    let flow = peer.flow("numbers").await.unwrap();
    let next = numbers(&read_log(directory), "try").last().map_or(1, |last| last + 1);
    tokio::join!(send(&flow, directory, &log, next), receive(&state, &log));
}

async fn serve(endpoint: &Endpoint, state: &State) {
    let mut listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let state = state.clone();
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            let _ = state.attach(&connection).await;
        }
    });
}

async fn send(flow: &DurableFlow, directory: &Path, log: &Log, first: u64) {
    let mut number = first;
    while !directory.join("stop").exists() {
        log.write("try", number);
        match flow.send(number.to_be_bytes().repeat(1 + number as usize % 50)).await {
            Ok(_) => log.write("sent", number),
            Err(StateError::Full { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}"),
        }
        number += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    flow.acked().await.unwrap();
    log.write("drained", 0);
}

async fn receive(state: &State, log: &Log) {
    loop {
        let message = state.recv().await.unwrap();
        let number = u64::from_be_bytes(message.data()[..8].try_into().unwrap());
        log.write("got", number);
        message.ack().await.unwrap();
        log.write("acked", number);
    }
}

struct Peer {
    directory: PathBuf,
    ticket: Option<String>,
    child: Option<Child>,
}

impl Peer {
    fn start(&mut self) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["durable_kills::peer", "--exact", "--ignored", "--nocapture"])
            .env(DIRECTORY, &self.directory);
        if let Some(ticket) = &self.ticket {
            command.env(TICKET, ticket);
        }
        let errors =
            OpenOptions::new().append(true).create(true).open(self.directory.join("errors")).unwrap();
        self.child = Some(command.stdout(Stdio::null()).stderr(errors).spawn().unwrap());
    }

    /// As `kill -9`.
    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let ended = child.try_wait().unwrap();
            let errors = || std::fs::read_to_string(self.directory.join("errors")).unwrap();
            assert!(ended.is_none(), "it ended by itself: {}", errors());
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn log(&self) -> Vec<(String, u64)> {
        read_log(&self.directory)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn check(from: &Peer, to: &Peer) -> usize {
    let (sent, tried) = (numbers(&from.log(), "sent"), numbers(&from.log(), "try"));
    let log = to.log();
    let got = numbers(&log, "got");
    let lost: Vec<_> = sent.difference(&got).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    assert!(got.is_subset(&tried), "what was never sent came");
    let mut acked = BTreeSet::new();
    for (what, number) in &log {
        assert!(what != "got" || !acked.contains(number), "{number} came again after it was acknowledged");
        if what == "acked" {
            acked.insert(*number);
        }
    }
    // Each life of a process gets them in order, and only what was not acknowledged again.
    let came: Vec<u64> = log.iter().filter(|(what, _)| what == "got").map(|(_, number)| *number).collect();
    assert!(came.is_sorted(), "they came out of order");
    sent.len()
}

/// Long in `make eval-durable`.
#[test]
fn killed_at_any_instant_two_processes_lose_no_message_and_double_none() {
    let kills: u64 = std::env::var(KILLS).ok().and_then(|text| text.parse().ok()).unwrap_or(24);
    let folder = tempfile::tempdir().unwrap();
    let directories = ["listens", "dials"].map(|name| folder.path().join(name));
    let ids = directories.each_ref().map(|directory| {
        std::fs::create_dir(directory).unwrap();
        Identity::in_file(directory.join("identity")).unwrap().key.id()
    });
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address: SocketAddr = free.local_addr().unwrap();
    drop(free);
    std::fs::write(directories[0].join("port"), address.port().to_string()).unwrap();
    std::fs::write(directories[0].join("peer"), ids[1].to_string()).unwrap();
    std::fs::write(directories[1].join("port"), "0").unwrap();
    let tickets = [None, Some(Ticket::new(ids[0], [address], None).to_string())];
    let mut number = 0;
    let mut peers = directories.map(|directory| {
        number += 1;
        Peer { directory, ticket: tickets[number - 1].clone(), child: None }
    });
    peers.iter_mut().for_each(Peer::start);
    let mut chance = u64::from(std::process::id());
    for _ in 0..kills {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis(40 + (chance >> 33) % 160));
        let victims = match (chance >> 20) % 5 {
            0..2 => &mut peers[..1],
            2..4 => &mut peers[1..],
            _ => &mut peers[..],
        };
        victims.iter_mut().for_each(Peer::kill);
        victims.iter_mut().for_each(Peer::start);
    }
    for peer in &peers {
        std::fs::write(peer.directory.join("stop"), "").unwrap();
    }
    let start = Instant::now();
    while !peers.iter().all(|peer| peer.log().iter().any(|(what, _)| what == "drained")) {
        assert!(start.elapsed() < LIMIT, "not everything was acknowledged in time");
        std::thread::sleep(Duration::from_millis(20));
    }
    let [listens, dials] = &peers;
    let sent = [check(listens, dials), check(dials, listens)];
    println!("{kills} kills, {sent:?} messages");
    assert!(sent.iter().all(|sent| *sent as u64 > kills), "hardly anything was sent: {sent:?}");
}
