//! From a relayed path to a direct one, for connections that choose among networks.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../transport/tests/lab_support/mod.rs"]
mod lab_support;

mod homes;

use std::time::Instant;

use homes::Homes;
use lab_support::secs;
use lab_support::traffic::{Transfer, Way};
use whimbrel_lab::{NatKind, require};
use whimbrel_transport::{Locator, PathState, Policy, Priority};

#[test]
fn a_connection_that_prefers_a_network_is_direct_where_the_routes_lead_out_by_it() {
    if !require!() {
        return;
    }
    let homes = Homes::new(1);
    homes.gateways.iter().for_each(|gateway| gateway.set_kind(NatKind::PortRestricted).unwrap());
    let relay = homes.relay(0);
    let (server, _keeper) = homes.serve(&[&relay]);
    let client = homes.client.endpoint_with(|builder| builder.paths(Policy::PreferWifi));
    let connection = homes.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let begun = Instant::now();
    let carries = || {
        let paths = connection.stats().paths;
        let direct = paths.iter().any(|path| {
            matches!(path.remote, Locator::Direct(_))
                && (path.state, path.priority) == (PathState::Active, Priority::Normal)
        });
        let stands_by = paths
            .iter()
            .any(|path| matches!(path.remote, Locator::Relayed(_)) && path.priority == Priority::Backup);
        direct && stands_by
    };
    while !carries() {
        assert!(begun.elapsed() < secs(30), "{:?}", connection.stats().paths);
        std::thread::sleep(lab_support::ms(20));
    }
    Transfer::start(&homes.client, &connection, &server, Way::Down, 1 << 20).finish(&homes.client);
    assert!(carries(), "it did not stay: {:?}", connection.stats().paths);
}
