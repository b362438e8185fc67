//! From a relayed path to a direct one, through NAT gateways of all kinds.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::homes::gateway::{Gateway, HTTPS, homes_behind};
use crate::homes::{Carriers, Homes, Plan, direct, is_direct};
use crate::lab_support::net::Family;
use crate::lab_support::traffic::{Server, Transfer, Way};
use crate::lab_support::{ms, secs};
use whimbrel_base::SecretKey;
use whimbrel_lab::{Block, Host, NatKind, require};
use whimbrel_relay::{Keeper, Relay};
use whimbrel_transport::{Builder, CarrierKind, ConnectionStats, HandoverMode, Locator, PathState, Priority};

const SIZE: u64 = 8 << 20;
/// An attempt that begins at once, with round trips of 24 ms.
const SOON: Duration = Duration::from_secs(3);

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
    // 304 ms from end to end through the relay. How soon it is direct, the bench `reach` says.
    let took = direct(&homes, &connection, secs(20)).expect("no direct path");
    assert!(took < 2 * ms(304) + secs(5), "it took {took:?}");
    let transfer = Transfer::start(&homes.client, &connection, &server, Way::Down, 3 << 20);
    transfer.reach(&homes.client, 1 << 19);
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
    direct(&homes, &connection, secs(20)).expect("no direct path after the client's move");
    transfer.reach(&homes.client, 1 << 20);
    homes.server.move_on();
    direct(&homes, &connection, secs(20)).expect("no direct path after the server's move");
    transfer.finish(&homes.client);
}

/// Passes 8 MiB each way between a client and a server behind these gateways, and says which path carries
/// then.
fn passes(gateways: [Gateway; 2], handover: HandoverMode, patience: Duration) -> &'static str {
    let homes = homes_behind(gateways);
    let relay = homes.relay_at(0, HTTPS);
    let (server, _keeper) = homes.serve(&[&relay]);
    let client = homes.client.endpoint_with(|builder| builder.handover(handover));
    let connection = homes.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let took = direct(&homes, &connection, patience);
    for way in [Way::Down, Way::Up] {
        Transfer::start(&homes.client, &connection, &server, way, SIZE).finish(&homes.client);
    }
    assert_eq!(took.is_some(), is_direct(&connection), "{:?}", connection.stats().paths);
    if took.is_some() { "punched" } else { "relayed" }
}

#[test]
fn gateways_that_map_each_flow_anew_are_opened_for_those_that_let_other_ports_in_and_relayed_otherwise() {
    if !require!() {
        return;
    }
    let [cone, _, _, _, symmetric, without, _] = Gateway::ALL;
    assert_eq!(passes([cone, symmetric], HandoverMode::Full, SOON), "punched");
    assert_eq!(passes([symmetric, without], HandoverMode::Full, ms(500)), "relayed");
}

/// How long it takes until a client and a server behind these gateways are connected directly.
fn meet(gateways: [Gateway; 2], limit: Duration) -> Option<Duration> {
    let homes = homes_behind(gateways);
    let relay = homes.relay(0);
    let (server, _keeper) = homes.serve(&[&relay]);
    let (_client, connection) = homes.connect(&server);
    let took = direct(&homes, &connection, limit);
    Transfer::start(&homes.client, &connection, &server, Way::Up, 64 << 10).finish(&homes.client);
    took
}

#[test]
fn a_gateway_that_maps_each_flow_anew_is_found_by_one_that_lets_in_only_what_was_sent_to() {
    if !require!() {
        return;
    }
    let [restricted, symmetric] = [NatKind::PortRestricted, NatKind::Symmetric].map(Gateway::Nat);
    for pair in [[symmetric, restricted], [restricted, symmetric]] {
        // One search in fifty finds nothing; there is another one soon.
        let took = meet(pair, secs(40));
        assert!(took.is_some(), "{pair:?}");
        println!("{} and {} met after {took:?}", pair[0], pair[1]);
    }
}

/// Both homes behind one carrier's gateway: whether they meet directly within that time.
fn meet_behind_one_carrier(hairpins: bool, limit: Duration) -> bool {
    let homes = Homes::build(Plan { carriers: Carriers::Shared, ..Plan::default() });
    homes.gateways.iter().for_each(|nat| nat.set_kind(NatKind::PortRestricted).unwrap());
    homes.carriers[0].set_kind(NatKind::FullCone).unwrap();
    if hairpins {
        homes.carriers[0].hairpin([10, 0, 3, 10].into()).unwrap();
    }
    let relay = homes.relay(0);
    let (server, _keeper) = homes.serve(&[&relay]);
    let (_client, connection) = homes.connect(&server);
    let took = direct(&homes, &connection, limit);
    Transfer::start(&homes.client, &connection, &server, Way::Up, 1 << 20).finish(&homes.client);
    took.is_some()
}

