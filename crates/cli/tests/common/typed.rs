//! Commands that go on at another device, for tests: they are typed to, listed, handed over and taken.
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{ChildStdin, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::common::{LIMIT, Process, World, tcp_server, wait_for};

/// What a server sends in all.
pub(crate) const LARGE: usize = 3 << 20;

/// Exposes a server for these devices. Returns the ticket to it.
pub(crate) fn expose(world: &World, to: SocketAddr, devices: &[&str]) -> (Process, String) {
    let (to, ids) = (to.to_string(), devices.iter().map(|device| world.id(device)).collect::<Vec<_>>());
    let mut args = vec!["expose", "--ticket", "--to", &to, "--json"];
    args.extend(ids.iter().flat_map(|id| ["--allow", id.as_str()]));
    let mut expose = world.start("home", &args);
    let ticket = expose.next_json()["ticket"].as_str().unwrap().to_owned();
    (expose, ticket)
}

/// A phone whose key is the user's, and a desk of the user. The service lives as long as what is returned.
pub(crate) fn devices() -> (World, Process) {
    let (world, names) = World::with_names();
    let mut inviting = world.start("phone", &["invite", "--json", "-q", "--device", "desk.ada@example.org"]);
    let code = inviting.next_json()["code"].as_str().unwrap().to_owned();
    world.run("desk", &["join", &code, "--json", "-q"]).succeeded();
    inviting.output(LIMIT).succeeded();
    (world, names)
}

/// A command that is typed to.
pub(crate) struct Typed {
    pub(crate) process: Process,
    pub(crate) input: ChildStdin,
}

impl Typed {
    pub(crate) fn start(world: &World, user: &str, args: &[&str]) -> Self {
        let mut process = Process::start(world.command(user, args).stdin(Stdio::piped()));
        let input = process.child.stdin.take().unwrap();
        Self { process, input }
    }

    pub(crate) fn types(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).unwrap();
    }

    /// The next line, but for those that tell how long somebody was out of reach: a busy machine's business.
    #[track_caller]
    pub(crate) fn sees(&mut self) -> String {
        loop {
            let line = self.process.line();
            if !line.contains(" is away since ") && !line.contains(" is back after ") {
                return line;
            }
        }
    }

    /// The same of one that prints JSON objects.
    #[track_caller]
    pub(crate) fn tells(&mut self) -> Value {
        loop {
            let told = self.process.next_json();
            if told["event"] != "away" && told["event"] != "back" {
                return told;
            }
        }
    }

    /// The server's answer to a line is there.
    #[track_caller]
    pub(crate) fn shouts(&mut self, word: &str) {
        self.types(&format!("{word}\n"));
        assert_eq!(self.process.line(), word.to_uppercase());
    }

    /// It has gone to another device, and said so.
    #[track_caller]
    pub(crate) fn went_on_at(self, device: &str) {
        let Self { process, input } = self;
        let output = process.output(LIMIT);
        let says = format!("went on at {device}\n");
        assert!(output.succeeded().stderr.ends_with(&says), "{}", output.stderr);
        drop(input);
    }
}

/// An agent says that this happened next.
#[track_caller]
pub(crate) fn says(agent: &mut Process, event: &str) -> Value {
    let said = agent.next_json();
    assert_eq!(said["event"], event, "{said}");
    said
}

/// A program's connection to a port of this host.
pub(crate) fn connected(at: SocketAddr) -> TcpStream {
    let program = TcpStream::connect(at).unwrap();
    program.set_read_timeout(Some(LIMIT)).unwrap();
    program
}

/// A forward on the phone, whose program has the first half.
pub(crate) fn half(world: &World, ticket: &str) -> (Process, TcpStream, Vec<u8>) {
    let mut forward = world.start("phone", &["forward", ticket, "--json"]);
    let at: SocketAddr = forward.next_json()["listening"].as_str().unwrap().parse().unwrap();
    let mut program = connected(at);
    let mut first = vec![0; LARGE / 2];
    program.read_exact(&mut first).unwrap();
    (forward, program, first)
}

/// The only session on a device.
pub(crate) fn session(world: &World, user: &str) -> Value {
    wait_for("a session", || {
        let listed = world.run(user, &["sessions", "--json"]).succeeded().json();
        let sessions = listed["sessions"].as_array().unwrap();
        assert!(sessions.len() < 2, "{listed}");
        sessions.first().cloned()
    })
}

/// Lets another key have it. Returns the session's id, and where it is found.
pub(crate) fn hand_off(world: &World, from: &str, to: &str) -> (String, String) {
    let id = session(world, from)["id"].as_str().unwrap().to_owned();
    let said = world.run(from, &["handoff", &id[..8], "--to", to, "--json"]).succeeded().json();
    assert_eq!((&said["session"], &said["to"]), (&json!(id), &json!(to)));
    (id, said["ticket"].as_str().unwrap().to_owned())
}

/// The arguments that take it.
pub(crate) fn take((id, ticket): &(String, String)) -> [&str; 4] {
    ["take", &id[..8], "--from", ticket]
}

pub(crate) fn random(size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    getrandom::fill(&mut bytes).unwrap();
    bytes
}

pub(crate) fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A server that sends one half of what it has, and the other one when it may. What it hears is kept.
#[derive(Clone, Default)]
pub(crate) struct Film {
    pub(crate) connections: Arc<AtomicUsize>,
    pub(crate) heard: Arc<Mutex<Vec<u8>>>,
    pub(crate) may_go_on: Arc<AtomicBool>,
    /// So slowly, while this is so, that it takes longer than any move.
    pub(crate) slowly: Arc<AtomicBool>,
}

impl Film {
    pub(crate) fn bytes() -> Vec<u8> {
        (0..LARGE as u32 / 4).flat_map(|number| number.wrapping_mul(2_654_435_761).to_be_bytes()).collect()
    }

    pub(crate) fn start(&self) -> SocketAddr {
        let this = self.clone();
        tcp_server(move |mut socket| {
            this.connections.fetch_add(1, Ordering::SeqCst);
            let (mut input, heard) = (socket.try_clone().unwrap(), this.heard.clone());
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(n @ 1..) = input.read(&mut bytes) {
                    heard.lock().unwrap().extend_from_slice(&bytes[..n]);
                }
            });
            let film = Self::bytes();
            let (first, second) = film.split_at(LARGE / 2);
            // What breaks is seen by the test.
            let _ = socket.write_all(first);
            // As long as all that a test may wait for until then, and not only one of these.
            let begun = Instant::now();
            while !this.may_go_on.load(Ordering::SeqCst) && begun.elapsed() < 10 * LIMIT {
                std::thread::sleep(Duration::from_millis(5));
            }
            let mut rest = second;
            while this.slowly.load(Ordering::SeqCst) && !rest.is_empty() {
                let (piece, behind) = rest.split_at(rest.len().min(64));
                if socket.write_all(piece).is_err() {
                    return;
                }
                rest = behind;
                std::thread::sleep(Duration::from_millis(1));
            }
            let _ = socket.write_all(rest);
            let _ = socket.shutdown(Shutdown::Write);
        })
    }
}
