//! A device that was stolen while a program of its user's ran there: one command has it out, and what ran
//! there goes on at another device of the user.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use crate::agents::{introduce, until};
use crate::common::{LIMIT, Process, World};
use crate::download::{HALF, proxy, random, requests, serve};
use sha2::{Digest as _, Sha256};

/// A user whose phone and desk have the same list, in which the desk may act for the user.
fn ada() -> (World, Process) {
    let (world, names) = World::with_names();
    for device in ["phone", "desk"] {
        let name = format!("{device}.ada@example.org");
        introduce(&world, ("home", &["--device", &name]), (device, &[]));
    }
    world.run("home", &["devices", "trust", "desk"]).succeeded();
    let mut serving = world.start("home", &["devices", "serve", "--json", "-q"]);
    let ticket = serving.next_json()["ticket"].as_str().unwrap().to_owned();
    for device in ["phone", "desk"] {
        let met = world.run(device, &["devices", "sync", &ticket, "--json", "-q"]).succeeded().json();
        assert_eq!(met["agree"], true, "{met}");
    }
    (world, names)
}

/// The only session of the gateway, as a device is told of it; nothing if it is told of none.
fn session(world: &World, device: &str, ticket: &str) -> Option<serde_json::Value> {
    let said = world.run(device, &["sessions", "--json", "--through", ticket]).succeeded().json();
    let all = said["sessions"].as_array().unwrap();
    assert!(all.len() <= 1, "{said}");
    all.first().cloned()
}

#[test]
fn what_ran_on_a_stolen_phone_is_cut_by_one_command_and_goes_on_at_the_desk_from_the_very_byte() {
    let (world, _names) = ada();
    let (file, first) = (random(), world.path("first"));
    let (server, at) = serve(&world, &file);
    // All devices of the user, and nobody else.
    let devices = format!("ada@example.org={}", world.id("home"));
    let gate =
        ["gateway", "serve", "--ticket", "--json", "--to", "127.0.0.1", "--hold", "10m", "--allow", &devices];
    let mut gateway = world.start("home", &gate);
    let ticket = gateway.next_json()["ticket"].as_str().unwrap().to_owned();
    let (socks, _serving) = proxy(&world, "socks", &ticket);
    let url = format!("http://{at}/film");
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--max-time", "300", "--socks5-hostname", &socks, &url, "-o"]).arg(&first);
    let mut curl = Process::start(&mut curl);
    let id = until("the phone has the first half, and has said so", || {
        let session = session(&world, "phone", &ticket)?;
        let has_half = session["down"].as_u64()? >= HALF as u64 && session["kept"] == 0;
        has_half.then(|| session["id"].as_str().unwrap().to_owned())
    });

    let revoked = world.run("home", &["id", "revoke", "phone.ada@example.org", "--json"]).succeeded().json();
    assert_eq!(revoked["removed"], 1, "{revoked}");
    // "Failure with receiving network data", or a part of a file: what is stolen gets nothing more.
    let ended = curl.finish(LIMIT);
    assert!(matches!(ended.status.code(), Some(56 | 18)), "{:?}: {}", ended.status, ended.stderr);
    let held = until("its session waits for another device", || {
        session(&world, "desk", &ticket).filter(|session| session["standing"] == "held")
    });
    assert_eq!((&held["id"], &held["may"]), (&id.as_str().into(), &"rule".into()), "{held}");
    for args in [&["sessions"][..], &["take", &id[..8]]] {
        let output = world.run("phone", &[args, &["--through", &ticket]].concat());
        assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}: {}", output.stdout);
    }

    let mut take = world.start("desk", &["take", &id[..8], "--through", &ticket, "--json"]);
    let listening: SocketAddr = take.next_json()["listening"].as_str().unwrap().parse().unwrap();
    let mut program = TcpStream::connect(listening).unwrap();
    program.set_read_timeout(Some(LIMIT)).unwrap();
    until("the desk has it", || (session(&world, "desk", &ticket)?["moves"] == 1).then_some(()));
    fs::write(world.path("go"), "").unwrap();
    let mut second = Vec::new();
    program.read_to_end(&mut second).unwrap();
    drop(program);
    take.output(LIMIT).succeeded();
    let first = fs::read(first).unwrap();
    assert!(!first.is_empty() && !second.is_empty());
    assert_eq!(first.len() + second.len(), file.len(), "bytes were lost, or came twice");
    assert_eq!(Sha256::digest([first, second].concat()), Sha256::digest(&file));
    assert_eq!(requests(server), 1, "the server saw one request, on one connection");
}
