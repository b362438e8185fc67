//! A name service that lies, and strangers that try to get in: what is promised of names, attacked with real
//! services and real impostors.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{ChildStdin, Stdio};
use std::time::{Duration, Instant};

use crate::common::{self, LIMIT, Process, World, page, shouting_server};
use rustix::process::Signal;

const NAME: &str = "web.ada@example.org";

fn expose(world: &World, user: &str, to: &str, allow: &str) -> Process {
    let mut expose = world.start(user, &["expose", NAME, "--to", to, "--allow", allow, "--json"]);
    expose.next_json();
    expose
}

/// The service forgets everything, and keeps its key and its port.
fn reset(world: &mut World, mut names: Process) -> Process {
    let port = world.service().rsplit(':').next().unwrap().to_owned();
    names.kill();
    fs::remove_file(world.path("names.redb")).unwrap();
    world.serve_names(&["--port", &port])
}

#[test]
fn a_service_that_was_reset_redirects_nobody_to_an_impostor() {
    let (mut world, names) = World::with_names();
    let mut honest = expose(&world, "ada", &page("honest"), "any");
    let first = world.run("bob", &["pipe", NAME]);
    assert_eq!(first.succeeded().stdout.trim(), "honest");
    assert!(first.stderr.contains("met for the first time"), "{}", first.stderr);
    let again = world.run("bob", &["pipe", NAME]);
    assert!(!again.stderr.contains("met for"), "{}", again.stderr);

    honest.kill();
    let _names = reset(&mut world, names);
    let _impostor = expose(&world, "eve", &page("impostor"), "any");
    let (ada, eve) = (world.id("ada"), world.id("eve"));
    let refused = world.run("bob", &["pipe", NAME, "-q"]);
    let says: [&str; 6] =
        ["ANOTHER KEY", "ada@example.org", "known here since 20", &ada, &eve, "whimbrel trust accept"];
    refused.failed(6, &says);
    assert_eq!(refused.stdout, "");
    world.run("bob", &["names", "lookup", NAME, "-q"]).failed(6, &["ANOTHER KEY"]);
    // Somebody who never met the name is not protected, and a pin that came from outside protects.
    assert_eq!(world.run("carol", &["pipe", NAME]).succeeded().stdout.trim(), "impostor");
    let pinned = format!("ada@example.org={ada}");
    world
        .run("dave", &["pipe", NAME, "--pin", &pinned, "-q"])
        .failed(6, &["ANOTHER KEY", "by your own word"]);
    let pinned = format!("{NAME}={ada}");
    world.run("erin", &["pipe", &pinned, "-q"]).failed(6, &["ANOTHER KEY"]);
    fs::write(world.config("frank", "config.toml"), format!("pin = [\"ada@example.org={ada}\"]\n")).unwrap();
    world.run("frank", &["pipe", NAME, "-q"]).failed(6, &["ANOTHER KEY", "by your own word"]);
    // What is accepted by hand is used.
    world.run("bob", &["trust", "accept", &format!("ada@example.org={eve}")]).succeeded();
    assert_eq!(world.run("bob", &["pipe", NAME]).succeeded().stdout.trim(), "impostor");
}

#[test]
fn a_service_restored_from_a_backup_brings_no_old_record_back() {
    let (mut world, mut names) = World::with_names();
    let port = world.service().rsplit(':').next().unwrap().to_owned();
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    let backup = world.path("backup.redb");
    let mut first = expose(&world, "ada", &page("old"), "any");
    first.kill();
    names.signal(Signal::TERM);
    names.finish(LIMIT).succeeded();
    fs::copy(world.path("names.redb"), &backup).unwrap();
    let names = world.serve_names(&["--port", &port]);
    let mut second = expose(&world, "ada", &page("new"), "any");
    assert_eq!(world.run("bob", &["pipe", NAME]).succeeded().stdout.trim(), "new");
    second.kill();
    drop(names);
    fs::copy(&backup, world.path("names.redb")).unwrap();
    let _names = world.serve_names(&["--port", &port]);
    world.run("bob", &["pipe", NAME, "-q"]).failed(6, &["old record", NAME]);
}