#[test]
fn neighbours_behind_one_carrier_meet_where_its_gateway_turns_packets_back_and_are_relayed_otherwise() {
    if !require!() {
        return;
    }
    assert!(meet_behind_one_carrier(true, SOON));
    assert!(!meet_behind_one_carrier(false, SOON));
}

#[test]
fn firewalls_of_ipv6_that_let_in_nothing_unasked_are_opened_for_each_other() {
    if !require!() {
        return;
    }
    let homes = Homes::build(Plan { family: Family::V6, ..Plan::default() });
    let relay = homes.relay(0);
    let (server, _keeper) = homes.serve(&[&relay]);
    let (_client, connection) = homes.connect(&server);
    direct(&homes, &connection, SOON).expect("no direct path");
    Transfer::start(&homes.client, &connection, &server, Way::Down, SIZE).finish(&homes.client);
}

/// Run by `make eval-reach`.
#[test]
#[ignore = "a mapping must be given the time to be forgotten"]
fn an_idle_direct_path_stays_at_gateways_that_forget_after_thirty_seconds() {
    assert!(require!(), "the lab is needed");
    let homes = homes_behind([Gateway::Nat(NatKind::PortRestricted); 2]);
    homes.gateways.iter().for_each(|nat| nat.forget_idle_udp_after(secs(30)).unwrap());
    let relay = homes.relay(0);
    let (server, _keeper) = homes.serve(&[&relay]);
    let (_client, connection) = homes.connect(&server);
    direct(&homes, &connection, SOON).expect("no direct path");
    std::thread::sleep(secs(100));
    assert!(is_direct(&connection));
    let before = connection.stats();
    Transfer::start(&homes.client, &connection, &server, Way::Down, 1 << 20).finish(&homes.client);
    let after = connection.stats();
    let path = |stats: &ConnectionStats| {
        stats.paths.iter().find(|p| matches!(p.remote, Locator::Direct(_))).map(|p| p.id)
    };
    assert_eq!(path(&after), path(&before), "the same path");
    // The mapping of the server's socket is kept as well: others still meet it.
    let (_other, connection) = homes.connect(&server);
    direct(&homes, &connection, SOON).expect("no direct path for another client");
}

/// Run by `make eval-reach`.
#[test]
#[ignore = "forty searches take some minutes"]
fn four_of_five_searches_for_a_port_find_one() {
    assert!(require!(), "the lab is needed");
    let [restricted, symmetric] = [NatKind::PortRestricted, NatKind::Symmetric].map(Gateway::Nat);
    for pair in [[symmetric, restricted], [restricted, symmetric]] {
        let mut took: Vec<Duration> = (0..20).filter_map(|_| meet(pair, secs(16))).collect();
        took.sort();
        println!("{} and {}: {} of 20 searches find a port, {took:.1?}", pair[0], pair[1], took.len());
        assert!(took.len() >= 16, "{} of 20", took.len());
    }
}

/// A server with a reservation, on an endpoint that is changed a little.
fn serve_at(
    homes: &Homes,
    relay: &Relay,
    change: impl FnOnce(Builder) -> Builder + Send,
) -> (Server, Keeper) {
    homes.serve_with(&SecretKey::generate(), &[relay], change)
}

#[test]
fn a_place_that_can_be_dialled_only_later_carries_although_the_relayed_path_was_never_lost() {
    if !require!() {
        return;
    }
    const PORT: u16 = 4433;
    let homes = homes_behind([Gateway::WithoutUdp; 2]);
    let relay = homes.relay(0);
    let outside = SocketAddr::from(([10, 0, 2, 10], PORT));
    let (server, _keeper) = serve_at(&homes, &relay, |builder| builder.port(PORT).advertise([outside]));
    let (_client, connection) = homes.connect(&server);
    let transfer = Transfer::start(&homes.client, &connection, &server, Way::Down, SIZE);
    transfer.reach(&homes.client, 1 << 20);
    assert!(!is_direct(&connection));
    homes.gateways[1].forward_port(PORT, homes.server.ip()).unwrap();
    direct(&homes, &connection, secs(15)).expect("no direct path");
    transfer.finish(&homes.client);
    let paths = connection.stats().paths;
    let direct = paths.iter().find(|path| path.remote == Locator::Direct(outside)).expect("it is direct");
    assert_eq!(direct.carrier, CarrierKind::Tcp);
    let relayed = paths.iter().find(|path| matches!(path.remote, Locator::Relayed(_))).expect("it stands by");
    assert_eq!((relayed.priority, connection.stats().moves), (Priority::Backup, 0));
}

