//! Several networks on the command line: a path for each, shown and changed while the command runs.
#![allow(clippy::unwrap_used)]

use crate::common::{Process, World, shouting_server, wait_for};
use serde_json::Value;

/// A server, and a client with two addresses that uses both.
fn two_links(world: &World, flags: &[&str]) -> (Process, Process) {
    let to = shouting_server().to_string();
    let mut server = world.start("alice", &["expose", "--ticket", "--json", "--to", &to, "--allow", "any"]);
    let ticket = server.next_json()["ticket"].as_str().unwrap().to_owned();
    let second = world.address("bob's second");
    let mut args = vec!["forward", &ticket, "--json", "--address", &second];
    args.extend(flags);
    let mut client = world.start("bob", &args);
    assert!(client.next_json()["listening"].is_string());
    (server, client)
}

fn paths(world: &World, args: &[&str]) -> Vec<Value> {
    let mut all = vec!["paths", "--json"];
    all.extend(args);
    let report = world.run("bob", &all).succeeded().json();
    report["connections"][0]["paths"].as_array().unwrap().clone()
}

fn wait_for_paths(world: &World, what: &str, are_so: impl Fn(&[Value]) -> bool) {
    wait_for(what, || are_so(&paths(world, &[])).then_some(()));
}

fn backups(paths: &[Value]) -> usize {
    paths.iter().filter(|path| path["priority"] == "backup").count()
}

fn active(paths: &[Value]) -> usize {
    paths.iter().filter(|path| path["state"] == "active").count()
}

#[test]
fn paths_are_shown_and_changed_while_the_command_runs() {
    let world = World::new();
    let (_server, _client) = two_links(&world, &["--mode", "full"]);
    wait_for_paths(&world, "two paths", |paths| active(paths) == 2 && backups(paths) == 0);

    paths(&world, &["--mode", "backup"]);
    wait_for_paths(&world, "one to stand by", |paths| backups(paths) == 1);
    let status = world.run("bob", &["status"]).succeeded().stdout.clone();
    assert!(status.lines().all(|line| line.chars().count() <= 80), "{status}");
    let words = status.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("mode backup") && words.contains("active, backup"), "{status}");

    paths(&world, &["--mode", "full", "--scheduler", "min-rtt"]);
    wait_for_paths(&world, "none to stand by", |paths| backups(paths) == 0);
    let report = world.run("bob", &["paths", "--json"]).succeeded().json();
    let connection = &report["connections"][0];
    assert_eq!((&connection["mode"], &connection["scheduler"]), (&"full".into(), &"min-rtt".into()));
    assert!(connection["bytes_twice"].is_u64());

    let first = connection["paths"][0]["id"].as_u64().unwrap();
    paths(&world, &["--path", &format!("{first}=backup")]);
    wait_for_paths(&world, "the first to stand by", |paths| {
        paths.iter().all(|path| (path["priority"] == "backup") == (path["id"] == first))
    });

    paths(&world, &["--mode", "single"]);
    wait_for_paths(&world, "a single path", |paths| paths.len() == 1);
}

#[test]
fn what_cannot_be_changed_is_said() {
    let world = World::new();
    world.run("bob", &["paths"]).failed(2, &["no whimbrel command"]);
    let (_server, _client) = two_links(&world, &[]);
    world.run("bob", &["paths", "--path", "77=backup"]).failed(1, &["no path 77"]);
    world.run("bob", &["paths", "--path", "backup"]).failed(2, &["PATH=normal or PATH=backup"]);
    world.run("bob", &["paths", "--connection", "zz", "--mode", "full"]).failed(1, &["no connection zz"]);
    world.run("bob", &["paths", "12345678"]).failed(2, &["12345678"]);
    world.run("bob", &["paths", "--mode", "both"]).failed(2, &["no handover mode", "full, backup or single"]);
    world.run("bob", &["forward", "x.y@z", "--interface", "eth0=fast"]).failed(2, &["\"fast\""]);
    world.run("bob", &["forward", "x.y@z", "--policy", "best"]).failed(2, &["no policy \"best\""]);
}

/// The policy in the configuration file, the interfaces by the addresses that they stand for here.
#[test]
fn a_policy_in_the_configuration_decides_which_link_carries_the_data() {
    let world = World::new();
    let (one, other) = (world.address("bob"), world.address("bob's second"));
    let text =
        format!("[forward]\npolicy = \"prefer-wifi\"\ninterface = [\"{one}=cellular\", \"{other}=wifi\"]\n");
    std::fs::write(world.config("bob", "config.toml"), text).unwrap();
    let (_server, _client) = two_links(&world, &[]);
    wait_for_paths(&world, "wi-fi to be preferred", |paths| {
        let is_so = |path: &Value| {
            let at_wifi = path["local"].as_str().unwrap().starts_with(&format!("{other}:"));
            (path["priority"] == "normal") == at_wifi
        };
        paths.len() == 2 && paths.iter().all(is_so)
    });
}
