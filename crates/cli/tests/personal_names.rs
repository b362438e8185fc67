//! What a user calls devices and friends is a name wherever one is taken: real processes, each with a home of
//! its own.
#![allow(clippy::unwrap_used)]

use crate::common::{LIMIT, Process, World, page, wait_for};

/// Has one user invite another one's machine, and waits for both.
fn introduce(world: &World, (from, invite): (&str, &[&str]), (to, join): (&str, &[&str])) {
    let mut inviting = world.start(from, &[&["invite", "--json", "-q"], invite].concat());
    let code = inviting.next_json()["code"].as_str().unwrap().to_owned();
    world.run(to, &[&["join", &code, "--json", "-q"], join].concat()).succeeded();
    inviting.output(LIMIT).succeeded();
}

/// Exposes a page under a name, for whom the flag says.
fn expose(world: &World, machine: &str, name: &str, (text, allow): (&'static str, &str)) -> Process {
    let mut expose =
        world.start(machine, &["expose", name, "--to", &page(text), "--allow", allow, "--json", "-q"]);
    expose.next_json();
    expose
}

#[test]
fn a_friend_is_let_in_and_reached_by_a_personal_name() {
    let (world, _names) = World::with_names();
    introduce(&world, ("ada", &["--as", "ada@example.org"]), ("bob", &["--as", "bob@example.org"]));
    world.run("ada", &["friends", "name", "bob", "bobby"]).succeeded();
    let _expose = expose(&world, "bob", "web.home.bob@example.org", ("bob's page", "ada"));
    assert_eq!(world.run("ada", &["pipe", "web.home.bobby"]).succeeded().stdout.trim(), "bob's page");
    assert_eq!(world.run("ada", &["pipe", "web.home.Bobby"]).succeeded().stdout.trim(), "bob's page");
    world.run("eve", &["pipe", "web.home.bob@example.org", "-q"]).failed(3, &[]);
    for (args, says) in [
        (&["pipe", "web.home.carol", "-q"][..], "called carol"),
        (&["forward", "nobody-here", "-q"], "called nobody-here"),
        (&["pipe", "web.x.home.bobby", "-q"], "web.x.home.bobby"),
        (&["expose", "x.ada@example.org", "--to", "127.0.0.1:1", "--allow", "carol", "-q"], "is called so"),
        (&["expose", "x.ada@example.org", "--to", "127.0.0.1:1", "--allow", "everyone", "-q"], "any"),
    ] {
        world.run("ada", args).failed(2, &[says]);
    }
}

#[test]
fn a_device_is_let_in_by_a_personal_name_for_as_long_as_it_is_one() {
    let (world, _names) = World::with_names();
    introduce(&world, ("ada", &["--device", "laptop.ada@example.org"]), ("laptop", &[]));
    world.run("ada", &["devices", "name", "laptop", "desk"]).succeeded();
    let _on_laptop =
        expose(&world, "laptop", "web.laptop.ada@example.org", ("at the desk", &world.id("ada")));
    assert_eq!(world.run("ada", &["pipe", "web.desk"]).succeeded().stdout.trim(), "at the desk");
    let _at_home = expose(&world, "ada", "db.home.ada@example.org", ("at home", "desk"));
    let ask = || world.run("laptop", &["pipe", "db.home.ada@example.org", "-q"]);
    assert_eq!(ask().succeeded().stdout.trim(), "at home");
    world.run("ada", &["devices", "remove", "desk"]).succeeded();
    wait_for("the laptop is out", || (!ask().status.success()).then_some(()));
}

#[test]
fn what_a_device_without_trust_calls_itself_is_no_peer_and_lets_nobody_in() {
    let (world, _names) = World::with_names();
    introduce(&world, ("ada", &["--device", "laptop.ada@example.org"]), ("laptop", &[]));
    let mut serving = world.start("ada", &["devices", "serve", "--json", "-q"]);
    let ticket = serving.next_json()["ticket"].as_str().unwrap().to_owned();
    let sync: &[&str] = &["devices", "sync", &ticket, "-q"];
    world.run("laptop", sync).succeeded();
    world.run("laptop", &["devices", "name", "laptop", "bank"]).succeeded();
    world.run("laptop", sync).succeeded();
    for args in [
        &["pipe", "web.bank", "-q"][..],
        &["expose", "x.ada@example.org", "--to", "127.0.0.1:1", "--allow", "bank", "-q"],
    ] {
        world.run("ada", args).failed(6, &["bank is what a device calls itself"]);
    }
    // What the user calls it is the user's word.
    world.run("ada", &["devices", "name", "laptop.ada@example.org", "bank"]).succeeded();
    let _expose = expose(&world, "ada", "web.home.ada@example.org", ("at home", "bank"));
    let asked = world.run("laptop", &["pipe", "web.home.ada@example.org", "-q"]);
    assert_eq!(asked.succeeded().stdout.trim(), "at home");
}
