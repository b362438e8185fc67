//! Exposed services, reached by `forward` and `pipe`.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{LIMIT, Process, World, dead_port, shouting_server, tcp_server, wait_for};
use rustix::process::Signal;

const NAME: &str = "shout.home.ada@example.org";
const OTHER: &str = "whisper.home.ada@example.org";

/// Exposes `to` for bob.
fn expose(world: &World, to: SocketAddr) -> Process {
    let (to, bob) = (to.to_string(), world.id("bob"));
    let mut process = world.start("ada", &["expose", NAME, "--to", &to, "--allow", &bob, "--json"]);
    assert_eq!(process.next_json()["name"], NAME);
    process
}

/// Forwards to it as bob; tells where.
fn forward(world: &World) -> (Process, SocketAddr) {
    let mut process = world.start("bob", &["forward", NAME, "--json"]);
    let ready = process.next_json();
    (process, ready["listening"].as_str().unwrap().parse().unwrap())
}

fn talk(to: SocketAddr, line: &str) -> std::io::Result<String> {
    let mut socket = TcpStream::connect(to)?;
    socket.set_read_timeout(Some(LIMIT))?;
    socket.write_all(line.as_bytes())?;
    socket.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn a_forwarded_connection_ends_each_direction_by_itself() {
    let (world, _names) = World::with_names();
    let _expose = expose(&world, shouting_server());
    let (_forward, port) = forward(&world);
    for _ in 0..3 {
        assert_eq!(talk(port, "hello\nworld\n").unwrap(), "HELLO\nWORLD\nTHE END\n");
    }
    let all: Vec<_> =
        (0..20).map(|n| std::thread::spawn(move || talk(port, &format!("n{n}\n")).unwrap())).collect();
    for (n, thread) in all.into_iter().enumerate() {
        assert_eq!(thread.join().unwrap(), format!("N{n}\nTHE END\n"));
    }
}

#[test]
fn a_connection_that_breaks_does_not_look_like_an_end() {
    let (world, _names) = World::with_names();
    let server = tcp_server(|socket| {
        let mut output = socket.try_clone().unwrap();
        output.write_all(b"half").unwrap();
        std::thread::sleep(Duration::from_millis(200));
        socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
    });
    let _expose = expose(&world, server);
    let (_forward, port) = forward(&world);
    let mut socket = TcpStream::connect(port).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut got = Vec::new();
    let error = socket.read_to_end(&mut got).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{got:?}");
}

#[test]
fn a_target_that_refuses_is_told_and_ends_the_stream() {
    let (world, _names) = World::with_names();
    let expose = expose(&world, dead_port());
    let (_forward, port) = forward(&world);
    let start = Instant::now();
    assert!(talk(port, "x\n").is_err());
    assert!(start.elapsed() < Duration::from_secs(5));
    world.run("bob", &["pipe", NAME]).failed(4, &[NAME, "does not accept"]);
    expose.signal(Signal::INT);
    let output = expose.output(LIMIT);
    assert!(output.succeeded().stderr.contains("does not accept connections"), "{}", output.stderr);
}

#[test]
fn without_allow_nobody_is_let_in() {
    let (world, _names) = World::with_names();
    world.id("ada");
    let to = shouting_server().to_string();
    world.run("ada", &["expose", NAME, "--to", &to]).failed(2, &["--allow"]);
    world.run("ada", &["receive", "--as", NAME]).failed(2, &["--allow"]);
    world.run("ada", &["names", "lookup", NAME]).failed(3, &[NAME]);
}

#[test]
fn a_key_that_is_not_allowed_is_refused() {
    let (world, _names) = World::with_names();
    let _expose = expose(&world, shouting_server());
    world.id("eve");
    world.run("eve", &["pipe", NAME]).failed(3, &["registered or shown"]);
    world.run("eve", &["forward", NAME]).failed(3, &["registered or shown"]);
    // Nor where it is shown to everybody.
    let (to, bob) = (shouting_server().to_string(), world.id("bob"));
    let shown = ["expose", OTHER, "--to", &to, "--allow", &bob, "--readers", "any", "--json"];
    let mut shown = world.start("ada", &shown);
    shown.next_json();
    world.run("eve", &["pipe", OTHER, "-q"]).failed(5, &["not allowed"]);
    // The one who is allowed is let in all the same.
    let (_forward, port) = forward(&world);
    assert_eq!(talk(port, "x\n").unwrap(), "X\nTHE END\n");
}

#[test]
fn a_name_can_be_allowed_and_is_followed() {
    let (world, _names) = World::with_names();
    let to = shouting_server().to_string();
    let (phone, owner) = ("phone.bob@example.org", format!("bob@example.org={}", world.id("bob")));
    let args = ["expose", NAME, "--to", &to, "--allow", phone, "--pin", &owner, "--json", "-q"];
    let mut expose = world.start("ada", &args);
    expose.next_json();
    world.run("bob", &["pipe", NAME, "-q"]).failed(3, &[NAME]);
    let _phone = world.start("bob", &["receive", "--as", phone, "--allow", "any", "-q"]);
    wait_for("bob to be let in", || world.run("bob", &["pipe", NAME]).status.success().then_some(()));
    world.id("eve");
    world.run("eve", &["pipe", NAME]).failed(3, &[NAME]);
}

#[test]
fn an_unknown_name_is_told() {
    let (world, _names) = World::with_names();
    world.id("bob");
    world.run("bob", &["forward", "x.nobody@example.org"]).failed(3, &["x.nobody@example.org"]);
    world.run("bob", &["pipe", "x.nobody@example.org"]).failed(3, &["x.nobody@example.org"]);
}

#[test]
fn a_ticket_needs_no_name_service() {
    let world = World::new();
    let (to, bob, ada) = (shouting_server().to_string(), world.id("bob"), world.id("ada"));
    let mut expose = world.start("ada", &["expose", "--ticket", "--to", &to, "--allow", &bob]);
    let ticket = expose.line();
    let mut pipe = world.command("bob", &["pipe", &ticket]);
    let mut pipe = pipe.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    pipe.stdin.take().unwrap().write_all(b"hi\n").unwrap();
    let output = pipe.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "HI\nTHE END\n");
    expose.kill();
    let dead = world.run("bob", &["pipe", &ticket, "-q"]);
    dead.failed(4, &["did not answer", &ada]);
    assert_eq!(dead.stderr.matches(&ada).count(), 1, "{}", dead.stderr);
}

