//! `whimbrel status --watch` and `--events`: what the commands of a user do, as it happens.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{self, LIMIT, Process, World, shouting_server, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};
use whimbrel::Ticket;
use whimbrel::transport::ManualMonitor;

fn expose(world: &World, user: &str) -> (Process, String) {
    let to = shouting_server().to_string();
    let mut server = world.start(user, &["expose", "--ticket", "--json", "--to", &to, "--allow", "any"]);
    let ticket = server.next_json()["ticket"].as_str().unwrap().to_owned();
    (server, ticket)
}

fn forward(world: &World, user: &str, ticket: &str) -> Process {
    let mut client = world.start(user, &["forward", ticket, "--json"]);
    assert!(client.next_json()["listening"].is_string());
    client
}

fn monitor(world: &World, user: &str, args: &[&str]) -> Process {
    world.start(user, &[&["status", "--events", "--json"], args].concat())
}

/// The next event of this kind, of whichever command.
#[track_caller]
fn until(monitor: &mut Process, event: &str) -> Value {
    until_of(monitor, event, |_| true)
}

#[track_caller]
fn until_of(monitor: &mut Process, event: &str, fits: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < LIMIT, "no {event}");
        let heard = monitor.next_json();
        if heard["event"] == event && fits(&heard) {
            return heard;
        }
    }
}

fn socket_of(world: &World, user: &str, pid: u32) -> std::path::PathBuf {
    world.path(user).join(format!("run/whimbrel/{pid}.sock"))
}

/// Moves a running command to these addresses, as a manager would: over its socket.
fn move_to(world: &World, user: &str, pid: u32, addresses: &[&str]) {
    let mut socket = UnixStream::connect(socket_of(world, user, pid)).unwrap();
    socket.write_all(format!("{}\n", json!({ "addresses": addresses })).as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\"pid\""), "{answer}");
}

#[test]
fn a_monitor_hears_of_each_command_from_its_start_through_outages_and_moves_to_its_end() {
    let world = World::new();
    let (_server, ticket) = expose(&world, "alice");
    let mut monitor = monitor(&world, "bob", &["--interval", "1s"]);
    // Nothing of bob's runs yet.
    let mut client = forward(&world, "bob", &ticket);
    let pid = client.child.id();
    let running = until(&mut monitor, "running");
    assert_eq!((&running["pid"], &running["command"]), (&pid.into(), &"forward".into()));
    let first = until(&mut monitor, "statistics");
    let connection = first["report"]["connections"][0]["id"].as_str().unwrap().to_owned();

    move_to(&world, "bob", pid, &[]);
    let away = until(&mut monitor, "unreachable");
    assert_eq!(away["connection"], connection.as_str());
    let longer = until(&mut monitor, "unreachable");
    let elapsed = |event: &Value| event["elapsed_ms"].as_f64().unwrap();
    assert!(elapsed(&longer) > elapsed(&away), "{away} {longer}");
    let second = world.address("bob's second");
    move_to(&world, "bob", pid, &[&second]);
    let mut moved = None;
    let mut reachable = None;
    while moved.is_none() || reachable.is_none() {
        let heard = monitor.next_json();
        match heard["event"].as_str().unwrap() {
            "moved" => moved = Some(heard),
            "reachable" => reachable = Some(heard),
            _ => {}
        }
    }
    let (moved, reachable) = (moved.unwrap(), reachable.unwrap());
    assert!(moved["local"].as_str().unwrap().starts_with(&second), "{moved}");
    assert_eq!(moved["moves"], 1);
    assert!(moved["took_ms"].as_f64().unwrap() >= elapsed(&longer), "{moved} {longer}");
    assert!(reachable["after_ms"].as_f64().unwrap() >= elapsed(&longer), "{reachable}");
    let later = until(&mut monitor, "statistics");
    assert_eq!(later["report"]["connections"][0]["moves"], 1);

    client.signal(Signal::TERM);
    client.finish(LIMIT);
    let end = until(&mut monitor, "ended");
    assert_eq!(end["pid"], pid);
    monitor.signal(Signal::INT);
    assert_eq!(monitor.finish(LIMIT).status.code(), Some(0));
}