#[test]
fn a_name_that_nobody_confirmed_grants_no_access() {
    let (world, _names) = World::with_names();
    world.run("bob", &["id", "register", "bob@example.org"]).succeeded();
    let to = page("secret");
    // Even when it was met before.
    world.run("ada", &["names", "lookup", "bob@example.org"]).succeeded();
    let args = ["expose", NAME, "--to", &to, "--allow", "bob@example.org", "-q"];
    world.run("ada", &args).failed(6, &["bob@example.org=ID", "grants no access"]);
    let pinned = format!("bob@example.org={}", world.id("bob"));
    let _ada = expose(&world, "ada", &to, &pinned);
    assert_eq!(world.run("bob", &["pipe", NAME]).succeeded().stdout.trim(), "secret");
    world.run("eve", &["pipe", NAME, "-q"]).failed(3, &[]);
}

#[test]
fn who_is_no_reader_can_neither_look_a_name_up_nor_watch_it() {
    let (world, _names) = World::with_names();
    world.run("bob", &["id", "register", "bob@example.org"]).succeeded();
    let watch = |user: &str| world.start(user, &["names", "watch", NAME, "--json", "-q"]);
    world.id("eve");
    let (mut bobs, eves) = (watch("bob"), watch("eve"));
    let to = page("hello");
    let shown = "bob@example.org";
    let args = ["expose", NAME, "--to", &to, "--allow", "any", "--readers", shown, "--json"];
    let mut ada = world.start("ada", &args);
    ada.next_json();
    assert_eq!(world.run("bob", &["pipe", NAME]).succeeded().stdout.trim(), "hello");
    world.run("ada", &["names", "lookup", NAME]).succeeded();
    world.run("eve", &["names", "lookup", NAME, "-q"]).failed(3, &[NAME, "not registered"]);
    world.run("eve", &["pipe", NAME, "-q"]).failed(3, &[NAME]);
    assert_eq!(bobs.next_json()["revoked"], false);
    ada.signal(Signal::TERM);
    ada.output(LIMIT).succeeded();
    assert_eq!(bobs.next_json()["revoked"], true);
    // A peer that may read has heard of both by now.
    eves.signal(Signal::INT);
    assert_eq!(eves.output(LIMIT).succeeded().stdout, "");
    world
        .run("ada", &["expose", "--ticket", "--to", &to, "--allow", "any", "--readers", shown])
        .failed(2, &["--readers", "NAME"]);
}

/// Without --readers a name is shown to those who are let in, however the list changes.
#[test]
fn a_stranger_that_is_not_let_in_can_neither_look_the_name_up_nor_watch_it() {
    let (world, _names) = World::with_names();
    let (bob, eve) = (world.id("bob"), world.id("eve"));
    let file = world.path("friends");
    fs::write(&file, "").unwrap();
    let watch = |user: &str| world.start(user, &["names", "watch", NAME, "--json", "-q"]);
    let (mut bobs, mut eves) = (watch("bob"), watch("eve"));
    let to = page("hello");
    let args = ["--to", &to, "--allow", &bob, "--allow-from", file.to_str().unwrap(), "--json"];
    let mut ada = world.start("ada", &[&["expose", NAME], &args[..]].concat());
    ada.next_json();
    assert_eq!(bobs.next_json()["revoked"], false);
    assert_eq!(world.run("bob", &["pipe", NAME]).succeeded().stdout.trim(), "hello");
    world.run("ada", &["names", "lookup", NAME]).succeeded();
    // A device of hers is not let in, and sees the name.
    let word = world.run("ada", &["id", "delegate", "laptop.ada@example.org", "--to", &world.id("laptop")]);
    world.run("laptop", &["id", "accept", word.succeeded().stdout.trim()]).succeeded();
    let args = ["receive", "--as", "laptop.ada@example.org", "--allow", "any", "--json"];
    world.start("laptop", &args).next_json();
    world.run("laptop", &["names", "lookup", NAME]).succeeded();

    let hidden = world.run("eve", &["names", "lookup", NAME, "-q"]);
    hidden.failed(3, &[NAME, "not registered"]);
    let nobody = world.run("eve", &["names", "lookup", "web.nobody@example.org", "-q"]);
    assert_eq!(hidden.stderr, nobody.stderr.replace("web.nobody@example.org", NAME));
    world.run("eve", &["pipe", NAME, "-q"]).failed(3, &[NAME]);

    // Her friend's id comes into the file, and goes.
    fs::write(&file, format!("{eve}\n")).unwrap();
    assert_eq!(eves.next_json()["revoked"], false);
    assert_eq!(world.run("eve", &["pipe", NAME]).succeeded().stdout.trim(), "hello");
    fs::write(&file, "").unwrap();
    common::wait_for("the name to be hidden again", || {
        (world.run("eve", &["names", "lookup", NAME, "-q"]).status.code() == Some(3)).then_some(())
    });
    ada.signal(Signal::TERM);
    ada.output(LIMIT).succeeded();
    assert_eq!(bobs.next_json()["revoked"], true);
    // A peer that may read has heard of the end by now.
    eves.signal(Signal::INT);
    assert_eq!(eves.output(LIMIT).succeeded().stdout, "");
}

