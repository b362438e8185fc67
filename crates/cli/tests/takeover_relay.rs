//! A newer instance takes over from one that relays: what must not go wrong. How downloads go on through it
//! is in `lab_relay_take_over.rs`.
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use crate::common::{LIMIT, Process, World, dead_port, wait_for};

/// The text of `GET /metrics`, while somebody answers.
fn figures(at: &str) -> Option<String> {
    let mut socket = TcpStream::connect(at).ok()?;
    socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn a_relay_goes_on_if_the_newer_one_fails_and_one_without_a_relay_is_refused() {
    let world = World::new();
    let at = dead_port().to_string();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--allow", "any", "--relay-allow", "any", "--json"];
    let serve = [&serve[..], &["--metrics", &at]].concat();
    let mut first = world.start("names", &serve);
    let ready = first.next_json();
    let ticket = ready["ticket"].as_str().unwrap();
    let mut expose = world.command("ada", &["expose", "--ticket", "--to", "127.0.0.1:1", "--allow", "any"]);
    let _expose = Process::start(expose.args(["--relay", ticket]));
    let holds = |count: u32| {
        let wanted = format!("whimbrel_relay_reservations {count}");
        wait_for("a reservation", || figures(&at)?.lines().any(|line| line == wanted).then_some(()));
    };
    holds(1);
    // It has read a little when it dies.
    let file = world.path("names").join(format!("run/whimbrel/{}.sock", first.child.id()));
    let mut socket = UnixStream::connect(&file).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    writeln!(socket, "{{\"take_over\":{{\"versions\":[1]}}}}").unwrap();
    let mut answer = [0; 100];
    socket.read_exact(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("\"version\":1"), "{answer}");
    drop(socket);
    // It goes on, and can be asked again.
    let goes_on = |first: &Process, times: usize| {
        first.until_said("did not take over", times);
        wait_for("its control socket", || UnixStream::connect(&file).ok());
        holds(1);
    };
    goes_on(&first, 1);
    // One that would drop what the relay carries is refused, and one that cannot listen for figures.
    let alone = ["names", "serve", "--allow", "any", "--take-over"];
    let refused = world.run("names", &alone);
    assert!(!refused.status.success() && refused.stderr.contains("whimbrel serve"), "{}", refused.stderr);
    goes_on(&first, 2);
    let elsewhere = [&serve[..7], &["--metrics", "192.0.2.1:9", "--take-over"]].concat();
    world.run("names", &elsewhere).failed(2, &["cannot listen on --metrics"]);
    goes_on(&first, 3);
    let mut second = world.start("names", &[&serve[..], &["--take-over"]].concat());
    assert_eq!(second.next_json()["ticket"], *ticket);
    let output = first.finish(LIMIT);
    assert!(output.succeeded().stderr.contains("has taken over"), "{}", output.stderr);
    holds(1);
}
