//! What runs on one device is handed to the agent of another one, which takes it at once: real processes, and
//! no gateway.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::common::{LIMIT, PROGRAM, Process, World, shouting_server, terminal, wait_for};
use crate::typed::{Film, LARGE, Typed, connected, devices, expose, half, says, session, sum};
use serde_json::Value;
use whimbrel::transport::ManualMonitor;
use whimbrel::{Endpoint, Name, Ticket};

/// A program that takes bytes as they come.
const READER: &str = "
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as source, open(sys.argv[3], 'wb') as out:
    while data := source.recv(65536):
        out.write(data)
";

/// The desk's agent, with this list of programs.
fn agent(world: &World, apps: Option<&str>) -> Process {
    if let Some(apps) = apps {
        fs::write(world.config("desk", "apps.toml"), apps).unwrap();
    }
    let mut agent = world.start("desk", &["agent", "--as", "desk.ada@example.org", "--json"]);
    says(&mut agent, "ready");
    agent
}

/// A list with the program that writes what it gets into the file `second`.
fn reader(world: &World, ask: bool) -> String {
    let run = format!(
        "\"python3\", \"-c\", '''{READER}''', \"{{host}}\", \"{{port}}\", \"{}\"",
        world.path("second").display()
    );
    format!("ask = {ask}\n[[app]]\nmatch = \"any\"\nadapter = \"raw\"\nrun = [{run}]\n")
}

/// Hands the only session of the phone to the desk. What is said of that.
fn hand_over(world: &World) -> Value {
    let id = session(world, "phone")["id"].as_str().unwrap().to_owned();
    world.run("phone", &["handoff", &id[..8], "--to", "desk", "--json"]).succeeded().json()
}

#[test]
fn a_program_of_the_desks_list_gets_the_rest_of_a_download_without_a_command_there() {
    let (world, _names) = devices();
    let film = Film::default();
    let (_expose, ticket) = expose(&world, film.start(), &["phone", "desk"]);
    let mut agent = agent(&world, Some(&reader(&world, false)));
    let (forward, _program, first) = half(&world, &ticket);
    let said = hand_over(&world);
    assert_eq!(said["taken"], true, "{said}");
    let handed = says(&mut agent, "handed");
    assert_eq!(handed["by"], world.id("phone").as_str());
    assert_eq!(says(&mut agent, "started")["program"], "python3");
    says(&mut agent, "taken");
    assert!(forward.output(LIMIT).succeeded().stderr.contains("went on at desk"));
    film.may_go_on.store(true, Ordering::SeqCst);
    let ended = says(&mut agent, "ended");
    assert_eq!((&ended["how"], &ended["code"]), (&"ended".into(), &0.into()), "{ended}");
    let second = fs::read(world.path("second")).unwrap();
    assert_eq!((first.len(), second.len()), (LARGE / 2, LARGE - LARGE / 2));
    assert_eq!(sum(&[first, second].concat()), sum(&Film::bytes()));
    assert_eq!(film.connections.load(Ordering::SeqCst), 1, "the server saw one connection");
}

#[test]
fn without_a_list_what_is_handed_over_waits_at_a_port_of_the_desk() {
    let (world, _names) = devices();
    let film = Film::default();
    let (_expose, ticket) = expose(&world, film.start(), &["phone", "desk"]);
    let mut agent = agent(&world, None);
    let (_forward, _program, first) = half(&world, &ticket);
    assert_eq!(hand_over(&world)["taken"], true);
    says(&mut agent, "handed");
    says(&mut agent, "taken");
    let at: SocketAddr = says(&mut agent, "port")["listening"].as_str().unwrap().parse().unwrap();
    let mut program = connected(at);
    program.write_all(b"from the desk\n").unwrap();
    film.may_go_on.store(true, Ordering::SeqCst);
    let mut second = Vec::new();
    program.read_to_end(&mut second).unwrap();
    assert_eq!(sum(&[first, second].concat()), sum(&Film::bytes()));
}

#[test]
fn an_agent_that_asks_where_nobody_is_leaves_the_session_where_it_was() {
    let (world, _names) = devices();
    let film = Film::default();
    let (_expose, ticket) = expose(&world, film.start(), &["phone", "desk"]);
    let mut agent = agent(&world, Some(&reader(&world, true)));
    let (_forward, mut program, first) = half(&world, &ticket);
    let said = hand_over(&world);
    assert!(said["ticket"].as_str().unwrap().starts_with("whimbrel:"), "{said}");
    says(&mut agent, "handed");
    assert_eq!(says(&mut agent, "left")["reason"], "asks");
    film.may_go_on.store(true, Ordering::SeqCst);
    let mut second = Vec::new();
    program.read_to_end(&mut second).unwrap();
    assert_eq!(sum(&[first, second].concat()), sum(&Film::bytes()));
    assert!(!world.path("second").exists(), "nothing was started");
}

