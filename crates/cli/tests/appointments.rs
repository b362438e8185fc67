//! A user whose key is away: one device that the user appointed renews what the others were given.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common::{LIMIT, Output, Process, World, dead_port, wait_within};
use whimbrel::Identity;
use whimbrel_base::{Delegation, UnixTime};

const LAPTOP: &str = "laptop.ada@example.org";
const SSH: &str = "ssh.laptop.ada@example.org";
/// With a key of its own.
const MAIL: &str = "mail.laptop.ada@example.org";
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

/// Ada appoints a machine, and gives the word to nobody. Returns the text.
fn appoint(world: &World, machine: &str, name: &str) -> String {
    let to = world.id(machine);
    let word = world.run("ada", &["id", "appoint", name, "--to", &to, "--by-hand", "--json"]);
    let word = word.succeeded().json();
    assert_eq!(word["left"], false);
    word["appointment"].as_str().unwrap().to_owned()
}

/// A user appoints a machine, and leaves it to the name service to tell.
fn appoint_left(world: &World, user: &str, (machine, name): (&str, &str), time: &str) -> Output {
    world.run(user, &["id", "appoint", name, "--to", &world.id(machine), "--for", time, "--json"])
}

/// By whom a machine is appointed, and until when.
fn appointed(world: &World, machine: &str) -> Vec<(String, u64)> {
    let shown = world.run(machine, &["id", "devices", "--json"]).succeeded().json();
    let all = shown["appointed"].as_array().unwrap().iter();
    all.map(|it| (it["by"].as_str().unwrap().to_owned(), it["until"].as_u64().unwrap())).collect()
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

fn expose(world: &World, machine: &str, name: &str) -> Process {
    let to = dead_port().to_string();
    let mut running = world.start(machine, &["expose", name, "--to", &to, "--allow", "any", "--json"]);
    running.next_json();
    running
}

fn is_found(world: &World, name: &str) -> bool {
    world.run("carol", &["names", "lookup", name, "-q"]).status.success()
}

/// By whom the first name that a machine has was renewed.
fn renewed_by(world: &World, machine: &str) -> String {
    let held = world.run(machine, &["id", "devices", "--json"]).succeeded().json();
    held["held"][0]["renewed_by"].as_str().unwrap().to_owned()
}

/// The appointment is carried to the desk by nobody. The laptop has a service with its own key, and one that
/// has another key.
#[test]
fn an_appointed_device_keeps_the_others_and_their_services_alive_without_the_users_key() {
    let (world, _names) = World::with_names();
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    // Into her list of devices; what counts is given below, when only little is left to be done.
    world.run("ada", &["id", "delegate", LAPTOP, "--to", &world.id("laptop"), "-q"]).succeeded();
    give(&world, "desk", DESK, "1d");
    let left = appoint_left(&world, "ada", ("desk", DESK), "30d").succeeded().json();
    assert_eq!(left["left"], true);
    world.run("ada", &["devices", "trust", DESK]).succeeded();
    tell_devices(&world, "desk");
    let until = give(&world, "laptop", LAPTOP, "45s").max(give(&world, "mail", MAIL, "45s"));
    let mut running = [("laptop", SSH), ("mail", MAIL)].map(|(machine, name)| expose(&world, machine, name));
    let mut desk = world.start("desk", &["agent", "--as", DESK, "--json", "-q"]);
    assert_eq!(desk.next_json()["event"], "ready");
    wait_within(PATIENCE, "both to be there behind the end of what ada's key gave them", || {
        (now() > until + 5 && is_found(&world, SSH) && is_found(&world, MAIL)).then_some(())
    });
    for running in &mut running {
        assert!(running.child.try_wait().unwrap().is_none(), "it was never restarted");
    }
    for machine in ["laptop", "mail"] {
        assert_eq!(renewed_by(&world, machine), world.id("desk"), "{machine}");
    }
    assert_eq!(appointed(&world, "desk"), [(world.id("ada"), left["expires"].as_u64().unwrap())]);
}

#[test]
fn an_appointment_is_taken_where_the_user_trusts_the_device_and_a_newer_one_replaces_it() {
    let (world, _names) = World::with_names();
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    give(&world, "desk", DESK, "1d");
    let end = |output: &Output| output.succeeded().json()["expires"].as_u64().unwrap();
    let first = end(&appoint_left(&world, "ada", ("desk", DESK), "20d"));
    tell_devices(&world, "desk");
    world.run("desk", &["id", "renew", "-q"]).succeeded();
    assert_eq!(appointed(&world, "desk"), [], "ada's list does not say that it may act for her");
    world.run("ada", &["devices", "trust", DESK]).succeeded();
    tell_devices(&world, "desk");
    world.run("desk", &["id", "renew", "-q"]).succeeded();
    let ada = world.id("ada");
    assert_eq!(appointed(&world, "desk"), [(ada.clone(), first)]);
    // Times are whole seconds: of two in one, the other is not the newer.
    let made = now();
    wait_within(LIMIT, "the next second", || (now() > made).then_some(()));
    let older = appoint(&world, "desk", DESK);
    let made = now();
    wait_within(LIMIT, "the next second", || (now() > made).then_some(()));
    let second = end(&appoint_left(&world, "ada", ("desk", DESK), "10d"));
    world.run("desk", &["id", "renew", "-q"]).succeeded();
    assert_eq!(appointed(&world, "desk"), [(ada.clone(), second)], "it ends earlier, and is the newer");
    let refused = world.run("desk", &["id", "accept", &older, "-q"]);
    refused.failed(1, &["a newer appointment", "is kept here already"]);
    assert_eq!(appointed(&world, "desk"), [(ada, second)]);
}

#[test]
fn a_stranger_appoints_nobodys_device_by_way_of_the_name_service() {
    let (world, _names) = World::with_names();
    for (user, name) in [("ada", "ada@example.org"), ("eve", "eve@example.org")] {
        world.run(user, &["id", "register", name]).succeeded();
    }
    give(&world, "desk", DESK, "1d");
    world.run("ada", &["devices", "trust", DESK]).succeeded();
    tell_devices(&world, "desk");
    // One who is somebody else's user here, and one who is nobody.
    for stranger in ["eve", "mallory"] {
        let forged = appoint_left(&world, stranger, ("desk", DESK), "30d");
        assert_eq!(forged.succeeded().json()["left"], false);
        let said = forged.stderr.lines().filter(|line| line.contains("not left with a name service"));
        let said: Vec<&str> = said.collect();
        assert_eq!(said.len(), 1, "{}", forged.stderr);
        assert!(said[0].contains("only the key that ada@example.org is registered for"), "{}", said[0]);
    }
    world.run("desk", &["id", "renew", "-q"]).succeeded();
    assert_eq!(appointed(&world, "desk"), []);
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
