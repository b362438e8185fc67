//! A download goes on at another device: real programs, a real HTTP server that knows nothing of it, and
//! commands as people type them.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};

use crate::common::LIMIT;
use crate::download::{Stage, Way, requests};

#[test]
fn a_download_of_curl_on_the_phone_goes_on_at_the_desk_from_the_very_byte() {
    goes_on_at_the_desk(Way::Socks);
}

#[test]
fn a_download_in_a_tunnel_of_the_http_proxy_goes_on_at_the_desk() {
    goes_on_at_the_desk(Way::Http);
}

#[test]
fn a_download_of_a_program_that_is_run_goes_on_at_the_desk() {
    goes_on_at_the_desk(Way::Run);
}

/// A download of the phone moves to a program of the desk that takes bytes as they are.
fn goes_on_at_the_desk(way: Way) {
    let mut stage = Stage::by(way, Some("desk"));
    let session = stage.session("desk");
    assert_eq!((&session["may"], &session["standing"]), (&"consent".into(), &"live".into()));
    assert!(session["down_rate"].is_u64() && session["up_rate"].is_u64(), "{session}");
    let id = session["id"].as_str().unwrap();
    let mut take = stage.world.start("desk", &["take", &id[..8], "--through", &stage.ticket, "--json"]);
    let listening: SocketAddr = take.next_json()["listening"].as_str().unwrap().parse().unwrap();
    // A program as it is: it connects, and reads.
    let mut program = TcpStream::connect(listening).unwrap();
    program.set_read_timeout(Some(LIMIT)).unwrap();
    stage.go_on();
    let mut second = Vec::new();
    program.read_to_end(&mut second).unwrap();
    drop(program);
    take.output(LIMIT).succeeded();
    let first = stage.first_part();
    assert!(!first.is_empty() && !second.is_empty());
    stage.are_the_file(&first, &second);
    assert_eq!(requests(stage.server), 1, "the server saw one request, on one connection");
}

#[test]
fn a_download_goes_on_and_moves_while_newer_gateways_take_over() {
    let mut stage = Stage::new(Some("desk"));
    stage.take_over();
    let session = stage.session("desk");
    assert_eq!((&session["may"], &session["standing"]), (&"consent".into(), &"live".into()));
    let id = session["id"].as_str().unwrap();
    let mut take = stage.world.start("desk", &["take", &id[..8], "--through", &stage.ticket, "--json"]);
    let listening: SocketAddr = take.next_json()["listening"].as_str().unwrap().parse().unwrap();
    let mut program = TcpStream::connect(listening).unwrap();
    program.set_read_timeout(Some(LIMIT)).unwrap();
    stage.go_on();
    // Much of the second half is under way, and kept.
    stage.take_over();
    let mut second = Vec::new();
    program.read_to_end(&mut second).unwrap();
    drop(program);
    take.output(LIMIT).succeeded();
    let first = stage.first_part();
    assert!(!first.is_empty() && !second.is_empty());
    stage.are_the_file(&first, &second);
    assert_eq!(requests(stage.server), 1, "the server saw one request, on one connection");
}

#[test]
fn a_program_that_asks_by_http_gets_the_rest_with_its_length() {
    let mut stage = Stage::new(Some("desk"));
    let id = stage.session("phone")["id"].as_str().unwrap().to_owned();
    let second = stage.world.path("second");
    // The flags that each command of a test gets go to the shell, which has no use for them.
    let script = format!("curl -sS --fail -D - -o {} \"$0\"", second.display());
    let curl = ["--as", "http", "--", "sh", "-c", &script, "{url}"];
    let args = [&["take", &id[..8], "--through", &stage.ticket][..], &curl].concat();
    let taken = stage.world.start("desk", &args);
    stage.go_on();
    let taken = taken.output(LIMIT);
    let said = &taken.succeeded().stdout;
    let (first, second) = (stage.first_part(), fs::read(&second).unwrap());
    stage.are_the_file(&first, &second);
    assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
    assert!(
        said.lines().any(|line| line.trim_end() == format!("Content-Length: {}", second.len())),
        "{said}"
    );
    assert_eq!(requests(stage.server), 1);
}

#[test]
fn a_device_sees_and_takes_nothing_that_it_was_not_given() {
    let stage = Stage::new(None);
    let id = stage.session("phone")["id"].as_str().unwrap().to_owned();
    assert!(stage.run("desk", &["sessions"]).contains("no sessions of this device"));
    let through = ["--through", stage.ticket.as_str()];
    for (device, args) in [
        ("desk", &["take", &id][..]),
        ("desk", &["handoff", &id, "--to", &stage.world.id("desk")]),
        ("phone", &["take", "0000"]),
    ] {
        stage.world.run(device, &[args, &through].concat()).failed(3, &["no such session"]);
    }
    for (args, says) in [
        (&["take", "xyz"][..], "is no session"),
        (&["take", &id, "--listen", "0.0.0.0:0"], "listen on 127.0.0.1"),
        (&["handoff", &id, "--to", "nobody"], "no device or friend"),
    ] {
        let output = stage.world.run("phone", &[args, &through].concat());
        assert!(!output.status.success() && output.stderr.contains(says), "{args:?}: {}", output.stderr);
    }
    let session = stage.session("phone");
    assert_eq!(
        (&session["id"], &session["standing"]),
        (&id.into(), &"live".into()),
        "it was there all along"
    );
}
