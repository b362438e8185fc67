//! A relay alone that serves those who have names of a domain.
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::common::{LIMIT, Process, World, dead_port, wait_for};
use rustix::process::Signal;

const SSH: &str = "ssh.home.ada@example.org";

/// Waits until a relay has so many reservations.
fn holds(metrics: &str, count: u32) {
    let figures = || {
        let mut socket = TcpStream::connect(metrics).ok()?;
        socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        Some(answer)
    };
    let wanted = format!("whimbrel_relay_reservations {count}");
    wait_for(&wanted, || figures()?.lines().any(|line| line == wanted).then_some(()));
}

/// A relay for those who have names of example.org, its ticket, and where its figures are.
fn relay(world: &World, user: &str) -> (Process, String, String) {
    // The address is this test's own.
    let [listen, metrics] = [4433, 9090].map(|port| format!("{}:{port}", world.address(user)));
    let args = ["relay", "serve", "--listen", &listen, "--allow", "@example.org", "--json"];
    let mut relay = world.start(user, &[&args[..], &["--metrics", &metrics]].concat());
    let ticket = relay.next_json()["ticket"].as_str().unwrap().to_owned();
    (relay, ticket, metrics)
}

fn expose(world: &World, user: &str, what: &[&str], relay: &str) -> Process {
    let to = dead_port().to_string();
    let args = ["expose", "--to", &to, "--relay", relay];
    world.start(user, &[&args[..], what].concat())
}

#[test]
fn a_relay_alone_serves_those_who_have_names_of_its_domain_and_tells_others_why_not() {
    let (world, _names) = World::with_names();
    let (_relay, ticket, metrics) = relay(&world, "relay");
    // Its name is shown to nobody but itself, and so not to the relay.
    let ada = world.id("ada");
    let _ada = expose(&world, "ada", &[SSH, "--allow", &ada], &ticket);
    holds(&metrics, 1);
    let eve = expose(&world, "eve", &["ssh.eve@example.com", "--allow", "any"], &ticket);
    eve.until_said("does not serve those who have names of example.com", 1);
    let guest = expose(&world, "guest", &["--ticket", "--allow", "any"], &ticket);
    guest.until_said("this endpoint has none to show", 1);
    holds(&metrics, 1);
}

/// What a server was told of its name before is enough for the relay's next process.
#[test]
fn a_relay_needs_its_name_service_neither_at_its_start_nor_later() {
    let (world, names) = World::with_names();
    let (first, ticket, metrics) = relay(&world, "relay");
    let _ada = expose(&world, "ada", &[SSH, "--allow", "any"], &ticket);
    holds(&metrics, 1);
    for stopped in [names, first] {
        stopped.signal(Signal::TERM);
        stopped.output(LIMIT).succeeded();
    }
    let (_second, ..) = relay(&world, "relay");
    holds(&metrics, 1);
}

#[test]
fn without_a_name_service_nobody_vouches_for_a_domain_which_is_said() {
    let world = World::new();
    world.run("names", &["relay", "serve", "--allow", "@example.org"]).failed(2, &["--names"]);
}
