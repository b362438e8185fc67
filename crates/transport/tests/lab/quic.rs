//! QUIC carriers between real hosts: moves, gateways that rebind, networks that block, links that lose.

use std::time::{Duration, Instant};

use super::moves::{self, Mover};
use crate::lab_support::net::{Family, Multi, Net, Node, Routed, Watch};
use crate::lab_support::paths::{Running, link, newest};
use crate::lab_support::traffic::{Echo, Server, Transfer, Way};
use crate::lab_support::{ms, secs};
use whimbrel_lab::{Block, Direction, LinkSpec, Rate, require};
use whimbrel_transport::{CarrierKind, Carriers, Connection, Endpoint};

const TOTAL: u64 = 12_000_000;
const LITTLE: u64 = 200 * 1024;
const SOME: u64 = 400 * 1024;
const QUIC: Carriers = Carriers::Only(CarrierKind::Quic);

fn endpoint(node: &Node, carriers: Carriers) -> Endpoint {
    node.endpoint_with(|builder| builder.carriers(carriers))
}

fn carrier(connection: &Connection) -> CarrierKind {
    newest(connection).carrier
}

/// Moves one side in the middle of a transfer.
fn one_side_moves(mover: Mover, way: Way, family: Family) {
    let (paths, took) = moves::one_side_moves(|node| endpoint(node, QUIC), mover, way, family);
    assert_eq!(paths[0].carrier, CarrierKind::Quic);
    assert!(took < secs(2), "{took:?}");
}

macro_rules! one_side_moves {
    ($($name:ident: $mover:ident $way:ident $family:ident;)*) => {
        $(#[test]
        fn $name() {
            if require!() {
                one_side_moves(Mover::$mover, Way::$way, Family::$family);
            }
        })*
    };
}

one_side_moves! {
    the_client_moves_while_it_uploads_over_ipv4: Client Up V4;
    the_client_moves_while_it_downloads_over_ipv6: Client Down V6;
    the_server_moves_while_it_is_uploaded_to_over_ipv6: Server Up V6;
    the_server_moves_while_it_is_downloaded_from_over_ipv4: Server Down V4;
}

/// A JOIN in 0-RTT data is answered after one round trip of 200 ms.
#[test]
fn a_client_that_moves_is_back_after_one_round_trip() {
    if !require!() {
        return;
    }
    let net = Net::with(Family::V4, LinkSpec::default().delay(ms(100)).rate(Rate::mbit(100)));
    let server = Server::start(&net.server, net.server.endpoint());
    let client = endpoint(&net.client, QUIC);
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let mut echo = net.client.wait(Echo::open(&connection));
    let mut best = Duration::MAX;
    for _ in 0..5 {
        net.client.move_on();
        net.client.settle(&client);
        best = best.min(net.client.wait(echo.say(b"there")));
    }
    eprintln!("back after {best:?}");
    // Two round trips would be 400 ms.
    assert!(best < ms(390), "{best:?}");
}

/// A JOIN in 0-RTT data arrives, and no answer ever comes back: QUIC on the server never hears an
/// acknowledgement.
#[test]
fn a_path_whose_answers_are_lost_from_the_first_on_is_left() {
    if !require!() {
        return;
    }
    let net = Routed::new(Family::V4, false);
    let server = Server::start(&net.server, net.server.endpoint());
    let client = endpoint(&net.client, QUIC);
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let transfer = Transfer::start(&net.client, &connection, &server, Way::Down, TOTAL);
    transfer.reach(&net.client, TOTAL / 3);
    net.far.set_blackhole(Direction::Forward, true);
    net.client.move_on();
    // The time itself is what is tested.
    std::thread::sleep(secs(4));
    net.far.set_blackhole(Direction::Forward, false);
    transfer.finish(&net.client);
}

/// The gateway gives the flow another port: QUIC goes on without a new path. Nothing may ever be lost; that
/// the path is kept is seen in one of three tries, because on a busy machine a slow answer passes for a dead
/// path.
fn survives_rebinding(way: Way) {
    let kept = (0..3).any(|_| keeps_its_path_when_rebound(way));
    assert!(kept, "{way:?}: the path was replaced each time");
}