#[test]
fn a_pipe_goes_both_ways_and_ends_with_the_peer() {
    let (world, _names) = World::with_names();
    let _expose = expose(&world, shouting_server());
    let mut pipe = world.command("bob", &["pipe", NAME]);
    let mut pipe = pipe.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = pipe.stdin.take().unwrap();
    let mut output = BufReader::new(pipe.stdout.take().unwrap());
    for _ in 0..3 {
        let mut line = String::new();
        writeln!(input, "ping").unwrap();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "PING\n");
    }
    drop(input);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "THE END\n");
    assert!(pipe.wait().unwrap().success());
}

/// As ssh does: it waits for the end of the output before it closes the input.
#[test]
fn the_end_of_the_output_shows_while_the_input_is_open() {
    let (world, _names) = World::with_names();
    let _expose = expose(&world, tcp_server(|mut socket| socket.write_all(b"bye\n").unwrap()));
    let mut pipe = world.command("bob", &["pipe", NAME]);
    let mut pipe = pipe.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let input = pipe.stdin.take().unwrap();
    let mut rest = String::new();
    pipe.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "bye\n");
    drop(input);
    assert!(pipe.wait().unwrap().success());
}

#[test]
fn much_goes_through_a_pipe_unchanged() {
    let (world, _names) = World::with_names();
    let server = tcp_server(|mut socket| {
        let mut output = socket.try_clone().unwrap();
        std::io::copy(&mut socket, &mut output).unwrap();
        output.shutdown(Shutdown::Write).unwrap();
    });
    let _expose = expose(&world, server);
    let mut pipe = world.command("bob", &["pipe", NAME]);
    let mut pipe = pipe.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let data: Vec<u8> = (0..20_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (mut input, sent) = (pipe.stdin.take().unwrap(), data.clone());
    let writer = std::thread::spawn(move || input.write_all(&sent).unwrap());
    let output = pipe.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    assert!(output.stdout == data);
}

#[test]
fn a_forward_outlives_the_other_side() {
    let (world, _names) = World::with_names();
    let server = shouting_server();
    let mut first = expose(&world, server);
    let (_forward, port) = forward(&world);
    assert_eq!(talk(port, "one\n").unwrap(), "ONE\nTHE END\n");
    first.kill();
    let _second = expose(&world, server);
    wait_for("the forward to reach the new process", || {
        (talk(port, "two\n").ok()? == "TWO\nTHE END\n").then_some(())
    });
}

/// Tells a command that was started with --address where it is now.
fn move_to(world: &World, user: &str, process: &Process, addresses: &str) {
    let socket = world.path(user).join(format!("run/whimbrel/{}.sock", process.child.id()));
    let mut socket = UnixStream::connect(socket).unwrap();
    write!(socket, "{{\"addresses\":[{addresses}]}}").unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
    socket.read_to_string(&mut String::new()).unwrap();
}

#[test]
fn a_forwarded_connection_survives_moves_of_both_sides() {
    let (world, _names) = World::with_names();
    let expose = expose(&world, shouting_server());
    let (forward, port) = forward(&world);
    let mut socket = TcpStream::connect(port).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut answers = BufReader::new(socket.try_clone().unwrap());
    for round in 0..4 {
        let place = |user: &str| format!("\"{}\"", world.address(&format!("{user}{round}")));
        move_to(&world, "bob", &forward, "");
        move_to(&world, "ada", &expose, "");
        move_to(&world, "ada", &expose, &place("ada"));
        move_to(&world, "bob", &forward, &place("bob"));
        let mut answer = String::new();
        writeln!(socket, "round {round}").unwrap();
        answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, format!("ROUND {round}\n"));
    }
    let status = world.run("bob", &["status", "--json"]).succeeded().json();
    let ada = world.id("ada");
    let connections = status[0]["connections"].as_array().unwrap();
    let connection = connections.iter().find(|c| c["peer"] == ada.as_str()).unwrap();
    assert!(connection["moves"].as_u64().unwrap() >= 4, "{connection}");
    assert!(connection["last_recovery_ms"].as_f64().unwrap() > 0.0, "{connection}");
}

