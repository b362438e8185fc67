//! What the kernel tells of a link or a route ends a path at once, and the application is told why.

use crate::lab_support::ms;
use crate::lab_support::net::{Family, Node, Routed, Watch};
use crate::lab_support::traffic::{Echo, Server};
use whimbrel_lab::require;
use whimbrel_transport::{Connection, ConnectionEvent, DownCause, HandoverMode, PathState};

/// Waits until the connection has a path from each of these networks.
fn wait_for_paths(client: &Node, connection: &Connection, networks: [u8; 2]) {
    let wanted = networks.map(|network| client.family.ip(network, 10));
    client.wait(async {
        let active = || {
            let paths = connection.stats().paths.into_iter();
            let active = paths.filter(|path| path.state == PathState::Active);
            active.map(|path| path.local.ip()).collect::<Vec<_>>()
        };
        while !wanted.iter().all(|ip| active().contains(ip)) {
            tokio::time::sleep(ms(10)).await;
        }
    });
}

/// Why the path from the preferred interface ended when something was done to it. The other one goes on.
fn cause(family: Family, disturb: impl Fn(&Routed)) -> DownCause {
    let net = Routed::new(family, true);
    let server = Server::start(&net.server, net.server.endpoint());
    let client = net.client.endpoint_with(|builder| builder.handover(HandoverMode::Full));
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    wait_for_paths(&net.client, &connection, [1, 2]);
    let mut echo = net.client.wait(Echo::open(&connection));
    net.client.wait(echo.say(b"before"));
    let mut watch = Watch::new(&connection);
    disturb(&net);
    let ip = family.ip(1, 10);
    let is_end = |event: &ConnectionEvent| match event {
        // One carrier may have taken the place of another before.
        ConnectionEvent::PathDown { local, cause, .. } => local.ip() == ip && *cause != DownCause::Retired,
        _ => false,
    };
    let ConnectionEvent::PathDown { cause, .. } = net.client.wait(watch.next(is_end)) else {
        panic!("no end")
    };
    net.client.wait(echo.say(b"behind"));
    cause
}

#[test]
fn a_link_that_is_switched_off_is_told_as_the_cause() {
    if require!() {
        let off = |net: &Routed| net.client.host.set_link("wifi0", false).unwrap();
        assert_eq!(cause(Family::V4, off), DownCause::LinkDown);
    }
}

#[test]
fn an_address_that_is_taken_away_is_told_as_the_cause() {
    if require!() {
        for family in [Family::V4, Family::V6] {
            assert_eq!(cause(family, |net| net.client.leave()), DownCause::AddressGone, "{family:?}");
        }
    }
}

/// The other interface has a route still, which is not that of the path.
#[test]
fn a_route_that_is_taken_away_ends_its_path_at_once_and_is_told_as_the_cause() {
    if require!() {
        for (family, all) in [(Family::V4, "default"), (Family::V6, "::/0")] {
            let gone = |net: &Routed| net.client.host.del_route("wifi0", all).unwrap();
            assert_eq!(cause(family, gone), DownCause::RouteGone, "{family:?}");
        }
    }
}
