//! Delegations that are renewed where the user's key is, and those that must not be.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::{ChildStdin, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common::{LIMIT, Process, World, dead_port, shouting_server, wait_for};
use rustix::process::Signal;

const LAPTOP: &str = "laptop.ada@example.org";
const SSH: &str = "ssh.laptop.ada@example.org";

/// Unix seconds.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Ada delegates the laptop for so long, which accepts. Returns when that ends.
fn delegate(world: &World, time: &str) -> u64 {
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    let laptop = world.id("laptop");
    let word = world.run("ada", &["id", "delegate", LAPTOP, "--to", &laptop, "--for", time, "--json"]);
    let word = word.succeeded().json();
    world.run("laptop", &["id", "accept", word["delegation"].as_str().unwrap()]).succeeded();
    word["expires"].as_u64().unwrap()
}

/// A service on the laptop.
fn expose(world: &World) -> Process {
    let to = dead_port().to_string();
    let mut running = world.start("laptop", &["expose", SSH, "--to", &to, "--allow", "any", "--json"]);
    running.next_json();
    running
}

/// Ada's desk, with a command that lasts.
fn desk(world: &World) -> Process {
    let to = dead_port().to_string();
    let args = ["expose", "web.desk.ada@example.org", "--to", &to, "--allow", "any", "--json"];
    let mut running = world.start("ada", &args);
    running.next_json();
    running
}

fn is_found(world: &World) -> bool {
    world.run("carol", &["names", "lookup", SSH, "-q"]).status.success()
}

/// The state of the laptop in a user's registry.
fn state(world: &World, user: &str) -> String {
    let devices = world.run(user, &["id", "devices", "--json"]).succeeded().json();
    let device =
        devices["devices"].as_array().unwrap().iter().find(|device| device["name"] == LAPTOP).unwrap();
    device["state"].as_str().unwrap().to_owned()
}

/// Stops the service, does something with its store, and starts it again at the same place.
fn restart(world: &mut World, names: Process, between: impl FnOnce(&World)) -> Process {
    let port = world.service().rsplit(':').next().unwrap().to_owned();
    names.signal(Signal::TERM);
    names.output(LIMIT).succeeded();
    between(world);
    world.serve_names(&["--port", &port])
}

fn backed_up(world: &mut World, names: Process) -> Process {
    let copy = |world: &World| assert!(fs::copy(world.path("names.redb"), world.path("backup")).unwrap() > 0);
    restart(world, names, copy)
}

/// The service as it was when it was backed up, with the same key at the same place.
fn restored(world: &mut World, names: Process) -> Process {
    let copy = |world: &World| assert!(fs::copy(world.path("backup"), world.path("names.redb")).unwrap() > 0);
    restart(world, names, copy)
}

