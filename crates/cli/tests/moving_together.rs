//! Several files that are sent together, and a directory among them, go on at another device of the user:
//! real processes, and no gateway.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{LIMIT, Process, World, length, wait_for};
use crate::typed::{hand_off, random, session, sum, take};
use serde_json::json;

const INBOX: &str = "inbox.phone.bob@example.org";
/// What is so small that it is whole soon.
const SMALL: usize = 256 * 1024;
/// A second of what [`send`] sends.
const MIB: usize = 1 << 20;
/// The film, where those who take it are to have time for that while it is on its way.
const FILM: usize = 24 * MIB;
/// What is sent, in this order.
const SENT: [&str; 4] = ["first", "film", "none", "photos"];
/// Files that are in no directory.
const LOOSE: [&str; 3] = ["first", "film", "none"];

/// The directory of a device that files go to.
fn incoming(world: &World, device: &str) -> PathBuf {
    let directory = world.path(device).join("incoming");
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// Files of a user: a small one, a film of so many bytes, an empty one, and those of a directory, in which
/// another directory has nothing in it. Returns the sums of all files by their paths, and how long they are.
fn files(world: &World, user: &str, film: usize) -> (BTreeMap<String, String>, usize) {
    world.id(user);
    let home = world.path(user);
    fs::create_dir_all(home.join("photos/sub/empty")).unwrap();
    let all =
        [("first", SMALL), ("film", film), ("none", 0), ("photos/one", SMALL), ("photos/sub/two", SMALL)];
    let mut sums = BTreeMap::new();
    for (name, size) in all {
        sums.insert(name.to_owned(), write(&home.join(name), size));
    }
    (sums, all.iter().map(|(_, size)| size).sum())
}

/// Writes a file of so many bytes. Returns their sum.
fn write(file: &Path, size: usize) -> String {
    let bytes = random(size);
    fs::write(file, &bytes).unwrap();
    sum(&bytes)
}

/// The phone takes one transfer from ada.
fn receive(world: &World) -> Process {
    let (ada, directory) = (world.id("ada"), incoming(world, "phone"));
    let directory = directory.to_str().unwrap();
    let args = ["receive", "--as", INBOX, "--allow", &ada, "--dir", directory, "--json", "-q", "--once"];
    let mut receive = world.start("phone", &args);
    receive.next_json();
    receive
}

/// Ada sends all of it, so slowly that a busy machine has time to hand it over.
fn send(world: &World) -> Process {
    let args = [&["send"][..], &SENT, &["--to", INBOX, "--limit", "1", "--json", "-q"]].concat();
    world.start("ada", &args)
}

/// A device takes what was handed over to it.
fn take_at(world: &World, device: &str, given: &(String, String)) -> Process {
    let directory = incoming(world, device);
    let args = [&take(given)[..], &["--dir", directory.to_str().unwrap(), "--json", "-q"]].concat();
    world.start(device, &args)
}

/// Waits until all but the film has arrived on the phone, which is in the middle.
fn until_in_the_middle(world: &World) {
    let phone = incoming(world, "phone");
    let filled = phone.join(".photos.whimbrel-part");
    let whole = ["first", "none"].map(|name| phone.join(name)).into_iter();
    let whole: Vec<_> = whole.chain(["one", "sub/two", "sub/empty"].map(|name| filled.join(name))).collect();
    wait_for("the middle of the film", || {
        let all = whole.iter().all(|file| file.exists());
        (all && length(&phone.join(".film.whimbrel-part")) > 0).then_some(())
    });
}

/// The names of all that there is, hidden or not.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The files of a directory are there, and what they were.
fn are_there(directory: &Path, files: &[&str], sums: &BTreeMap<String, String>) {
    for file in files {
        let bytes = fs::read(directory.join(file)).unwrap();
        assert_eq!(sum(&bytes), sums[*file], "{file}");
    }
}

/// The rest of what a device tells, and that it has gone on elsewhere or ended well.
fn ends(device: Process) -> Vec<serde_json::Value> {
    let output = device.output(6 * LIMIT);
    output.succeeded().stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn several_files_go_from_device_to_device_and_their_sender_sends_each_byte_once() {
    let (world, _names) = World::with_names();
    let (sums, size) = files(&world, "ada", FILM);
    let phone = receive(&world);
    let ada = send(&world);
    until_in_the_middle(&world);
    assert_eq!(session(&world, "phone")["command"], "receive");
    let [desk_id, tablet_id] = ["desk", "tablet"].map(|device| world.id(device));
    let given = hand_off(&world, "phone", &desk_id);
    let desk = take_at(&world, "desk", &given);
    let told = ends(phone);
    assert_eq!(told.last(), Some(&json!({ "files": 6, "moved_to": desk_id })));
    // What had arrived by itself stays, and nothing else does.
    let phone = incoming(&world, "phone");
    assert_eq!(names(&phone), ["first", "none"]);
    are_there(&phone, &["first", "none"], &sums);
    // The middle of the film, and what has arrived of the directory, which is not whole yet.
    let at_desk = incoming(&world, "desk");
    assert_eq!(names(&at_desk), [".film.whimbrel-part", ".photos.whimbrel-part"]);
    let given = hand_off(&world, "desk", &tablet_id);
    let tablet = take_at(&world, "tablet", &given);
    assert_eq!(ends(desk).last(), Some(&json!({ "files": 6, "moved_to": tablet_id })));
    assert!(names(&at_desk).is_empty(), "it is elsewhere");
    let sent = ends(ada).pop().unwrap();
    assert_eq!(
        (&sent["size"], &sent["sent"], &sent["resumed_from"]),
        (&json!(size), &json!(size), &json!(0))
    );
    let told = ends(tablet);
    let at_tablet = incoming(&world, "tablet");
    assert_eq!(told.last(), Some(&json!({ "directory": at_tablet.join("photos") })));
    let film = told.iter().find(|told| told["file"] == json!(at_tablet.join("film"))).unwrap();
    assert_eq!((&film["sha256"], &film["resumed_from"]), (&json!(sums["film"]), &json!(0)));
    assert_eq!(names(&at_tablet), ["film", "photos"]);
    are_there(&at_tablet, &["film", "photos/one", "photos/sub/two"], &sums);
    assert!(names(&at_tablet.join("photos/sub/empty")).is_empty());
    assert_eq!(names(&at_tablet.join("photos/sub")), ["empty", "two"]);
}

#[test]
fn several_files_stay_where_they_were_if_a_name_is_taken_there_and_arrive_whole() {
    let (world, _names) = World::with_names();
    let (sums, size) = files(&world, "ada", FILM);
    let phone = receive(&world);
    let ada = send(&world);
    until_in_the_middle(&world);
    for (device, taken) in [("desk", "photos"), ("tablet", "film")] {
        let directory = incoming(&world, device);
        fs::write(directory.join(taken), "mine").unwrap();
        let given = hand_off(&world, "phone", &world.id(device));
        let refused = take_at(&world, device, &given).output(LIMIT);
        refused.failed(1, &[&format!("{taken} exists"), "--dir"]);
        assert_eq!(names(&directory), [taken], "nothing is left behind");
        assert_eq!(fs::read(directory.join(taken)).unwrap(), b"mine");
    }
    let sent = ends(ada).pop().unwrap();
    assert_eq!((&sent["sent"], &sent["resumed_from"]), (&json!(size), &json!(0)));
    let told = ends(phone);
    let at_phone = incoming(&world, "phone");
    assert_eq!(told.last(), Some(&json!({ "directory": at_phone.join("photos") })));
    are_there(&at_phone, &LOOSE, &sums);
    are_there(&at_phone, &["photos/one", "photos/sub/two"], &sums);
    assert_eq!(names(&at_phone), ["film", "first", "none", "photos"]);
}

/// Bob takes one transfer from these devices. Returns the ticket to him.
fn receive_from(world: &World, devices: &[&str]) -> (Process, String) {
    let ids: Vec<String> = devices.iter().map(|device| world.id(device)).collect();
    let directory = incoming(world, "bob");
    let mut args = vec!["receive", "--dir", directory.to_str().unwrap(), "--yes", "--once", "--json", "-q"];
    args.extend(ids.iter().flat_map(|id| ["--allow", id.as_str()]));
    let mut receive = world.start("bob", &args);
    let ticket = receive.next_json()["ticket"].as_str().unwrap().to_owned();
    (receive, ticket)
}

/// The phone sends its files and so many more in the directory that most of these have not begun when the
/// first ones have arrived. Returns what is to arrive, and how many bytes that are.
fn send_many(world: &World, to: &str) -> (Process, BTreeMap<String, String>, usize) {
    let (mut sums, mut size) = files(world, "phone", 6 * MIB);
    for number in 10..70 {
        let name = format!("photos/{number}");
        let sum = write(&world.path("phone").join(&name), SMALL);
        sums.insert(name, sum);
        size += SMALL;
    }
    let args = [&["send"][..], &SENT, &["--to", to, "--limit", "1", "--json", "-q"]].concat();
    let phone = world.start("phone", &args);
    let bob = incoming(world, "bob");
    wait_for("the beginning", || {
        let film = length(&bob.join(".film.whimbrel-part")) > 0;
        (film && bob.join(".photos.whimbrel-part/10").exists()).then_some(())
    });
    (phone, sums, size)
}

/// Everything is at bob's, and nothing else, and each file was told of once, with its sum, and came from its
/// first byte on.
fn all_has_arrived(world: &World, bob: Process, sums: &BTreeMap<String, String>) {
    let mut told = ends(bob);
    let directory = incoming(world, "bob");
    assert_eq!(told.pop(), Some(json!({ "directory": directory.join("photos") })));
    assert!(told.iter().all(|told| told["resumed_from"] == json!(0)), "{told:?}");
    let mut found: Vec<&str> = told.iter().map(|told| told["sha256"].as_str().unwrap()).collect();
    let mut expected: Vec<&str> = sums.values().map(String::as_str).collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    let files: Vec<&str> = sums.keys().map(String::as_str).collect();
    are_there(&directory, &files, sums);
    assert!(names(&directory.join("photos/sub/empty")).is_empty());
    assert_eq!(names(&directory), ["film", "first", "none", "photos"]);
}

#[test]
fn files_that_are_sent_together_go_on_at_the_desk_which_has_none_of_them() {
    let world = World::new();
    let (bob, ticket) = receive_from(&world, &["phone", "desk"]);
    let (phone, sums, size) = send_many(&world, &ticket);
    assert_eq!(session(&world, "phone")["command"], "send");
    let desk_id = world.id("desk");
    let given = hand_off(&world, "phone", &desk_id);
    let desk = world.start("desk", &[&take(&given)[..], &["--json", "-q"]].concat());
    let all = sums.len() + 1;
    assert_eq!(ends(phone), [json!({ "files": all, "moved_to": desk_id })]);
    for name in SENT {
        let path = world.path("phone").join(name);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
    let sent = ends(desk).pop().unwrap();
    assert_eq!((&sent["files"], &sent["size"], &sent["sent"]), (&json!(all), &json!(size), &json!(size)));
    all_has_arrived(&world, bob, &sums);
    // What was brought is gone with the command.
    let state = fs::read_dir(world.path("desk").join(".local/share/whimbrel")).unwrap();
    let files: Vec<_> =
        state.map(Result::unwrap).filter(|found| found.file_type().unwrap().is_file()).collect();
    assert!(files.is_empty(), "{files:?}");
}

#[test]
fn files_that_are_sent_together_are_sent_on_where_they_were_if_the_receiver_does_not_let_the_desk_in() {
    let world = World::new();
    let (bob, ticket) = receive_from(&world, &["phone"]);
    let (phone, sums, size) = send_many(&world, &ticket);
    let given = hand_off(&world, "phone", &world.id("desk"));
    let refused = world.start("desk", &[&take(&given)[..], &["--json", "-q"]].concat()).output(2 * LIMIT);
    assert!(!refused.status.success() && refused.stderr.contains("stays at the other device"));
    let sent = ends(phone).pop().unwrap();
    assert_eq!((&sent["size"], &sent["sent"]), (&json!(size), &json!(size)));
    all_has_arrived(&world, bob, &sums);
}
