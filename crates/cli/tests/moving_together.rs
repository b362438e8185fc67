//! Several files that are sent together, and a directory among them, go on at another device of the user:
//! real processes, and no gateway.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/typed.rs"]
mod typed;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use common::{LIMIT, Process, World, length, wait_for};
use serde_json::json;
use typed::{hand_off, random, session, sum, take};

const INBOX: &str = "inbox.phone.bob@example.org";
const MIB: usize = 1 << 20;
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

/// Ada's files: a small one, a large one that is under way for long, an empty one, and those of a directory,
/// in which another directory has nothing in it. Returns the sums of all files by their paths, and how long
/// they are.
fn files(world: &World) -> (BTreeMap<String, String>, usize) {
    world.id("ada");
    let home = world.path("ada");
    fs::create_dir_all(home.join("photos/sub/empty")).unwrap();
    let all = [("first", MIB), ("film", 45 * MIB), ("none", 0), ("photos/one", MIB), ("photos/sub/two", MIB)];
    let mut sums = BTreeMap::new();
    for (name, size) in all {
        let bytes = random(size);
        fs::write(home.join(name), &bytes).unwrap();
        sums.insert(name.to_owned(), sum(&bytes));
    }
    (sums, all.iter().map(|(_, size)| size).sum())
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
    let output = device.output(3 * LIMIT);
    output.succeeded().stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn several_files_go_from_device_to_device_and_their_sender_sends_each_byte_once() {
    let (world, _names) = World::with_names();
    let (sums, size) = files(&world);
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
    let (sums, size) = files(&world);
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
