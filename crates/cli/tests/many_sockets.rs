//! Thousands of open sockets through one `forward` and one `expose`. A target of its own: it needs most of
//! the files that a process may open.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Process, World};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// What `forward` promises.
const SOCKETS: u64 = 20_000;
/// Fewer show nothing: under CI the test fails with them. Where the limit of open files itself is 20 000 and
/// cannot be raised, it is held with what that leaves.
const LEAST: u64 = 19_500;
/// Files that each process needs besides.
const OTHER_FILES: u64 = 200;
/// Opened at the same time.
const AT_ONCE: usize = 500;
const TARGET: &str = "WHIMBREL_TEST_TARGET";
/// Memory for each socket in `forward` or `expose`, and what they need without any.
const BYTES_PER_SOCKET: u64 = 24 << 10;
const BASE_BYTES: u64 = 96 << 20;

/// As many files as can be open: root's limit is the kernel's, if it may raise its own.
fn raise_limit() -> u64 {
    let enough = Some(2 * SOCKETS);
    if setrlimit(Resource::Nofile, Rlimit { current: enough, maximum: enough }).is_ok() {
        return 2 * SOCKETS;
    }
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    limit.maximum.unwrap_or(u64::MAX)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Not a test: the exposed service, in a process of its own because it has as many sockets as the test.
#[test]
fn target() {
    if std::env::var_os(TARGET).is_none() {
        return;
    }
    raise_limit();
    runtime().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("target {}", listener.local_addr().unwrap());
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut read, mut write) = socket.split();
                let mut buffer = vec![0; 4096];
                while let Ok(n @ 1..) = read.read(&mut buffer).await {
                    if write.write_all(&buffer[..n]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
}

fn start_target() -> (Process, SocketAddr) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "many_sockets::target", "--nocapture", "--test-threads=1"]).env(TARGET, "1");
    let mut process = Process::start(&mut command);
    loop {
        if let Some((_, address)) = process.line().split_once("target 1") {
            return (process, format!("1{address}").parse().unwrap());
        }
    }
}

/// What a process has in memory, in bytes.
fn memory(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

async fn echo(socket: &mut TcpStream, what: &[u8]) {
    socket.write_all(what).await.unwrap();
    let mut back = vec![0; what.len()];
    socket.read_exact(&mut back).await.unwrap();
    assert_eq!(back, what);
}

#[test]
fn twenty_thousand_open_sockets_are_served_beside_a_bulk_transfer() {
    let limit = raise_limit();
    let count = SOCKETS.min(limit.saturating_sub(OTHER_FILES));
    if count < LEAST {
        let why =
            format!("{SOCKETS} sockets need more than {limit} open files; raise the limit (ulimit -Hn)");
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
        println!("only {count} sockets are opened: {why}");
    }
    let world = World::new();
    let (_target, to) = start_target();
    let to = to.to_string();
    let expose = ["expose", "--ticket", "--to", &to, "--allow", "any", "--json"];
    let mut expose = world.start("ada", &expose);
    let ticket = expose.next_json()["ticket"].as_str().unwrap().to_owned();
    let mut forward = world.start("bob", &["forward", &ticket, "--json"]);
    let port: SocketAddr = forward.next_json()["listening"].as_str().unwrap().parse().unwrap();

    let start = Instant::now();
    let (bulk, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    runtime().block_on(async {
        let carrying = tokio::spawn({
            let (bulk, over) = (bulk.clone(), over.clone());
            async move {
                let mut socket = TcpStream::connect(port).await.unwrap();
                let piece: Vec<u8> = (0..65_536u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
                while !over.load(Ordering::Relaxed) {
                    echo(&mut socket, &piece).await;
                    bulk.fetch_add(piece.len() as u64, Ordering::Relaxed);
                }
            }
        });
        let permits = Arc::new(Semaphore::new(AT_ONCE));
        let opening: Vec<_> = (1..count)
            .map(|number| {
                let permits = permits.clone();
                tokio::spawn(async move {
                    let _permit = permits.acquire_owned().await.unwrap();
                    let mut socket = TcpStream::connect(port).await.unwrap();
                    echo(&mut socket, format!("hello {number}").as_bytes()).await;
                    socket
                })
            })
            .collect();
        let mut sockets = Vec::new();
        for one in opening {
            sockets.push(one.await.unwrap());
        }
        let opened = start.elapsed();
        let at_opened = bulk.load(Ordering::Relaxed);
        // All are open; each still works.
        for socket in &mut sockets {
            echo(socket, b"still there").await;
        }
        let report = world.run("bob", &["status", "--json"]).succeeded().json();
        let own = report["commands"].as_array().map_or(&report, |all| &all[0]);
        let own = if own.is_array() { &own[0] } else { own };
        println!(
            "{count} sockets in {opened:?}, each again in {:?}; bulk {} MiB, then {} MiB; forward {} MiB, expose {} MiB",
            start.elapsed() - opened,
            at_opened >> 20,
            (bulk.load(Ordering::Relaxed) - at_opened) >> 20,
            memory(&forward) >> 20,
            memory(&expose) >> 20,
        );
        assert_eq!(own["sockets"]["open"], count, "{report}");
        assert_eq!(own["sockets"]["refused"], 0);
        assert!(at_opened > 0 && bulk.load(Ordering::Relaxed) > at_opened, "the bulk transfer stood still");
        let limit = BASE_BYTES + count * BYTES_PER_SOCKET;
        assert!(memory(&forward) < limit && memory(&expose) < limit);
        over.store(true, Ordering::Relaxed);
        carrying.await.unwrap();
        drop(sockets);
    });
    assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
}
