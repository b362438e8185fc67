//! A file that is being sent goes on at another device of the user, and its receiver notices nothing: real
//! processes, and no gateway.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use crate::common::{LIMIT, Process, World, length, wait_for};
use crate::typed::{hand_off, random, session, sum, take};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel::transport::{ManualMonitor, Stream};
use whimbrel::{Allow, CloseCode, Connection, Endpoint, EndpointId, ListenOptions, Listener, Ticket};

const MIB: usize = 1 << 20;
/// More than a stream holds that nobody reads: it is on its way until the test reads it.
const FILM: usize = 40 * MIB;
/// A device says that it keeps a file, or has all of it.
const YES: [u8; 5] = [0, 0, 0, 1, 0];

/// A device takes what was handed over to it.
fn take_at(world: &World, device: &str, given: &(String, String)) -> Process {
    let args = [&take(given)[..], &["--json", "-q"]].concat();
    world.start(device, &args)
}

/// A receiver that speaks the protocol of transfers by hand, and reads when the test says so.
struct Receiver {
    endpoint: Endpoint,
    listener: Listener,
}

/// What one sends to it, which has said where it begins.
struct Coming {
    stream: Stream,
    connection: Connection,
}

impl Receiver {
    async fn new(world: &World, allow: Allow) -> Self {
        let own = ManualMonitor::new([world.address("bob").parse().unwrap()]);
        let endpoint = Endpoint::builder().monitor(own).bind().await.unwrap();
        let listener = endpoint.listen(ListenOptions::unnamed().allow(allow)).await.unwrap();
        Self { endpoint, listener }
    }

    fn ticket(&self) -> String {
        self.endpoint.ticket(None).to_string()
    }

    /// The film begins to come, from its first byte on.
    async fn film(&mut self) -> Coming {
        self.offered().await.begins().await
    }

    /// The film is offered, and waits for the answer.
    async fn offered(&mut self) -> Coming {
        let connection = tokio::time::timeout(LIMIT, self.listener.accept()).await.unwrap().unwrap();
        let stream = tokio::time::timeout(LIMIT, connection.accept_stream()).await.unwrap().unwrap();
        let mut coming = Coming { stream, connection };
        let offer = coming.hears("offer").await;
        assert_eq!((&offer["name"], &offer["size"]), (&json!("film"), &json!(FILM)));
        coming
    }
}

impl Coming {
    /// Takes it from its first byte on.
    async fn begins(mut self) -> Self {
        self.say(&json!({ "type": "want", "offset": 0, "sha256": "" })).await;
        self.hears("start").await;
        self
    }

    async fn say(&mut self, message: &Value) {
        let body = message.to_string();
        let all = [&(body.len() as u32).to_be_bytes()[..], body.as_bytes()].concat();
        self.stream.write_all(&all).await.unwrap();
    }

    async fn hears(&mut self, kind: &str) -> Value {
        let read = async {
            let mut body = vec![0; self.stream.read_u32().await.unwrap() as usize];
            self.stream.read_exact(&mut body).await.unwrap();
            serde_json::from_slice::<Value>(&body).unwrap()
        };
        let heard = tokio::time::timeout(LIMIT, read).await.unwrap();
        assert_eq!(heard["type"], kind, "{heard}");
        heard
    }

    /// Reads all of the film, each byte once, and says that it is there.
    async fn ends(mut self, film: &[u8]) {
        let mut all = vec![0; film.len()];
        tokio::time::timeout(LIMIT, self.stream.read_exact(&mut all)).await.unwrap().unwrap();
        assert!(all == film);
        assert_eq!(self.hears("end").await["sha256"], sum(film).as_str());
        self.say(&json!({ "type": "done" })).await;
        // It is not over before the sender has that.
        tokio::time::timeout(LIMIT, self.connection.closed()).await.unwrap();
    }
}

