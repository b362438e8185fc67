//! Files that arrive whole, or are gone on with later.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{LIMIT, Process, World, length, wait_for};
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
    let mut hidden = receive(&world, &[]);
    world.id("eve");
    world.run("eve", &["send", path.to_str().unwrap(), "--to", INBOX, "-q"]).failed(3, &[INBOX]);
    hidden.kill();
    // Nor where the name is shown to everybody.
    let mut shown = receive(&world, &["--readers", "any"]);
    world.run("eve", &["send", path.to_str().unwrap(), "--to", INBOX, "-q"]).failed(5, &["not allowed"]);
    shown.kill();
    assert!(!world.path("inbox/f").exists());
}

#[test]
fn what_cannot_be_sent_is_told() {
    let (world, _names) = World::with_names();
    let path = file(&world, "f", 10);
    world.run("ada", &["send", "/nowhere/f", "--to", INBOX]).failed(1, &["/nowhere/f"]);
    world.run("ada", &["send", "/dev/null", "--to", INBOX]).failed(1, &["/dev/null", "neither a file"]);
    world.run("ada", &["send", "-", "--to", INBOX]).failed(2, &["--as"]);
    world.run("ada", &["send", ".config", "--to", INBOX]).failed(1, &["begins with a dot", "--as"]);
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

/// A directory of ada's with files of all kinds; returns its path.
fn directory(world: &World) -> PathBuf {
    world.id("ada");
    let top = world.path("ada").join("photos");
    fs::create_dir_all(top.join("2024/empty")).unwrap();
    for n in 0..40 {
        fs::write(top.join(format!("2024/p{n}.txt")), format!("picture {n}\n").repeat(n * 100)).unwrap();
    }
    fs::write(top.join("index"), "").unwrap();
    fs::write(top.join(".secret"), "x").unwrap();
    symlink("/etc/passwd", top.join("link")).unwrap();
    top
}

#[test]
fn a_directory_arrives_whole_without_links_and_special_files() {
    let (world, _names) = World::with_names();
    let top = directory(&world);
    let mut receive = receive(&world, &["--once"]);
    let sent = send(&world, &top, &[]).output(LIMIT);
    let report = sent.succeeded().json();
    assert_eq!(report["files"], 41);
    assert_eq!(report["left_out"].as_array().unwrap().len(), 2, "{report}");
    assert!(report["carried"].as_u64().unwrap() < report["size"].as_u64().unwrap() / 4, "{report}");
    let inbox = world.path("inbox/photos");
    for n in 0..40 {
        assert_same(&top.join(format!("2024/p{n}.txt")), &inbox.join(format!("2024/p{n}.txt")));
    }
    assert!(inbox.join("2024/empty").is_dir() && inbox.join("index").is_file());
    assert!(!inbox.join("link").is_symlink() && !inbox.join(".secret").exists());
    let plain = fs::metadata(&top).unwrap().permissions();
    assert_eq!(fs::metadata(&inbox).unwrap().permissions(), plain);
    assert_eq!(fs::read_dir(world.path("inbox")).unwrap().count(), 1, "something was left behind");
    let told = std::iter::repeat_with(|| receive.next_json()).take(42);
    assert!(told.last().unwrap()["directory"].as_str().unwrap().ends_with("photos"));
    receive.output(LIMIT).succeeded();
}

#[test]
fn a_directory_that_exists_is_not_written_to() {
    let (world, _names) = World::with_names();
    let top = directory(&world);
    let mut running = receive(&world, &[]);
    fs::create_dir(world.path("inbox/photos")).unwrap();
    send(&world, &top, &[]).output(LIMIT).failed(1, &["photos exists", "--overwrite"]);
    assert_eq!(fs::read_dir(world.path("inbox/photos")).unwrap().count(), 0);
    running.kill();
    let _receive = receive(&world, &["--overwrite"]);
    send(&world, &top, &[]).output(LIMIT).succeeded();
    assert!(world.path("inbox/photos/2024/p7.txt").is_file());
}

#[test]
fn a_directory_whose_sender_was_killed_goes_on_where_it_was() {
    let (world, _names) = World::with_names();
    let top = directory(&world);
    for n in 0..4 {
        let mut data = vec![0; 8 * MIB];
        getrandom::fill(&mut data).unwrap();
        fs::write(top.join(format!("big{n}")), data).unwrap();
    }
    let _receive = receive(&world, &[]);
    let part = world.path("inbox/.photos.whimbrel-part");
    let mut first = send(&world, &top, &["--limit", "10"]);
    wait_for("some to arrive", || part.join("2024/p3.txt").exists().then_some(()));
    wait_for("a part to arrive", || (length(&part.join(".big1.whimbrel-part")) > MIB as u64).then_some(()));
    assert_eq!(fs::metadata(&part).unwrap().permissions().mode() & 0o777, 0o700);
    first.kill();
    let report = send(&world, &top, &[]).output(LIMIT).succeeded().json();
    assert!(report["resumed_from"].as_u64().unwrap() > MIB as u64, "{report}");
    for file in ["big0", "big3", "2024/p3.txt", "2024/p39.txt"] {
        assert_same(&top.join(file), &world.path("inbox/photos").join(file));
    }
    assert!(!part.exists());
}

#[test]
fn several_files_and_standard_input_are_sent_with_one_command() {
    let (world, _names) = World::with_names();
    let (one, two) = (file(&world, "one", MIB), file(&world, "two", 0));
    let _receive = receive(&world, &[]);
    send(&world, &one, &[two.to_str().unwrap()]).output(LIMIT).succeeded();
    assert_same(&one, &world.path("inbox/one"));
    assert_same(&two, &world.path("inbox/two"));
    // One that is there already is no reason not to send the others.
    let three = file(&world, "three", 5);
    fs::write(world.path("inbox/two"), "mine").unwrap();
    let again = send(&world, &three, &[two.to_str().unwrap()]).output(LIMIT);
    again.failed(1, &["two: ", "exists"]);
    assert_same(&three, &world.path("inbox/three"));
    let mut command = world.command("ada", &["send", "-", "--as", "text", "--to", INBOX, "--json", "-q"]);
    let mut input = Process::start(command.stdin(Stdio::piped()));
    let text = b"many words ".repeat(200_000);
    std::io::Write::write_all(&mut input.child.stdin.take().unwrap(), &text).unwrap();
    let report = input.output(LIMIT).succeeded().json();
    assert_eq!(report["size"], text.len());
    assert!(report["carried"].as_u64().unwrap() < text.len() as u64 / 10, "{report}");
    assert!(fs::read(world.path("inbox/text")).unwrap() == text);
}

#[test]
fn what_is_too_large_is_refused_on_both_sides() {
    let (world, _names) = World::with_names();
    let (small, large) = (file(&world, "small", 3 * MIB), file(&world, "large", 5 * MIB));
    let other = file(&world, "other", 3 * MIB);
    let receive = receive(&world, &["--max-size", "4M", "--max-total", "5M"]);
    send(&world, &large, &[]).output(LIMIT).failed(1, &["--max-size", "4.00 MiB"]);
    send(&world, &small, &[]).output(LIMIT).succeeded();
    send(&world, &other, &[]).output(LIMIT).failed(1, &["--max-total", "2.00 MiB"]);
    let mut command = world.command("ada", &["send", "-", "--as", "text", "--to", INBOX, "-q"]);
    let mut input = Process::start(command.stdin(Stdio::piped()));
    // The receiver may refuse before all was written.
    let _ = std::io::Write::write_all(&mut input.child.stdin.take().unwrap(), &vec![0; 5 * MIB]);
    input.output(LIMIT).failed(1, &["--max-total"]);
    assert!(!world.path("inbox/large").exists() && !world.path("inbox/text").exists());
    drop(receive);
}

#[test]
fn without_a_terminal_strangers_need_yes() {
    let (world, _names) = World::with_names();
    let path = file(&world, "f", 10);
    let inbox = world.path("inbox");
    fs::create_dir_all(&inbox).unwrap();
    let all = ["receive", "--as", INBOX, "--allow", "any", "--dir", inbox.to_str().unwrap(), "--json", "-q"];
    let mut receive = world.start("bob", &all);
    receive.next_json();
    send(&world, &path, &[]).output(LIMIT).failed(1, &["--allow ID", "--yes"]);
    assert!(!world.path("inbox/f").exists());
    receive.kill();
    let mut receive = world.start("bob", &[&all[..], &["--yes"]].concat());
    receive.next_json();
    send(&world, &path, &[]).output(LIMIT).succeeded();
    assert_same(&path, &world.path("inbox/f"));
}

/// On a terminal of its own, which `script` makes.
#[test]
fn on_a_terminal_the_receiver_is_asked() {
    let (world, _names) = World::with_names();
    let path = file(&world, "f", 2 * MIB);
    let (ada, inbox) = (world.id("ada"), world.path("inbox"));
    fs::create_dir_all(&inbox).unwrap();
    world.id("bob");
    let inner =
        world.command("bob", &["receive", "--as", INBOX, "--allow", &ada, "--dir", inbox.to_str().unwrap()]);
    let words: Vec<&str> = std::iter::once(inner.get_program())
        .chain(inner.get_args())
        .map(|word| word.to_str().unwrap())
        .collect();
    let mut outer = Command::new("script");
    outer.args(["-q", "-e", "-f", "-c", &words.join(" "), "/dev/null"]).stdin(Stdio::piped());
    for (key, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(key, value),
            None => outer.env_remove(key),
        };
    }
    let mut terminal = Process::start(&mut outer);
    let until = |terminal: &mut Process, what: &str| {
        std::iter::repeat_with(|| terminal.line()).find(|line| line.contains(what)).unwrap()
    };
    until(&mut terminal, "waiting for files");
    let mut keys = terminal.child.stdin.take().unwrap();
    let mut answer = |text: &str| std::io::Write::write_all(&mut keys, text.as_bytes()).unwrap();
    let sender = send(&world, &path, &[]);
    let question = until(&mut terminal, "Take it?");
    assert!(!inbox.join("f").exists());
    answer("n\n");
    sender.output(LIMIT).failed(1, &["the receiver said no"]);
    assert!(
        question.contains(&ada) && question.contains("\"f\"") && question.contains("2.00 MiB"),
        "{question}"
    );
    let sender = send(&world, &path, &[]);
    until(&mut terminal, "Take it?");
    answer("y\n");
    sender.output(LIMIT).succeeded();
    assert_same(&path, &inbox.join("f"));
}
