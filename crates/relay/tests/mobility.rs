//! Moves between homes behind NAT gateways at the worst moments: while holes are punched, while a relay dies
//! or sends its servers away, while the other side is away or asleep; a server that is started anew; a crowd
//! whose relay dies.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::thread;
use std::time::{Duration, Instant};

use crate::homes::gateway::HTTPS;
use crate::homes::{Download, Homes, is_direct, passed_on, used};
use crate::lab_support::traffic::{Server, Transfer, Way};
use crate::lab_support::{ms, secs};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use whimbrel_base::{EndpointAddr, SecretKey};
use whimbrel_lab::{Block, Direction, NatKind, require};
use whimbrel_relay::{Limits, Relay};
use whimbrel_transport::{CloseCode, Config, Connection, Endpoint, Suspended};

const SIZE: u64 = 4 << 20;
/// What takes seconds at most takes less than this on a busy machine.
const SURELY: Duration = Duration::from_secs(90);
const CROWD: usize = 200;

/// Has bytes go through a connection whose other relay is gone, and waits until this one says that it
/// carries: what came before may have been sent to the end while the other one lived.
fn goes_through(relay: &Relay, homes: &Homes, connection: &Connection, server: &Server) {
    Transfer::start(&homes.client, connection, server, Way::Down, 64 << 10)
        .finish_within(&homes.client, SURELY);
    let begun = Instant::now();
    while passed_on(relay) == 0 {
        assert!(begun.elapsed() < SURELY, "the other relay carries nothing");
        thread::sleep(ms(10));
    }
}

/// Swallows all that the relay sends and is sent.
fn kill(homes: &Homes, relay: usize) {
    homes.relays[relay].1.set_blackhole(Direction::Both, true);
}

/// Round trips of 584 ms through the relay, so that the attempt at a direct path is under way for a second.
#[test]
fn a_side_that_moves_while_holes_are_punched_is_connected_directly_all_the_same() {
    if !require!() {
        return;
    }
    // Mostly waiting.
    thread::scope(|scope| {
        scope.spawn(|| moves_while_holes_are_punched(false));
        moves_while_holes_are_punched(true);
    });
}

fn moves_while_holes_are_punched(server_moves: bool) {
    let homes = Homes::apart(1, ms(140));
    homes.gateways.iter().for_each(|gateway| gateway.set_kind(NatKind::PortRestricted).unwrap());
    let relay = homes.relay(0);
    let (server, _keeper) = homes.serve(&[&relay]);
    let (_client, connection) = homes.connect(&server);
    let transfer = Transfer::start(&homes.client, &connection, &server, Way::Down, 256 << 10);
    let moving = if server_moves { &homes.server } else { &homes.client };
    moving.move_on();
    // Looked at, not waited for as an event: on a busy machine the path may be there before the move, and
    // stay.
    let begun = Instant::now();
    while !is_direct(&connection) {
        assert!(begun.elapsed() < SURELY, "no direct path");
        thread::sleep(ms(10));
    }
    transfer.finish_within(&homes.client, SURELY);
}

/// What was reached directly over UDP is reached over TCP through the relay alone.
#[test]
fn a_server_that_moves_into_a_network_that_lets_out_https_alone_goes_on() {
    if !require!() {
        return;
    }
    let homes = Homes::apart(1, ms(25));
    homes.gateways.iter().for_each(|gateway| gateway.set_kind(NatKind::PortRestricted).unwrap());
    let relay = homes.relay_at(0, HTTPS);
    let (server, _keeper) = homes.serve(&[&relay]);
    let (_client, connection) = homes.connect(&server);
    let transfer = Transfer::start(&homes.client, &connection, &server, Way::Down, 8 << 20);
    let begun = Instant::now();
    while !is_direct(&connection) {
        assert!(begun.elapsed() < SURELY, "no direct path");
        thread::sleep(ms(10));
    }
    // By a network whose ports nobody can foretell, with time between in which there is none.
    for https_alone in [false, true] {
        homes.server.leave();
        let gateway = &homes.gateways[1];
        gateway.set_kind(NatKind::Symmetric).unwrap();
        if https_alone {
            gateway.router().block(Block::AllButTcpPort(HTTPS)).unwrap();
        }
        thread::sleep(secs(3));
        homes.server.arrive();
        let begun = Instant::now();
        Transfer::start(&homes.client, &connection, &server, Way::Down, 256 << 10)
            .finish_within(&homes.client, SURELY);
        eprintln!("carries after {:?}", begun.elapsed());
    }
    transfer.finish_within(&homes.client, SURELY);
}