#[test]
fn commands_end_in_order_and_soon() {
    let (world, names) = World::with_names();
    let expose = expose(&world, shouting_server());
    let (forward, _) = forward(&world);
    for (process, signal) in [(forward, Signal::TERM), (expose, Signal::INT), (names, Signal::TERM)] {
        let start = Instant::now();
        process.signal(signal);
        process.output(LIMIT).succeeded();
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }
}

#[test]
fn an_interrupted_pipe_has_the_customary_codes() {
    let (world, _names) = World::with_names();
    let _expose = expose(&world, shouting_server());
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut command = world.command("bob", &["pipe", NAME, "-q"]);
        let mut pipe = Process::start(command.stdin(Stdio::piped()));
        let mut input = pipe.child.stdin.take().unwrap();
        input.write_all(b"x\n").unwrap();
        assert_eq!(pipe.line(), "X");
        pipe.signal(signal);
        let output = pipe.output(LIMIT);
        assert_eq!(output.status.code(), Some(code));
        assert_eq!(output.stderr, "");
    }
}

#[test]
fn status_shows_a_live_forward_and_cleans_up() {
    let (world, _names) = World::with_names();
    let _expose = expose(&world, shouting_server());
    let (mut forward, port) = forward(&world);
    assert_eq!(talk(port, "some bytes\n").unwrap(), "SOME BYTES\nTHE END\n");
    let status = world.run("bob", &["status", "--json"]).succeeded().json();
    let report = &status[0];
    assert_eq!(report["command"], "forward");
    assert_eq!(report["pid"], forward.child.id());
    assert_eq!(report["name"], NAME);
    assert_eq!(report["id"], world.id("bob"));
    let ada = world.id("ada");
    let connections = report["connections"].as_array().unwrap();
    let connection = connections.iter().find(|c| c["peer"] == ada.as_str()).unwrap();
    assert_eq!(connection["bytes_sent"], 11);
    assert_eq!(connection["bytes_received"], 11 + 8);
    assert_eq!(connection["name"], NAME);
    let path = &connection["paths"][0];
    assert!(path["remote"].as_str().unwrap().starts_with(&world.address("ada")));
    assert!(path["local"].as_str().unwrap().starts_with(&world.address("bob")));
    assert!(path["rtt_ms"].as_f64().unwrap() > 0.0);
    assert!(connections.iter().any(|c| c["name"] == "name service"));
    let text = world.run("bob", &["status"]).succeeded().stdout.clone();
    assert!(text.contains("forward") && text.contains(NAME) && text.contains("RTT"), "{text}");
    // Another user's commands are not shown.
    let ada = world.run("ada", &["status", "--json"]).succeeded().json();
    assert_eq!(ada.as_array().unwrap().len(), 1);
    assert_eq!(ada[0]["command"], "expose");
    let socket = world.path("bob/run/whimbrel").join(format!("{}.sock", forward.child.id()));
    forward.kill();
    assert!(socket.exists());
    let text = world.run("bob", &["status"]).succeeded().stdout.clone();
    assert!(text.contains("no whimbrel command"), "{text}");
    assert!(!socket.exists());
}

