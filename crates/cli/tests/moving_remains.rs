//! A device that was killed while it took several files from another one takes them again into the same
//! directory: real processes, killed as hard as can be, and no gateway.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{LIMIT, Process, World, length, wait_for};
use crate::typed::{hand_off, random, sum, take};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel::Ticket;
use whimbrel::transport::{ManualMonitor, Stream};

/// Bytes of a file, and of what is sent of it at once.
const SIZE: usize = 512 * 1024;
const HALF: usize = SIZE / 2;
/// Where the directory is until it is whole.
const PART: &str = ".photos.whimbrel-part";

/// The directory of a device that files go to.
fn incoming(world: &World, device: &str) -> PathBuf {
    let directory = world.path(device).join("incoming");
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// The names of all that there is, hidden or not.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A device takes one transfer from anybody.
fn receive(world: &World, device: &str) -> Process {
    let directory = incoming(world, device);
    let directory = directory.to_str().unwrap();
    let args = ["receive", "--allow", "any", "--yes", "--dir", directory, "--json", "-q", "--once"];
    world.start(device, &args)
}

/// The desk takes what was handed over to it.
fn take_at_desk(world: &World, given: &(String, String), how: &[&str]) -> Process {
    let directory = incoming(world, "desk");
    let args = [&take(given)[..], &["--dir", directory.to_str().unwrap(), "--json"], how].concat();
    world.start("desk", &args)
}

/// One stream of a sender that speaks the protocol of transfers by hand.
struct Talk(Stream);

impl Talk {
    async fn says(&mut self, message: &Value) {
        let body = message.to_string();
        let all = [&(body.len() as u32).to_be_bytes()[..], body.as_bytes()].concat();
        self.0.write_all(&all).await.unwrap();
    }

    async fn hears(&mut self, kind: &str) -> Value {
        let read = async {
            let mut body = vec![0; self.0.read_u32().await.unwrap() as usize];
            self.0.read_exact(&mut body).await.unwrap();
            serde_json::from_slice::<Value>(&body).unwrap()
        };
        let heard = tokio::time::timeout(LIMIT, read).await.unwrap();
        assert_eq!(heard["type"], kind, "{heard}");
        heard
    }

    async fn sends(&mut self, bytes: &[u8]) {
        tokio::time::timeout(LIMIT, self.0.write_all(bytes)).await.unwrap().unwrap();
    }

    /// All of the file is sent: it arrives.
    async fn ends(mut self, file: &[u8]) {
        self.says(&json!({ "type": "end", "sha256": sum(file) })).await;
        self.hears("done").await;
    }
}

/// A sender of a directory with two files: the same batch whenever it begins.
struct Ada {
    endpoint: whimbrel::Endpoint,
    connection: whimbrel::Connection,
    whole: Talk,
    batch: u64,
}

impl Ada {
    async fn begins(receiver: &mut Process, batch: u64) -> Self {
        let at: Ticket = receiver.next_json()["ticket"].as_str().unwrap().parse().unwrap();
        let own = ManualMonitor::new(["127.0.0.1".parse().unwrap()]);
        let endpoint = whimbrel::Endpoint::builder().monitor(own).bind().await.unwrap();
        let connection = endpoint.connect(at).await.unwrap();
        let mut whole = Talk(connection.open_stream().await.unwrap());
        let announced = json!({ "id": batch, "entries": 2, "names": 1, "shown": ["photos"] });
        let (name, size) = ("2 files", 2 * SIZE);
        let offer = json!({ "type": "offer", "version": 2, "name": name, "size": size, "batch": announced });
        whole.says(&offer).await;
        whole.hears("accept").await;
        Self { endpoint, connection, whole, batch }
    }

    /// Offers a file, of which the receiver has so many bytes.
    async fn offers(&self, name: &str, present: usize) -> Talk {
        let mut talk = Talk(self.connection.open_stream().await.unwrap());
        let (above, batch) = (["photos"], self.batch);
        talk.says(&json!({
            "type": "offer", "version": 2, "name": name, "size": SIZE, "above": above, "part_of": batch,
        }))
        .await;
        let want = talk.hears("want").await;
        assert_eq!(want["offset"], present, "{want}");
        talk.says(&json!({ "type": "start", "offset": present })).await;
        talk
    }

    /// Sends the first half of a file, until a device has it.
    async fn sends_half(&self, (name, file): (&str, &[u8]), directory: &Path) -> Talk {
        let mut talk = self.offers(name, 0).await;
        talk.sends(&file[..HALF]).await;
        let part = directory.join(PART).join(format!(".{name}.whimbrel-part"));
        wait_for("a half of the file", || (length(&part) == HALF as u64).then_some(()));
        talk
    }

    /// Everything is sent.
    async fn ends(mut self) {
        self.whole.says(&json!({ "type": "batch_end", "complete": true })).await;
        self.whole.hears("done").await;
        self.endpoint.close(LIMIT).await;
    }

    /// The device that has the connection is gone, and is not waited for.
    async fn gives_up(self) {
        self.connection.abort(whimbrel::CloseCode::NONE, "");
        self.endpoint.close(Duration::ZERO).await;
    }
}

/// Ada sends one file, and a half of the other one, to the phone, from which the desk takes them, and is
/// killed.
async fn killed(world: &World, batch: u64, [one, two]: [&[u8]; 2]) {
    let mut phone = receive(world, "phone");
    let ada = Ada::begins(&mut phone, batch).await;
    let mut talk = ada.offers("one", 0).await;
    talk.sends(one).await;
    talk.ends(one).await;
    let talk = ada.sends_half(("two", two), &incoming(world, "phone")).await;
    let given = hand_off(world, "phone", &world.id("desk"));
    let mut desk = take_at_desk(world, &given, &["-q"]);
    phone.output(LIMIT).succeeded();
    desk.kill();
    assert_eq!(names(&incoming(world, "desk")), [PART], "it had no time to clean up");
    assert!(names(&incoming(world, "phone")).is_empty(), "it was elsewhere");
    drop(talk);
    ada.gives_up().await;
}

/// What the desk tells once it has everything.
fn ends(desk: Process, world: &World, files: [&[u8]; 2]) -> String {
    let output = desk.output(LIMIT);
    output.succeeded();
    let photos = incoming(world, "desk").join("photos");
    assert_eq!(output.json(), json!({ "directory": photos }));
    assert_eq!(names(&photos), ["one", "two"]);
    assert!(["one", "two"].map(|name| fs::read(photos.join(name)).unwrap()) == files);
    output.stderr
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_desk_goes_on_with_its_own_remains_and_what_is_there_is_not_sent_again() {
    let world = World::new();
    let (one, two) = (random(SIZE), random(SIZE));
    killed(&world, 7, [&one, &two]).await;
    // The sender begins the same files again at the phone, the other one first.
    let mut phone = receive(&world, "phone");
    let ada = Ada::begins(&mut phone, 7).await;
    let mut talk = ada.sends_half(("two", &two[..]), &incoming(&world, "phone")).await;
    let given = hand_off(&world, "phone", &world.id("desk"));
    let desk = take_at_desk(&world, &given, &[]);
    phone.output(LIMIT).succeeded();
    talk.sends(&two[HALF..]).await;
    talk.ends(&two).await;
    // The desk has it already, which the sums show.
    ada.offers("one", SIZE).await.ends(&one).await;
    ada.ends().await;
    ends(desk, &world, [&one, &two]);
    assert_eq!(names(&incoming(&world, "desk")), ["photos"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_desk_has_of_other_files_is_set_aside_and_said_to_be() {
    let world = World::new();
    let (old, one, two) = (random(SIZE), random(SIZE), random(SIZE));
    killed(&world, 7, [&old, &two]).await;
    let mut phone = receive(&world, "phone");
    let ada = Ada::begins(&mut phone, 8).await;
    let mut talk = ada.sends_half(("two", &two[..]), &incoming(&world, "phone")).await;
    let given = hand_off(&world, "phone", &world.id("desk"));
    let desk = take_at_desk(&world, &given, &[]);
    phone.output(LIMIT).succeeded();
    talk.sends(&two[HALF..]).await;
    talk.ends(&two).await;
    let mut talk = ada.offers("one", 0).await;
    talk.sends(&one).await;
    talk.ends(&one).await;
    ada.ends().await;
    let said = ends(desk, &world, [&one, &two]);
    assert!(said.contains(".photos.whimbrel-old1"), "{said}");
    let directory = incoming(&world, "desk");
    assert_eq!(names(&directory), [".photos.whimbrel-old1", "photos"]);
    assert!(fs::read(directory.join(".photos.whimbrel-old1/one")).unwrap() == old, "nothing is lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_stay_where_they_were_while_another_process_fills_the_directory_and_come_once_it_is_dead() {
    let world = World::new();
    let (one, two) = (random(SIZE), random(SIZE));
    // Something else comes to the desk.
    let mut other = receive(&world, "desk");
    let eve = Ada::begins(&mut other, 1).await;
    let eves = eve.sends_half(("one", &two[..]), &incoming(&world, "desk")).await;
    let mut phone = receive(&world, "phone");
    let ada = Ada::begins(&mut phone, 7).await;
    let mut talk = ada.sends_half(("one", &one[..]), &incoming(&world, "phone")).await;
    let given = hand_off(&world, "phone", &world.id("desk"));
    take_at_desk(&world, &given, &["-q"]).output(LIMIT).failed(1, &["photos is being received already"]);
    assert_eq!(length(&incoming(&world, "desk").join(PART).join(".one.whimbrel-part")), HALF as u64);
    other.kill();
    drop(eves);
    eve.gives_up().await;
    let given = hand_off(&world, "phone", &world.id("desk"));
    let desk = take_at_desk(&world, &given, &[]);
    phone.output(LIMIT).succeeded();
    talk.sends(&one[HALF..]).await;
    talk.ends(&one).await;
    let mut talk = ada.offers("two", 0).await;
    talk.sends(&two).await;
    talk.ends(&two).await;
    ada.ends().await;
    ends(desk, &world, [&one, &two]);
    let aside = incoming(&world, "desk").join(".photos.whimbrel-old1/.one.whimbrel-part");
    assert!(fs::read(aside).unwrap() == two[..HALF], "nothing is lost");
}
