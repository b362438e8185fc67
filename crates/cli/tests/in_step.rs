//! Agents of a user's devices keep the list of devices and friends in step, and tell who is up to those who
//! may know: real processes, each with a home of its own.
#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::agents::{introduce, until};
use crate::common::{Process, World, tcp_server};
use serde_json::Value;

fn add_device(world: &World, device: &str) {
    let name = format!("{device}.ada@example.org");
    introduce(world, ("ada", &["--device", &name]), (device, &[]));
}

/// Starts an agent, and waits until it is ready.
fn agent(world: &World, machine: &str, args: &[&str]) -> (Process, Value) {
    let mut agent = world.start(machine, &[&["agent", "--json", "-q"], args].concat());
    let ready = agent.next_json();
    assert_eq!(ready["event"], "ready", "{ready}");
    (agent, ready)
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

/// Whether a machine's user sees that a friend is up.
fn sees(world: &World, machine: &str, friend: &str) -> bool {
    let list = world.run(machine, &["friends", "list", "--json"]).succeeded().json();
    let friends = list["friends"].as_array().unwrap();
    let friend = friends.iter().find(|known| known["name"] == friend).unwrap();
    friend["up"].as_object().unwrap().values().any(|up| up["state"] == "present")
}

#[test]
fn what_changes_on_one_device_appears_on_the_others_and_a_removed_one_is_told_nothing_more() {
    let (world, _names) = World::with_names();
    add_device(&world, "laptop");
    add_device(&world, "desk");
    let _ada = agent(&world, "ada", &["--as", "home.ada@example.org"]);
    let _laptop = agent(&world, "laptop", &["--as", "laptop.ada@example.org"]);
    let _desk = agent(&world, "desk", &["--as", "desk.ada@example.org", "--away"]);
    until("the laptop knows the desk", || device(&world, "laptop", "desk"));
    until("the desk knows the laptop", || device(&world, "desk", "laptop"));
    // Who is up, and who is not.
    until("the desk is away", || {
        let desk = device(&world, "laptop", "desk")?;
        (desk["presence"]["state"] == "away").then_some(())
    });
    until("the laptop is present", || {
        let laptop = device(&world, "ada", "laptop")?;
        (laptop["presence"]["state"] == "present").then_some(())
    });
    let mut watching = world.start("laptop", &["devices", "list", "--watch", "-q"]);
    // A device that is added on one appears on the others.
    add_device(&world, "tablet");
    until("the laptop knows the tablet", || device(&world, "laptop", "tablet"));
    until("the desk knows the tablet", || device(&world, "desk", "tablet"));
    while !watching.line().contains("tablet.ada@example.org") {}
    let tablet = device(&world, "laptop", "tablet").unwrap();
    assert_eq!(tablet["presence"], Value::Null, "no agent runs there");
    // One that is removed disappears.
    world.run("ada", &["devices", "remove", "desk"]).succeeded();
    until("the laptop knows that the desk is out", || {
        device(&world, "laptop", "desk").is_none().then_some(())
    });
    world.run("ada", &["devices", "name", "tablet", "slate"]).succeeded();
    until("the laptop hears the name", || is_called(&world, "laptop", "tablet", "slate").then_some(()));
    assert!(is_called(&world, "desk", "tablet", "tablet"), "the removed device was told something");
    while !watching.line().starts_with("slate") {}
}

#[test]
fn devices_keep_in_step_directly_while_the_name_service_is_down_and_one_of_them_is_invisible() {
    let (world, mut names) = World::with_names();
    add_device(&world, "laptop");
    add_device(&world, "desk");
    names.kill();
    let (_ada, ready) = agent(&world, "ada", &[]);
    let (_laptop, ready) =
        agent(&world, "laptop", &["--invisible", "--peer", ready["ticket"].as_str().unwrap()]);
    // It never meets the first one.
    let _desk = agent(&world, "desk", &["--peer", ready["ticket"].as_str().unwrap()]);
    until("the desk knows the laptop", || device(&world, "desk", "laptop"));
    world.run("ada", &["devices", "name", "desk", "big"]).succeeded();
    until("the desk hears its name", || is_called(&world, "desk", "desk", "big").then_some(()));
    // What a device says of itself comes back the same way.
    world.run("desk", &["devices", "name", "big", "small"]).succeeded();
    until("the first one hears it", || is_called(&world, "ada", "desk", "small").then_some(()));
    until("the desk is up", || {
        let desk = device(&world, "laptop", "desk")?;
        (desk["presence"]["state"] == "present").then_some(())
    });
    for machine in ["ada", "desk"] {
        let laptop = device(&world, machine, "laptop").unwrap();
        assert_eq!(laptop["presence"], Value::Null, "{machine} sees the invisible one");
    }
}

#[test]
fn an_agent_keeps_the_list_of_the_user_whose_device_its_machine_becomes_while_it_runs() {
    let (world, _names) = World::with_names();
    let _laptop = agent(&world, "laptop", &[]);
    add_device(&world, "laptop");
    let _ada = agent(&world, "ada", &["--as", "home.ada@example.org"]);
    until("the laptop has the list", || device(&world, "laptop", "laptop"));
    until("the laptop is up", || {
        let laptop = device(&world, "ada", "laptop")?;
        (laptop["presence"]["state"] == "present").then_some(())
    });
    world.run("ada", &["devices", "name", "laptop", "slate"]).succeeded();
    until("the laptop hears its name", || is_called(&world, "laptop", "laptop", "slate").then_some(()));
}

#[test]
fn an_agent_that_starts_anew_while_the_name_service_is_down_finds_devices_where_they_were() {
    let (world, mut names) = World::with_names();
    add_device(&world, "laptop");
    let _ada = agent(&world, "ada", &["--as", "home.ada@example.org"]);
    let first = agent(&world, "laptop", &[]);
    until("the laptop has the list", || device(&world, "laptop", "laptop"));
    let ada = world.id("ada");
    let places = world.path("laptop").join(format!(".local/share/whimbrel/presence/{ada}.places"));
    until("it is written down where the other device is", || {
        std::fs::read_to_string(&places).ok().filter(|text| text.starts_with(&format!("whimbrel:{ada}/")))
    });
    drop(first);
    names.kill();
    world.run("ada", &["devices", "name", "laptop", "slate"]).succeeded();
    let _second = agent(&world, "laptop", &[]);
    until("the laptop hears its name", || is_called(&world, "laptop", "laptop", "slate").then_some(()));
}

#[test]
fn who_is_away_is_shown_so_until_the_user_is_back_or_the_agent_starts_anew() {
    let (world, _names) = World::with_names();
    add_device(&world, "laptop");
    let _ada = agent(&world, "ada", &["--as", "home.ada@example.org"]);
    let first = agent(&world, "laptop", &[]);
    let is_shown_as = |state: &str| {
        until(state, || {
            let laptop = device(&world, "ada", "laptop")?;
            (laptop["presence"]["state"] == state).then_some(())
        });
    };
    is_shown_as("present");
    let said = world.run("laptop", &["devices", "away", "--json"]).succeeded().json();
    assert_eq!(said["away"], true);
    is_shown_as("away");
    world.run("laptop", &["devices", "away", "--off"]).succeeded();
    is_shown_as("present");
    // Back twice is no mistake.
    world.run("laptop", &["devices", "away", "--off"]).succeeded();
    world.run("laptop", &["devices", "away"]).succeeded();
    is_shown_as("away");
    drop(first);
    let _second = agent(&world, "laptop", &[]);
    is_shown_as("present");
}

#[test]
fn a_friend_sees_who_is_up_only_with_the_right() {
    let (world, _names) = World::with_names();
    let ada: &[&str] = &["--as", "ada@example.org"];
    for friend in ["bob", "carol"] {
        introduce(&world, ("ada", ada), (friend, &["--as", &format!("{friend}@example.org")]));
        world.run(friend, &["friends", "allow", "ada@example.org"]).succeeded();
    }
    world.run("ada", &["friends", "allow", "carol@example.org"]).succeeded();
    let _bob = agent(&world, "bob", &["--as", "home.bob@example.org"]);
    let _carol = agent(&world, "carol", &["--as", "home.carol@example.org"]);
    let _ada = agent(&world, "ada", &["--as", "home.ada@example.org"]);
    until("carol sees ada", || sees(&world, "carol", "ada@example.org").then_some(()));
    until("ada sees carol", || sees(&world, "ada", "carol@example.org").then_some(()));
    assert!(!sees(&world, "bob", "ada@example.org"), "without the right");
    assert!(!sees(&world, "ada", "bob@example.org"), "who shows herself to nobody is told nothing either");
    // Friends are told no more than that.
    let list = world.run("carol", &["devices", "list", "--json"]).succeeded().json();
    assert_eq!(list["devices"].as_array().unwrap().len(), 0);
    world.run("ada", &["friends", "allow", "bob@example.org"]).succeeded();
    until("bob sees ada", || sees(&world, "bob", "ada@example.org").then_some(()));
    // What is not allowed any more is over at once.
    world.run("ada", &["friends", "allow", "carol@example.org", "--off"]).succeeded();
    until("carol does not see ada any more", || (!sees(&world, "carol", "ada@example.org")).then_some(()));
}

#[test]
fn a_service_of_the_same_key_does_not_answer_in_an_agents_place() {
    let (world, _names) = World::with_names();
    add_device(&world, "laptop");
    let came = Arc::new(AtomicUsize::new(0));
    let count = came.clone();
    let server = tcp_server(move |mut socket| {
        count.fetch_add(1, Ordering::Relaxed);
        let _ = writeln!(socket, "at the laptop");
    });
    let (server, ada) = (server.to_string(), world.id("ada"));
    let web = "web.laptop.ada@example.org";
    let expose = ["expose", web, "--to", &server, "--allow", &ada, "--json", "-q"];
    let mut exposing = world.start("laptop", &expose);
    exposing.next_json();
    // Only the service is found by the laptop's key, which lets this caller in.
    let calling = world.start("ada", &["agent", "--as", "home.ada@example.org", "--json", "-vv"]);
    calling.until_said("nobody listens under this name", 1);
    let _laptop = agent(&world, "laptop", &["--as", "laptop.ada@example.org"]);
    until("the agents have met beside it", || {
        let laptop = device(&world, "ada", "laptop")?;
        (laptop["presence"]["state"] == "present").then_some(())
    });
    assert_eq!(came.load(Ordering::Relaxed), 0, "what agents say went to the service");
    assert_eq!(world.run("ada", &["pipe", web]).succeeded().stdout.trim(), "at the laptop");
    assert_eq!(came.load(Ordering::Relaxed), 1);
}
