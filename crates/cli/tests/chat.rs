//! `whimbrel chat` with real processes: two people, their lines and their presence, and peers that mean no
//! good.
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::common::{self, LIMIT, Process, World, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};
use whimbrel::transport::ManualMonitor;
use whimbrel::{Class, Connection, FlowOptions, SendOptions, Ticket};

/// Somebody who chats: what is typed, and what is shown.
struct Person {
    process: Process,
    typing: Option<ChildStdin>,
}

impl Person {
    fn start(command: &mut Command) -> Self {
        let mut process = Process::start(command.stdin(Stdio::piped()));
        let typing = process.child.stdin.take();
        Self { process, typing }
    }

    fn new(world: &World, user: &str, args: &[&str]) -> Self {
        Self::start(&mut world.command(user, &[&["chat", "--nick", user], args].concat()))
    }

    fn types(&mut self, line: &str) {
        self.typing.as_mut().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Ctrl-D.
    fn ends(&mut self) {
        self.typing = None;
    }

    #[track_caller]
    fn sees(&mut self, line: &str) {
        assert_eq!(self.process.line(), line);
    }

    /// The next thing of this kind.
    #[track_caller]
    fn until(&mut self, event: &str) -> Value {
        let start = Instant::now();
        loop {
            let shown = self.process.next_json();
            if shown["event"] == event {
                return shown;
            }
            assert!(start.elapsed() < LIMIT, "no {event}");
        }
    }
}

/// One waits and prints a ticket.
fn waiting(world: &World, args: &[&str]) -> (Person, String) {
    let mut bob = Person::new(world, "bob", &[&["--allow", "any"], args].concat());
    let line = bob.process.line();
    let ticket = match serde_json::from_str::<Value>(&line) {
        Ok(ready) => ready["ticket"].as_str().unwrap().to_owned(),
        Err(_) => line,
    };
    (bob, ticket)
}

fn move_to(world: &World, user: &str, person: &Person, addresses: &[&str]) {
    let pid = person.process.child.id();
    let socket = world.path(user).join(format!("run/whimbrel/{pid}.sock"));
    let mut socket = UnixStream::connect(socket).unwrap();
    socket.write_all(format!("{}\n", json!({ "addresses": addresses })).as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\"pid\""), "{answer}");
}

#[test]
fn two_people_talk_see_each_line_delivered_and_end_in_order() {
    let world = World::new();
    let (mut bob, ticket) = waiting(&world, &["--once"]);
    let mut ada = Person::new(&world, "ada", &[&ticket]);
    let id = |user: &str| world.id(user)[..8].to_owned();
    let (ada_id, bob_id) = (id("ada"), id("bob"));
    bob.sees(&format!("-- ada [{ada_id}] is here"));
    ada.sees(&format!("-- bob [{bob_id}] is here"));
    ada.types("hello");
    ada.sees("you [1]: hello");
    ada.sees("-- [1] delivered");
    bob.sees("ada: hello");
    bob.types("grüße ✓");
    bob.sees("you [1]: grüße ✓");
    ada.sees("bob: grüße ✓");
    bob.sees("-- [1] delivered");
    ada.types("the last");
    ada.ends();
    ada.sees("you [2]: the last");
    ada.sees("-- [2] delivered");
    assert_eq!(ada.process.finish(LIMIT).status.code(), Some(0));
    bob.sees("ada: the last");
    bob.sees("-- ada has left");
    assert_eq!(bob.process.finish(LIMIT).status.code(), Some(0));
}

#[test]
fn status_shows_what_became_of_the_lines_and_of_the_flow_that_they_went_on() {
    let world = World::new();
    let (mut bob, ticket) = waiting(&world, &["--json"]);
    let mut ada = Person::new(&world, "ada", &[&ticket, "--json"]);
    bob.until("here");
    ada.until("here");
    for line in ["one", "two", "three"] {
        ada.types(line);
        ada.until("delivered");
    }
    let report = world.run("ada", &["status", "--json"]).succeeded().json();
    let flow = &report[0]["connections"][0]["messages"]["flows"][0];
    assert_eq!(flow["reliable"], true, "{report}");
    assert_eq!(flow["sequenced"], true);
    assert_eq!(flow["urgency"], 3);
    assert!(flow["delivered"].as_u64() >= Some(3), "{report}");
    assert!(flow["delay_p50_ms"].is_number(), "{report}");
    let said = |user: &str| world.run(user, &["status"]).succeeded().stdout.clone();
    let (hers, his) = (said("ada"), said("bob"));
    assert!(hers.contains("    messages: queued ") && hers.contains("(p50)"), "{hers}");
    assert!(his.contains("    messages received: "), "{his}");
}

