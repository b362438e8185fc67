//! `whimbrel doctor` on what works, and on what was broken for it.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use common::{World, shouting_server};
use serde_json::Value;

fn state(report: &Value, check: &str) -> String {
    let all = report["findings"].as_array().unwrap();
    let found = all.iter().find(|finding| finding["check"].as_str().unwrap().contains(check));
    found.unwrap_or_else(|| panic!("no {check}: {report}"))["state"].as_str().unwrap().to_owned()
}

#[test]
fn all_is_well_where_everything_works() {
    let (world, _names) = World::with_names();
    let (to, bob) = (shouting_server().to_string(), world.id("bob"));
    let name = "web.home.ada@example.org";
    let mut expose = world.start("ada", &["expose", name, "--to", &to, "--allow", &bob, "--json"]);
    expose.next_json();
    let output = world.run("bob", &["doctor", name, "--json"]);
    let report = output.succeeded().json();
    assert_eq!(report["well"], true);
    for check in
        ["name service over tcp", "name service over quic", "home.ada@example.org over tcp", "identity"]
    {
        assert_eq!(state(&report, check), "good", "{report}");
    }
    assert_eq!(state(&report, "over quic"), "good");
    assert_eq!(state(&report, "relay"), "note");
    let text = world.run("bob", &["doctor"]).succeeded().stdout.clone();
    assert!(text.lines().all(|line| line.chars().count() <= 80 || line.contains("wh-")), "{text}");
    // Somebody who is not allowed learns what to do.
    let refused = world.run("eve", &["doctor", name, "--json"]);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stdout);
    assert!(refused.stdout.contains("have this key allowed"), "{}", refused.stdout);
}

#[test]
fn what_is_broken_is_found_in_time_with_a_remedy() {
    let (world, mut names) = World::with_names();
    world.id("bob");
    fs::set_permissions(world.config("bob", "identity"), Permissions::from_mode(0o644)).unwrap();
    names.kill();
    let start = Instant::now();
    let output = world.run("bob", &["doctor", "--json"]);
    assert!(start.elapsed() < Duration::from_secs(10), "it took {:?}", start.elapsed());
    assert_eq!(output.status.code(), Some(1), "{} {}", output.stdout, output.stderr);
    let report = output.json();
    for check in ["identity", "name service over tcp", "name service over quic"] {
        assert_eq!(state(&report, check), "bad", "{report}");
    }
    assert!(output.stdout.contains("chmod 600"), "{}", output.stdout);
    let bad = report["findings"].as_array().unwrap().iter().filter(|finding| finding["state"] == "bad");
    assert!(bad.into_iter().all(|finding| finding["remedy"].is_string()), "{report}");
}
