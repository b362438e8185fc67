//! With the name service between them: each kind of move, and publishing, take less than half a round trip
//! more than they must.
//!
//! Every two hosts are 300 ms apart, so that a missing round trip shows, and a busy machine does not.

use std::time::{Duration, Instant, SystemTime};

use whimbrel::{Allow, ListenOptions, SecretKey};
use whimbrel_lab::{Block, require};

use super::{Endpoint, World};
use crate::lab_support::ms;
use crate::lab_support::net::{Family, Node};
use crate::lab_support::traffic::Echo;

const RTT: Duration = Duration::from_millis(300);
/// Less than this above the least is no further half of a round trip.
const SLACK: Duration = Duration::from_millis(149);
/// For the carriers to change, and for what hangs on the name service to come to rest.
const CALM: Duration = Duration::from_millis(2500);

fn at_most(what: &str, took: Duration, least: Duration) {
    eprintln!("{what}: {took:?}, the least is {least:?}");
    assert!(took < least + SLACK, "{what}: {took:?}");
}

/// Moves these hosts once, and tells how long it takes from their new addresses until something is echoed.
fn moved(world: &World, blocked: &[Block], nodes: &[&Node]) -> Duration {
    let connection = world.connect();
    let mut echo = world.client_node().wait(Echo::open(&connection));
    for block in blocked {
        world.net.nodes.iter().for_each(|node| node.host.block(*block).unwrap());
    }
    std::thread::sleep(CALM);
    nodes.iter().for_each(|node| node.leave());
    std::thread::sleep(ms(20));
    nodes.iter().for_each(|node| _ = node.arrive());
    let began = Instant::now();
    world.client_node().wait(echo.say(b"there"));
    began.elapsed()
}

fn far() -> World {
    World::with(Family::V4, RTT / 4)
}

/// The record takes half a round trip to the service, its push another, the client's JOIN and its answer one.
#[test]
fn both_move_within_two_round_trips() {
    if !require!() {
        return;
    }
    let world = far();
    let took = moved(&world, &[], &[world.client_node(), world.server_node()]);
    at_most("both move", took, RTT * 2);
}

/// Over TCP the record takes one round trip more, and so does the JOIN.
#[test]
fn where_udp_is_blocked_a_server_that_moves_is_heard_again_after_four_round_trips() {
    if !require!() {
        return;
    }
    let world = far();
    let took = moved(&world, &[Block::Udp], &[world.server_node()]);
    at_most("server moves, UDP blocked", took, RTT * 4);
}

/// The same, and the service pushes to a client that had to join it anew meanwhile.
#[test]
fn where_udp_is_blocked_both_move_within_four_round_trips() {
    if !require!() {
        return;
    }
    let world = far();
    let took = moved(&world, &[Block::Udp], &[world.client_node(), world.server_node()]);
    at_most("both move, UDP blocked", took, RTT * 4);
}

/// As behind a gateway that lets no notice out: its record tells where it is.
#[test]
fn a_server_whose_notice_is_lost_is_heard_again_after_two_round_trips() {
    if !require!() {
        return;
    }
    let world = far();
    let notices = "table inet test { chain input { type filter hook input priority 0;
        meta l4proto udp @th,64,32 0x57484e31 drop\n}\n}";
    let nft = world.client_node().host.command("nft").arg(notices).output().unwrap();
    assert!(nft.status.success(), "{}", String::from_utf8_lossy(&nft.stderr));
    let took = moved(&world, &[], &[world.server_node()]);
    at_most("server moves, no notice", took, RTT * 2);
}

/// The service has a moved server's record after half a round trip.
#[test]
fn the_record_of_a_server_that_moves_is_there_after_half_a_round_trip() {
    if !require!() {
        return;
    }
    let world = far();
    std::thread::sleep(CALM);
    let service = &world.names.as_ref().unwrap().service;
    let names = &world.net.nodes[2];
    let (name, who) = (super::NAME.parse().unwrap(), service.addr().id);
    let registry = service.registry().clone();
    let mut watcher =
        names.wait(async { registry.watch(&name, who, None, SystemTime::now().into()).await }).unwrap();
    names.wait(watcher.next());
    let server = world.server_node();
    server.leave();
    std::thread::sleep(ms(20));
    let ip = server.arrive();
    let began = Instant::now();
    let published = names.wait(async {
        while !watcher.next().await.record().addrs.iter().any(|at| at.ip() == ip) {}
        began.elapsed()
    });
    at_most("record published", published, RTT / 2);
}

/// An endpoint that has never met the service publishes in two round trips, and in one once it is connected.
#[test]
fn a_name_is_published_in_two_round_trips_and_a_further_one_in_one() {
    if !require!() {
        return;
    }
    let world = far();
    let node = world.client_node();
    let service = world.names.as_ref().unwrap().service.addr();
    let endpoint =
        node.wait(Endpoint::builder().identity(SecretKey::generate()).names(service).bind()).unwrap();
    for (name, least) in [("first@example.org", RTT * 2), ("second@example.org", RTT)] {
        let began = Instant::now();
        let listener = node.wait(endpoint.listen(ListenOptions::named(name).allow(Allow::Any))).unwrap();
        at_most(name, began.elapsed(), least);
        drop(listener);
    }
}