#[test]
fn attempts_that_fail_and_connections_that_begin_and_end_are_told_in_words_too() {
    let world = World::new();
    let to = shouting_server().to_string();
    let nobody = world.id("carol");
    let mut server = world.start("alice", &["expose", "--ticket", "--json", "--to", &to, "--allow", &nobody]);
    let ticket = server.next_json()["ticket"].as_str().unwrap().to_owned();
    world.id("bob");
    let mut monitor = world.start("alice", &["status", "--events"]);
    assert!(monitor.line().contains("runs (whimbrel "));
    world.run("bob", &["forward", &ticket]).failed(5, &["not allowed"]);
    let mut client = forward(&world, "carol", &ticket);
    let mut heard = Vec::new();
    let mut until = |text: &str| loop {
        let line = monitor.line();
        heard.push(line.clone());
        if line.contains(text) {
            return line;
        }
        assert!(heard.len() < 50, "no {text:?} in {heard:#?}");
    };
    assert!(until("no connection from").contains("not allowed"));
    until("is established");
    client.signal(Signal::TERM);
    client.finish(LIMIT);
    until("is over");
}

/// The peer is a program of its own with a connection that it puts to sleep, wakes, and hands to another key.
#[test]
fn a_monitor_hears_that_a_peer_sleeps_is_awake_again_and_went_over_to_another_key() {
    let world = World::new();
    let (_server, ticket) = expose(&world, "alice");
    let ticket: Ticket = ticket.parse().unwrap();
    let mut monitor = monitor(&world, "alice", &["--interval", "1s"]);
    until(&mut monitor, "running");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let [here, next] = ["laptop", "desk"].map(|host| {
        let at = ManualMonitor::new([world.address(host).parse().unwrap()]);
        runtime.block_on(whimbrel::Endpoint::builder().monitor(at).bind()).unwrap()
    });
    let connection = runtime.block_on(here.connect(ticket)).unwrap();
    let (id, peer) = (connection.id().to_string(), here.id().to_string());
    until_of(&mut monitor, "established", |event| event["connection"] == id.as_str());

    let asleep = runtime.block_on(connection.suspend(LIMIT)).unwrap();
    let sleeps = until(&mut monitor, "peer-suspended");
    assert_eq!((&sleeps["connection"], &sleeps["peer"]), (&id.as_str().into(), &peer.as_str().into()));
    let connection = runtime.block_on(here.resume(&asleep)).unwrap();
    assert_eq!(until(&mut monitor, "peer-resumed")["connection"], id.as_str());

    let asleep = runtime.block_on(connection.suspend_for(next.id(), LIMIT)).unwrap();
    let _connection = runtime.block_on(next.resume(&asleep)).unwrap();
    let over = until(&mut monitor, "peer-handed-over");
    assert_eq!(over["connection"], id.as_str());
    assert_eq!((&over["from"], &over["to"]), (&peer.as_str().into(), &next.id().to_string().into()));
}

/// One command floods, one hangs, one says what is no JSON: the others are heard all the same.
#[test]
fn a_command_that_floods_or_hangs_holds_no_other_up() {
    let world = World::new();
    let (_server, ticket) = expose(&world, "alice");
    let directory = world.path("bob").join("run/whimbrel");
    let client = forward(&world, "bob", &ticket);
    let pid = client.child.id();
    let flood = UnixListener::bind(directory.join("111.sock")).unwrap();
    let hanging = UnixListener::bind(directory.join("112.sock")).unwrap();
    let garbage = UnixListener::bind(directory.join("113.sock")).unwrap();
    std::thread::spawn(move || {
        let line = json!({
            "event": "statistics-of-tomorrow", "time_ms": 1, "pid": 111, "command": "flood", "name": null,
            "padding": "x".repeat(1000),
        });
        let line = format!("{line}\n");
        for socket in flood.incoming().map_while(Result::ok) {
            let mut socket = socket;
            let line = line.clone();
            std::thread::spawn(move || while socket.write_all(line.as_bytes()).is_ok() {});
        }
    });
    std::thread::spawn(move || {
        for socket in garbage.incoming().map_while(Result::ok) {
            let mut socket = socket;
            // Without an end of the line.
            std::thread::spawn(move || while socket.write_all(&[b'{'; 4096]).is_ok() {});
        }
    });
    let mut monitor = monitor(&world, "bob", &["--interval", "1s"]);
    until_of(&mut monitor, "statistics", |event| event["pid"] == pid);
    // What a newer program says is passed on as it is.
    assert_eq!(until(&mut monitor, "statistics-of-tomorrow")["padding"].as_str().unwrap().len(), 1000);
    client.signal(Signal::TERM);
    until_of(&mut monitor, "ended", |event| event["pid"] == pid);
    let silent = until(&mut monitor, "silent");
    assert_eq!(silent["pid"], 112);
    drop(hanging);
}