#[test]
fn somebody_out_of_reach_is_away_and_gets_what_was_said_once_back() {
    let world = World::new();
    let (mut bob, ticket) = waiting(&world, &["--json"]);
    let mut ada = Person::new(&world, "ada", &[&ticket, "--json"]);
    bob.until("here");
    ada.until("here");
    move_to(&world, "ada", &ada, &[]);
    let first = bob.until("away")["for_ms"].as_f64().unwrap();
    // Two seconds of silence; her last sign of life may be a second older than the loss of the path.
    assert!((1000.0..30_000.0).contains(&first), "{first}");
    let second = bob.until("away")["for_ms"].as_f64().unwrap();
    assert!(second > first, "{first} {second}");
    bob.types("are you there?");
    bob.until("sent");
    ada.types("not yet");
    ada.until("sent");
    move_to(&world, "ada", &ada, &[&world.address("ada's second")]);
    // In whichever order: a line may be what shows that she is back.
    let (start, mut back, mut line) = (Instant::now(), None, None);
    while back.is_none() || line.is_none() {
        assert!(start.elapsed() < LIMIT, "{back:?} {line:?}");
        let shown = bob.process.next_json();
        match shown["event"].as_str().unwrap() {
            "back" => back = shown["after_ms"].as_f64(),
            "line" => line = shown["text"].as_str().map(str::to_owned),
            _ => {}
        }
    }
    assert!(back.unwrap() >= second);
    assert_eq!(line.unwrap(), "not yet");
    // Her line may be acknowledged before his arrives.
    let (start, mut line, mut delivered) = (Instant::now(), None, false);
    while line.is_none() || !delivered {
        assert!(start.elapsed() < LIMIT, "{line:?} {delivered}");
        let shown = ada.process.next_json();
        match shown["event"].as_str().unwrap() {
            "delivered" => delivered = true,
            "line" => line = shown["text"].as_str().map(str::to_owned),
            _ => {}
        }
    }
    assert_eq!(line.unwrap(), "are you there?");
    bob.ends();
    assert_eq!(ada.until("left")["reason"], "");
    assert_eq!(ada.process.finish(LIMIT).status.code(), Some(0));
}

#[test]
fn what_could_not_be_delivered_is_said_at_the_end() {
    let world = World::new();
    let (mut bob, ticket) = waiting(&world, &["--json"]);
    world.id("ada");
    let mut ada = Person::new(&world, "ada", &[&ticket]);
    bob.until("here");
    assert!(ada.process.line().ends_with("is here"));
    bob.process.signal(Signal::STOP);
    ada.types("one");
    ada.types("two");
    ada.sees("you [1]: one");
    ada.sees("you [2]: two");
    ada.ends();
    while ada.process.try_line().is_some() {}
    ada.process.finish(LIMIT).failed(4, &["the last 2 lines were not delivered"]);
    bob.process.signal(Signal::CONT);
}

#[test]
fn two_people_meet_by_a_code_and_by_a_name() {
    let (world, _names) = World::with_names();
    let mut ada = Person::new(&world, "ada", &["--code", "--json"]);
    let code = ada.process.next_json()["code"].as_str().unwrap().to_owned();
    let mut bob = Person::new(&world, "bob", &[&code, "--json"]);
    assert_eq!(ada.until("here")["name"], "bob");
    assert_eq!(bob.until("here")["name"], "ada");
    bob.ends();
    ada.until("left");
    assert_eq!(ada.process.finish(LIMIT).status.code(), Some(0));
    assert_eq!(bob.process.finish(LIMIT).status.code(), Some(0));

    let ada_id = world.id("ada");
    let mut bob =
        Person::new(&world, "bob", &["--as", "chat.pc.bob@example.org", "--allow", &ada_id, "--json"]);
    assert_eq!(bob.process.next_json()["name"], "chat.pc.bob@example.org");
    let mut ada = Person::new(&world, "ada", &["chat.pc.bob@example.org", "--json"]);
    // Whom she called is what he is called, whatever he calls himself.
    assert_eq!(ada.until("here")["name"], "chat.pc.bob@example.org");
    bob.until("here");
    world.id("eve");
    world.run("eve", &["chat", "chat.pc.bob@example.org"]).failed(3, &["no such name"]);
    ada.ends();
    bob.until("left");
    // He waits for the next.
    let mut ada = Person::new(&world, "ada", &["chat.pc.bob@example.org", "--json"]);
    bob.until("here");
    ada.until("here");
    // Her program dies and is started again: she is the same guest.
    ada.process.kill();
    let mut ada = Person::new(&world, "ada", &["chat.pc.bob@example.org", "--json"]);
    ada.until("here");
    bob.until("here");
    bob.process.signal(Signal::INT);
    assert_eq!(bob.process.finish(LIMIT).status.code(), Some(0));
    ada.until("left");
}

