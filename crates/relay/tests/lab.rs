//! Servers and clients behind NAT gateways of their own, with relays between.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::SocketAddr;
use std::time::Instant;

use crate::homes::{Download, Homes, passed_on};
use crate::lab_support::net::Watch;
use crate::lab_support::traffic::{Echo, Transfer, Way};
use crate::lab_support::{ms, secs};
use whimbrel_base::EndpointAddr;
use whimbrel_lab::{Direction, require};
use whimbrel_relay::Relay;
use whimbrel_transport::{
    CarrierKind, CloseCode, Config, Connection, Endpoint, Locator, PathInfo, PathState,
};

const SIZE: u64 = 12 << 20;

fn relay_of(connection: &Connection) -> Option<Locator> {
    connection.stats().paths.first().map(|path| path.remote)
}

#[test]
fn behind_two_gateways_each_side_moves_during_a_download_and_no_byte_is_lost() {
    if !require!() {
        return;
    }
    let homes = Homes::new(1);
    let relay = homes.relay(0);
    let (server, _keeper) = homes.serve(&[&relay]);
    let (_client, connection) = homes.connect(&server);
    assert!(matches!(relay_of(&connection), Some(Locator::Relayed(_))), "{:?}", connection.stats().paths);
    let transfer = Transfer::start(&homes.client, &connection, &server, Way::Down, SIZE);
    transfer.reach(&homes.client, 1 << 20);
    let mut watch = Watch::new(&connection);
    homes.client.move_on();
    // Two round trips from end to end, as the bench `reach` measures; with others on the machine, more.
    let took = homes.client.wait(watch.recovery());
    assert!(took < secs(5), "the client's move took {took:?}");
    transfer.reach(&homes.client, 4 << 20);
    homes.server.move_on();
    // A path over QUIC stays, and there is no other one to watch for.
    let moved = Instant::now();
    transfer.reach(&homes.client, 7 << 20);
    assert!(moved.elapsed() < secs(20), "the server's move took {:?}", moved.elapsed());
    homes.client.move_on();
    homes.server.move_on();
    transfer.finish(&homes.client);
}

#[test]
fn a_relay_that_falls_silent_is_left_for_another_one() {
    if !require!() {
        return;
    }
    let download = Download::begin(SIZE);
    let (homes, used) = (&download.homes, download.used());
    let (node, link) = &homes.relays[used];
    link.set_blackhole(link.from(&node.host), true);
    let mut watch = Watch::new(&download.connection);
    let took = homes.client.wait(watch.recovery());
    // Before the kernel would give it up.
    assert!(took < secs(20), "it took {took:?}");
    download.transfer.finish(&homes.client);
    assert!(passed_on(&download.relays[1 - used]) > 0);
}

/// A round trip takes 584 ms from end to end, half of that to the relay, where TCP would begin with another
/// one.
#[test]
fn through_a_relay_a_client_that_moves_is_echoed_after_one_round_trip_from_end_to_end() {
    if !require!() {
        return;
    }
    let homes = Homes::apart(1, ms(140));
    // Less than what a round trip to the relay would add, which takes 292 ms.
    let (round_trip, slack) = (ms(584), ms(270));
    let relay = homes.relay(0);
    let (server, _keeper) = homes.serve(&[&relay]);
    let config = Config { direct_paths: false, ..Config::default() };
    let client = homes.client.endpoint_with(|builder| builder.config(config));
    let connection = homes.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let mut echo = homes.client.wait(Echo::open(&connection));
    for pause in [ms(0), ms(60)] {
        // What the machine adds to a round trip just now.
        let before = homes.client.wait(echo.say(b"here"));
        // Until nothing is under way but what carries, and there are tickets.
        std::thread::sleep(round_trip * 3);
        homes.client.move_on();
        homes.client.settle(&client);
        // By then a place that leads nowhere may be dialled beside.
        std::thread::sleep(pause);
        let took = homes.client.wait(echo.say(b"there"));
        assert!(took < before.max(round_trip) + slack, "{took:?}, and {before:?} before the move");
        let paths = connection.stats().paths;
        let mut answered = paths.iter().filter(|path| path.state == PathState::Active);
        let is_relayed =
            |path: &PathInfo| matches!(path.remote, Locator::Relayed(_)) && path.carrier == CarrierKind::Quic;
        assert!(answered.next().is_some_and(is_relayed) && answered.next().is_none(), "{paths:?}");
    }
    assert!(relay.stats().flowed >= 3, "{:?}", relay.stats());
}

/// Waits until a client has measured what a round trip to a relay takes.
fn measured(client: &Endpoint, relay: &Relay) -> SocketAddr {
    let at = relay.endpoint().addr().addrs[0];
    let begun = Instant::now();
    while client.round_trip_to_relay(at).is_none() {
        assert!(begun.elapsed() < secs(20), "{at} is not measured");
        std::thread::sleep(ms(20));
    }
    at
}

/// The relay that is named first is 92 ms away from either side, the other one 18 ms.
#[test]
fn of_two_relays_the_next_connection_begins_with_the_one_that_is_nearest_to_both_sides() {
    if !require!() {
        return;
    }
    let homes = Homes::new(2);
    let relays = [homes.relay(0), homes.relay(1)];
    let (server, _keeper) = homes.serve(&[&relays[0], &relays[1]]);
    homes.relays[0].1.set_delay(Direction::Both, ms(40));
    let far = relays[0].endpoint().addr().addrs[0];
    let mut places = server.endpoint.relayed();
    places.sort_by_key(|place| place.relay != far);
    assert_eq!(places.len(), 2, "{places:?}");
    let target = EndpointAddr::new(server.endpoint.id(), places.iter().flat_map(|place| place.pack()));
    let config = Config { direct_paths: false, ..Config::default() };
    let client = homes.client.endpoint_with(|builder| builder.config(config));
    let first = homes.client.wait(client.connect(target.clone())).unwrap();
    let measured = relays.each_ref().map(|relay| measured(&client, relay));
    assert_eq!(measured[0], far);
    // Whether the server hears of it is nothing to the next one.
    let _ = homes.client.wait(first.close(CloseCode::NONE, "", secs(5)));
    let second = homes.client.wait(client.connect(target)).unwrap();
    let through = relay_of(&second).map(|place| place.address());
    assert_eq!(through, Some(measured[1]), "{:?}", second.stats().paths);
}
