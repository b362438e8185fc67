//! The demo, from its first line to its last.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::time::{Duration, Instant};

use crate::common::{self, Process, World};
use rustix::process::Signal;

fn demo(world: &World, args: &[&str]) -> Process {
    let temporary = world.path("tmp");
    fs::create_dir_all(&temporary).unwrap();
    let mut all = vec!["demo", "--json"];
    all.extend(args);
    // A group of its own, to be interrupted as a terminal does.
    Process::start(world.command("a", &all).env("TMPDIR", &temporary).process_group(0))
}

#[test]
fn the_demo_recovers_from_every_event() {
    let world = World::new();
    let start = Instant::now();
    let output = demo(&world, &["--size", "64"]).output(Duration::from_secs(90));
    let report = output.succeeded().json();
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    assert_eq!(report["ok"], true);
    assert_eq!(report["sha256"], report["expected_sha256"]);
    assert_eq!(report["requests"], 1);
    assert_eq!(report["connections"], 1);
    let events = report["events"].as_array().unwrap();
    assert_eq!(events.len(), 4);
    for event in events {
        assert!(event["recovery_ms"].as_f64().unwrap() > 0.0, "{event}");
        assert!(event["silence_ms"].as_f64().unwrap() >= 290.0, "the way was not really gone: {event}");
    }
    assert!(events[3]["silence_ms"].as_f64().unwrap() >= 4900.0);
    let links = &report["links"];
    assert_eq!(links["equal"], true);
    assert!(links["pause_ms"].as_f64().unwrap() < 2000.0, "{links}");
    let reach = &report["reach"];
    assert_eq!(reach["equal"], true);
    for carried in ["relayed_bytes", "direct_bytes", "back_bytes"] {
        assert!(reach[carried].as_u64().unwrap() >= 1 << 20, "{carried}: {reach}");
    }
    assert!(reach["direct_ms"].as_f64().unwrap() > 0.0 && reach["pause_ms"].is_f64(), "{reach}");
    assert_eq!(fs::read_dir(world.path("tmp")).unwrap().count(), 0, "temporary files are left");
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let world = World::new();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let demo = demo(&world, &["--size", "64"]);
        let here = || fs::read_dir(world.path("tmp")).unwrap().count();
        common::wait_for("the demo to begin", || (here() > 0).then_some(()));
        std::thread::sleep(Duration::from_millis(1500));
        let group = rustix::process::Pid::from_child(&demo.child);
        rustix::process::kill_process_group(group, signal).unwrap();
        let output = demo.output(Duration::from_secs(10));
        assert_eq!(output.status.code(), Some(code), "{}", output.stderr);
        assert_eq!(here(), 0, "temporary files are left");
    }
}