#[test]
fn more_friends_than_a_record_can_name_need_a_word_about_readers() {
    let (world, _names) = World::with_names();
    let ids = |count: u8| {
        let id = |seed: u8| format!("{}\n", whimbrel_base::SecretKey::from_bytes(&[seed; 32]).id());
        (1..=count).map(id).collect::<String>()
    };
    let file = world.path("friends");
    fs::write(&file, ids(32)).unwrap();
    let args = ["expose", NAME, "--to", "127.0.0.1:1", "--allow-from", file.to_str().unwrap()];
    world.id("ada");
    world.run("ada", &args).failed(2, &["31", "--readers any"]);
    world.run("ada", &["names", "lookup", NAME, "-q"]).failed(3, &[NAME]);
    for readers in ["any", "bob@example.org"] {
        let mut ada = world.start("ada", &[&args[..], &["--readers", readers, "--json"]].concat());
        ada.next_json();
        let code = world.run("eve", &["names", "lookup", NAME, "-q"]).status.code();
        assert_eq!(code, Some(if readers == "any" { 0 } else { 3 }));
    }
    // A list that grows too long while the command runs changes nothing.
    fs::write(&file, ids(31)).unwrap();
    let mut ada = world.start("ada", &[&args[..], &["--json"]].concat());
    ada.next_json();
    fs::write(&file, ids(32)).unwrap();
    ada.until_said("the entries from before stay in force", 1);
    world.run("eve", &["names", "lookup", NAME, "-q"]).failed(3, &[NAME]);
}

#[test]
fn access_by_name_never_follows_a_new_owner() {
    let (mut world, names) = World::with_names();
    let bob = world.id("bob");
    world.run("bob", &["id", "register", "bob@example.org"]).succeeded();
    world.run("ada", &["trust", "accept", &format!("bob@example.org={bob}")]).succeeded();
    let allowed = "phone.bob@example.org";
    let args = ["expose", NAME, "--to", &page("secret"), "--allow", allowed, "--json", "-v"];
    let mut ada = world.start("ada", &args);
    ada.next_json();
    let _bob = world.start("bob", &["receive", "--as", "phone.bob@example.org", "--allow", "any", "--json"]);
    common::wait_for("bob's phone to be let in", || {
        (world.run("bob", &["pipe", NAME]).stdout.trim() == "secret").then_some(())
    });
    // Eve takes bob's names at a service that was reset.
    let _names = reset(&mut world, names);
    let mut eve =
        world.start("eve", &["receive", "--as", "phone.bob@example.org", "--allow", "any", "--json"]);
    eve.next_json();
    // It was pushed to ada, and not used.
    ada.until_said("a record was pushed that must not be used", 1);
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    common::wait_for("ada's name to be there again", || {
        world.run("eve", &["names", "lookup", NAME]).status.success().then_some(())
    });
    world.run("eve", &["pipe", NAME, "-q"]).failed(5, &[]);
    ada.kill();
}

/// Begins to talk with a shouting server.
fn talk(world: &World, user: &str) -> (Process, ChildStdin) {
    let mut pipe = Process::start(world.command(user, &["pipe", NAME]).stdin(Stdio::piped()));
    let mut input = pipe.child.stdin.take().unwrap();
    writeln!(input, "hello").unwrap();
    assert_eq!(pipe.line(), "HELLO");
    (pipe, input)
}

