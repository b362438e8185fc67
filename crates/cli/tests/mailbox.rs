//! Devices of one user that are never up at once keep in step by way of the name service: real processes,
//! each with a home of its own.
#![allow(clippy::unwrap_used)]

use crate::agents::{introduce, until};
use crate::common::{Process, World};
use serde_json::Value;

/// What an agent logs once the name service has what the others may lack, and once it took something.
const LEFT: &str = "left with the name service what other devices of the user may lack";
const TOOK: &str = "took what other devices left with the name service";
const UNUSED: &str = "the mailbox at the name service is not used";

/// A user with a laptop and a desk.
fn ada() -> (World, Process) {
    let (world, names) = World::with_names();
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    for device in ["laptop", "desk"] {
        let name = format!("{device}.ada@example.org");
        introduce(&world, ("ada", &["--device", &name]), (device, &[]));
    }
    (world, names)
}

/// What a machine's list says of the device with this name.
fn device(world: &World, machine: &str, name: &str) -> Option<Value> {
    let list = world.run(machine, &["devices", "list", "--json"]).succeeded().json();
    let devices = list["devices"].as_array().unwrap();
    devices.iter().find(|device| device["name"] == format!("{name}.ada@example.org")).cloned()
}

fn is_called(world: &World, machine: &str, name: &str, called: &str) -> bool {
    device(world, machine, name).is_some_and(|device| device["called"] == called)
}

/// Waits until an agent has logged something.
fn until_logged(agent: &Process, text: &str) {
    until(text, || agent.said().contains(text).then_some(()));
}

/// Runs an agent alone until it has logged something. It has no time to say goodbye.
fn up_until(world: &World, machine: &str, text: &str) {
    let agent = world.start(machine, &["agent", "-vv"]);
    until_logged(&agent, text);
}

#[test]
fn two_agents_that_are_never_up_at_the_same_time_get_in_step_through_the_name_service() {
    let (world, _names) = ada();
    world.run("ada", &["devices", "name", "laptop", "slate"]).succeeded();
    up_until(&world, "ada", LEFT);
    assert!(!is_called(&world, "laptop", "laptop", "slate"), "nobody has told it");
    let laptop = world.start("laptop", &["agent", "-vv"]);
    until("the laptop hears its name", || is_called(&world, "laptop", "laptop", "slate").then_some(()));
    assert!(device(&world, "laptop", "desk").is_some());
    drop(laptop);
    // What it says of itself.
    world.run("laptop", &["devices", "name", "slate", "book"]).succeeded();
    up_until(&world, "laptop", LEFT);
    let ada = world.start("ada", &["agent", "-vv"]);
    until("the first one hears it", || is_called(&world, "ada", "laptop", "book").then_some(()));
    // What changes while an agent runs.
    world.run("ada", &["devices", "name", "book", "tome"]).succeeded();
    until_logged(&ada, LEFT);
    drop(ada);
    let _desk = world.start("desk", &["agent", "-vv"]);
    until("the desk hears it", || is_called(&world, "desk", "laptop", "tome").then_some(()));
}

#[test]
fn a_revoked_device_and_a_stranger_get_nothing_and_the_store_shows_nothing() {
    let (world, _names) = ada();
    up_until(&world, "ada", LEFT);
    // A name that was never published could not be taken back at the service.
    let laptop = world.start("laptop", &["agent", "-vv", "--as", "laptop.ada@example.org"]);
    until_logged(&laptop, TOOK);
    until("its name is published", || {
        let found = world.run("ada", &["names", "lookup", "laptop.ada@example.org"]);
        found.status.success().then_some(())
    });
    drop(laptop);
    assert!(device(&world, "laptop", "desk").is_some());
    world.run("ada", &["id", "revoke", "laptop.ada@example.org"]).succeeded();
    world.run("ada", &["devices", "name", "desk", "verysecretname"]).succeeded();
    up_until(&world, "ada", LEFT);
    // A machine without a name, whose list is its own.
    world.run("mallory", &["id"]).succeeded();
    for machine in ["laptop", "mallory"] {
        let agent = world.start(machine, &["agent", "-vv"]);
        until_logged(&agent, UNUSED);
        assert!(!agent.said().contains(TOOK), "{machine}: {}", agent.said());
    }
    assert!(is_called(&world, "laptop", "desk", "desk"), "the revoked device was told something");
    let store = std::fs::read(world.path("names.redb")).unwrap();
    let shows = |text: &str| store.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(shows("ada@example.org") && !shows("verysecretname"));
    // The desk, which is still one, hears it.
    let _desk = world.start("desk", &["agent", "-vv"]);
    until("the desk hears its name", || is_called(&world, "desk", "desk", "verysecretname").then_some(()));
}