#[test]
fn a_directory_of_somebody_else_is_not_used() {
    use std::os::unix::fs::PermissionsExt as _;
    let (world, _names) = World::with_names();
    let directory = world.path("ada/run/whimbrel");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
    let expose = expose(&world, shouting_server());
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    expose.signal(Signal::INT);
    assert!(expose.output(LIMIT).stderr.contains("yours alone"));
}

/// The same key on both sides, as a person has who tries both on one machine.
#[test]
fn a_user_reaches_a_service_of_its_own() {
    let (world, _names) = World::with_names();
    let (to, ada) = (shouting_server().to_string(), world.id("ada"));
    let mut expose = world.start("ada", &["expose", NAME, "--to", &to, "--allow", &ada, "--json"]);
    expose.next_json();
    let mut forward = world.start("ada", &["forward", NAME, "--json"]);
    let port = forward.next_json()["listening"].as_str().unwrap().parse().unwrap();
    assert_eq!(talk(port, "me\n").unwrap(), "ME\nTHE END\n");
}

/// More commands of one user than a name service keeps connections of one key.
#[test]
fn one_user_runs_many_commands() {
    let (world, _names) = World::with_names();
    let ada = world.id("ada");
    let to = shouting_server().to_string();
    let names: Vec<String> = (0..8).map(|n| format!("s{n}.home.ada@example.org")).collect();
    let mut all = Vec::new();
    for name in &names {
        let mut expose = world.start("ada", &["expose", name, "--to", &to, "--allow", &ada, "--json"]);
        expose.next_json();
        all.push(expose);
    }
    for name in &names {
        let mut forward = world.start("ada", &["forward", name, "--json"]);
        let port = forward.next_json()["listening"].as_str().unwrap().parse().unwrap();
        assert_eq!(talk(port, "me\n").unwrap(), "ME\nTHE END\n");
        all.push(forward);
    }
}

#[test]
fn a_forward_on_a_unix_socket_serves_its_user_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let (world, _names) = World::with_names();
    let _expose = expose(&world, shouting_server());
    world.id("bob");
    let path = world.path("socket");
    let place = format!("unix:{}", path.display());
    let mut forward = world.start("bob", &["forward", NAME, "--listen", &place, "--json"]);
    assert_eq!(forward.next_json()["listening"], place);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut socket = std::os::unix::net::UnixStream::connect(&path).unwrap();
    socket.write_all(b"hello\n").unwrap();
    socket.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "HELLO\nTHE END\n");
    forward.signal(Signal::TERM);
    forward.output(LIMIT).succeeded();
    assert!(!path.exists());
    // Others, if its user says so.
    let shared = ["forward", NAME, "--listen", &place, "--socket-mode", "0660", "--json"];
    let mut forward = world.start("bob", &shared);
    forward.next_json();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    forward.kill();
    world.run("bob", &["forward", NAME, "--listen", &place, "--socket-mode", "rw"]).failed(2, &["octal"]);
}

#[test]
fn a_forward_beyond_loopback_is_warned_of() {
    let (world, _names) = World::with_names();
    let _expose = expose(&world, shouting_server());
    for (place, warns) in [("0.0.0.0:0", true), ("127.0.0.1:0", false)] {
        let mut forward = world.start("bob", &["forward", NAME, "--listen", place, "--json"]);
        forward.next_json();
        forward.signal(Signal::TERM);
        let stderr = forward.output(LIMIT).succeeded().stderr.clone();
        assert_eq!(stderr.contains("warning: whoever reaches"), warns, "{place}: {stderr}");
    }
}