#[test]
fn who_is_removed_from_the_allow_file_is_out_within_a_second() {
    let (world, _names) = World::with_names();
    let (bob, carol) = (world.id("bob"), world.id("carol"));
    let file = world.path("friends");
    fs::write(&file, format!("{bob} # bob\n{carol}\n")).unwrap();
    let to = shouting_server().to_string();
    let args = ["expose", NAME, "--to", &to, "--allow-from", file.to_str().unwrap(), "--json"];
    let mut ada = world.start("ada", &args);
    ada.next_json();
    let (mut removed, _input) = talk(&world, "bob");
    let (mut stays, mut input) = talk(&world, "carol");
    fs::write(&file, format!("{carol}\n")).unwrap();
    let start = Instant::now();
    assert_ne!(removed.finish(LIMIT).status.code(), Some(0));
    // A second for the file, and one for a busy machine.
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    common::wait_for("the name to be hidden", || {
        (world.run("bob", &["pipe", NAME, "-q"]).status.code() == Some(3)).then_some(())
    });
    writeln!(input, "still").unwrap();
    assert_eq!(stays.line(), "STILL");
    // A mistake in the file changes nothing.
    fs::write(&file, "nonsense\n").unwrap();
    std::thread::sleep(Duration::from_secs(1));
    writeln!(input, "here").unwrap();
    assert_eq!(stays.line(), "HERE");
}

/// Tells a command that was started with --address where it is now; nowhere if there is no address.
fn move_to(world: &World, user: &str, process: &Process, address: Option<&str>) {
    let socket = world.path(user).join(format!("run/whimbrel/{}.sock", process.child.id()));
    let mut socket = UnixStream::connect(socket).unwrap();
    writeln!(socket, "{}", serde_json::json!({ "addresses": address.as_slice() })).unwrap();
    socket.read_to_string(&mut String::new()).unwrap();
}

/// What is cut off hears of no end, and comes back with a JOIN. That of somebody who stayed on the list is
/// accepted.
#[test]
fn who_is_removed_while_out_of_reach_cannot_join_again() {
    let (world, _names) = World::with_names();
    let (bob, carol) = (world.id("bob"), world.id("carol"));
    let file = world.path("friends");
    fs::write(&file, format!("{bob}\n{carol}\n")).unwrap();
    let to = shouting_server().to_string();
    let args = ["expose", NAME, "--to", &to, "--allow-from", file.to_str().unwrap(), "--json", "-v"];
    let mut ada = world.start("ada", &args);
    ada.next_json();
    let (mut removed, mut bobs) = talk(&world, "bob");
    let (mut stays, mut carols) = talk(&world, "carol");
    move_to(&world, "bob", &removed, None);
    move_to(&world, "carol", &stays, None);
    fs::write(&file, format!("{carol}\n")).unwrap();
    ada.until_said("no longer let in", 1);
    assert!(removed.child.try_wait().unwrap().is_none(), "it has heard of nothing");
    move_to(&world, "carol", &stays, Some(&world.address("elsewhere")));
    writeln!(carols, "still").unwrap();
    assert_eq!(stays.line(), "STILL");
    move_to(&world, "bob", &removed, Some(&world.address("other")));
    // It may end before it has taken this in.
    let _ = writeln!(bobs, "let me in");
    let ended = removed.finish(LIMIT);
    assert_ne!(ended.status.code(), Some(0));
    assert_eq!(ended.stdout, "");
}

#[test]
fn a_new_key_of_a_device_that_the_owner_signed_is_told_once() {
    let (world, _names) = World::with_names();
    let (device, service) = ("laptop.ada@example.org", "ssh.laptop.ada@example.org");
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    let serve = |by: &str| {
        let word = world.run("ada", &["id", "delegate", device, "--to", &world.id(by)]);
        world.run(by, &["id", "accept", word.succeeded().stdout.trim()]).succeeded();
        let mut running =
            world.start(by, &["expose", service, "--to", &page("here"), "--allow", "any", "--json"]);
        running.next_json();
        running
    };
    let told = || {
        let pipe = world.run("bob", &["pipe", service]);
        assert_eq!(pipe.succeeded().stdout.trim(), "here");
        pipe.stderr.matches("another key than before, signed by its owner").count()
    };
    let mut first = serve("laptop");
    assert_eq!(told(), 0);
    first.kill();
    // The delegation that was made last wins, and delegations tell seconds apart.
    std::thread::sleep(Duration::from_millis(1100));
    let _second = serve("tablet");
    assert_eq!((told(), told()), (1, 0));
}