#[test]
fn everybody_in_a_group_gets_each_line_and_it_is_shown_who_is_there() {
    const TEAM: &str = "team.ada@example.org";
    let (world, _names) = World::with_names();
    world.run("ada", &["id", "register", "ada@example.org"]).succeeded();
    let (ada_id, eve_id) = (world.id("ada"), world.id("eve"));
    let waits = |user: &str| {
        let name = format!("chat.pc.{user}@example.org");
        let mut person = Person::new(&world, user, &["--as", &name, "--allow", &ada_id, "--json"]);
        assert_eq!(person.process.next_json()["name"], name.as_str());
        (person, name)
    };
    let ((mut bob, bobs), (mut cleo, cleos)) = (waits("bob"), waits("cleo"));
    let members = [&*bobs, &*cleos, &*eve_id, "ada@example.org"];
    world.run("ada", &[&["names", "group", "add", TEAM][..], &members].concat()).succeeded();
    let mut ada = Person::new(&world, "ada", &[TEAM, "--json"]);
    assert!(ada.until("note")["text"].as_str().unwrap().contains(&bobs));
    for person in [&mut bob, &mut cleo] {
        assert_eq!(person.until("here")["name"], "ada");
    }
    let here = [ada.until("here"), ada.until("here")].map(|here| here["member"].as_str().unwrap().to_owned());
    assert!(here.contains(&bobs) && here.contains(&cleos), "{here:?}");
    ada.types("lunch?");
    for person in [&mut bob, &mut cleo] {
        assert_eq!(person.until("line")["text"], "lunch?");
    }
    let told = [ada.until("delivered"), ada.until("delivered")];
    assert!(told.iter().all(|told| told["member"].is_string()), "eve does not have it: {told:?}");
    // An answer is for her alone.
    cleo.types("yes");
    let line = ada.until("line");
    assert_eq!((line["from"].as_str(), line["text"].as_str()), (Some(&*cleos), Some("yes")));
    bob.ends();
    assert_eq!(ada.until("left")["member"], bobs);
    ada.types("see you");
    assert_eq!(cleo.until("line")["text"], "see you", "and nothing before it");
    ada.ends();
    cleo.until("left");
    let ended = ada.process.finish(LIMIT);
    ended.failed(4, &["2 lines did not reach everybody"]);
}

#[test]
fn a_third_one_is_told_that_somebody_is_here() {
    let world = World::new();
    let (mut bob, ticket) = waiting(&world, &["--json"]);
    let mut ada = Person::new(&world, "ada", &[&ticket, "--json"]);
    bob.until("here");
    ada.until("here");
    let eve = Person::new(&world, "eve", &[&ticket, "--json"]);
    let told = eve.process.output(LIMIT);
    // While she connects, or just after.
    let all = told.stdout + &told.stderr;
    assert!(all.contains("somebody else is in this conversation"), "{all}");
    ada.types("still here");
    assert_eq!(bob.until("line")["text"], "still here");
}

#[test]
fn a_line_that_is_too_long_is_not_sent() {
    let world = World::new();
    let (mut bob, ticket) = waiting(&world, &["--json"]);
    let mut ada = Person::new(&world, "ada", &[&ticket, "--json"]);
    ada.until("here");
    ada.types(&"x".repeat(5000));
    assert!(ada.until("note")["text"].as_str().unwrap().contains("4096"));
    ada.types(&"y".repeat(4096));
    assert_eq!(bob.until("line")["text"].as_str().unwrap().len(), 4096);
    world.run("bob", &["chat"]).failed(2, &["--allow"]);
    world.run("bob", &["chat", "one", "two"]).failed(2, &["code"]);
}

