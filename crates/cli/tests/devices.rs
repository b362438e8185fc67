//! A user's devices and friends, by the commands that show and change them.
#![allow(clippy::unwrap_used)]

use crate::common::{LIMIT, Process, World};

/// Has one user invite another one's machine, and waits for both.
fn introduce(world: &World, (from, invite): (&str, &[&str]), (to, join): (&str, &[&str])) {
    let mut inviting = world.start(from, &[&["invite", "--json", "-q"], invite].concat());
    let code = inviting.next_json()["code"].as_str().unwrap().to_owned();
    world.run(to, &[&["join", &code, "--json", "-q"], join].concat()).succeeded();
    inviting.output(LIMIT).succeeded();
}

/// Lets a user's machine be met by the others.
fn serve(world: &World, user: &str) -> (Process, String) {
    let mut serving = world.start(user, &["devices", "serve", "--json", "-q"]);
    let ticket = serving.next_json()["ticket"].as_str().unwrap().to_owned();
    (serving, ticket)
}

#[test]
fn devices_and_friends_are_listed_named_and_removed() {
    let (world, _names) = World::with_names();
    let invite: &[&str] = &["--as", "ada@example.org"];
    introduce(&world, ("ada", invite), ("bob", &["--as", "bob@example.org"]));
    introduce(&world, ("ada", &["--device", "laptop.ada@example.org"]), ("laptop", &[]));
    let friends = world.run("bob", &["friends", "list", "--json"]).succeeded().json();
    assert_eq!(friends["friends"][0]["name"], "ada@example.org");
    assert_eq!(friends["friends"][0]["called"], "ada");
    let devices = world.run("ada", &["devices", "list", "--json"]).succeeded().json();
    assert_eq!(devices["devices"][0]["called"], "laptop");
    assert_eq!(devices["devices"][0]["trusted"], false);
    world.run("ada", &["devices", "name", "laptop", "desk"]).succeeded();
    world.run("ada", &["friends", "name", "bob", "desk"]).failed(2, &["something else is called desk"]);
    world.run("ada", &["devices", "name", "bob", "pc"]).failed(2, &["whimbrel friends name"]);
    world.run("ada", &["friends", "remove", "bob@example.org"]).succeeded();
    let none = world.run("ada", &["friends", "list", "--json"]).succeeded().json();
    assert_eq!(none["friends"].as_array().unwrap().len(), 0);
    world.run("ada", &["devices", "remove", "phone"]).failed(3, &["phone is no device or friend"]);
    world.run("ada", &["devices", "name", "desk", "a b"]).failed(2, &["a personal name is"]);
}

#[test]
fn a_device_may_act_for_its_user_once_it_is_trusted_and_is_out_once_it_is_revoked() {
    let (world, _names) = World::with_names();
    introduce(&world, ("ada", &["--device", "laptop.ada@example.org"]), ("laptop", &[]));
    let (_serving, ticket) = serve(&world, "ada");
    let sync: &[&str] = &["devices", "sync", &ticket, "--json", "-q"];
    assert_eq!(world.run("laptop", sync).succeeded().json()["agree"], true);
    world.run("laptop", &["devices", "name", "laptop", "mine"]).succeeded();
    let id = world.run("ada", &["id"]).succeeded().stdout.trim().to_owned();
    world.run("laptop", &["devices", "trust", "mine"]).failed(5, &["may not act for the user"]);
    world.run("laptop", sync).succeeded();
    world.run("ada", &["devices", "trust", "mine"]).succeeded();
    world.run("laptop", sync).succeeded();
    let list = world.run("laptop", &["devices", "list", "--json"]).succeeded().json();
    assert_eq!((&list["trusted"], &list["user"]), (&true.into(), &id.as_str().into()));
    // A machine of somebody else is told nothing.
    world.run("eve", sync).failed(5, &[]);
    world.run("ada", &["id", "revoke", "laptop.ada@example.org"]).succeeded();
    let list = world.run("ada", &["devices", "list", "--json"]).succeeded().json();
    assert_eq!(list["devices"].as_array().unwrap().len(), 0);
    world.run("laptop", sync).failed(5, &[]);
}

#[test]
fn joining_as_a_user_never_makes_the_machine_a_device_of_another_user() {
    let (world, _names) = World::with_names();
    let mut inviting = world.start("eve", &["invite", "--json", "-q", "--device", "trap.eve@example.org"]);
    let code = inviting.next_json()["code"].as_str().unwrap().to_owned();
    let join = world.run("bob", &["join", &code, "-q", "--as", "bob@example.org"]);
    join.failed(5, &["make this machine one of its devices"]);
    assert!(!inviting.output(LIMIT).status.success());
    let list = world.run("bob", &["devices", "list", "--json"]).succeeded().json();
    assert_eq!(list["user"], list["this"]);
}

#[test]
fn a_key_that_has_friends_of_its_own_keeps_them_when_it_is_given_a_name() {
    let (world, _names) = World::with_names();
    introduce(&world, ("ada", &["--as", "ada@example.org"]), ("bob", &["--as", "bob@example.org"]));
    introduce(&world, ("eve", &["--device", "trap.eve@example.org"]), ("bob", &[]));
    let friends = world.run("bob", &["friends", "list", "--json"]).succeeded().json();
    assert_eq!(friends["friends"][0]["name"], "ada@example.org");
    let list = world.run("bob", &["devices", "list", "--json"]).succeeded().json();
    assert_eq!(list["user"], list["this"]);
}

#[test]
fn a_revoked_device_is_removed_by_its_key_also_and_it_is_said_if_there_was_none() {
    let (world, _names) = World::with_names();
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    let id = world.run("laptop", &["id"]).succeeded().stdout.trim().to_owned();
    // The same machine under two names: the list has the later one.
    for name in ["old.ada@example.org", "new.ada@example.org"] {
        world.run("ada", &["id", "delegate", name, "--to", &id]).succeeded();
    }
    let revoked = world.run("ada", &["id", "revoke", "old.ada@example.org", "--json"]).succeeded().json();
    assert_eq!(revoked["removed"], 1);
    let again = world.run("ada", &["id", "revoke", "new.ada@example.org"]);
    again.succeeded();
    assert!(again.stderr.contains("nothing was removed"), "{}", again.stderr);
}
