//! The story of a download that begins on a phone and goes on at a PC, as `make demo-devices` plays it.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::{self, LIMIT, PROGRAM, Process, World, wait_for};
use rustix::process::Signal;

/// For the whole story, on a machine that has much else to do.
const STORY: Duration = Duration::from_secs(240);

fn demo(world: &World, program: &Path) -> Process {
    let temporary = world.path("tmp");
    fs::create_dir_all(&temporary).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/demo-devices.sh");
    // A group of its own, to be interrupted as a terminal does.
    let mut command = Command::new("sh");
    command.arg(script).arg(program).env("TMPDIR", &temporary).process_group(0);
    Process::start(&mut command)
}

fn leftovers(world: &World) -> usize {
    fs::read_dir(world.path("tmp")).unwrap().count()
}

/// What a line says behind its first word.
fn said<'a>(text: &'a str, word: &str) -> &'a str {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(word));
    line.unwrap_or_else(|| panic!("no {word:?} in: {text}")).trim()
}

#[test]
fn the_download_of_the_phone_goes_on_at_the_pc_and_both_parts_are_the_file() {
    let world = World::new();
    let output = demo(&world, Path::new(PROGRAM)).output(STORY);
    let text = &output.succeeded().stdout;
    let bytes = |device: &str| -> usize {
        let (_, bytes) = said(text, device).split_once('(').unwrap();
        bytes.split(' ').next().unwrap().parse().unwrap()
    };
    let parts = [bytes("phone "), bytes("PC ")];
    assert!(parts[0] >= 4 << 20 && parts[1] > 0, "{parts:?}: {text}");
    assert_eq!(parts[0] + parts[1], 48 << 20);
    let sum = said(text, "the file").split(' ').next().unwrap();
    assert_eq!((sum, sum.len()), (said(text, "joined"), 64));
    assert_eq!(said(text, "requests that the server saw:"), "1");
    // What a person sees: the commands, and where it went on.
    for word in ["phone$ whimbrel handoff", "pc$ whimbrel take", "goes on here, from byte"] {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
    assert_eq!(leftovers(&world), 0, "temporary files are left");
}

/// A program that fails at one command, and is the real one otherwise.
fn failing_at(world: &World, command: &str) -> PathBuf {
    let program = world.path(&format!("fails-at-{command}"));
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *' {command} '*) echo broken on purpose >&2; exit 5 ;; esac\nexec {PROGRAM} \"$@\"\n"
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
fn a_demo_that_fails_says_why_and_leaves_nothing_behind() {
    let world = World::new();
    for command in ["id", "handoff", "take"] {
        let output = demo(&world, &failing_at(&world, command)).output(STORY);
        assert_eq!(output.status.code(), Some(1), "{command}: {} {}", output.stdout, output.stderr);
        assert!(output.stderr.contains("broken on purpose"), "{command}: {}", output.stderr);
        assert!(!output.stdout.contains("Not a byte was lost"), "{command}: {}", output.stdout);
        assert_eq!(leftovers(&world), 0, "{command}: temporary files are left");
    }
}

#[test]
fn a_demo_that_is_interrupted_ends_all_that_it_started() {
    let world = World::new();
    let demo = demo(&world, Path::new(PROGRAM));
    let story = || fs::read_dir(world.path("tmp")).unwrap().next().map(|entry| entry.unwrap().path());
    let is_downloading = || story().filter(|story| common::length(&story.join("phone/film")) > 0);
    let folder = wait_for("the phone downloads", is_downloading);
    demo.signal(Signal::TERM);
    let output = demo.output(LIMIT);
    assert_eq!(output.status.code(), Some(143), "{}", output.stderr);
    assert_eq!(leftovers(&world), 0, "temporary files are left");
    let folder = folder.to_str().unwrap();
    wait_for("nothing runs any more", || (!runs(folder)).then_some(()));
}

/// Whether a process has this word in its command line, or its environment.
fn runs(word: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let files = processes.flat_map(|process| ["cmdline", "environ"].map(|name| process.path().join(name)));
    // Those of others cannot be read, and some are gone meanwhile.
    files.filter_map(|file| fs::read(file).ok()).any(|text| String::from_utf8_lossy(&text).contains(word))
}
