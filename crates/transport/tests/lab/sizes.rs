//! A link that carries no large packets any more, and nobody is told.

use std::time::{Duration, Instant};

use crate::lab_support::net::{Family, Net};
use crate::lab_support::traffic::{Server, Transfer, Way};
use whimbrel_lab::{Direction, require};
use whimbrel_transport::{CarrierKind, Carriers};

/// In bytes, with the IP header.
const LARGEST: usize = 1300;
/// What is promised.
const LIMIT: Duration = Duration::from_secs(3);
const TOTAL: u64 = 8_000_000;

fn goes_on(family: Family, way: Way, carriers: Carriers, before: bool) {
    goes_on_where(Direction::Both, family, way, carriers, before);
}

fn goes_on_where(direction: Direction, family: Family, way: Way, carriers: Carriers, before: bool) {
    let net = Net::new(family);
    let server = Server::start(&net.server, net.server.endpoint());
    let client = net.client.endpoint_with(|builder| builder.carriers(carriers));
    let shrink = || net.link.set_largest(direction, Some(LARGEST));
    if before {
        shrink();
    }
    let began = Instant::now();
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let transfer = Transfer::start(&net.client, &connection, &server, way, TOTAL);
    let mut least = 200_000;
    let mut began = began;
    if !before {
        transfer.reach(&net.client, TOTAL / 4);
        shrink();
        began = Instant::now();
        // What was under way arrives yet.
        least = TOTAL / 2;
    }
    transfer.reach(&net.client, least);
    let took = began.elapsed();
    eprintln!("{family:?} {way:?} {carriers}, {}: {took:?}", if before { "fresh" } else { "living" });
    assert!(took < LIMIT, "{took:?}");
    transfer.finish(&net.client);
    // However often it was dialled, the listener has one connection.
    assert_eq!(server.endpoint.connections().len(), 1);
}

const TCP: Carriers = Carriers::Only(CarrierKind::Tcp);

#[test]
fn a_living_connection_goes_on_when_large_packets_vanish_while_downloading() {
    if require!() {
        goes_on(Family::V4, Way::Down, TCP, false);
    }
}

#[test]
fn a_living_connection_goes_on_when_large_packets_vanish_while_uploading() {
    if require!() {
        goes_on(Family::V6, Way::Up, TCP, false);
    }
}

#[test]
fn a_fresh_connection_works_where_large_packets_vanish_while_downloading() {
    if require!() {
        goes_on(Family::V4, Way::Down, TCP, true);
    }
}

#[test]
fn a_fresh_connection_works_where_large_packets_vanish_while_uploading() {
    if require!() {
        goes_on(Family::V4, Way::Up, TCP, true);
    }
}

#[test]
fn a_fresh_connection_works_where_large_packets_vanish_on_the_way_to_the_listener_only() {
    if require!() {
        goes_on_where(Direction::Forward, Family::V6, Way::Up, TCP, true);
    }
}

#[test]
fn a_fresh_connection_works_where_large_packets_vanish_on_the_way_back_only() {
    if require!() {
        goes_on_where(Direction::Backward, Family::V6, Way::Down, TCP, true);
    }
}

#[test]
fn a_fresh_connection_over_quic_works_where_large_packets_vanish() {
    if require!() {
        goes_on(Family::V4, Way::Down, Carriers::Only(CarrierKind::Quic), true);
    }
}

#[test]
fn whatever_carrier_is_chosen_large_packets_may_vanish() {
    if require!() {
        goes_on(Family::V4, Way::Down, Carriers::Auto, false);
        goes_on(Family::V4, Way::Up, Carriers::Auto, true);
    }
}