#[test]
fn what_is_known_is_shown_and_forgotten() {
    let (world, _names) = World::with_names();
    let _ada = expose(&world, "ada", &page("x"), "any");
    let ada = world.id("ada");
    assert!(world.run("bob", &["trust", "show"]).succeeded().stdout.contains("no names"));
    world.run("bob", &["pipe", NAME]).succeeded();
    let text = world.run("bob", &["trust", "show"]).succeeded().stdout.clone();
    assert_eq!(text.lines().filter(|line| line.contains("first-use since 20")).count(), 2, "{text}");
    let shown = world.run("bob", &["trust", "show", "ada@example.org", "--json"]);
    let shown = shown.succeeded().json();
    assert_eq!(shown["owners"][0]["key"], ada);
    assert_eq!(shown["owners"][0]["origin"], "first-use");
    assert_eq!(shown["endpoints"][0]["name"], NAME);
    world.run("bob", &["trust", "forget", "ada@example.org"]).succeeded();
    world.run("bob", &["trust", "show", "ada@example.org"]).failed(3, &["not known"]);
    world.run("bob", &["trust", "forget", "ada@example.org"]).failed(3, &["not known"]);
    // The owner's own name is its own, whatever a service says.
    let own = world.run("ada", &["trust", "show", "ada@example.org", "--json"]).succeeded().json();
    assert_eq!(own["owners"][0]["origin"], "own");
}

#[test]
fn a_damaged_file_of_known_peers_is_told_and_nothing_is_trusted() {
    let (world, _names) = World::with_names();
    let _ada = expose(&world, "ada", &page("x"), "any");
    fs::write(world.config("bob", "known_peers"), "something else\n").unwrap();
    world.id("bob");
    let refused = world.run("bob", &["pipe", NAME, "-q"]);
    refused.failed(6, &["known_peers:1:", "damaged"]);
}

#[test]
fn a_lost_laptop_loses_its_names_and_its_connections() {
    let (world, _names) = World::with_names();
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    let laptop = world.id("laptop");
    let word = world.run("ada", &["id", "delegate", "laptop.ada@example.org", "--to", &laptop]);
    world.run("laptop", &["id", "accept", word.succeeded().stdout.trim()]).succeeded();
    // The laptop has a service, and is let in at bob's by its name.
    let args = ["expose", "ssh.laptop.ada@example.org", "--to", &page("x"), "--allow", "any", "--json"];
    let mut service = world.start("laptop", &args);
    service.next_json();
    let device = ["receive", "--as", "laptop.ada@example.org", "--allow", "any", "--json"];
    let mut device = world.start("laptop", &device);
    device.next_json();
    let (name, owner) = ("web.bob@example.org", format!("ada@example.org={}", world.id("ada")));
    let (to, allowed) = (shouting_server().to_string(), "laptop.ada@example.org");
    let args = ["expose", name, "--to", &to, "--allow", allowed, "--pin", &owner, "--json", "-q"];
    let mut bob = world.start("bob", &args);
    bob.next_json();
    let mut pipe = common::wait_for("the laptop to be let in", || {
        let mut pipe = Process::start(world.command("laptop", &["pipe", name, "-q"]).stdin(Stdio::piped()));
        let mut input = pipe.child.stdin.take().unwrap();
        writeln!(input, "hello").unwrap();
        pipe.try_line().map(|line| (line, pipe, input))
    });
    assert_eq!(pipe.0, "HELLO");

    world.run("ada", &["id", "revoke", "laptop.ada@example.org"]).succeeded();
    let start = Instant::now();
    assert_ne!(pipe.1.finish(LIMIT).status.code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    world.run("laptop", &["pipe", name, "-q"]).failed(3, &[]);
    for lost in ["laptop.ada@example.org", "ssh.laptop.ada@example.org"] {
        world.run("carol", &["names", "lookup", lost, "-q"]).failed(3, &[lost]);
    }
    // Nobody but the user's key does so.
    world.run("eve", &["id", "revoke", "phone.ada@example.org", "-q"]).failed(5, &["phone.ada@example.org"]);
}
