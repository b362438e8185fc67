//! From a relayed path to a direct one, for connections that choose among networks.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::homes::Homes;
use crate::lab_support::traffic::{Server, Transfer, Way};
use crate::lab_support::{ms, secs};
use whimbrel_base::SecretKey;
use whimbrel_lab::{NatKind, require};
use whimbrel_relay::{Directory, Keeper};
use whimbrel_transport::{Connection, HandoverMode, Locator, PathPolicy, PathState, Policy, Priority};

/// Whether a direct path carries, and a relayed one stands by.
fn is_carried_directly(connection: &Connection) -> bool {
    let paths = connection.stats().paths;
    let direct = paths.iter().any(|path| {
        matches!(path.remote, Locator::Direct(_))
            && (path.state, path.priority) == (PathState::Active, Priority::Normal)
    });
    let stands_by = paths
        .iter()
        .any(|path| matches!(path.remote, Locator::Relayed(_)) && path.priority == Priority::Backup);
    direct && stands_by
}

/// Waits until something is so of a connection.
fn until(connection: &Connection, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < secs(30), "{:?}", connection.stats().paths);
        std::thread::sleep(ms(20));
    }
}

#[test]
fn a_connection_that_prefers_a_network_is_direct_where_the_routes_lead_out_by_it_and_as_long_as_they_do() {
    if !require!() {
        return;
    }
    let homes = Homes::new(1);
    homes.gateways.iter().for_each(|gateway| gateway.set_kind(NatKind::PortRestricted).unwrap());
    let relay = homes.relay(0);
    let (server, _keeper) = homes.serve(&[&relay]);
    let client = homes.client.endpoint_with(|builder| builder.paths(Policy::PreferWifi));
    let connection = homes.client.wait(client.connect(server.endpoint.addr())).unwrap();
    until(&connection, || is_carried_directly(&connection));
    Transfer::start(&homes.client, &connection, &server, Way::Down, 1 << 20).finish(&homes.client);
    let paths = connection.stats().paths;
    assert!(is_carried_directly(&connection), "it did not stay: {paths:?}");

    // From now on routes lead to the server's home from another address, and the one of the path stays.
    let left = homes.client.ip();
    let another = [
        "address add 10.0.101.200/24 dev eth0",
        "route replace 10.0.2.0/24 via 10.0.101.1 dev eth0 src 10.0.101.200",
    ];
    for words in another {
        let ip = || Command::new("ip").args(words.split(' ')).status();
        assert!(homes.client.host.run(ip).unwrap().success(), "{words}");
    }
    until(&connection, || {
        let paths = connection.stats().paths;
        let mut direct = paths.iter().filter(|path| matches!(path.remote, Locator::Direct(_)));
        direct.all(|path| path.local.ip() != left)
    });
    Transfer::start(&homes.client, &connection, &server, Way::Down, 1 << 20).finish(&homes.client);
}

fn is_direct(connection: &Connection) -> bool {
    let paths = connection.stats().paths;
    paths.iter().any(|path| matches!(path.remote, Locator::Direct(_)) && path.state == PathState::Active)
}

/// Whether a search finds a port within that time, where the server's side, which would send to many of them,
/// has a policy with this rule for its interface.
fn meets(rule: &str, limit: Duration) -> bool {
    let homes = Homes::new(1);
    homes.gateways[0].set_kind(NatKind::Symmetric).unwrap();
    homes.gateways[1].set_kind(NatKind::PortRestricted).unwrap();
    let relay = homes.relay(0);
    let (key, policy) = (
        SecretKey::generate(),
        PathPolicy { interfaces: vec![rule.parse().unwrap()], ..PathPolicy::default() },
    );
    let endpoint = homes.server.endpoint_with(|builder| {
        builder.secret_key(key.clone()).paths(policy).handover(HandoverMode::Single)
    });
    let server = Server::start(&homes.server, endpoint.clone());
    let directory: Arc<dyn Directory> = Arc::new(relay.endpoint().addr());
    let keeper = homes.server.wait(async { Keeper::start(endpoint, &key, vec![directory]) });
    let mut news = keeper.news();
    homes.server.wait(async { drop(news.wait_for(|now| now.held == 1).await) });
    let (_client, connection) = homes.connect(&server);
    let begun = Instant::now();
    while !is_direct(&connection) && begun.elapsed() < limit {
        std::thread::sleep(ms(20));
    }
    is_direct(&connection)
}

#[test]
fn a_port_is_not_searched_for_over_an_interface_whose_bytes_cost_something() {
    if !require!() {
        return;
    }
    // One search in fifty finds nothing; there is another one soon.
    assert!(meets("eth0=unmetered", secs(40)), "where it costs nothing, one is found");
    assert!(!meets("eth0=metered", secs(8)));
}
