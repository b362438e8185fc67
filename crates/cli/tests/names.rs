//! The name service: what it keeps, and what it says.
#![allow(clippy::unwrap_used)]

use std::fs;

use crate::common::{LIMIT, World, dead_port, wait_for};
use rustix::process::Signal;

#[test]
fn a_name_is_registered_looked_up_and_refused_to_others() {
    let (world, _names) = World::with_names();
    world.id("ada");
    world
        .run("bob", &["names", "lookup", "ada@example.org", "-q"])
        .failed(3, &["ada@example.org", "not registered"]);
    let first = world.run("ada", &["id", "register", "ada@example.org", "--json"]);
    assert_eq!(first.succeeded().json()["new"], true);
    let again = world.run("ada", &["id", "register", "Ada@Example.org", "--json"]);
    assert_eq!(again.succeeded().json()["new"], false);
    world.run("bob", &["id", "register", "ada@example.org"]).failed(5, &["another key"]);
    let found = world.run("bob", &["names", "lookup", "ada@example.org", "--json"]);
    assert_eq!(found.succeeded().json()["id"], world.id("ada"));
    let text = world.run("bob", &["names", "lookup", "ada@example.org"]).stdout;
    assert!(text.contains(&world.id("ada")), "{text}");
}

#[test]
fn the_devices_of_a_user_and_where_they_are_come_in_one_look_up() {
    let (world, _names) = World::with_names();
    world.id("bob");
    let lookup =
        |more: &str| world.run("bob", &["names", "lookup", "ada@example.org", "--devices", "-q", more]);
    lookup("--json").failed(3, &["nothing of ada@example.org"]);
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    let to = dead_port().to_string();
    let expose = |name: &str, readers: &[&str]| {
        let args = ["expose", name, "--to", &to, "--allow", "any", "--json"];
        let mut expose = world.start("ada", &[&args, readers].concat());
        expose.next_json();
        expose
    };
    let _web = expose("web.home.ada@example.org", &[]);
    let _hidden = expose("db.home.ada@example.org", &["--readers", &world.id("carol")]);
    let found = lookup("--json").succeeded().json();
    assert_eq!((&found["user"], &found["key"]), (&"ada@example.org".into(), &world.id("ada").into()));
    let records = found["records"].as_array().unwrap();
    let names: Vec<&str> = records.iter().map(|record| record["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["ada@example.org", "web.home.ada@example.org"]);
    assert!(records[1]["addresses"][0].as_str().unwrap().starts_with(&world.address("ada")), "{found}");
    let wrong = world.run("bob", &["names", "lookup", "web.home.ada@example.org", "--devices", "-q"]);
    wrong.failed(2, &["give the user's name: ada@example.org"]);
}

#[test]
fn registered_names_survive_kill_9() {
    let (mut world, mut names) = World::with_names();
    for round in 0..5 {
        let user = format!("user{round}@example.org");
        world.run("ada", &["id", "register", &user]).succeeded();
        names.kill();
        names = world.serve_names(&[]);
        for earlier in 0..=round {
            let user = format!("user{earlier}@example.org");
            let found = world.run("bob", &["names", "lookup", &user, "--json"]);
            assert_eq!(found.succeeded().json()["id"], world.id("ada"));
        }
    }
}

#[test]
fn an_ephemeral_service_keeps_nothing_on_disk() {
    let world = World::new();
    let mut names = world.start("names", &["names", "serve", "--ephemeral", "--json", "--port", "0"]);
    assert!(names.next_json()["store"].is_null());
    assert!(!world.path("names/.local").exists());
    let both = ["names", "serve", "--ephemeral", "--store", "x"];
    world.run("names", &both).failed(2, &["--store"]);
}

#[test]
fn a_watch_prints_each_change_and_ends_in_order() {
    let (world, _names) = World::with_names();
    world.id("bob");
    let mut watch = world.start("bob", &["names", "watch", "web.ada@example.org", "--json", "-q"]);
    let to = dead_port().to_string();
    let mut expose =
        world.start("ada", &["expose", "web.ada@example.org", "--to", &to, "--allow", "any", "--json"]);
    expose.next_json();
    let first = watch.next_json();
    assert_eq!(first["id"], world.id("ada"));
    assert_eq!(first["revoked"], false);
    assert!(first["addresses"][0].as_str().unwrap().starts_with(&world.address("ada")));
    expose.signal(Signal::TERM);
    expose.output(LIMIT).succeeded();
    // The end of `expose` withdraws the name.
    let ended = watch.next_json();
    assert_eq!(ended["revoked"], true, "{first} then {ended}");
    world.run("bob", &["pipe", "web.ada@example.org"]).failed(3, &["web.ada@example.org"]);
    watch.signal(Signal::INT);
    watch.output(LIMIT).succeeded();
}

#[test]
fn a_damaged_store_is_told_and_kept() {
    let mut world = World::new();
    let store = world.path("names.redb");
    fs::write(&store, "this is no store at all\n".repeat(1000)).unwrap();
    let before = fs::read(&store).unwrap();
    let serve = ["names", "serve", "--port", "0", "-q", "--store", store.to_str().unwrap()];
    world.run("names", &serve).failed(1, &["names.redb", "damaged"]);
    assert_eq!(fs::read(&store).unwrap(), before);
    fs::remove_file(&store).unwrap();
    let _names = world.serve_names(&[]);
    world.run("names", &serve).failed(1, &["names.redb", "in use"]);
}

#[test]
fn the_service_keeps_its_key_and_its_ticket() {
    let mut world = World::new();
    let names = world.serve_names(&[]);
    let ticket = world.service().to_owned();
    names.signal(Signal::INT);
    names.output(LIMIT).succeeded();
    let port = ticket.rsplit(':').next().unwrap().to_owned();
    let _names = world.serve_names(&["--port", &port]);
    assert_eq!(world.service(), ticket);
}

#[test]
fn a_user_delegates_a_device_to_another_key() {
    let (world, _names) = World::with_names();
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    let laptop = world.id("laptop");
    let to = dead_port().to_string();
    let name = "ssh.laptop.ada@example.org";
    let expose = ["expose", name, "--to", &to, "--allow", "any", "--json"];
    // The way is told in the error, command by command.
    world.run("laptop", &expose).failed(
        5,
        &[
            "belongs to another key",
            &format!("whimbrel id delegate laptop.ada@example.org --to {laptop}"),
            "id accept",
        ],
    );
    let delegate = world.run("ada", &["id", "delegate", "laptop.ada@example.org", "--to", &laptop]);
    let delegation = delegate.succeeded().stdout.trim().to_owned();
    world.id("eve");
    world.run("eve", &["id", "accept", &delegation]).failed(1, &[&laptop]);
    world.run("laptop", &["id", "accept", &delegation]).succeeded();
    let mut running = world.start("laptop", &expose);
    running.next_json();
    let found = world.run("ada", &["names", "lookup", name, "--json"]).json();
    assert_eq!(found["id"], laptop);
    assert_eq!(found["delegated_by"], world.id("ada"));
}

#[test]
fn an_expired_delegation_is_told() {
    let (world, _names) = World::with_names();
    let laptop = world.id("laptop");
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    let args = ["id", "delegate", "laptop.ada@example.org", "--to", &laptop, "--for", "1s"];
    let delegation = world.run("ada", &args).succeeded().stdout.trim().to_owned();
    let accepted = world.run("laptop", &["id", "accept", &delegation]);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    world.run("laptop", &["id", "accept", &delegation]).failed(1, &["expired"]);
    if accepted.status.success() {
        let expose = ["expose", "ssh.laptop.ada@example.org", "--to", "127.0.0.1:1", "--allow", "any"];
        world.run("laptop", &expose).failed(1, &["expired", "id delegate"]);
    }
}

#[test]
fn a_service_that_was_away_finds_its_names_again() {
    let (mut world, mut names) = World::with_names();
    let ticket = world.service().to_owned();
    let port = ticket.rsplit(':').next().unwrap().to_owned();
    world.id("bob");
    let to = dead_port().to_string();
    let mut expose =
        world.start("ada", &["expose", "web.ada@example.org", "--to", &to, "--allow", "any", "--json"]);
    expose.next_json();
    names.kill();
    fs::remove_file(world.path("names.redb")).unwrap();
    let _names = world.serve_names(&["--port", &port]);
    // The service forgot everything, and the running command tells it again, user first.
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    wait_for("the name to be there again", || {
        world.run("bob", &["names", "lookup", "web.ada@example.org"]).status.success().then_some(())
    });
}

/// With an operator and no rule, as `names serve` is run for people who are invited.
#[test]
fn somebody_new_registers_by_an_invitation_and_not_without() {
    let mut world = World::new();
    let operator = world.id("ops");
    let _names = world.serve_names(&["--operator", &operator]);
    world.id("ada");
    world.id("eve");
    let register = ["id", "register", "ada@example.org"];
    world.run("ada", &register).failed(5, &["ada@example.org", "invitation"]);
    world.run("eve", &["names", "invite", "-q"]).failed(5, &["operator"]);
    let invited = world.run("ops", &["names", "invite", "--domain", "example.org", "--json"]);
    let code = invited.succeeded().json()["code"].as_str().unwrap().to_owned();
    let with_code = [&register[..], &["--invite", &code]].concat();
    world.run("ada", &with_code).succeeded();
    // Nobody else has it, and lookups are for everybody.
    world.run("eve", &["id", "register", "eve@example.org", "--invite", &code]).failed(5, &["invitation"]);
    world.run("eve", &["names", "lookup", "ada@example.org"]).succeeded();
}

#[test]
fn an_invitation_is_written_into_the_store_of_a_service_that_does_not_run() {
    let mut world = World::new();
    let operator = world.id("ops");
    let store = world.path("names.redb");
    let names = world.serve_names(&["--operator", &operator]);
    let invite = ["names", "invite", "--store", store.to_str().unwrap()];
    world.run("ops", &invite).failed(1, &["in use"]);
    names.signal(Signal::TERM);
    names.output(LIMIT).succeeded();
    let code = world.run("ops", &invite).succeeded().stdout.trim().to_owned();
    let _names = world.serve_names(&["--operator", &operator]);
    world.run("ada", &["id", "register", "ada@example.org", "--invite", &code]).succeeded();
}

#[test]
fn a_service_says_that_nobody_new_may_register() {
    let world = World::new();
    let serve = ["names", "serve", "--ephemeral", "--json", "--port", "0"];
    for (allow, says) in [(&[][..], true), (&["--allow", "@example.org"], false)] {
        let mut names = world.start("names", &[&serve[..], allow].concat());
        names.next_json();
        names.signal(Signal::TERM);
        let stderr = names.output(LIMIT).stderr;
        assert_eq!(stderr.contains("names invite"), says, "{stderr}");
    }
    let rules = world.path("rules");
    fs::write(&rules, "# ours\n@example.org  # all of us\n\nnonsense\n").unwrap();
    let from = [&serve[..], &["--allow-from", rules.to_str().unwrap()]].concat();
    world.run("names", &from).failed(2, &["rules:4", "nonsense"]);
}

#[test]
fn a_group_is_made_shown_to_its_members_and_told_apart_from_an_endpoint() {
    const TEAM: &str = "team.ada@example.org";
    let (world, _names) = World::with_names();
    for user in ["ada", "bob"] {
        world.run(user, &["id", "register", &format!("{user}@example.org")]).succeeded();
    }
    let eve = world.id("eve");
    // Its first command would say that it has made a key.
    world.id("cleo");
    let group = |who: &str, action: &str, rest: &[&str]| {
        let args = ["names", "group", action, TEAM].into_iter().chain(rest.iter().copied());
        world.run(who, &args.collect::<Vec<_>>())
    };
    let made = group("ada", "add", &["bob@example.org", &eve, "--json"]);
    assert_eq!(made.succeeded().json()["members"], serde_json::json!([eve, "bob@example.org"]));
    assert_eq!(group("eve", "show", &[]).succeeded().stdout, format!("{eve}\nbob@example.org\n"));
    group("cleo", "show", &[]).failed(3, &["not registered"]);
    group("ada", "remove", &[&eve]).succeeded();
    assert_eq!(group("bob", "show", &[]).succeeded().stdout, "bob@example.org\n");
    group("eve", "show", &[]).failed(3, &["not registered"]);
    group("bob", "add", &[&eve, "--readers", "any"]).failed(5, &["another key"]);
    world.run("bob", &["pipe", TEAM]).failed(2, &[TEAM, "is a group"]);
    let expose = ["expose", TEAM, "--to", "127.0.0.1:9", "--allow", "any"];
    world.run("ada", &expose).failed(5, &[TEAM, "stands for a group", "another name"]);
    assert_eq!(group("bob", "show", &[]).succeeded().stdout, "bob@example.org\n", "it is as it was");
    world.run("ada", &["names", "group", "show", "bob@example.org"]).failed(2, &["is no group"]);
    world
        .run("ada", &["names", "group", "add", "ada@example.org", &eve])
        .failed(2, &["team.ada@example.org"]);
    let found = world.run("bob", &["names", "lookup", TEAM]).succeeded().stdout.clone();
    assert!(found.ends_with("group of bob@example.org\n"), "{found}");
}

#[test]
fn a_limit_that_the_operator_sets_acts() {
    let mut world = World::new();
    let _names = world.serve_names(&["--limit", "names=1", "--limit", "mails-per-hour=2"]);
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    world.id("bob");
    world.run("bob", &["id", "register", "bob@example.org", "-q"]).failed(5, &["the name service is full"]);
    // A user who is registered already keeps the name.
    let again = world.run("ada", &["id", "register", "ada@example.org", "--json"]);
    assert_eq!(again.succeeded().json()["new"], false);
}

#[test]
fn a_limit_that_is_none_or_out_of_range_is_refused_with_what_to_do() {
    let world = World::new();
    for (wrong, says) in [
        ("mails-per-hour", "NAME=VALUE"),
        ("letters-per-hour=5", "whimbrel help service-limits"),
        ("mails-per-hour=0", "a whole number from 1 to 1000"),
        ("mails-per-hour=1001", "a whole number from 1 to 1000"),
        ("mails-per-hour=many", "a whole number from 1 to 1000"),
        ("names=-1", "a whole number from 1 to 1000000000"),
        ("days-held=99999999999999999999", "a whole number from 1 to 365"),
    ] {
        let args = ["names", "serve", "--ephemeral", "--port", "0", "--limit", wrong];
        world.run("names", &args).failed(2, &[says, "--limit"]);
    }
}
