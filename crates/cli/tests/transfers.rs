//! Files that arrive whole, or are gone on with later.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{LIMIT, Process, World, length, wait_for};
use rustix::process::Signal;

const INBOX: &str = "inbox.laptop.bob@example.org";
const MIB: usize = 1 << 20;

/// A file of ada's that no two parts of are alike.
fn file(world: &World, name: &str, size: usize) -> PathBuf {
    world.id("ada");
    let path = world.path("ada").join(name);
    let mut data = vec![0; size];
    getrandom::fill(&mut data).unwrap();
    fs::write(&path, data).unwrap();
    path
}

fn receive(world: &World, args: &[&str]) -> Process {
    let ada = world.id("ada");
    let inbox = world.path("inbox");
    fs::create_dir_all(&inbox).unwrap();
    let mut all =
        vec!["receive", "--as", INBOX, "--allow", &ada, "--dir", inbox.to_str().unwrap(), "--json", "-q"];
    all.extend(args);
    let mut process = world.start("bob", &all);
    process.next_json();
    process
}

fn send(world: &World, file: &Path, args: &[&str]) -> Process {
    let mut all = vec!["send", file.to_str().unwrap(), "--to", INBOX, "--json", "-q"];
    all.extend(args);
    world.start("ada", &all)
}

#[track_caller]
fn assert_same(one: &Path, other: &Path) {
    assert!(fs::read(one).unwrap() == fs::read(other).unwrap(), "{} differs", other.display());
}

#[test]
fn a_file_arrives() {
    let (world, _names) = World::with_names();
    for (name, size) in [("empty", 0), ("one", 1), ("é and spaces", 3 * MIB + 1)] {
        let file = file(&world, name, size);
        let mut receive = receive(&world, &["--once"]);
        let sent = send(&world, &file, &[]).output(LIMIT);
        let report = sent.succeeded().json();
        assert_eq!(report["size"], size);
        assert_eq!(report["sent"], size);
        assert_same(&file, &world.path("inbox").join(name));
        let received = receive.next_json();
        assert_eq!(received["sha256"], report["sha256"]);
        receive.output(LIMIT).succeeded();
    }
    // As any other file that a program makes for its user.
    let plain = fs::metadata(file(&world, "plain", 1)).unwrap().permissions();
    assert_eq!(fs::metadata(world.path("inbox/one")).unwrap().permissions(), plain);
    let left = fs::read_dir(world.path("inbox")).unwrap().count();
    assert_eq!(left, 3, "something else was left behind");
}

#[test]
fn several_files_come_at_once_by_ticket() {
    let world = World::new();
    let files: Vec<PathBuf> = (0..5).map(|n| file(&world, &format!("f{n}"), MIB)).collect();
    let (ada, inbox) = (world.id("ada"), world.path("inbox"));
    fs::create_dir_all(&inbox).unwrap();
    world.id("bob");
    let mut receive =
        world.start("bob", &["receive", "--allow", &ada, "--dir", inbox.to_str().unwrap(), "--json", "-q"]);
    let ticket = receive.next_json()["ticket"].as_str().unwrap().to_owned();
    let senders: Vec<Process> = files
        .iter()
        .map(|file| world.start("ada", &["send", file.to_str().unwrap(), "--to", &ticket, "-q"]))
        .collect();
    for sender in senders {
        sender.output(LIMIT).succeeded();
    }
    for file in &files {
        assert_same(file, &inbox.join(file.file_name().unwrap()));
    }
}

#[test]
fn a_sender_that_is_killed_goes_on_where_it_was() {
    let (world, _names) = World::with_names();
    let size = 50 * MIB;
    let file = file(&world, "big", size);
    let mut receive = receive(&world, &[]);
    let part = world.path("inbox/.big.whimbrel-part");
    let mut first = send(&world, &file, &["--limit", "20"]);
    wait_for("a part to arrive", || (length(&part) > 10 * MIB as u64).then_some(()));
    first.kill();
    let kept = length(&part);
    let report = send(&world, &file, &[]).output(LIMIT).succeeded().json();
    assert!(report["resumed_from"].as_u64().unwrap() >= kept, "{report}, {kept} were kept");
    assert_eq!(report["sent"].as_u64().unwrap() + report["resumed_from"].as_u64().unwrap(), size as u64);
    assert_same(&file, &world.path("inbox/big"));
    assert!(!part.exists());
    assert_eq!(receive.next_json()["resumed_from"], report["resumed_from"]);
}

#[test]
fn a_receiver_that_is_killed_goes_on_where_it_was() {
    let (world, _names) = World::with_names();
    let file = file(&world, "big", 50 * MIB);
    let mut first = receive(&world, &[]);
    let part = world.path("inbox/.big.whimbrel-part");
    let sender = send(&world, &file, &["--limit", "20"]);
    wait_for("a part to arrive", || (length(&part) > 10 * MIB as u64).then_some(()));
    first.kill();
    let kept = length(&part);
    // The same sender waits for it.
    let _second = receive(&world, &[]);
    let report = sender.output(LIMIT).succeeded().json();
    assert_eq!(report["resumed_from"], kept);
    assert_same(&file, &world.path("inbox/big"));
}