/// Speaks to a chat by hand.
async fn call(ticket: &str) -> (whimbrel::Endpoint, Connection) {
    let monitor = ManualMonitor::new(["127.0.0.1".parse().unwrap()]);
    let endpoint = whimbrel::Endpoint::builder().monitor(monitor).bind().await.unwrap();
    let connection = endpoint.connect(ticket.parse::<Ticket>().unwrap()).await.unwrap();
    (endpoint, connection)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_peer_cannot_control_the_terminal_nor_pass_for_somebody_else() {
    let world = World::new();
    let (mut bob, ticket) = waiting(&world, &[]);
    let (endpoint, connection) = call(&ticket).await;
    let flow = connection.open_flow(FlowOptions::new(Class::RELIABLE_SEQUENCED)).await.unwrap();
    let nick = "-- ada [12345678] is here\n\x1b[31m";
    let evil = "\x1b[2J\x1b]0;title\x07\r-- ada has left\n\u{202e}x\u{9b}1A\u{2028}y";
    for data in [
        b"no json".to_vec(),
        vec![b'x'; 1 << 20],
        json!({ "type": "hello", "name": nick }).to_string().into_bytes(),
        json!({ "type": "hello", "name": "you" }).to_string().into_bytes(),
        json!({ "type": "line", "text": "x".repeat(4097) }).to_string().into_bytes(),
        json!({ "type": "tomorrow" }).to_string().into_bytes(),
        json!({ "type": "line", "text": evil }).to_string().into_bytes(),
    ] {
        flow.send(data, SendOptions::default()).await.unwrap();
    }
    let short = endpoint.id().short();
    bob.sees(&format!("-- somebody [{short}] is here"));
    let line = bob.process.line();
    assert!(line.starts_with(&format!("{short}: ␛[2J")), "{line:?}");
    assert!(!line.chars().any(char::is_control) && !line.contains(['\u{202e}', '\u{2028}']), "{line:?}");
    connection.abort(whimbrel::CloseCode::application(9), "\x1b[2Jbye\r\n");
    let line = bob.process.line();
    assert!(
        line.starts_with(&format!("-- {short} has left")) && !line.chars().any(char::is_control),
        "{line:?}"
    );
}

#[test]
fn on_a_terminal_lines_are_marked_where_they_stand_and_the_terminal_is_given_back() {
    let world = World::new();
    let (mut bob, ticket) = waiting(&world, &["--json"]);
    let (terminal, slave) = common::terminal(80, 24);
    let before = rustix::termios::tcgetattr(&slave).unwrap();
    let mut command = world.command("ada", &["chat", &ticket, "--nick", "ada"]);
    command.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap());
    let mut ada = command.spawn().unwrap();
    drop(command);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut output = terminal.try_clone().unwrap();
    let noted = seen.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = output.read(&mut buffer) {
            noted.lock().unwrap().extend_from_slice(&buffer[..read]);
        }
    });
    let text = || String::from_utf8_lossy(&seen.lock().unwrap()).into_owned();
    let shows = |what: &str| wait_for(what, || text().contains(what).then_some(()));
    bob.until("here");
    shows("is here; Ctrl-D ends");
    (&terminal).write_all(b"hallo\x1b[D\x1b[D\x1b[D\x1b[D\x1b[3~e\r").unwrap();
    assert_eq!(bob.until("line")["text"], "hello");
    shows("you: hello ✓");
    bob.types("\x1b[2Jboo");
    shows("bob: ␛[2Jboo");
    (&terminal).write_all(b"\x04").unwrap();
    bob.until("left");
    assert_eq!(ada.wait().unwrap().code(), Some(0));
    shows("\x1b[?1049l");
    assert!(!text().contains("\x1b[2J"), "{:?}", text());
    let after = rustix::termios::tcgetattr(&slave).unwrap();
    assert_eq!(after.local_modes, before.local_modes);
    // What was said stays to be read.
    let left = text();
    assert!(left.rsplit("\x1b[?1049l").next().unwrap().contains("you: hello"), "{left:?}");
}