fn keeps_its_path_when_rebound(way: Way) -> bool {
    let net = Routed::new(Family::V4, false);
    let nat = net.lab.nat_gateway(&net.router, "wan0").unwrap();
    let server = Server::start(&net.server, net.server.endpoint());
    let client = endpoint(&net.client, QUIC);
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let total = if way == Way::Drip { LITTLE } else { TOTAL };
    let transfer = Transfer::start(&net.client, &connection, &server, way, total);
    for third in 1..3 {
        transfer.reach(&net.client, third * total / 3);
        nat.forget_mappings().unwrap();
    }
    transfer.finish(&net.client);
    let stats = connection.stats();
    eprintln!("{way:?}: {} moves", stats.moves);
    stats.moves == 0 && stats.paths.iter().map(|path| path.id).eq([0])
}

#[test]
fn a_rebinding_gateway_is_survived_while_uploading() {
    if require!() {
        survives_rebinding(Way::Up);
    }
}

#[test]
fn a_rebinding_gateway_is_survived_while_downloading() {
    if require!() {
        survives_rebinding(Way::Down);
    }
}

/// The first link dies without a word, while a second interface is up.
fn blackhole(way: Way) {
    let net = Routed::new(Family::V4, true);
    let server = Server::start(&net.server, net.server.endpoint());
    let client = endpoint(&net.client, QUIC);
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let total = if way == Way::Drip { LITTLE } else { TOTAL };
    let transfer = Transfer::start(&net.client, &connection, &server, way, total);
    transfer.reach(&net.client, total / 3);
    let mut watch = Watch::new(&connection);
    let began = Instant::now();
    net.near[0].set_blackhole(Direction::Both, true);
    net.client.wait(watch.recovery_at(Family::V4.ip(2, 10)));
    let took = began.elapsed();
    eprintln!("blackhole, {way:?}: {took:?}");
    assert!(took < secs(4), "{took:?}");
    assert_eq!(newest(&connection).local.ip(), Family::V4.ip(2, 10));
    transfer.finish(&net.client);
}

#[test]
fn a_silent_blackhole_is_left_for_another_interface_while_uploading() {
    if require!() {
        blackhole(Way::Up);
    }
}

#[test]
fn a_silent_blackhole_is_left_for_another_interface_while_little_trickles_in() {
    if require!() {
        blackhole(Way::Drip);
    }
}

/// Connects anew, and tells by what and how soon.
fn connects(net: &Routed, client: &Endpoint, server: &Server) -> (CarrierKind, Duration) {
    let began = Instant::now();
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let took = began.elapsed();
    net.client.wait(Echo::open(&connection));
    (carrier(&connection), took)
}

#[test]
fn where_udp_is_blocked_tcp_serves() {
    if !require!() {
        return;
    }
    let net = Routed::new(Family::V4, false);
    net.router.block(Block::Udp).unwrap();
    let server = Server::start(&net.server, net.server.endpoint());
    let client = endpoint(&net.client, Carriers::Auto);
    for round in 0..3 {
        let (carrier, took) = connects(&net, &client, &server);
        eprintln!("round {round}: {carrier} after {took:?}");
        assert_eq!(carrier, CarrierKind::Tcp);
        // Three round trips of 20 ms, and nothing for QUIC.
        assert!(took < ms(400), "{took:?}");
    }
}