#[test]
fn sides_that_move_while_their_relay_dies_go_on_through_the_other_one() {
    if !require!() {
        return;
    }
    for server_moves in [false, true] {
        let download = Download::begin(SIZE);
        let (homes, dying) = (&download.homes, download.used());
        kill(homes, dying);
        homes.client.move_on();
        if server_moves {
            homes.server.move_on();
        }
        download.transfer.finish_within(&homes.client, SURELY);
        goes_through(&download.relays[1 - dying], homes, &download.connection, &download.server);
    }
}

#[test]
fn sides_that_move_while_their_relay_sends_them_away_go_on_through_the_other_one() {
    if !require!() {
        return;
    }
    let download = Download::begin(SIZE);
    let (homes, leaving) = (&download.homes, download.used());
    thread::scope(|scope| {
        let (node, relay) = (&homes.relays[leaving].0, &download.relays[leaving]);
        scope.spawn(move || node.wait(relay.drain(secs(5))));
        homes.client.move_on();
        homes.server.move_on();
    });
    download.transfer.finish_within(&homes.client, SURELY);
    goes_through(&download.relays[1 - leaving], homes, &download.connection, &download.server);
}

#[test]
fn a_server_that_is_started_anew_behind_its_relay_is_reached_where_it_was() {
    if !require!() {
        return;
    }
    let homes = Homes::new(1);
    let relay = homes.relay(0);
    let key = SecretKey::generate();
    let (server, keeper) = homes.serve_as(&key, &[&relay]);
    let behind = behind(&server.endpoint);
    let client = homes.client.endpoint();
    let before = homes.client.wait(client.connect(behind.clone())).unwrap();
    Transfer::start(&homes.client, &before, &server, Way::Down, 1 << 20).finish(&homes.client);
    drop(keeper);
    homes.server.wait(server.endpoint.close(secs(5)));
    drop(server);
    let (server, _keeper) = homes.serve_as(&key, &[&relay]);
    assert_eq!(self::behind(&server.endpoint), behind, "the same token");
    // The client knows the server from before, and resumes or not: it is served.
    let after = homes.client.wait_for(SURELY, client.connect(behind)).unwrap();
    for way in [Way::Down, Way::Up] {
        Transfer::start(&homes.client, &after, &server, way, 1 << 20).finish_within(&homes.client, SURELY);
    }
    // The server that began anew knows nothing of what was before.
    homes.client.wait_for(SURELY, before.closed());
}

/// Where a server is behind its relays, and nowhere else.
fn behind(server: &Endpoint) -> EndpointAddr {
    EndpointAddr::new(server.id(), server.relayed().into_iter().flat_map(|place| place.pack()))
}

#[test]
fn sides_that_are_both_away_for_a_while_find_each_other_through_their_relay() {
    if !require!() {
        return;
    }
    let homes = Homes::new(1);
    let relay = homes.relay(0);
    let (server, _keeper) = homes.serve(&[&relay]);
    let (_client, connection) = homes.connect(&server);
    let transfer = Transfer::start(&homes.client, &connection, &server, Way::Down, SIZE);
    transfer.reach(&homes.client, 1 << 20);
    homes.client.leave();
    homes.server.leave();
    thread::sleep(secs(3));
    // The gateways have been started anew as well.
    homes.gateways.iter().for_each(|gateway| gateway.forget_mappings().unwrap());
    homes.server.arrive();
    homes.client.arrive();
    transfer.finish_within(&homes.client, SURELY);
}

