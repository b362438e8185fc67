//! A user whose key is away: one device that the user appointed renews what the others were given.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::{LIMIT, Process, World, dead_port, wait_within};
use whimbrel::Identity;
use whimbrel_base::{Delegation, UnixTime};

const LAPTOP: &str = "laptop.ada@example.org";
const SSH: &str = "ssh.laptop.ada@example.org";
const DESK: &str = "desk.ada@example.org";
/// For what comes by itself: several lifetimes of a delegation here.
const PATIENCE: Duration = Duration::from_secs(180);

/// Unix seconds.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Ada gives a machine a name for so long. Returns when that ends.
fn give(world: &World, machine: &str, name: &str, time: &str) -> u64 {
    let word =
        world.run("ada", &["id", "delegate", name, "--to", &world.id(machine), "--for", time, "--json"]);
    let word = word.succeeded().json();
    world.run(machine, &["id", "accept", word["delegation"].as_str().unwrap()]).succeeded();
    word["expires"].as_u64().unwrap()
}

/// Ada appoints a machine. Returns the text.
fn appoint(world: &World, machine: &str, name: &str) -> String {
    let word = world.run("ada", &["id", "appoint", name, "--to", &world.id(machine), "--json"]);
    word.succeeded().json()["appointment"].as_str().unwrap().to_owned()
}

/// Has a machine learn which devices ada has. Her key is not used after that.
fn tell_devices(world: &World, machine: &str) {
    let mut serving = world.start("ada", &["devices", "serve", "--json", "-q"]);
    let ticket = serving.next_json()["ticket"].as_str().unwrap().to_owned();
    world.run(machine, &["devices", "sync", &ticket, "--json", "-q"]).succeeded();
    serving.kill();
}

/// A machine that shows its own name.
fn shows_itself(world: &World, machine: &str, name: &str) -> Process {
    let mut running = world.start(machine, &["receive", "--as", name, "--allow", "any", "--json"]);
    running.next_json();
    running
}

fn expose(world: &World) -> Process {
    let to = dead_port().to_string();
    let mut running = world.start("laptop", &["expose", SSH, "--to", &to, "--allow", "any", "--json"]);
    running.next_json();
    running
}

fn is_found(world: &World) -> bool {
    world.run("carol", &["names", "lookup", SSH, "-q"]).status.success()
}

#[test]
fn an_appointed_device_keeps_the_others_alive_without_the_users_key() {
    let (world, _names) = World::with_names();
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    // Into her list of devices; what counts is given below, when only little is left to be done.
    world.run("ada", &["id", "delegate", LAPTOP, "--to", &world.id("laptop"), "-q"]).succeeded();
    give(&world, "desk", DESK, "1d");
    let appointment = appoint(&world, "desk", DESK);
    let said = world.run("desk", &["id", "accept", &appointment]).succeeded().stdout.clone();
    assert!(said.contains("renews the other devices of ada@example.org"), "{said}");
    world.run("ada", &["devices", "trust", DESK]).succeeded();
    tell_devices(&world, "desk");
    let until = give(&world, "laptop", LAPTOP, "45s");
    let mut laptop = expose(&world);
    let mut desk = world.start("desk", &["agent", "--as", DESK, "--json", "-q"]);
    assert_eq!(desk.next_json()["event"], "ready");
    wait_within(PATIENCE, "the laptop to be there behind the end of what ada's key gave it", || {
        (now() > until + 5 && is_found(&world)).then_some(())
    });
    assert!(laptop.child.try_wait().unwrap().is_none(), "it was never restarted");
    let held = world.run("laptop", &["id", "devices", "--json"]).succeeded().json();
    assert_eq!(held["held"][0]["renewed_by"], world.id("desk"));
    let shown = world.run("desk", &["id", "devices", "--json"]).succeeded().json();
    assert_eq!(shown["appointed"][0]["by"], world.id("ada"));
}

#[test]
fn an_appointed_device_that_was_revoked_or_not_trusted_renews_nothing() {
    let (world, _names) = World::with_names();
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    let laptop = world.id("laptop");
    world.run("ada", &["id", "delegate", LAPTOP, "--to", &laptop]).succeeded();
    give(&world, "desk", DESK, "1d");
    let appointment = appoint(&world, "desk", DESK);
    world.run("desk", &["id", "accept", &appointment]).succeeded();
    tell_devices(&world, "desk");
    let untrusted = world.run("desk", &["id", "renew", "-q"]);
    untrusted.failed(5, &["may act for the user", "whimbrel devices trust"]);
    world.run("ada", &["devices", "trust", DESK]).succeeded();
    tell_devices(&world, "desk");
    drop(shows_itself(&world, "desk", DESK));
    // What the laptop was given six days ago, as the desk would have read it from its record.
    let ada = Identity::in_file(world.config("ada", "identity")).unwrap().key;
    let (from, to) = (UnixTime::from_secs(now() - 6 * 86_400), UnixTime::from_secs(now() + 86_400));
    let word = Delegation::sign(LAPTOP.parse().unwrap(), laptop.parse().unwrap(), from, to, &ada).unwrap();
    let known = serde_json::json!({ "format": 1, "renewing": [word.to_string()] });
    let file = world.config("desk", "identity.renewing");
    fs::write(&file, known.to_string()).unwrap();
    let renewed = world.run("desk", &["id", "renew"]).succeeded().stdout.clone();
    assert!(renewed.contains(&format!("{LAPTOP}: renewed")), "{renewed}");
    let again = world.run("desk", &["id", "renew"]).succeeded().stdout.clone();
    assert_eq!(again.trim(), "nothing is due");
    // The desk is stolen; the thief keeps its files as they were.
    world.run("ada", &["id", "revoke", DESK, "-q"]).succeeded();
    fs::write(&file, known.to_string()).unwrap();
    let refused = world.run("desk", &["id", "renew"]);
    assert_eq!(refused.status.code(), Some(4), "{:?} {:?}", refused.stdout, refused.stderr);
    assert!(refused.stdout.contains("desk.ada@example.org may not renew"), "{}", refused.stdout);
}

#[test]
fn a_word_that_appoints_another_key_or_is_mistyped_is_refused() {
    let (world, _names) = World::with_names();
    let desk = world.id("desk");
    let appointment = appoint(&world, "desk", DESK);
    world.run("eve", &["id", "accept", &appointment, "-q"]).failed(1, &["is for the key", &desk]);
    let cut = &appointment[..appointment.len() - 3];
    world.run("desk", &["id", "accept", cut]).failed(2, &["cut off"]);
    let long = ["id", "appoint", DESK, "--to", &desk, "--for", "91d", "-q"];
    world.run("ada", &long).failed(2, &["90 days at most"]);
    let service = ["id", "appoint", SSH, "--to", &desk, "-q"];
    world.run("ada", &service).failed(2, &["not the name of a device"]);
    let own = world.id("ada");
    world.run("ada", &["id", "appoint", DESK, "--to", &own, "-q"]).failed(2, &["without an appointment"]);
    // An ended one is told, with what to do.
    let ended = world.run("ada", &["id", "appoint", DESK, "--to", &desk, "--for", "1s", "-q"]);
    let ended = ended.succeeded().stdout.trim().to_owned();
    let error = wait_within(LIMIT, "the appointment to end", || {
        let accepted = world.run("desk", &["id", "accept", &ended]);
        (!accepted.status.success()).then_some(accepted)
    });
    error.failed(1, &["the appointment has ended"]);
}