#[test]
fn an_agent_does_as_it_is_told_at_its_terminal() {
    let (world, _names) = devices();
    let film = Film::default();
    let (_expose, ticket) = expose(&world, film.start(), &["phone", "desk"]);
    fs::write(world.config("desk", "apps.toml"), reader(&world, true)).unwrap();
    let (mut person, program) = terminal(120, 30);
    let shown = Arc::<Mutex<String>>::default();
    let (mut screen, seen) = (person.try_clone().unwrap(), shown.clone());
    std::thread::spawn(move || {
        let mut some = [0; 1024];
        while let Ok(n @ 1..) = screen.read(&mut some) {
            seen.lock().unwrap().push_str(&String::from_utf8_lossy(&some[..n]));
        }
    });
    // Standard error is the terminal too.
    let args = ["-c", "exec \"$0\" \"$@\" 2>&0", PROGRAM, "agent", "--as", "desk.ada@example.org", "--json"];
    let mut agent = Process::start(world.command_of("sh".as_ref(), "desk", &args).stdin(program));
    says(&mut agent, "ready");
    let (_forward, _program, _first) = half(&world, &ticket);
    let id = session(&world, "phone")["id"].as_str().unwrap().to_owned();
    for (times, answer) in [(1, "n\n"), (2, "y\n")] {
        let handing = world.start("phone", &["handoff", &id[..8], "--to", "desk", "--json"]);
        says(&mut agent, "handed");
        wait_for("it asks", || (shown.lock().unwrap().matches("[y/N]").count() == times).then_some(()));
        person.write_all(answer.as_bytes()).unwrap();
        if times == 1 {
            assert_eq!(says(&mut agent, "left")["reason"], "declined");
            assert!(handing.output(LIMIT).succeeded().json()["ticket"].is_string());
        } else {
            says(&mut agent, "started");
            says(&mut agent, "taken");
            assert_eq!(handing.output(LIMIT).succeeded().json()["taken"], true);
        }
    }
    assert!(shown.lock().unwrap().contains("start python3?"));
}

#[test]
fn what_needs_a_terminal_stays_and_can_be_taken_by_hand() {
    let (world, _names) = devices();
    let (_expose, ticket) = expose(&world, shouting_server(), &["phone", "desk"]);
    let mut agent = agent(&world, Some(&reader(&world, false)));
    let mut phone = Typed::start(&world, "phone", &["pipe", &ticket]);
    phone.shouts("one");
    let said = hand_over(&world);
    says(&mut agent, "handed");
    assert_eq!(says(&mut agent, "left")["reason"], "terminal");
    phone.shouts("two");
    let (id, at) = (said["session"].as_str().unwrap(), said["ticket"].as_str().unwrap());
    let mut desk = Typed::start(&world, "desk", &["take", &id[..8], "--from", at]);
    phone.went_on_at("desk");
    desk.shouts("three");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strangers_device_offers_an_agent_nothing() {
    let (world, _names) = devices();
    let _agent = agent(&world, None);
    let status = world.run("desk", &["status", "--json"]).succeeded().json();
    let addresses = status[0]["addresses"].as_array().unwrap().iter();
    let addresses: Vec<SocketAddr> = addresses.map(|at| at.as_str().unwrap().parse().unwrap()).collect();
    // By the agent's name: what is reached without one is another part of it.
    let name: Name = "desk.ada@example.org".parse().unwrap();
    let at = Ticket::new(world.id("desk").parse().unwrap(), addresses, Some(name));
    let own = ManualMonitor::new([world.address("eve").parse().unwrap()]);
    let eve = Endpoint::builder().monitor(own).bind().await.unwrap();
    let refused = tokio::time::timeout(LIMIT, eve.connect(at)).await.unwrap().unwrap_err();
    assert!(refused.to_string().contains("not allowed"), "{refused}");
    eve.close(LIMIT).await;
    // Who is of no group offers it to nobody, and its session stays.
    let (_expose, ticket) = expose(&world, shouting_server(), &["eve"]);
    let mut typed = Typed::start(&world, "eve", &["pipe", &ticket]);
    typed.shouts("one");
    let id = session(&world, "eve")["id"].as_str().unwrap().to_owned();
    let desk = world.id("desk");
    let said = world.run("eve", &["handoff", &id[..8], "--to", &desk, "--json"]).succeeded().json();
    assert!(said["ticket"].is_string(), "{said}");
    typed.shouts("two");
}