#[test]
fn a_renewer_keeps_a_devices_name_alive_without_a_restart() {
    let (world, _names) = World::with_names();
    let until = delegate(&world, "16s");
    let _desk = desk(&world);
    let mut laptop = expose(&world);
    let file = world.config("laptop", "delegations").join(LAPTOP);
    let first = fs::read_to_string(&file).unwrap();
    let before = fs::metadata(&file).unwrap().mode() & 0o777;
    while now() < until + 6 {
        assert!(is_found(&world), "{} seconds before the first end", until as i64 - now() as i64);
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(laptop.child.try_wait().unwrap().is_none(), "it was never restarted");
    assert_ne!(fs::read_to_string(&file).unwrap(), first, "what comes next starts with the newer one");
    assert_eq!((before, fs::metadata(&file).unwrap().mode() & 0o777), (0o600, 0o600));
    let devices = world.run("ada", &["id", "devices", "--json"]).succeeded().json();
    assert!(devices["devices"][0]["until"].as_u64().unwrap() > until);
    assert_eq!(devices["devices"][0]["renewed_by"], "this machine");
}

#[test]
fn a_device_that_was_off_starts_with_what_was_renewed_meanwhile() {
    let (world, _names) = World::with_names();
    let until = delegate(&world, "8s");
    let _desk = desk(&world);
    while now() <= until {
        std::thread::sleep(Duration::from_millis(200));
    }
    let _laptop = expose(&world);
    assert!(is_found(&world));
}

/// The service is put back to the state before the revocation: it serves the lost laptop as if nothing were.
#[test]
fn a_service_that_withholds_a_revocation_gains_no_more_than_the_delegations_time() {
    let (mut world, names) = World::with_names();
    let until = delegate(&world, "25s");
    let _laptop = expose(&world);
    let names = backed_up(&mut world, names);
    world.run("ada", &["id", "revoke", LAPTOP, "-q"]).succeeded();
    assert!(!is_found(&world));
    let _names = restored(&mut world, names);
    wait_for("the lost laptop to be there again", || is_found(&world).then_some(()));
    assert!(now() < until, "this machine was too busy for the test");
    // Nobody says anything to the service any more; the lost laptop says what it can.
    while now() <= until {
        std::thread::sleep(Duration::from_millis(100));
    }
    for _ in 0..20 {
        assert!(!is_found(&world), "{} seconds behind its end", now() - until);
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Bob's service, which lets the laptop in by its name, and the laptop that talks with it.
struct LetIn {
    _device: Process,
    bob: Process,
    args: Vec<String>,
    ticket: String,
    pipe: Process,
    input: ChildStdin,
}

impl LetIn {
    fn start(world: &World) -> Self {
        let mut device = world.start("laptop", &["receive", "--as", LAPTOP, "--allow", "any", "--json"]);
        device.next_json();
        let (owner, to) = (format!("ada@example.org={}", world.id("ada")), shouting_server().to_string());
        let args = ["expose", "--ticket", "--to", &to, "--allow", LAPTOP, "--pin", &owner, "--json"];
        let args = args.map(str::to_owned).to_vec();
        let mut bob = Self::expose(world, &args);
        let ticket = bob.next_json()["ticket"].as_str().unwrap().to_owned();
        let (pipe, input) = wait_for("the laptop to be let in", || {
            let mut pipe = Process::start(world.command("laptop", &["pipe", &ticket]).stdin(Stdio::piped()));
            let mut input = pipe.child.stdin.take().unwrap();
            let _ = writeln!(input, "hello");
            pipe.try_line().map(|_| (pipe, input))
        });
        Self { _device: device, bob, args, ticket, pipe, input }
    }

    fn expose(world: &World, args: &[String]) -> Process {
        world.start("bob", &args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[track_caller]
    fn talks(&mut self) {
        writeln!(self.input, "still").unwrap();
        assert_eq!(self.pipe.line(), "STILL");
    }

    /// A newer instance of bob's service goes on.
    fn is_taken_over(&mut self, world: &World) {
        let mut newer = Self::expose(world, &[&self.args[..], &["--take-over".to_owned()]].concat());
        newer.next_json();
        self.bob.finish(LIMIT).succeeded();
        self.bob = newer;
    }
}

/// The name service says nothing any more, so nobody hears that the laptop was lost: its time ends by itself,
/// for what it has open as well.
fn out_at_the_end_although_nobody_says_so(time: &str, taken_over: bool) {
    let (world, mut names) = World::with_names();
    let until = delegate(&world, time);
    let mut let_in = LetIn::start(&world);
    names.kill();
    if taken_over {
        let_in.is_taken_over(&world);
    }
    let_in.talks();
    assert!(now() < until, "this machine was too busy for the test");
    assert_ne!(let_in.pipe.finish(2 * LIMIT).status.code(), Some(0));
    assert!(now() >= until, "{} seconds before its end", until - now());
    world.run("laptop", &["pipe", &let_in.ticket, "-q"]).failed(5, &["not on the list"]);
    assert!(let_in.bob.child.try_wait().unwrap().is_none(), "it was never restarted");
}

#[test]
fn who_is_let_in_by_name_stays_while_the_delegation_is_renewed() {
    let (world, _names) = World::with_names();
    let until = delegate(&world, "16s");
    let _desk = desk(&world);
    let mut let_in = LetIn::start(&world);
    while now() < until + 4 {
        let_in.talks();
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(let_in.pipe.child.try_wait().unwrap().is_none());
}

#[test]
fn who_is_let_in_by_name_is_out_when_the_delegation_ends_although_nobody_says_so() {
    out_at_the_end_although_nobody_says_so("30s", false);
}

#[test]
fn the_end_of_a_delegation_is_known_to_the_instance_that_takes_over() {
    out_at_the_end_although_nobody_says_so("50s", true);
}

#[test]
fn a_revocation_that_the_service_lost_is_said_again_by_the_renewer() {
    let (mut world, names) = World::with_names();
    delegate(&world, "7d");
    let _laptop = expose(&world);
    let names = backed_up(&mut world, names);
    world.run("ada", &["id", "revoke", LAPTOP, "-q"]).succeeded();
    let again = world.run("ada", &["id", "renew"]).succeeded().stdout.clone();
    assert_eq!(again.trim(), "nothing is due");
    let _names = restored(&mut world, names);
    wait_for("the lost laptop to be there again", || is_found(&world).then_some(()));
    let again = world.run("ada", &["id", "renew"]).succeeded().stdout.clone();
    assert!(again.contains("revoked again"), "{again}");
    assert!(!is_found(&world));
}

/// The same key on a second machine, which delegated the laptop too and does not hear of its loss.
#[test]
fn a_revoked_device_is_renewed_by_nobody_not_even_a_second_machine_of_its_user() {
    let (world, _names) = World::with_names();
    let until = delegate(&world, "10s");
    let key = fs::read(world.config("ada", "identity")).unwrap();
    let second = world.config("second", "identity");
    fs::write(&second, key).unwrap();
    fs::set_permissions(&second, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let registry = world.config("ada", "identity.devices");
    fs::copy(&registry, world.config("second", "identity.devices")).unwrap();
    assert_eq!(fs::metadata(&registry).unwrap().mode() & 0o777, 0o600);
    let _laptop = expose(&world);
    world.run("ada", &["id", "revoke", LAPTOP, "-q"]).succeeded();
    assert_eq!((state(&world, "ada"), state(&world, "second")), ("revoked".into(), "renewed".into()));
    let renewers = [desk(&world), {
        let to = dead_port().to_string();
        world.start(
            "second",
            &["expose", "web.second.ada@example.org", "--to", &to, "--allow", "any", "--json"],
        )
    }];
    wait_for("the second machine to hear of it", || {
        assert!(!is_found(&world));
        (state(&world, "second") == "revoked_elsewhere").then_some(())
    });
    while now() < until + 3 {
        assert!(!is_found(&world));
        std::thread::sleep(Duration::from_millis(200));
    }
    drop(renewers);
    let held = fs::read_to_string(world.config("laptop", "delegations").join(LAPTOP)).unwrap();
    let expose = ["expose", SSH, "--to", "127.0.0.1:1", "--allow", "any", "-q"];
    world.run("laptop", &expose).failed(1, &["expired", "id delegate"]);
    assert_eq!(fs::read_to_string(world.config("laptop", "delegations").join(LAPTOP)).unwrap(), held);
}

#[test]
fn a_revocation_of_what_was_delegated_elsewhere_says_so() {
    let (world, _names) = World::with_names();
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    let revoked = world.run("ada", &["id", "revoke", "phone.ada@example.org"]);
    assert!(revoked.succeeded().stderr.contains("not delegated on this machine"), "{}", revoked.stderr);
    let devices = world.run("ada", &["id", "devices", "--json"]).succeeded().json();
    assert_eq!(devices["devices"][0]["state"], "revoked");
    assert!(devices["devices"][0]["id"].is_null());
}

#[test]
fn a_damaged_registry_is_told_and_keeps_nobody_from_revoking() {
    let (world, _names) = World::with_names();
    delegate(&world, "7d");
    let _laptop = expose(&world);
    let registry = world.config("ada", "identity.devices");
    let damaged = &fs::read_to_string(&registry).unwrap()[..40];
    fs::write(&registry, damaged).unwrap();
    for args in
        [&["id", "devices"][..], &["id", "renew"], &["id", "delegate", LAPTOP, "--to", &world.id("laptop")]]
    {
        world.run("ada", args).failed(1, &["identity.devices is damaged", "restore it"]);
    }
    assert!(is_found(&world));
    world
        .run("ada", &["id", "revoke", LAPTOP, "-q"])
        .failed(1, &["is revoked", "identity.devices is damaged"]);
    assert!(!is_found(&world));
    assert_eq!(fs::read_to_string(&registry).unwrap(), damaged);
}

#[test]
fn what_ends_within_two_days_is_told_with_what_to_do() {
    let (world, _names) = World::with_names();
    delegate(&world, "3s");
    std::thread::sleep(Duration::from_millis(3100));
    for user in ["ada", "laptop"] {
        let shown = world.run(user, &["id", "devices"]);
        assert!(shown.succeeded().stderr.contains("whimbrel id renew"), "{}", shown.stderr);
        let doctor = world.run(user, &["doctor", "--json"]);
        assert!(doctor.stdout.contains("whimbrel id renew"), "{}", doctor.stdout);
    }
    let long = world.run("ada", &["id", "delegate", LAPTOP, "--to", &world.id("laptop"), "--for", "366d"]);
    long.failed(2, &["365 days"]);
}

#[test]
fn a_running_command_signs_the_groups_of_its_user_anew_and_forgets_those_that_are_gone() {
    const TEAM: &str = "team.ada@example.org";
    let (world, _names) = World::with_names();
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    let ledger = world.config("ada", "identity.groups");
    let groups = || -> Vec<serde_json::Value> {
        let text: serde_json::Value = serde_json::from_str(&fs::read_to_string(&ledger).unwrap()).unwrap();
        text["groups"].as_array().unwrap().clone()
    };
    for group in [TEAM, "old.ada@example.org"] {
        let made = ["names", "group", "add", group, "bob@example.org", "--readers", "any"];
        world.run("ada", &made).succeeded();
    }
    world.run("ada", &["id", "revoke", "old.ada@example.org"]).succeeded();
    let found = || world.run("carol", &["names", "lookup", TEAM, "--json"]).succeeded().json();
    let before = found();
    // As if both had been signed long ago.
    let signed = |group: &serde_json::Value| group["signed"].as_u64().unwrap();
    let mut text = fs::read_to_string(&ledger).unwrap();
    for group in groups() {
        text = text.replace(&signed(&group).to_string(), "1700000000");
    }
    fs::write(&ledger, text).unwrap();
    let _desk = desk(&world);
    wait_for("a new record", || match &groups()[..] {
        [team] => (team["name"] == TEAM && signed(team) > 1_700_000_000).then_some(()),
        _ => None,
    });
    let after = found();
    assert!(after["sequence"].as_u64() > before["sequence"].as_u64(), "{after}");
    assert_eq!(after["members"], before["members"]);
}