/// Into a network that lets TCP through, and back into one that does not.
#[test]
fn where_tcp_is_blocked_quic_serves() {
    if !require!() {
        return;
    }
    let net = Routed::new(Family::V4, false);
    let server = Server::start(&net.server, net.server.endpoint());
    let port = server.endpoint.port();
    net.router.block(Block::TcpPort(port)).unwrap();
    let client = endpoint(&net.client, Carriers::Auto);
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    assert_eq!(carrier(&connection), CarrierKind::Quic);
    let mut echo = net.client.wait(Echo::open(&connection));
    net.router.unblock(Block::TcpPort(port)).unwrap();
    net.client.move_on();
    net.client.settle(&client);
    net.client.wait(echo.say(b"elsewhere"));
    net.router.block(Block::TcpPort(port)).unwrap();
    net.client.move_on();
    net.client.settle(&client);
    net.client.wait(echo.say(b"back"));
    assert_eq!(carrier(&connection), CarrierKind::Quic);
}

/// One packet in twenty is lost each way.
#[test]
fn a_lossy_link_is_no_obstacle() {
    if !require!() {
        return;
    }
    let net =
        Net::with(Family::V4, LinkSpec::default().delay(ms(25)).rate(Rate::mbit(20)).loss(0.05).seed(3));
    let server = Server::start(&net.server, net.server.endpoint());
    let client = endpoint(&net.client, QUIC);
    for way in [Way::Up, Way::Down] {
        let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
        let began = Instant::now();
        let transfer = Transfer::start(&net.client, &connection, &server, way, TOTAL / 4);
        transfer.finish(&net.client);
        let took = began.elapsed();
        eprintln!("{way:?}: {took:?}, {:?}", connection.stats().paths[0].carrier_stats);
        // The link alone needs 1.2 s.
        assert!(took < secs(10), "{took:?}");
    }
}

/// What is poured into a slow link at once is a queue in which a failure hides, and behind which a path looks
/// dead.
#[test]
fn a_slow_link_is_not_buried_under_the_first_flight() {
    if !require!() {
        return;
    }
    let net = Multi::new(Family::V4, &[link(4, 10)]);
    let running = Running::new(net, |builder| builder.carriers(QUIC));
    let transfer = running.start(Way::Up, SOME);
    let (began, mut most) = (Instant::now(), 0);
    // Later the queue overflows, and what waits behind a loss counts as in flight, too.
    while transfer.meter.get() < SOME / 8 {
        assert!(began.elapsed() < secs(20), "{} bytes arrived", transfer.meter.get());
        most = most.max(running.paths().iter().map(|path| path.in_flight).sum());
        std::thread::sleep(ms(1));
    }
    transfer.finish(&running.net.client);
    // The link holds 60 kB, its queue included.
    assert!((1..=SOME / 3).contains(&most), "{most} bytes in flight");
}

/// News of a route has an attempt dial again, so that QUIC is answered twice, one path behind the other,
/// while TCP is on its way.
#[test]
fn news_of_a_route_during_a_move_does_not_keep_a_connection_on_quic() {
    if !require!() {
        return;
    }
    let net = Net::with(Family::V4, LinkSpec::default().delay(ms(20)).rate(Rate::mbit(100)));
    let server = Server::start(&net.server, net.server.endpoint());
    let client = net.client.endpoint();
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let mut echo = net.client.wait(Echo::open(&connection));
    net.client.wait(echo.say(b"here"));
    let rests_on_tcp = |what: &str| {
        let began = Instant::now();
        loop {
            let paths = connection.stats().paths;
            if paths.len() == 1 && paths[0].carrier == CarrierKind::Tcp {
                return;
            }
            assert!(began.elapsed() < secs(5), "{what}: {paths:#?}");
            std::thread::sleep(ms(5));
        }
    };
    rests_on_tcp("at first");
    // Nothing is sent another way, and yet the world has changed.
    let spare_route = |change: &str| {
        let route = ["route", change, "198.51.100.0/24", "via", &net.server.ip().to_string()];
        net.client.host.command("ip").args(route).output().unwrap();
    };
    for later in 0..30 {
        let moves = connection.stats().moves;
        net.client.move_on();
        std::thread::sleep(ms(later));
        spare_route("add");
        spare_route("del");
        net.client.wait(echo.say(b"there"));
        rests_on_tcp(&format!("news {later} ms after a move"));
        assert_eq!(connection.stats().moves, moves + 1, "news {later} ms after a move");
    }
}
