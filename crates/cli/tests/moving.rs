//! What runs on one device goes on at another one of the user, without a gateway: real processes, whose peers
//! notice nothing, and devices that mean no good.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::Ordering;

use crate::common::{LIMIT, World, length, shouting_server, wait_for};
use crate::typed::{Film, LARGE, Typed, expose, hand_off, session, sum, take};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel::Ticket;
use whimbrel::transport::ManualMonitor;

/// A command whose output is not read line by line, but goes to a file or is left.
struct IntoFile(Child);

impl IntoFile {
    fn start(world: &World, user: &str, args: &[&str], file: &str) -> (Self, ChildStdin) {
        let output = File::create(world.path(file)).unwrap();
        let mut command = world.command(user, args);
        let mut child = command.stdin(Stdio::piped()).stdout(output).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        (Self(child), input)
    }

    #[track_caller]
    fn succeeded(mut self) {
        let status = wait_for("the end of a command", || self.0.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }
}

impl Drop for IntoFile {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_pipe_goes_on_at_the_desk_while_data_flows_and_no_byte_is_lost_or_doubled_in_either_direction() {
    let world = World::new();
    let film = Film::default();
    let (_expose, ticket) = expose(&world, film.start(), &["phone", "desk"]);
    let (phone, mut typed) = IntoFile::start(&world, "phone", &["pipe", &ticket], "first");
    typed.write_all(b"from the phone\n").unwrap();
    wait_for("the beginning", || (length(&world.path("first")) > 100_000).then_some(()));
    let seen = session(&world, "phone");
    assert_eq!(seen["command"], "pipe");
    assert!(seen["down"].as_u64().unwrap() > 100_000, "{seen}");
    // It flows before the move, during it and after it.
    film.slowly.store(true, Ordering::SeqCst);
    film.may_go_on.store(true, Ordering::SeqCst);
    let given = hand_off(&world, "phone", &world.id("desk"));
    let (desk, mut more) = IntoFile::start(&world, "desk", &take(&given), "second");
    phone.succeeded();
    film.slowly.store(false, Ordering::SeqCst);
    more.write_all(b"from the desk\n").unwrap();
    drop(more);
    desk.succeeded();
    let [first, second] = ["first", "second"].map(|part| fs::read(world.path(part)).unwrap());
    assert!(first.len() > 100_000 && !second.is_empty(), "{} and {}", first.len(), second.len());
    let joined = [first, second].concat();
    assert_eq!((joined.len(), sum(&joined)), (LARGE, sum(&Film::bytes())));
    wait_for("what was typed", || {
        let heard = film.heard.lock().unwrap();
        assert!(
            b"from the phone\nfrom the desk\n".starts_with(&heard),
            "{:?}",
            String::from_utf8_lossy(&heard)
        );
        (heard.len() == 29).then_some(())
    });
    assert_eq!(film.connections.load(Ordering::SeqCst), 1, "the server saw one connection");
}

#[test]
fn a_pipe_goes_back_and_forth_ten_times_and_its_peer_has_one_connection() {
    let world = World::new();
    let (_expose, ticket) = expose(&world, shouting_server(), &["phone", "desk"]);
    let mut here = Typed::start(&world, "phone", &["pipe", &ticket]);
    let (mut at, mut other) = ("phone", "desk");
    for round in 0..10 {
        here.shouts(&format!("round {round}"));
        let to = world.id(other);
        let given = hand_off(&world, at, &to);
        let next = Typed::start(&world, other, &take(&given));
        here.went_on_at(&to);
        here = next;
        (at, other) = (other, at);
    }
    here.shouts("at last");
    let status = world.run("home", &["status", "--json"]).succeeded().json();
    let connections = status[0]["connections"].as_array().unwrap();
    assert_eq!(connections.len(), 1, "{status}");
    assert_eq!(connections[0]["peer"], world.id(at));
    let Typed { process, input } = here;
    drop(input);
    assert_eq!(process.output(LIMIT).succeeded().stdout, "THE END\n");
}

#[test]
fn a_strangers_device_an_older_word_and_a_wrong_id_take_nothing() {
    let world = World::new();
    let (_expose, ticket) = expose(&world, shouting_server(), &["phone", "desk"]);
    let (desk, _eve) = (world.id("desk"), world.id("eve"));
    let mut phone = Typed::start(&world, "phone", &["pipe", &ticket]);
    phone.shouts("one");
    let given = hand_off(&world, "phone", &desk);
    world.run("eve", &take(&given)).failed(5, &["not allowed"]);
    let wrong = ("0".repeat(32), given.1.clone());
    world.run("desk", &take(&wrong)).failed(5, &["no such session"]);
    world.run("desk", &["take", "xyz", "--from", &given.1]).failed(2, &["is no session"]);
    world.run("phone", &["handoff", "0000", "--to", &desk]).failed(3, &["no session"]);
    phone.shouts("two");
    // A later word takes the place of an earlier one.
    let other = hand_off(&world, "phone", &world.id("tablet"));
    world.run("desk", &take(&given)).failed(5, &["not allowed"]);
    let back = hand_off(&world, "phone", &desk);
    world.run("tablet", &take(&other)).failed(5, &["not allowed"]);
    let mut at_desk = Typed::start(&world, "desk", &take(&back));
    phone.went_on_at(&desk);
    at_desk.shouts("three");
}

#[test]
fn a_key_that_the_peer_does_not_let_in_gets_nothing_and_the_old_device_goes_on() {
    let world = World::new();
    let (_expose, ticket) = expose(&world, shouting_server(), &["phone", "desk"]);
    let mut phone = Typed::start(&world, "phone", &["pipe", &ticket]);
    phone.shouts("one");
    // As a device that was revoked: it has the word of the device, and not the peer's leave.
    let given = hand_off(&world, "phone", &world.id("revoked"));
    let refused = world.run("revoked", &take(&given));
    assert!(!refused.status.success(), "{}", refused.stderr);
    assert!(refused.stderr.contains("stays at the other device"), "{}", refused.stderr);
    assert_eq!(refused.stdout, "");
    phone.process.until_said("this stays here", 1);
    phone.shouts("two");
    let desk = world.id("desk");
    let given = hand_off(&world, "phone", &desk);
    let mut at_desk = Typed::start(&world, "desk", &take(&given));
    phone.went_on_at(&desk);
    at_desk.shouts("three");
}

#[test]
fn of_two_that_take_a_session_at_once_one_gets_it() {
    let world = World::new();
    let (_expose, ticket) = expose(&world, shouting_server(), &["phone", "desk"]);
    let mut phone = Typed::start(&world, "phone", &["pipe", &ticket]);
    phone.shouts("one");
    let desk = world.id("desk");
    let given = hand_off(&world, "phone", &desk);
    let mut both = [0, 1].map(|_| Typed::start(&world, "desk", &take(&given)));
    phone.went_on_at(&desk);
    // The other one ends by itself, with an error.
    let lost = wait_for("an end", || {
        let ended = both.iter_mut().map(|one| one.process.child.try_wait().unwrap());
        ended.enumerate().find_map(|(which, status)| status.map(|status| (which, status)))
    });
    assert!(!lost.1.success(), "{lost:?}");
    let [one, other] = both;
    let mut winner = if lost.0 == 0 { other } else { one };
    winner.shouts("two");
    winner.shouts("three");
}

/// Asks for a session as a device does, and returns what it is told.
async fn ask(connection: &whimbrel::Connection, id: &str) -> Vec<u8> {
    let mut stream = connection.open_stream().await.unwrap();
    let length = u32::try_from(id.len() + 2).unwrap();
    let ask = [&b"WHN1"[..], &length.to_be_bytes(), &[0, id.len() as u8], id.as_bytes()].concat();
    stream.write_all(&ask).await.unwrap();
    let mut answer = vec![0; stream.read_u32().await.unwrap() as usize];
    stream.read_exact(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taker_that_dies_half_way_leaves_the_session_where_it_was_and_its_word_is_used() {
    let world = World::new();
    let film = Film::default();
    let own = ManualMonitor::new(["127.0.0.1".parse().unwrap()]);
    let taker = whimbrel::Endpoint::builder().monitor(own).bind().await.unwrap();
    let (_expose, ticket) = expose(&world, film.start(), &["phone", "desk"]);
    let (phone, typed) = IntoFile::start(&world, "phone", &["pipe", &ticket], "first");
    wait_for("the beginning", || (length(&world.path("first")) > 100_000).then_some(()));
    let given = hand_off(&world, "phone", &taker.id().to_string());
    let place: Ticket = given.1.parse().unwrap();
    let over = taker.connect(place.clone()).await.unwrap();
    let answer = tokio::time::timeout(LIMIT, ask(&over, &given.0)).await.unwrap();
    assert!(answer.starts_with(&[0, 0]), "a pipe is given: {answer:?}");
    // It has all that it is told, and goes before it has the connection.
    over.abort(whimbrel::CloseCode::NONE, "");
    film.may_go_on.store(true, Ordering::SeqCst);
    wait_for("the rest", || (length(&world.path("first")) == LARGE as u64).then_some(()));
    assert_eq!(sum(&fs::read(world.path("first")).unwrap()), sum(&Film::bytes()));
    let again = tokio::time::timeout(LIMIT, taker.connect(place)).await.unwrap();
    assert!(again.is_err(), "the word was used");
    drop(typed);
    phone.succeeded();
    taker.close(LIMIT).await;
}

#[test]
fn what_does_not_take_its_output_keeps_the_session() {
    let world = World::new();
    let film = Film::default();
    film.may_go_on.store(true, Ordering::SeqCst);
    let (_expose, ticket) = expose(&world, film.start(), &["phone", "desk"]);
    // More than a pipe of the kernel holds, and nobody reads.
    let mut command = world.command("phone", &["pipe", &ticket]);
    let mut phone = IntoFile(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    wait_for("a full pipe", || (session(&world, "phone")["down"].as_u64()? > 200_000).then_some(()));
    let given = hand_off(&world, "phone", &world.id("desk"));
    world.run("desk", &take(&given)).failed(5, &["takes nothing"]);
    drop(phone.0.stdin.take());
    let mut all = Vec::new();
    phone.0.stdout.take().unwrap().read_to_end(&mut all).unwrap();
    assert_eq!((all.len(), sum(&all)), (LARGE, sum(&Film::bytes())));
    phone.succeeded();
}

#[test]
fn a_command_that_has_nothing_to_move_says_so() {
    let world = World::new();
    assert!(world.run("phone", &["sessions"]).succeeded().stdout.contains("there is nothing"));
    world.run("phone", &["take", "0000"]).failed(2, &["--from TICKET"]);
    let (expose, _) = expose(&world, shouting_server(), &["phone"]);
    let socket = world.path("home").join(format!("run/whimbrel/{}.sock", expose.child.id()));
    let mut socket = UnixStream::connect(socket).unwrap();
    let word = json!({ "session": "00", "to": world.id("phone"), "called": "x", "seconds": 60 });
    socket.write_all(format!("{}\n", json!({ "hand_over": word })).as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("there is no such session here"), "{answer}");
}

#[test]
fn any_device_of_a_user_who_is_let_in_may_have_it_and_is_out_once_it_is_removed() {
    let (world, _names) = World::with_names();
    introduce(&world, "home", "phone");
    introduce(&world, "home", "desk");
    let (ada, to) = (format!("ada@example.org={}", world.id("home")), shouting_server().to_string());
    let mut expose =
        world.start("home", &["expose", "--ticket", "--to", &to, "--allow", &ada, "--json", "-q"]);
    let ticket = expose.next_json()["ticket"].as_str().unwrap().to_owned();
    let mut phone = Typed::start(&world, "phone", &["pipe", &ticket]);
    phone.shouts("one");
    // The phone gives its word to a key that is nobody's device.
    let given = hand_off(&world, "phone", &world.id("eve"));
    assert!(!world.run("eve", &take(&given)).status.success());
    phone.process.until_said("this stays here", 1);
    phone.shouts("two");
    let desk = world.id("desk");
    let given = hand_off(&world, "phone", &desk);
    let mut at_desk = Typed::start(&world, "desk", &take(&given));
    phone.went_on_at(&desk);
    at_desk.shouts("three");
    world.run("home", &["devices", "remove", "desk"]).succeeded();
    let output = at_desk.process.output(LIMIT);
    assert!(!output.status.success(), "{}", output.stderr);
}

#[test]
fn devices_of_a_friend_that_were_noted_may_have_it_and_are_out_once_they_are_not() {
    let (world, _names) = World::with_names();
    let mut inviting = world.start("phone", &["invite", "--json", "-q", "--as", "ada@example.org"]);
    let code = inviting.next_json()["code"].as_str().unwrap().to_owned();
    world.run("home", &["join", &code, "--json", "-q", "--as", "bob@example.org"]).succeeded();
    inviting.output(LIMIT).succeeded();
    let (desk, eve) = (world.id("desk"), world.id("eve"));
    let of_ada: [&str; 4] = ["friends", "device", "ada@example.org", &desk];
    world.run("home", &of_ada).succeeded();
    let friends = world.run("home", &["friends", "list", "--json"]).succeeded().json();
    assert_eq!(friends["friends"][0]["devices"], json!([desk]));
    let to = shouting_server().to_string();
    let mut expose = world
        .start("home", &["expose", "--ticket", "--to", &to, "--allow", "ada@example.org", "--json", "-q"]);
    let ticket = expose.next_json()["ticket"].as_str().unwrap().to_owned();
    let mut phone = Typed::start(&world, "phone", &["pipe", &ticket]);
    phone.shouts("one");
    let given = hand_off(&world, "phone", &eve);
    assert!(!world.run("eve", &take(&given)).status.success());
    phone.process.until_said("this stays here", 1);
    let given = hand_off(&world, "phone", &desk);
    let mut at_desk = Typed::start(&world, "desk", &take(&given));
    phone.went_on_at(&desk);
    at_desk.shouts("two");
    world.run("home", &[&of_ada[..], &["--remove"]].concat()).succeeded();
    let output = at_desk.process.output(LIMIT);
    assert!(!output.status.success(), "{}", output.stderr);
}

#[test]
fn a_word_is_void_once_its_device_is_removed() {
    let (world, _names) = World::with_names();
    introduce(&world, "phone", "desk");
    introduce(&world, "phone", "tablet");
    let (_expose, ticket) = expose(&world, shouting_server(), &["phone", "desk", "tablet"]);
    let mut phone = Typed::start(&world, "phone", &["pipe", &ticket]);
    phone.shouts("one");
    let tablet = world.id("tablet");
    let given = hand_off(&world, "phone", &tablet);
    world.run("phone", &["devices", "remove", "tablet"]).succeeded();
    world.run("tablet", &take(&given)).failed(5, &["not allowed"]);
    // Nor does it get another one.
    world.run("phone", &["handoff", &given.0[..8], "--to", &tablet]).failed(1, &["removed"]);
    phone.shouts("two");
    let given = hand_off(&world, "phone", &world.id("desk"));
    let mut at_desk = Typed::start(&world, "desk", &take(&given));
    phone.went_on_at(&world.id("desk"));
    at_desk.shouts("three");
}

/// Gives a machine a device's name of this user.
fn introduce(world: &World, user: &str, device: &str) {
    let name = format!("{device}.ada@example.org");
    let mut inviting = world.start(user, &["invite", "--json", "-q", "--device", &name]);
    let code = inviting.next_json()["code"].as_str().unwrap().to_owned();
    world.run(device, &["join", &code, "--json", "-q"]).succeeded();
    inviting.output(LIMIT).succeeded();
}

#[test]
fn devices_that_act_for_the_user_take_by_name_what_runs_there_and_others_do_not() {
    let (world, _names) = World::with_names();
    for device in ["desk", "tablet", "watch"] {
        introduce(&world, "phone", device);
    }
    world.run("phone", &["devices", "trust", "desk"]).succeeded();
    world.run("phone", &["devices", "trust", "tablet"]).succeeded();
    let (_expose, ticket) = expose(&world, shouting_server(), &["phone", "desk", "tablet", "watch"]);
    let mut phone = Typed::start(&world, "phone", &["pipe", &ticket]);
    phone.shouts("one");
    let id = session(&world, "phone")["id"].as_str().unwrap().to_owned();
    // The key of the phone is the user's own, which may speak for any of the user's devices.
    let mut agent = world.start("phone", &["agent", "--as", "phone.ada@example.org", "--json"]);
    assert_eq!(agent.next_json()["event"], "ready");
    let by_name = ["--from", "phone.ada@example.org"];
    // A device that acts for the user does not once it is removed.
    let list = [&["sessions", "--json"][..], &by_name].concat();
    assert_eq!(world.run("tablet", &list).succeeded().json()["sessions"][0]["id"], id.as_str());
    world.run("phone", &["devices", "remove", "tablet"]).succeeded();
    for other in ["tablet", "watch", "eve"] {
        world.id(other);
        for args in [&["sessions"][..], &["take", &id[..8]]] {
            let output = world.run(other, &[args, &by_name].concat());
            assert!(!output.status.success() && output.stdout.is_empty(), "{other}: {}", output.stdout);
        }
    }
    phone.shouts("two");
    let there = world.run("desk", &list).succeeded().json();
    assert_eq!(there["sessions"][0]["id"], id.as_str());
    assert_eq!(there["sessions"][0]["command"], "pipe");
    world.run("desk", &[&["take", "0000"][..], &by_name].concat()).failed(5, &["no session"]);
    let mut at_desk = Typed::start(&world, "desk", &[&["take", &id[..8]][..], &by_name].concat());
    let given = agent.next_json();
    assert_eq!(
        (&given["event"], given["text"].as_str().unwrap().starts_with("desk comes for")),
        (&json!("given"), true)
    );
    phone.went_on_at("desk");
    at_desk.shouts("three");
    // Once more: it is not there any more.
    world.run("desk", &[&["take", &id[..8]][..], &by_name].concat()).failed(5, &["no session"]);
    at_desk.shouts("four");
}