#[test]
fn a_file_that_changed_is_sent_from_the_start() {
    let (world, _names) = World::with_names();
    let path = file(&world, "big", 20 * MIB);
    let _receive = receive(&world, &[]);
    let part = world.path("inbox/.big.whimbrel-part");
    let mut first = send(&world, &path, &["--limit", "5"]);
    wait_for("a part to arrive", || (length(&part) > MIB as u64).then_some(()));
    first.kill();
    file(&world, "big", 20 * MIB);
    let report = send(&world, &path, &[]).output(LIMIT).succeeded().json();
    assert_eq!(report["resumed_from"], 0);
    assert_same(&path, &world.path("inbox/big"));
}

#[test]
fn nothing_is_replaced_unless_asked_for() {
    let (world, _names) = World::with_names();
    let path = file(&world, "f", MIB);
    let mut running = receive(&world, &[]);
    fs::write(world.path("inbox/f"), "mine").unwrap();
    send(&world, &path, &[]).output(LIMIT).failed(1, &["exists", "--overwrite"]);
    let mut other = fs::read(&path).unwrap();
    other[MIB / 2] ^= 1;
    fs::write(world.path("inbox/f"), &other).unwrap();
    send(&world, &path, &[]).output(LIMIT).failed(1, &["exists", "--overwrite"]);
    assert!(fs::read(world.path("inbox/f")).unwrap() == other);
    // The very same file is there already: there is nothing to do.
    fs::copy(&path, world.path("inbox/f")).unwrap();
    assert_eq!(send(&world, &path, &[]).output(LIMIT).succeeded().json()["sent"], 0);
    fs::write(world.path("inbox/f"), "mine").unwrap();
    running.kill();
    let _receive = receive(&world, &["--overwrite"]);
    send(&world, &path, &[]).output(LIMIT).succeeded();
    assert_same(&path, &world.path("inbox/f"));
}

#[test]
fn a_sender_that_is_not_allowed_is_refused() {
    let (world, _names) = World::with_names();
    let path = file(&world, "f", 10);
    let _receive = receive(&world, &[]);
    world.id("eve");
    world.run("eve", &["send", path.to_str().unwrap(), "--to", INBOX, "-q"]).failed(5, &["not allowed"]);
    assert!(!world.path("inbox/f").exists());
}

#[test]
fn what_cannot_be_sent_is_told() {
    let (world, _names) = World::with_names();
    let path = file(&world, "f", 10);
    world.run("ada", &["send", "/nowhere/f", "--to", INBOX]).failed(1, &["/nowhere/f"]);
    world.run("ada", &["send", "/tmp", "--to", INBOX]).failed(1, &["/tmp", "tar"]);
    world.run("ada", &["send", path.to_str().unwrap(), "--to", INBOX]).failed(3, &[INBOX]);
    let receive = ["receive", "--allow", "any", "--dir", "/nowhere"];
    world.run("ada", &receive).failed(1, &["/nowhere"]);
}

#[test]
fn an_interrupted_sender_has_the_customary_code_and_loses_nothing() {
    let (world, _names) = World::with_names();
    let path = file(&world, "big", 20 * MIB);
    let _receive = receive(&world, &[]);
    let part = world.path("inbox/.big.whimbrel-part");
    let sender = send(&world, &path, &["--limit", "5"]);
    wait_for("a part to arrive", || (length(&part) > MIB as u64).then_some(()));
    sender.signal(Signal::INT);
    let output = sender.output(LIMIT);
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(output.stderr, "");
    assert!(send(&world, &path, &[]).output(LIMIT).succeeded().json()["resumed_from"].as_u64().unwrap() > 0);
    assert_same(&path, &world.path("inbox/big"));
}

/// On a disk of 8 MiB, made in a namespace of our own.
#[test]
fn a_full_disk_is_told_on_both_sides_and_nothing_is_lost() {
    let probe = Command::new("unshare").args(["-Urm", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    if !probe.as_ref().is_ok_and(|output| output.status.success()) {
        assert!(std::env::var_os("CI").is_none(), "no namespaces under CI: {probe:?}");
        eprintln!("skipped: this system gives no user namespaces");
        return;
    }
    let (world, _names) = World::with_names();
    let path = file(&world, "big", 20 * MIB);
    let ada = world.id("ada");
    let disk = world.path("disk");
    fs::create_dir(&disk).unwrap();
    // The keeper holds the disk, so that it can be looked at afterwards.
    let inner = world.command(
        "bob",
        &[
            "receive",
            "--as",
            INBOX,
            "--allow",
            &ada,
            "--dir",
            disk.to_str().unwrap(),
            "--json",
            "--once",
            "-q",
        ],
    );
    world.id("bob");
    let script = format!(
        "mount -t tmpfs -o size=8m none {0} && \"$@\"; code=$?; stat -c %s {0}/.big.whimbrel-part; ls -A {0}; exit $code",
        disk.display()
    );
    let mut outer = Command::new("unshare");
    outer.args(["-Urm", "sh", "-c", &script, "sh"]).arg(inner.get_program()).args(inner.get_args());
    for (key, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(key, value),
            None => outer.env_remove(key),
        };
    }
    let mut receive = Process::start(&mut outer);
    receive.next_json();
    send(&world, &path, &[]).output(LIMIT).failed(1, &["no space is left", "free some"]);
    let output = receive.output(LIMIT);
    output.failed(1, &["no space is left", "is kept"]);
    let mut lines = output.stdout.lines();
    let kept: u64 = lines.next().unwrap().parse().unwrap();
    assert!(kept > 4 * MIB as u64 && kept <= 8 * MIB as u64, "{kept}");
    assert_eq!(lines.collect::<Vec<_>>(), [".big.whimbrel-part"]);
}