/// The phone sends the film of so many bytes to somebody.
fn send(world: &World, to: &str, film: &[u8]) -> Process {
    world.id("phone");
    fs::write(world.path("phone").join("film"), film).unwrap();
    world.start("phone", &["send", "film", "--to", to, "--json"])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_sent_goes_from_device_to_device_and_its_receiver_gets_each_byte_once() {
    let (world, film) = (World::new(), random(FILM));
    let mut bob = Receiver::new(&world, Allow::Any).await;
    let mut phone = send(&world, &bob.ticket(), &film);
    let coming = bob.film().await;
    let seen = session(&world, "phone");
    assert_eq!(seen["command"], "send");
    let [desk_id, tablet_id] = ["desk", "tablet"].map(|device| world.id(device));
    let given = hand_off(&world, "phone", &desk_id);
    let mut desk = take_at(&world, "desk", &given);
    let moved = phone.next_json();
    assert_eq!((&moved["file"], &moved["moved_to"]), (&json!("film"), &json!(desk_id)));
    phone.output(LIMIT).succeeded();
    // What is left is at the desk, which has nothing to show of it.
    fs::remove_file(world.path("phone").join("film")).unwrap();
    assert_eq!(session(&world, "desk")["id"], seen["id"]);
    let given = hand_off(&world, "desk", &tablet_id);
    let mut tablet = take_at(&world, "tablet", &given);
    assert_eq!(desk.next_json()["moved_to"], tablet_id.as_str());
    desk.output(LIMIT).succeeded();
    coming.ends(&film).await;
    let sent = tablet.next_json();
    assert_eq!((&sent["size"], &sent["sent"], &sent["carried"]), (&json!(FILM), &json!(FILM), &json!(FILM)));
    assert_eq!((&sent["sha256"], &sent["resumed_from"]), (&json!(sum(&film)), &json!(0)));
    tablet.output(LIMIT).succeeded();
    for device in ["desk", "tablet"] {
        let state = world.path(device).join(".local/share/whimbrel");
        let is_file = |found: &fs::DirEntry| found.file_type().unwrap().is_file();
        let files: Vec<_> = fs::read_dir(&state).unwrap().map(Result::unwrap).filter(is_file).collect();
        assert!(files.is_empty(), "{files:?}");
    }
    bob.endpoint.close(LIMIT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_sent_on_where_it_was_if_the_taker_dies_at_any_step_or_the_receiver_does_not_let_it_in() {
    let (world, film) = (World::new(), random(FILM));
    let phone_id: EndpointId = world.id("phone").parse().unwrap();
    let mut bob = Receiver::new(&world, Allow::only([phone_id])).await;
    let mut phone = send(&world, &bob.ticket(), &film);
    let coming = bob.film().await;
    // Nothing but what there is to know of it; a part; and all of it, but not the connection.
    for (times, bytes) in [(1, None), (2, Some(2 * MIB)), (3, Some(usize::MAX))] {
        takes_and_dies(&world, bytes, &film).await;
        phone.until_said("this stays here", times);
    }
    // One that fetches all of it, and is nobody to the receiver.
    let given = hand_off(&world, "phone", &world.id("desk"));
    let refused = take_at(&world, "desk", &given).output(2 * LIMIT);
    assert!(!refused.status.success() && refused.stderr.contains("stays at the other device"));
    phone.until_said("this stays here", 4);
    coming.ends(&film).await;
    let sent = phone.next_json();
    assert_eq!((&sent["sha256"], &sent["carried"]), (&json!(sum(&film)), &json!(FILM)));
    phone.output(LIMIT).succeeded();
    bob.endpoint.close(LIMIT).await;
}

/// A device comes for the film, fetches at most so many bytes of what is left, and is gone.
async fn takes_and_dies(world: &World, most: Option<usize>, film: &[u8]) {
    let own = ManualMonitor::new([world.address("desk").parse().unwrap()]);
    let taker = Endpoint::builder().monitor(own).bind().await.unwrap();
    let given = hand_off(world, "phone", &taker.id().to_string());
    let over = taker.connect(given.1.parse::<Ticket>().unwrap()).await.unwrap();
    let (answer, mut stream) = tokio::time::timeout(LIMIT, ask(&over, &given.0)).await.unwrap();
    let (at, left) = at_and_left(&answer);
    assert_eq!(at + left, film.len());
    if let Some(most) = most {
        let all = [&film[at..], Sha256::digest(film).as_slice()].concat();
        stream.write_all(&YES).await.unwrap();
        let mut bytes = vec![0; all.len().min(most)];
        tokio::time::timeout(LIMIT, stream.read_exact(&mut bytes)).await.unwrap().unwrap();
        assert!(bytes == all[..bytes.len()], "what is left, and the sum of the whole");
        if bytes.len() == all.len() {
            stream.write_all(&YES).await.unwrap();
            tokio::time::timeout(LIMIT, stream.drained()).await.unwrap().unwrap();
        }
    }
    over.abort(CloseCode::NONE, "");
    taker.close(LIMIT).await;
}

/// How much of a file that is given is in its stream, or waits to be, and how much is left behind that.
fn at_and_left(answer: &[u8]) -> (usize, usize) {
    assert!(answer.starts_with(&[0, 4]), "a file is given: {:?}", &answer[..answer.len().min(8)]);
    let mut rest = &answer[2..];
    let peer = number(&mut rest);
    rest = &rest[peer..];
    let _stream = number(&mut rest);
    let name = number(&mut rest);
    rest = &rest[name..];
    let _before = number(&mut rest);
    (number(&mut rest), number(&mut rest))
}

/// Takes a number away: seven bits a byte, the lowest first.
fn number(from: &mut &[u8]) -> usize {
    let last = from.iter().position(|byte| byte & 0x80 == 0).unwrap();
    let (number, rest) = from.split_at(last + 1);
    *from = rest;
    number.iter().rev().fold(0, |number, byte| (number << 7) | usize::from(byte & 0x7f))
}

/// Asks for a session as a device does, and returns what it is told, and the stream.
async fn ask(connection: &Connection, id: &str) -> (Vec<u8>, Stream) {
    let mut stream = connection.open_stream().await.unwrap();
    let length = u32::try_from(id.len() + 2).unwrap();
    let ask = [&b"WHN1"[..], &length.to_be_bytes(), &[0, id.len() as u8], id.as_bytes()].concat();
    stream.write_all(&ask).await.unwrap();
    let mut answer = vec![0; stream.read_u32().await.unwrap() as usize];
    stream.read_exact(&mut answer).await.unwrap();
    (answer, stream)
}

/// Bob takes one file from these devices. Returns the ticket to him.
fn receive(world: &World, devices: &[&str]) -> (Process, String) {
    let ids: Vec<String> = devices.iter().map(|device| world.id(device)).collect();
    let directory = world.path("bob").join("incoming");
    fs::create_dir_all(&directory).unwrap();
    let mut args = vec!["receive", "--dir", directory.to_str().unwrap(), "--yes", "--once", "--json", "-q"];
    args.extend(ids.iter().flat_map(|id| ["--allow", id.as_str()]));
    let mut receive = world.start("bob", &args);
    let ticket = receive.next_json()["ticket"].as_str().unwrap().to_owned();
    (receive, ticket)
}

/// Waits until something of the film has arrived, and no less than so much.
fn until_there(world: &World, least: usize) {
    let part = world.path("bob").join("incoming/.film.whimbrel-part");
    wait_for("a piece of the film", || (length(&part) >= least as u64).then_some(()));
}

#[test]
fn standard_input_is_read_to_its_end_and_goes_on_at_the_desk() {
    let (world, film) = (World::new(), random(60 * MIB));
    let (mut bob, ticket) = receive(&world, &["phone", "desk"]);
    let file = world.path("phone").join("source");
    fs::write(&file, &film).unwrap();
    // So slowly that a busy machine has time to hand it over.
    let args = ["send", "-", "--as", "film", "--to", &ticket, "--limit", "1", "--json", "-q"];
    let mut phone = Process::start(world.command("phone", &args).stdin(fs::File::open(&file).unwrap()));
    until_there(&world, 1);
    let desk_id = world.id("desk");
    let given = hand_off(&world, "phone", &desk_id);
    let mut desk = take_at(&world, "desk", &given);
    assert_eq!(phone.next_json()["moved_to"], desk_id.as_str());
    phone.output(LIMIT).succeeded();
    let sent = desk.next_json();
    assert_eq!((&sent["sha256"], &sent["size"]), (&json!(sum(&film)), &json!(film.len())));
    desk.output(LIMIT).succeeded();
    assert_eq!(bob.next_json()["sha256"], sum(&film).as_str());
    bob.output(LIMIT).succeeded();
    assert!(fs::read(world.path("bob").join("incoming/film")).unwrap() == film);
}

#[test]
fn standard_input_that_does_not_end_stays_and_what_was_read_of_it_is_sent() {
    let (world, film) = (World::new(), random(2 * MIB));
    let (mut bob, ticket) = receive(&world, &["phone", "desk"]);
    let args = ["send", "-", "--as", "film", "--to", &ticket, "--json", "-q"];
    let mut phone = Process::start(world.command("phone", &args).stdin(Stdio::piped()));
    let mut input = phone.child.stdin.take().unwrap();
    input.write_all(&film[..MIB]).unwrap();
    until_there(&world, MIB);
    let given = hand_off(&world, "phone", &world.id("desk"));
    let desk = take_at(&world, "desk", &given);
    // Some of it is read while the desk is told to wait, and some afterwards.
    input.write_all(&film[MIB..MIB + MIB / 2]).unwrap();
    desk.output(LIMIT).failed(5, &["standard input has not ended"]);
    input.write_all(&film[MIB + MIB / 2..]).unwrap();
    drop(input);
    assert_eq!(phone.next_json()["sha256"], sum(&film).as_str());
    phone.output(LIMIT).succeeded();
    assert_eq!(bob.next_json()["sha256"], sum(&film).as_str());
    bob.output(LIMIT).succeeded();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_its_receiver_has_not_taken_yet_stays_and_it_is_said_why() {
    let (world, film) = (World::new(), random(FILM));
    let mut bob = Receiver::new(&world, Allow::Any).await;
    let mut phone = send(&world, &bob.ticket(), &film);
    let coming = bob.offered().await;
    let listed = world.run("phone", &["sessions"]);
    assert!(listed.succeeded().stderr.contains("stays here"), "{}", listed.stderr);
    let (id, desk) = (coming.connection.id().to_string(), world.id("desk"));
    world.run("phone", &["handoff", &id[..8], "--to", &desk]).failed(5, &["does not move yet"]);
    coming.begins().await.ends(&film).await;
    assert_eq!(phone.next_json()["sha256"], sum(&film).as_str());
    phone.output(LIMIT).succeeded();
    bob.endpoint.close(LIMIT).await;
}