#[test]
fn a_peer_that_names_a_victim_has_a_few_small_packets_sent_there_and_no_more() {
    if !require!() {
        return;
    }
    let homes = Homes::new(2);
    let relay = homes.relay(0);
    let (server, _keeper) = homes.serve(&[&relay]);
    let victim = &homes.relays[1].0;
    let at = SocketAddr::new(victim.ip(), 9);
    let socket = victim.host.run(move || UdpSocket::bind(at)).unwrap();
    socket.set_read_timeout(Some(ms(100))).unwrap();
    let client = homes.client.endpoint_with(|builder| builder.advertise([at]));
    let connection = homes.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let (begun, servers_gateway) = (Instant::now(), IpAddr::from([10, 0, 2, 10]));
    let (mut packets, mut buffer) = (0, [0; 2048]);
    while begun.elapsed() < secs(5) {
        if let Ok((size, from)) = socket.recv_from(&mut buffer) {
            assert!(size <= 64 && from.ip() == servers_gateway, "{size} bytes from {from}");
            packets += 1;
        }
    }
    // Five in each attempt, of which a client has four and one each five seconds.
    assert!((5..=5 * (4 + 2)).contains(&packets), "{packets} packets");
    assert!(!is_direct(&connection));
}

#[test]
fn a_server_that_names_a_victim_has_a_few_packets_sent_there_by_its_client_and_no_more() {
    if !require!() {
        return;
    }
    let homes = Homes::new(2);
    let relay = homes.relay(0);
    let victim = &homes.relays[1].0;
    let at = SocketAddr::new(victim.ip(), 9);
    let socket = victim.host.run(move || UdpSocket::bind(at)).unwrap();
    socket.set_read_timeout(Some(ms(100))).unwrap();
    let (server, _keeper) = serve_at(&homes, &relay, |builder| builder.advertise([at]));
    let (_client, connection) = homes.connect(&server);
    let (begun, clients_gateway) = (Instant::now(), IpAddr::from([10, 0, 1, 10]));
    let (mut punched, mut dialled, mut buffer) = (0, 0, [0; 2048]);
    // Longer only if nothing has come by then.
    while begun.elapsed() < secs(if punched == 0 { 30 } else { 5 }) {
        if let Ok((size, from)) = socket.recv_from(&mut buffer) {
            assert_eq!(from.ip(), clients_gateway, "{size} bytes from {from}");
            *(if size <= 64 { &mut punched } else { &mut dialled }) += 1;
        }
    }
    // Five in each attempt: four and one each five seconds that the server may ask for, and the client's own
    // two.
    assert!((1..=5 * (4 + 2 + 2)).contains(&punched), "{punched} packets");
    // What a server says is its address is dialled as well, as one that is named in a record or a ticket
    // would be: with a few packets in each attempt, which are repeated more and more seldom.
    assert!(dialled <= 300, "{dialled} packets");
    assert!(!is_direct(&connection));
}

/// UDP packets that have come to a host, whatever their ports.
fn udp_packets(host: &Host) -> u64 {
    let snmp = host.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).unwrap();
    let lines: Vec<Vec<&str>> =
        snmp.lines().filter(|line| line.starts_with("Udp:")).map(|line| line.split(' ').collect()).collect();
    let count = |name| lines[0].iter().position(|field| *field == name).map(|at| lines[1][at].parse::<u64>());
    ["InDatagrams", "NoPorts"].map(|name| count(name).unwrap().unwrap()).iter().sum()
}

#[test]
fn peers_that_name_a_victim_at_several_ports_have_one_search_send_there_at_its_pace() {
    if !require!() {
        return;
    }
    let homes = Homes::new(2);
    homes.gateways[0].router().block(Block::Udp).unwrap();
    homes.gateways[1].set_kind(NatKind::PortRestricted).unwrap();
    let relay = homes.relay(0);
    let (server, _keeper) = homes.serve(&[&relay]);
    let victim = &homes.relays[1].0;
    let named = [9, 10].map(|port| SocketAddr::new(victim.ip(), port));
    let before = udp_packets(&victim.host);
    let begun = Instant::now();
    let connections: Vec<_> = (0..4)
        .map(|_| {
            let client = homes.client.endpoint_with(|builder| builder.advertise(named));
            homes.client.wait(client.connect(server.endpoint.addr())).unwrap()
        })
        .collect();
    std::thread::sleep(secs(6));
    let (packets, took) = (udp_packets(&victim.host) - before, begun.elapsed());
    // Those of a search, and ten in each of up to six attempts of four clients.
    let (pace, punches) = (took.as_millis() as u64 / 10, 4 * 6 * 10);
    assert!(packets > punches, "{packets} packets: none searched");
    assert!(packets <= pace + punches, "{packets} packets in {took:?}");
    assert!(!connections.iter().any(is_direct));
}
