//! The `mptcp` carrier: Multipath TCP where both sides have it, and TCP where one has not.

use std::time::Instant;

use crate::lab_support::net::{Family, Net, Node, Watch};
use crate::lab_support::traffic::{Server, Transfer, Way};
use crate::lab_support::{ms, secs};
use whimbrel_lab::{require, skip};
use whimbrel_transport::{CarrierKind, Carriers, Connection, Endpoint};

const TOTAL: u64 = 4_000_000;
const MPTCP: Carriers = Carriers::Only(CarrierKind::Mptcp);

fn endpoint(node: &Node, carriers: Carriers) -> Endpoint {
    node.endpoint_with(|builder| builder.carriers(carriers))
}

fn carrier(connection: &Connection) -> CarrierKind {
    connection.stats().paths[0].carrier
}

/// Connections of Multipath TCP on a host, as the kernel lists them.
fn mptcp_sockets(node: &Node) -> usize {
    let output = node.host.command("ss").args(["-M", "-n", "-H", "state", "established"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().count()
}

/// Whether this kernel has it at all: without it there is only the fallback to see.
fn is_supported() -> bool {
    std::fs::read_to_string("/proc/sys/net/mptcp/enabled").is_ok_and(|text| text.trim() == "1")
}

/// Bytes go up and down, over a move of the client.
fn transfers(client: Carriers, server: Carriers, expected: CarrierKind) {
    let net = Net::new(Family::V4);
    let server = Server::start(&net.server, endpoint(&net.server, server));
    let client = endpoint(&net.client, client);
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    assert_eq!(carrier(&connection), expected);
    // The client's own socket is listed even after it has fallen back. A second try of a slow first one ends
    // soon.
    let (end, count) = (Instant::now() + secs(20), usize::from(expected == CarrierKind::Mptcp));
    while mptcp_sockets(&net.server) != count {
        assert!(Instant::now() < end, "{} connections of Multipath TCP", mptcp_sockets(&net.server));
        std::thread::sleep(ms(50));
    }
    let up = Transfer::start(&net.client, &connection, &server, Way::Up, TOTAL);
    up.reach(&net.client, TOTAL / 2);
    let mut watch = Watch::new(&connection);
    net.client.move_on();
    net.client.wait(watch.recovery());
    up.finish(&net.client);
    Transfer::start(&net.client, &connection, &server, Way::Down, TOTAL).finish(&net.client);
    assert_eq!(carrier(&connection), expected);
    assert_eq!(server.endpoint.connections()[0].stats.paths[0].carrier, expected);
}

#[test]
fn both_sides_speak_multipath_tcp() {
    if !require!() {
        return;
    }
    if !is_supported() {
        return skip("both_sides_speak_multipath_tcp", "the kernel has no MPTCP (net.mptcp.enabled)");
    }
    transfers(MPTCP, MPTCP, CarrierKind::Mptcp);
}

#[test]
fn a_server_that_speaks_tcp_alone_is_spoken_to_in_tcp() {
    if require!() {
        transfers(MPTCP, Carriers::default(), CarrierKind::Tcp);
    }
}

#[test]
fn a_client_that_speaks_tcp_alone_is_accepted_by_multipath_tcp() {
    if require!() {
        transfers(Carriers::Only(CarrierKind::Tcp), MPTCP, CarrierKind::Tcp);
    }
}