#[test]
fn a_follower_that_falls_behind_is_told_how_much_it_missed() {
    let world = World::new();
    let (_server, ticket) = expose(&world, "alice");
    let client = forward(&world, "bob", &ticket);
    let pid = client.child.id();
    let socket = UnixStream::connect(socket_of(&world, "bob", pid)).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4096).unwrap();
    (&socket).write_all(b"{\"events\":{\"interval_ms\":3600000}}\n").unwrap();
    // Each move is several events, and nobody reads them.
    let (one, other) = (world.address("bob"), world.address("bob's second"));
    let start = Instant::now();
    let mut lines = BufReader::new(&socket).lines();
    assert!(lines.next().unwrap().unwrap().contains("\"running\""));
    let status = || {
        let report = world.run("bob", &["status", "--json"]).succeeded().json();
        report[0]["connections"][0]["moves"].as_u64()
    };
    while start.elapsed() < LIMIT && status().unwrap_or(0) < 600 {
        for _ in 0..60 {
            move_to(&world, "bob", pid, &[&other]);
            move_to(&world, "bob", pid, &[&one]);
            std::thread::sleep(Duration::from_millis(4));
        }
    }
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let missed = lines.map_while(Result::ok).find_map(|line| {
        let event: Value = serde_json::from_str(&line).unwrap();
        (event["event"] == "missed").then(|| event["count"].as_u64().unwrap())
    });
    assert!(missed.unwrap() > 0);
}

#[test]
fn requests_that_make_no_sense_are_answered_with_what_is_wrong() {
    let world = World::new();
    let (_server, ticket) = expose(&world, "alice");
    let client = forward(&world, "bob", &ticket);
    for (request, says) in [
        ("hello", "no request"),
        ("{\"events\":{\"interval_ms\":1}}", "interval_ms is 100 to"),
        ("{\"limit\":{\"rate\":1}}", "at least 263kbit"),
        ("{\"limit\":{\"rate\":1000000,\"urgency\":9}}", "0 (first) to 7 (last)"),
        ("{\"lift\":{}}", "no such limit"),
    ] {
        let mut socket = UnixStream::connect(socket_of(&world, "bob", client.child.id())).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        socket.write_all(b"\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert!(answer["error"].as_str().unwrap().contains(says), "{request}: {answer}");
    }
}

#[test]
fn what_is_watched_comes_once_a_second_without_a_terminal() {
    let world = World::new();
    let (_server, ticket) = expose(&world, "alice");
    let client = forward(&world, "bob", &ticket);
    let mut watch = world.start("bob", &["status", "--watch"]);
    let start = Instant::now();
    for _ in 0..3 {
        assert!(watch.line().starts_with("forward "));
        let mut lines = 0;
        loop {
            let line = watch.line();
            assert!(line.chars().count() <= 80 && !line.contains('\x1b'), "{line:?}");
            if line.is_empty() {
                break;
            }
            lines += 1;
        }
        assert!(lines >= 2);
    }
    assert!(start.elapsed() > Duration::from_millis(1500), "{:?}", start.elapsed());
    watch.signal(Signal::INT);
    assert_eq!(watch.finish(LIMIT).status.code(), Some(0));
    let mut json = world.start("bob", &["status", "--watch", "--json"]);
    assert_eq!(json.next_json()[0]["pid"], client.child.id());
    assert_eq!(json.next_json()[0]["pid"], client.child.id());
}

#[test]
fn on_a_terminal_the_page_is_written_over_and_left_as_it_was() {
    let world = World::new();
    let (_server, ticket) = expose(&world, "alice");
    let client = forward(&world, "bob", &ticket);
    let (mut terminal, slave) = common::terminal(80, 24);
    let mut command = world.command("bob", &["status", "--watch"]);
    let mut watch = command.stdout(Stdio::from(slave)).spawn().unwrap();
    drop(command);
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let reader = {
        let seen = seen.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(1..) = terminal.read(&mut buffer).inspect(|n| {
                seen.lock().unwrap().extend_from_slice(&buffer[..*n]);
            }) {}
        })
    };
    let text = || String::from_utf8_lossy(&seen.lock().unwrap()).into_owned();
    wait_for("two pages", || (text().matches("\x1b[H").count() >= 2).then_some(()));
    rustix::process::kill_process(rustix::process::Pid::from_child(&watch), Signal::INT).unwrap();
    assert_eq!(watch.wait().unwrap().code(), Some(0));
    reader.join().unwrap();
    let text = text();
    assert!(text.starts_with("\x1b[?1049h\x1b[?25l"), "{text:?}");
    assert!(text.ends_with("\x1b[?25h\x1b[?1049l"), "{text:?}");
    assert!(text.contains(&format!("(process {}", client.child.id())), "{text:?}");
    // Nothing is wiped before it is written anew, which would flicker.
    assert!(!text.contains("\x1b[2J"));
}
