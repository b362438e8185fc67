//! A gateway that lets in whatever is sent to a port that it shows: the server behind it can be dialled
//! there, and says so, once two relays have found that out.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Instant;

use crate::homes::{Homes, is_direct};
use crate::lab_support::traffic::Server;
use crate::lab_support::{ms, secs};
use whimbrel_base::relayed::{Place, places};
use whimbrel_lab::{Direction, NatKind, require};
use whimbrel_transport::Locator;

/// The outside of the server's gateway.
const OUTSIDE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 2, 10));

/// Where the server says that it can be dialled at its gateway.
fn outside(server: &Server) -> Option<SocketAddr> {
    places(&server.endpoint.addr().addrs).into_iter().find_map(|place| match place {
        Place::Direct(at) if at.ip() == OUTSIDE => Some(at),
        Place::Direct(_) | Place::Relayed(_) => None,
    })
}

/// Waits until the server says that it can be dialled there.
fn told(server: &Server) -> SocketAddr {
    let begun = Instant::now();
    loop {
        if let Some(at) = outside(server) {
            return at;
        }
        assert!(begun.elapsed() < secs(90), "the server does not say that it can be dialled");
        thread::sleep(ms(10));
    }
}

/// The relays are so far away that a connection through one of them begins a quarter of a second later.
#[test]
fn behind_a_gateway_that_lets_all_in_the_first_connection_is_direct() {
    if !require!() {
        return;
    }
    let homes = Homes::new(2);
    homes.gateways[0].set_kind(NatKind::PortRestricted).unwrap();
    homes.gateways[1].set_kind(NatKind::FullCone).unwrap();
    homes.relays.iter().for_each(|(_, link)| link.set_delay(Direction::Both, ms(60)));
    let relays = [homes.relay(0), homes.relay(1)];
    let (server, _keeper) = homes.serve(&[&relays[0], &relays[1]]);
    let at = told(&server);
    let (_client, connection) = homes.connect(&server);
    let paths = connection.stats().paths;
    assert!(is_direct(&connection), "{paths:?}");
    assert!(paths.iter().any(|path| path.remote == Locator::Direct(at)), "{at}: {paths:?}");
}

#[test]
fn behind_a_gateway_that_lets_in_only_who_was_sent_to_no_such_place_is_told() {
    if !require!() {
        return;
    }
    let homes = Homes::new(2);
    homes.gateways.iter().for_each(|gateway| gateway.set_kind(NatKind::PortRestricted).unwrap());
    let relays = [homes.relay(0), homes.relay(1)];
    let (server, _keeper) = homes.serve(&[&relays[0], &relays[1]]);
    // To try a gateway takes three seconds where nothing comes in.
    thread::sleep(secs(8));
    assert_eq!(outside(&server), None);
    let (_client, connection) = homes.connect(&server);
    let paths = connection.stats().paths;
    assert!(matches!(paths[0].remote, Locator::Relayed(_)), "{paths:?}");
}
