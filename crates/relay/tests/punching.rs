//! From a relayed path to a direct one, through NAT gateways of all kinds.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../transport/tests/lab_support/mod.rs"]
mod lab_support;

mod homes;

use std::time::{Duration, Instant};

use homes::Homes;
use lab_support::net::Watch;
use lab_support::traffic::{Transfer, Way};
use lab_support::{ms, secs};
use whimbrel_lab::{NatKind, require};
use whimbrel_transport::{Connection, ConnectionEvent, Locator, PathState, Priority};

const SIZE: u64 = 8 << 20;

/// Waits for the first direct path; tells how long it took.
fn direct(homes: &Homes, connection: &Connection, limit: Duration) -> Option<Duration> {
    let begun = Instant::now();
    let mut watch = Watch::new(connection);
    if is_direct(connection) {
        return Some(Duration::ZERO);
    }
    let up = watch.next(|event| matches!(event, ConnectionEvent::PathUp { remote: Locator::Direct(_), .. }));
    let up = async { tokio::time::timeout(limit, up).await };
    homes.client.wait(up).ok().map(|_| begun.elapsed())
}

fn is_direct(connection: &Connection) -> bool {
    let paths = connection.stats().paths;
    paths.iter().any(|path| matches!(path.remote, Locator::Direct(_)) && path.state == PathState::Active)
}

#[test]
fn a_relayed_connection_is_direct_after_two_round_trips_and_again_after_moves_and_the_relayed_path_stands_by()
{
    if !require!() {
        return;
    }
    let homes = Homes::apart(1, ms(70));
    homes.gateways.iter().for_each(|gateway| gateway.set_kind(NatKind::PortRestricted).unwrap());
    let relay = homes.relay(0);
    let (server, _keeper) = homes.serve(&[&relay]);
    let (_client, connection) = homes.connect(&server);
    // 304 ms from end to end through the relay.
    let took = direct(&homes, &connection, secs(3)).expect("no direct path");
    assert!(took < 2 * ms(304) + ms(100), "it took {took:?}");
    let transfer = Transfer::start(&homes.client, &connection, &server, Way::Down, SIZE);
    transfer.reach(&homes.client, 1 << 20);
    let paths = connection.stats().paths;
    let mut kinds: Vec<_> = paths
        .iter()
        .map(|path| (matches!(path.remote, Locator::Direct(_)), path.priority, path.state))
        .collect();
    kinds.sort_by_key(|kind| kind.0);
    let expected =
        [(false, Priority::Backup, PathState::Active), (true, Priority::Normal, PathState::Active)];
    assert_eq!(kinds, expected, "{paths:?}");
    homes.client.move_on();
    let took = direct(&homes, &connection, secs(5)).expect("no direct path after the client's move");
    assert!(took < secs(3), "it took {took:?}");
    transfer.reach(&homes.client, 3 << 20);
    homes.server.move_on();
    direct(&homes, &connection, secs(8)).expect("no direct path after the server's move");
    transfer.finish(&homes.client);
}
