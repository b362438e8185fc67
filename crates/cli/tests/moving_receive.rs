//! A file that is on its way goes on at another device of the user, and its sender notices nothing: real
//! processes, and no gateway.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::channel;

use crate::common::{LIMIT, Process, World, length, wait_for};
use crate::typed::{hand_off, random, session, sum, take};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel::Ticket;
use whimbrel::transport::{ManualMonitor, Stream};

const INBOX: &str = "inbox.phone.bob@example.org";
/// What is sent in one piece by a test that says when.
const PIECE: usize = 1 << 20;

/// The directory of a device that files go to.
fn incoming(world: &World, device: &str) -> PathBuf {
    let directory = world.path(device).join("incoming");
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// What has not arrived whole yet.
fn part(world: &World, device: &str) -> PathBuf {
    incoming(world, device).join(".film.whimbrel-part")
}

/// The phone takes one file from ada.
fn receive(world: &World) -> Process {
    let (ada, directory) = (world.id("ada"), incoming(world, "phone"));
    let directory = directory.to_str().unwrap();
    let args = ["receive", "--as", INBOX, "--allow", &ada, "--dir", directory, "--json", "-q", "--once"];
    let mut receive = world.start("phone", &args);
    receive.next_json();
    receive
}

/// Ada sends what the test writes. Standard input cannot be read again: what got lost would be missing.
struct Ada {
    process: Process,
    input: ChildStdin,
}

impl Ada {
    fn sends(world: &World, to: &[&str]) -> Self {
        let args = [&["send", "-", "--as", "film", "--json", "-q"][..], to].concat();
        let mut process = Process::start(world.command("ada", &args).stdin(Stdio::piped()));
        let input = process.child.stdin.take().unwrap();
        Self { process, input }
    }

    /// Has these bytes sent, as far as the pipe to the command does not hold them.
    #[track_caller]
    fn writes(self, bytes: &[u8]) -> Self {
        let Self { process, mut input } = self;
        let (bytes, (done, written)) = (bytes.to_vec(), channel());
        std::thread::spawn(move || {
            if input.write_all(&bytes).is_ok() {
                let _ = done.send(input);
            }
        });
        let input = written.recv_timeout(LIMIT).unwrap();
        Self { process, input }
    }

    /// There is no more. What the command says at its end.
    #[track_caller]
    fn ends(self) -> Value {
        let Self { process, input } = self;
        drop(input);
        process.output(LIMIT).succeeded().json()
    }
}

/// A device takes what was handed over to it.
fn take_at(world: &World, device: &str, given: &(String, String)) -> Process {
    let directory = incoming(world, device);
    let args = [&take(given)[..], &["--dir", directory.to_str().unwrap(), "--json", "-q"]].concat();
    world.start(device, &args)
}

/// Waits until so much of the file is at a device.
fn until_there(world: &World, device: &str, bytes: usize) {
    let part = part(world, device);
    wait_for("a piece of the file", || (length(&part) == bytes as u64).then_some(()));
}

#[test]
fn a_file_goes_from_device_to_device_while_it_is_written_and_no_byte_of_it_is_sent_twice() {
    let (world, _names) = World::with_names();
    let film = random(3 * PIECE);
    let mut phone = receive(&world);
    let ada = Ada::sends(&world, &["--to", INBOX]);
    let ada = ada.writes(&film[..PIECE]);
    until_there(&world, "phone", PIECE);
    let seen = session(&world, "phone");
    assert_eq!(seen["command"], "receive");
    let desk_id = world.id("desk");
    let given = hand_off(&world, "phone", &desk_id);
    let mut desk = take_at(&world, "desk", &given);
    let moved = phone.next_json();
    assert_eq!((&moved["file"], &moved["moved_to"]), (&"film".into(), &desk_id.into()));
    phone.output(LIMIT).succeeded();
    assert!(!part(&world, "phone").exists(), "it is elsewhere");
    let ada = ada.writes(&film[PIECE..2 * PIECE]);
    until_there(&world, "desk", 2 * PIECE);
    // And from there to the next one.
    let tablet_id = world.id("tablet");
    let given = hand_off(&world, "desk", &tablet_id);
    let mut tablet = take_at(&world, "tablet", &given);
    assert_eq!(desk.next_json()["moved_to"], tablet_id.as_str());
    desk.output(LIMIT).succeeded();
    let sent = ada.writes(&film[2 * PIECE..]).ends();
    assert_eq!((&sent["sent"], &sent["resumed_from"]), (&film.len().into(), &0.into()), "{sent}");
    let received = tablet.next_json();
    assert_eq!((&received["sha256"], &received["size"]), (&sum(&film).into(), &film.len().into()));
    tablet.output(LIMIT).succeeded();
    assert!(fs::read(incoming(&world, "tablet").join("film")).unwrap() == film);
    for device in ["phone", "desk"] {
        assert_eq!(fs::read_dir(incoming(&world, device)).unwrap().count(), 0, "{device}");
    }
}

#[test]
fn a_file_of_a_known_size_goes_on_at_the_desk_and_its_sender_sends_each_byte_once() {
    let (world, _names) = World::with_names();
    let film = random(30 * PIECE);
    let desk_id = world.id("desk");
    world.id("ada");
    fs::write(world.path("ada").join("film"), &film).unwrap();
    let phone = receive(&world);
    // So slowly that a busy machine has time to hand it over.
    let ada = world.start("ada", &["send", "film", "--to", INBOX, "--limit", "1", "--json", "-q"]);
    wait_for("the beginning", || (length(&part(&world, "phone")) > 0).then_some(()));
    let given = hand_off(&world, "phone", &desk_id);
    let mut desk = take_at(&world, "desk", &given);
    phone.output(LIMIT).succeeded();
    let sent = ada.output(3 * LIMIT).succeeded().json();
    assert_eq!((&sent["sent"], &sent["resumed_from"]), (&film.len().into(), &0.into()), "{sent}");
    assert_eq!(desk.next_json()["sha256"], sum(&film).as_str());
    desk.output(LIMIT).succeeded();
    assert!(fs::read(incoming(&world, "desk").join("film")).unwrap() == film);
    assert_eq!(fs::read_dir(incoming(&world, "phone")).unwrap().count(), 0);
}

#[test]
fn a_file_that_was_met_by_a_code_goes_on_at_the_desk() {
    let (world, _names) = World::with_names();
    let film = random(2 * PIECE);
    let mut ada = Ada::sends(&world, &[]);
    let code = ada.process.next_json()["code"].as_str().unwrap().to_owned();
    let directory = incoming(&world, "phone");
    let receive = ["receive", &code, "--dir", directory.to_str().unwrap(), "--yes", "--json", "-q"];
    let phone = world.start("phone", &receive);
    let ada = ada.writes(&film[..PIECE]);
    until_there(&world, "phone", PIECE);
    let given = hand_off(&world, "phone", &world.id("desk"));
    let mut desk = take_at(&world, "desk", &given);
    phone.output(LIMIT).succeeded();
    ada.writes(&film[PIECE..]).ends();
    assert_eq!(desk.next_json()["sha256"], sum(&film).as_str());
    desk.output(LIMIT).succeeded();
    // The name that the word waited under is nobody's, and nothing of it is remembered.
    let known = world.run("desk", &["trust", "show", "--json"]).succeeded().json();
    assert!(!known.to_string().contains("invalid"), "{known}");
}

#[test]
fn a_file_stays_where_it_was_if_its_name_is_taken_there_and_can_go_elsewhere() {
    let (world, _names) = World::with_names();
    let film = random(2 * PIECE);
    let phone = receive(&world);
    let ada = Ada::sends(&world, &["--to", INBOX]);
    let ada = ada.writes(&film[..PIECE]);
    until_there(&world, "phone", PIECE);
    let taken = incoming(&world, "desk").join("film");
    fs::write(&taken, "mine").unwrap();
    let given = hand_off(&world, "phone", &world.id("desk"));
    let refused = take_at(&world, "desk", &given).output(LIMIT);
    refused.failed(1, &["stays at the other device", "film exists", "--dir"]);
    assert_eq!(fs::read(&taken).unwrap(), b"mine");
    // It goes on where it was.
    let half = PIECE + PIECE / 2;
    let ada = ada.writes(&film[PIECE..half]);
    until_there(&world, "phone", half);
    let given = hand_off(&world, "phone", &world.id("tablet"));
    let mut tablet = take_at(&world, "tablet", &given);
    phone.output(LIMIT).succeeded();
    ada.writes(&film[half..]).ends();
    assert_eq!(tablet.next_json()["sha256"], sum(&film).as_str());
    tablet.output(LIMIT).succeeded();
}

/// Asks for a session as a device does, and returns what it is told, and the stream.
async fn ask(connection: &whimbrel::Connection, id: &str) -> (Vec<u8>, Stream) {
    let mut stream = connection.open_stream().await.unwrap();
    let length = u32::try_from(id.len() + 2).unwrap();
    let ask = [&b"WHN1"[..], &length.to_be_bytes(), &[0, id.len() as u8], id.as_bytes()].concat();
    stream.write_all(&ask).await.unwrap();
    let mut answer = vec![0; stream.read_u32().await.unwrap() as usize];
    stream.read_exact(&mut answer).await.unwrap();
    (answer, stream)
}

/// A device that takes by hand what was handed over to it: it has asked for the film.
struct Taker {
    endpoint: whimbrel::Endpoint,
    over: whimbrel::Connection,
    stream: Stream,
}

impl Taker {
    async fn asks(world: &World) -> Self {
        let own = ManualMonitor::new(["127.0.0.1".parse().unwrap()]);
        let endpoint = whimbrel::Endpoint::builder().monitor(own).bind().await.unwrap();
        let given = hand_off(world, "phone", &endpoint.id().to_string());
        let over = endpoint.connect(given.1.parse::<Ticket>().unwrap()).await.unwrap();
        let (answer, stream) = tokio::time::timeout(LIMIT, ask(&over, &given.0)).await.unwrap();
        assert!(answer.starts_with(&[0, 3]), "a file is given: {answer:?}");
        Self { endpoint, over, stream }
    }

    /// Says yes.
    async fn keeps(&mut self) {
        self.stream.write_all(&[0, 0, 0, 1, 0]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taker_that_dies_half_way_leaves_the_file_where_it_was() {
    let (world, _names) = World::with_names();
    let film = random(2 * PIECE);
    let mut phone = receive(&world);
    let ada = Ada::sends(&world, &["--to", INBOX]);
    let ada = ada.writes(&film[..PIECE]);
    until_there(&world, "phone", PIECE);
    let taker = Taker::asks(&world).await;
    // It knows all that there is to know, and goes before it has a byte of the file.
    taker.over.abort(whimbrel::CloseCode::NONE, "");
    ada.writes(&film[PIECE..]).ends();
    assert_eq!(phone.next_json()["sha256"], sum(&film).as_str());
    phone.output(LIMIT).succeeded();
    taker.endpoint.close(LIMIT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taker_that_ends_its_stream_as_soon_as_it_has_everything_has_the_file() {
    let (world, _names) = World::with_names();
    let film = random(PIECE);
    let mut phone = receive(&world);
    let ada = Ada::sends(&world, &["--to", INBOX]);
    let ada = ada.writes(&film);
    until_there(&world, "phone", PIECE);
    let mut taker = Taker::asks(&world).await;
    taker.keeps().await;
    let mut arrived = vec![0; PIECE];
    tokio::time::timeout(LIMIT, taker.stream.read_exact(&mut arrived)).await.unwrap().unwrap();
    assert!(arrived == film);
    taker.keeps().await;
    let Taker { endpoint, over, stream } = taker;
    drop(stream);
    let taken = endpoint.accept_hand_over(&over, LIMIT).await.unwrap();
    assert_eq!(phone.next_json()["moved_to"], endpoint.id().to_string());
    phone.output(LIMIT).succeeded();
    assert!(!part(&world, "phone").exists(), "it is elsewhere");
    drop((taken, ada));
    endpoint.close(LIMIT).await;
}

/// A sender that speaks the protocol of transfers by hand.
struct Talk(Stream);

impl Talk {
    async fn say(&mut self, message: &Value) {
        let body = message.to_string();
        let all = [&(body.len() as u32).to_be_bytes()[..], body.as_bytes()].concat();
        self.0.write_all(&all).await.unwrap();
    }

    async fn hears(&mut self, kind: &str) {
        let read = async {
            let mut body = vec![0; self.0.read_u32().await.unwrap() as usize];
            self.0.read_exact(&mut body).await.unwrap();
            serde_json::from_slice::<Value>(&body).unwrap()
        };
        let heard = tokio::time::timeout(LIMIT, read).await.unwrap();
        assert_eq!(heard["type"], kind, "{heard}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_come_of_a_chunk_is_used_where_the_file_goes_on_here_or_there() {
    const CHUNK: usize = 256 * 1024;
    let world = World::new();
    let (film, directory) = (random(3 * CHUNK), incoming(&world, "phone"));
    let directory = directory.to_str().unwrap();
    let args = ["receive", "--allow", "any", "--yes", "--dir", directory, "--json", "-q", "--once"];
    let mut phone = world.start("phone", &args);
    let at: Ticket = phone.next_json()["ticket"].as_str().unwrap().parse().unwrap();
    let own = ManualMonitor::new(["127.0.0.1".parse().unwrap()]);
    let ada = whimbrel::Endpoint::builder().monitor(own).bind().await.unwrap();
    let connection = ada.connect(at).await.unwrap();
    let mut talk = Talk(connection.open_stream().await.unwrap());
    talk.say(&json!({ "type": "offer", "version": 1, "name": "film", "size": film.len() })).await;
    talk.hears("want").await;
    talk.say(&json!({ "type": "start", "offset": 0, "chunks": true })).await;
    let chunks = film.chunks(CHUNK).flat_map(|chunk| [&(CHUNK as u32).to_be_bytes()[..], chunk].concat());
    let bytes: Vec<u8> = chunks.collect();
    let half = |chunk: usize| chunk * (CHUNK + 4) + CHUNK / 2;
    // One and a half of them are there, and the second one is not read to its end.
    talk.0.write_all(&bytes[..half(1)]).await.unwrap();
    let arrived = |least: usize| {
        let down = || session(&world, "phone")["down"].as_u64().unwrap();
        wait_for("half a chunk", || (down() >= least as u64).then_some(()));
    };
    until_there(&world, "phone", CHUNK);
    arrived(half(1));
    fs::write(incoming(&world, "desk").join("film"), "mine").unwrap();
    let given = hand_off(&world, "phone", &world.id("desk"));
    take_at(&world, "desk", &given).output(LIMIT).failed(1, &["film exists"]);
    talk.0.write_all(&bytes[half(1)..half(2)]).await.unwrap();
    until_there(&world, "phone", 2 * CHUNK);
    arrived(half(2));
    let given = hand_off(&world, "phone", &world.id("tablet"));
    let mut tablet = take_at(&world, "tablet", &given);
    phone.output(LIMIT).succeeded();
    // Another file was not agreed to: it is refused, and the first one goes on.
    let mut other = Talk(connection.open_stream().await.unwrap());
    other.say(&json!({ "type": "offer", "version": 1, "name": "other", "size": 1 })).await;
    other.hears("refuse").await;
    talk.0.write_all(&bytes[half(2)..]).await.unwrap();
    talk.0.write_all(&[0; 4]).await.unwrap();
    talk.say(&json!({ "type": "end", "sha256": sum(&film) })).await;
    talk.hears("done").await;
    assert_eq!(tablet.next_json()["sha256"], sum(&film).as_str());
    tablet.output(LIMIT).succeeded();
    assert!(fs::read(incoming(&world, "tablet").join("film")).unwrap() == film);
    ada.close(LIMIT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_to_halt_before_its_first_byte_goes_on_from_there() {
    let world = World::new();
    let (film, directory) = (random(PIECE), incoming(&world, "phone"));
    let directory = directory.to_str().unwrap();
    let args = ["receive", "--allow", "any", "--yes", "--dir", directory, "--json", "-q", "--once"];
    let mut phone = world.start("phone", &args);
    let at: Ticket = phone.next_json()["ticket"].as_str().unwrap().parse().unwrap();
    let own = || ManualMonitor::new(["127.0.0.1".parse().unwrap()]);
    let ada = whimbrel::Endpoint::builder().monitor(own()).bind().await.unwrap();
    let connection = ada.connect(at).await.unwrap();
    let mut talk = Talk(connection.open_stream().await.unwrap());
    talk.say(&json!({ "type": "offer", "version": 1, "name": "film", "size": film.len() })).await;
    talk.hears("want").await;
    let desk = whimbrel::Endpoint::builder().monitor(own()).bind().await.unwrap();
    let given = hand_off(&world, "phone", &desk.id().to_string());
    let over = desk.connect(given.1.parse::<Ticket>().unwrap()).await.unwrap();
    // The sender says where it begins after the file was to halt, and before that is given up.
    let late = async {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        talk.say(&json!({ "type": "start", "offset": 0 })).await;
    };
    let asking = async { tokio::join!(ask(&over, &given.0), late) };
    let ((answer, stream), ()) = tokio::time::timeout(LIMIT, asking).await.unwrap();
    assert!(answer.starts_with(&[0, 3]), "a file is given: {answer:?}");
    // The desk goes away, and the file goes on where it was.
    drop((stream, over));
    desk.close(LIMIT).await;
    tokio::time::timeout(LIMIT, talk.0.write_all(&film)).await.unwrap().unwrap();
    talk.say(&json!({ "type": "end", "sha256": sum(&film) })).await;
    talk.hears("done").await;
    assert_eq!(phone.next_json()["sha256"], sum(&film).as_str());
    phone.output(LIMIT).succeeded();
    assert!(fs::read(incoming(&world, "phone").join("film")).unwrap() == film);
    ada.close(LIMIT).await;
}
