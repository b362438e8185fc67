//! Connections of programs to a forward go on at another device, with the forward's own.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::Ordering;

use crate::common::{LIMIT, Process, World, wait_for};
use crate::typed::{Film, LARGE, expose, hand_off, sum, take};
use tokio::io::AsyncWriteExt as _;
use whimbrel::transport::ManualMonitor;
use whimbrel::{Allow, CloseCode, Endpoint, ListenOptions};

/// A forward on the phone, and a program that is connected to it.
fn forward(world: &World, ticket: &str) -> (Process, TcpStream) {
    let mut forward = world.start("phone", &["forward", ticket, "--json"]);
    let at: SocketAddr = forward.next_json()["listening"].as_str().unwrap().parse().unwrap();
    (forward, connected(at))
}

fn connected(at: SocketAddr) -> TcpStream {
    let program = TcpStream::connect(at).unwrap();
    program.set_read_timeout(Some(LIMIT)).unwrap();
    program
}

#[test]
fn what_a_program_did_not_get_at_the_phone_a_program_at_the_desk_gets_and_the_server_has_one_connection() {
    let world = World::new();
    let film = Film::default();
    let (_expose, ticket) = expose(&world, film.start(), &["phone", "desk"]);
    let (forward, mut program) = forward(&world, &ticket);
    program.write_all(b"from the phone\n").unwrap();
    let mut first = vec![0; LARGE / 2];
    program.read_exact(&mut first).unwrap();
    let desk_id = world.id("desk");
    let given = hand_off(&world, "phone", &desk_id);
    let mut desk = world.start("desk", &[&take(&given)[..], &["--json"]].concat());
    let at: SocketAddr = desk.next_json()["listening"].as_str().unwrap().parse().unwrap();
    // The program at the phone is not told that this was the end.
    let error = program.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let output = forward.output(LIMIT);
    assert!(output.succeeded().stderr.contains(&format!("went on at {desk_id}")), "{}", output.stderr);
    let mut program = connected(at);
    film.may_go_on.store(true, Ordering::SeqCst);
    program.write_all(b"from the desk\n").unwrap();
    program.shutdown(Shutdown::Write).unwrap();
    let mut second = Vec::new();
    program.read_to_end(&mut second).unwrap();
    let joined = [first, second].concat();
    assert_eq!((joined.len(), sum(&joined)), (LARGE, sum(&Film::bytes())));
    desk.output(LIMIT).succeeded();
    wait_for("what the programs sent", || {
        let heard = film.heard.lock().unwrap();
        (*heard == b"from the phone\nfrom the desk\n").then_some(())
    });
    assert_eq!(film.connections.load(Ordering::SeqCst), 1);
}

#[test]
fn how_fast_a_session_is_can_be_seen_while_it_goes_on() {
    let world = World::new();
    let film = Film::default();
    film.slowly.store(true, Ordering::SeqCst);
    film.may_go_on.store(true, Ordering::SeqCst);
    let (_expose, ticket) = expose(&world, film.start(), &["phone"]);
    let (_forward, mut program) = forward(&world, &ticket);
    // It lasts for half a minute at the least, however fast the machine is.
    let reading = std::thread::spawn(move || std::io::copy(&mut program, &mut std::io::sink()).unwrap());
    let fast = wait_for("a session that is not at rest", || {
        let listed = world.run("phone", &["sessions", "--json"]).succeeded().json();
        let session = listed["sessions"][0].clone();
        (session["down_rate"].as_u64() > Some(0)).then_some(session)
    });
    assert!(fast["up_rate"].is_u64(), "{fast}");
    let shown = world.run("phone", &["sessions"]);
    assert!(shown.succeeded().stdout.contains("/s down, "), "{}", shown.stdout);
    film.slowly.store(false, Ordering::SeqCst);
    assert_eq!(reading.join().unwrap(), LARGE as u64);
}

#[test]
fn a_program_that_does_not_read_keeps_the_forward_where_it_is_and_gets_every_byte() {
    let world = World::new();
    let film = Film::default();
    film.may_go_on.store(true, Ordering::SeqCst);
    let (_expose, ticket) = expose(&world, film.start(), &["phone", "desk"]);
    let (forward, mut program) = forward(&world, &ticket);
    // Something is in its kernel from then on.
    program.peek(&mut [0; 1]).unwrap();
    let given = hand_off(&world, "phone", &world.id("desk"));
    world.run("desk", &take(&given)).failed(5, &["does not read"]);
    forward.until_said("this stays here", 1);
    let mut all = Vec::new();
    program.read_to_end(&mut all).unwrap();
    assert_eq!((all.len(), sum(&all)), (LARGE, sum(&Film::bytes())));
}

#[test]
fn a_forward_that_no_program_uses_stays_and_goes_on() {
    let world = World::new();
    let film = Film::default();
    film.may_go_on.store(true, Ordering::SeqCst);
    let (_expose, ticket) = expose(&world, film.start(), &["phone", "desk"]);
    let mut forward = world.start("phone", &["forward", &ticket, "--json"]);
    let at: SocketAddr = forward.next_json()["listening"].as_str().unwrap().parse().unwrap();
    let given = hand_off(&world, "phone", &world.id("desk"));
    world.run("desk", &take(&given)).failed(5, &["no program is connected"]);
    forward.until_said("this stays here", 1);
    let mut all = Vec::new();
    connected(at).read_to_end(&mut all).unwrap();
    assert_eq!((all.len(), sum(&all)), (LARGE, sum(&Film::bytes())));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_program_ends_with_its_connection() {
    let world = World::new();
    let own = ManualMonitor::new([world.address("home").parse().unwrap()]);
    let peer = Endpoint::builder().monitor(own).bind().await.unwrap();
    let mut listener = peer.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let (_forward, mut program) = forward(&world, &peer.ticket(None).to_string());
    let connection = tokio::time::timeout(LIMIT, listener.accept()).await.unwrap().unwrap();
    program.write_all(b"?").unwrap();
    let mut stream = tokio::time::timeout(LIMIT, connection.accept_stream()).await.unwrap().unwrap();
    stream.write_all(b"half").await.unwrap();
    stream.flush().await.unwrap();
    program.read_exact(&mut [0; 4]).unwrap();
    let given = hand_off(&world, "phone", &world.id("desk"));
    let mut desk = world.start("desk", &[&take(&given)[..], &["--json"]].concat());
    assert!(desk.next_json()["listening"].is_string());
    // No program has connected, and nobody has to come for it to be told.
    connection.abort(CloseCode::application(9), "enough");
    desk.output(LIMIT).failed(1, &["has gone, before a program connected", "enough"]);
    peer.close(LIMIT).await;
}