#[test]
fn a_connection_that_sleeps_while_both_sides_move_goes_on_at_the_exact_byte_behind_its_relay() {
    if !require!() {
        return;
    }
    let homes = Homes::new(1);
    let relay = homes.relay(0);
    let (server, _keeper) = homes.serve(&[&relay]);
    let key = SecretKey::generate();
    let client = homes.client.endpoint_with(|builder| builder.secret_key(key.clone()));
    let connection = homes.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let mut stream = homes.client.wait(async {
        let mut stream = connection.open_stream().await.unwrap();
        // The server sends everything back.
        stream.write_u8(b'E').await.unwrap();
        stream.write_u64(1).await.unwrap();
        assert_eq!(stream.read_u64().await.unwrap(), 1);
        stream
    });
    // Under way when it falls asleep.
    homes.client.wait(stream.write_u64(2)).unwrap();
    let asleep = homes.client.wait(connection.suspend(secs(10))).unwrap();
    homes.client.wait(client.close(secs(5)));
    drop((stream, connection, client));
    homes.client.move_on();
    homes.server.move_on();
    let client = homes.client.endpoint_with(|builder| builder.secret_key(key));
    let asleep = Suspended::from_bytes(asleep.into_bytes());
    let connection = homes.client.wait(client.resume(&asleep)).unwrap();
    let mut stream = connection.streams().pop().expect("its stream");
    homes.client.wait_for(SURELY, async {
        assert_eq!(stream.read_u64().await.unwrap(), 2);
        stream.write_u64(3).await.unwrap();
        assert_eq!(stream.read_u64().await.unwrap(), 3);
    });
    Transfer::start(&homes.client, &connection, &server, Way::Down, 1 << 20)
        .finish_within(&homes.client, SURELY);
    let _ = homes.client.wait(connection.close(CloseCode::NONE, "", secs(5)));
}

/// More than any stock of spares. Nothing is said here of how long it takes: that is measured
/// (`whimbrel-bench reach`).
#[test]
fn two_hundred_connections_of_one_server_whose_relay_dies_are_all_back() {
    if !require!() {
        return;
    }
    let homes = Homes::new(2);
    let limits = || {
        let mut limits = Limits::default();
        // They all come from one gateway's address.
        (limits.clients_per_second, limits.clients_per_address) = (1e4, 1e4);
        limits
    };
    let relays = [homes.relay_with(0, 0, limits()), homes.relay_with(1, 0, limits())];
    let (server, _keeper) = homes.serve(&[&relays[0], &relays[1]]);
    let config = Config { direct_paths: false, connect_timeout: SURELY, ..Config::default() };
    let client = homes.client.endpoint_with(|builder| builder.config(config));
    let target = behind(&server.endpoint);
    let connecting = async {
        let mut all = Vec::new();
        // Some at a time: this is not about how many begin at once.
        for _ in 0..CROWD / 20 {
            let mut some = JoinSet::new();
            for _ in 0..20 {
                let (client, target) = (client.clone(), target.clone());
                some.spawn(async move { client.connect(target).await.unwrap() });
            }
            all.extend(some.join_all().await);
        }
        all
    };
    let connections = homes.client.wait_for(SURELY, connecting);
    let start = |size| {
        let begin = |connection| Transfer::start(&homes.client, connection, &server, Way::Down, size);
        connections.iter().map(begin).collect::<Vec<_>>()
    };
    let transfers = start(16 << 10);
    transfers[0].reach(&homes.client, 1);
    let dying = used(&relays);
    kill(&homes, dying);
    transfers.into_iter().for_each(|transfer| transfer.finish_within(&homes.client, SURELY));
    // Those whose bytes were all under way before are asked again.
    start(1000).into_iter().for_each(|transfer| transfer.finish_within(&homes.client, SURELY));
    goes_through(&relays[1 - dying], &homes, &connections[0], &server);
}
