//! One side moves while a connection carries data: real hosts, real address events, every byte compared.

use std::time::{Duration, Instant};

use crate::lab_support::net::{Family, Multi, Net, Node, Routed, Watch};
use crate::lab_support::paths::newest;
use crate::lab_support::traffic::{Echo, Server, Transfer, Way, write_upload};
use crate::lab_support::{ms, secs};
use whimbrel_lab::{LinkSpec, require};
use whimbrel_transport::{CloseCode, Endpoint, HandoverMode, PathInfo};

const TOTAL: u64 = 12_000_000;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Mover {
    Client,
    Server,
}

/// Moves one side in the middle of a transfer. The paths afterwards, and how long it took.
pub(crate) fn one_side_moves(
    client: impl FnOnce(&Node) -> Endpoint,
    mover: Mover,
    way: Way,
    family: Family,
) -> (Vec<PathInfo>, Duration) {
    let net = Net::new(family);
    let server = Server::start(&net.server, net.server.endpoint());
    let client = client(&net.client);
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let mut watch = Watch::new(&connection);
    let transfer = Transfer::start(&net.client, &connection, &server, way, TOTAL);
    transfer.reach(&net.client, TOTAL / 3);
    let now_at = match mover {
        Mover::Client => net.client.move_on(),
        Mover::Server => net.server.move_on(),
    };
    let took = net.client.wait(watch.recovery_at(now_at));
    let paths = connection.stats().paths;
    transfer.finish(&net.client);
    eprintln!("{mover:?} moved, {way:?}, {family:?}: recovered after {took:?}");
    let end = match mover {
        Mover::Client => paths[0].local,
        Mover::Server => paths[0].remote.address(),
    };
    assert_eq!(end.ip(), now_at);
    (paths, took)
}

macro_rules! one_side_moves {
    ($($name:ident: $mover:ident $way:ident $family:ident;)*) => {
        $(#[test]
        fn $name() {
            if require!() {
                one_side_moves(Node::endpoint, Mover::$mover, Way::$way, Family::$family);
            }
        })*
    };
}

one_side_moves! {
    the_client_moves_while_it_uploads_over_ipv4: Client Up V4;
    the_client_moves_while_it_uploads_over_ipv6: Client Up V6;
    the_client_moves_while_it_downloads_over_ipv4: Client Down V4;
    the_client_moves_while_it_downloads_over_ipv6: Client Down V6;
    the_server_moves_while_it_is_uploaded_to_over_ipv4: Server Up V4;
    the_server_moves_while_it_is_uploaded_to_over_ipv6: Server Up V6;
    the_server_moves_while_it_is_downloaded_from_over_ipv4: Server Down V4;
    the_server_moves_while_it_is_downloaded_from_over_ipv6: Server Down V6;
}

/// Many hosts get an address first, and the way to others a little later: what was tried between is not
/// waited for.
#[test]
fn a_route_that_comes_after_its_address_is_used_at_once() {
    if !require!() {
        return;
    }
    let net = Routed::new(Family::V4, false);
    let server = Server::start(&net.server, net.server.endpoint());
    let client = net.client.endpoint();
    let mut addresses = client.watch_addresses();
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let mut echo = net.client.wait(Echo::open(&connection));
    net.client.leave();
    net.client.host.add_address("wifi0", "10.0.1.99/24").unwrap();
    let address = Family::V4.ip(1, 99);
    net.client.wait(async { drop(addresses.wait_for(|set| set.contains(address)).await) });
    // The kernel takes everything for a neighbour now, and asks for it without an answer for seconds.
    std::thread::sleep(ms(100));
    let began = Instant::now();
    net.client.host.add_default_route("wifi0", "10.0.1.1", 100).unwrap();
    net.client.wait(echo.say(b"there"));
    let took = began.elapsed();
    eprintln!("answered {took:?} after the route came");
    assert!(took < ms(700), "{took:?}");
}

/// The first dial had begun, and what it sent went nowhere: its answer is not waited for.
#[test]
fn a_route_that_comes_while_a_path_is_opened_costs_no_round_trip() {
    if !require!() {
        return;
    }
    let rtt = ms(300);
    let net = Multi::new(Family::V4, &[LinkSpec::default().delay(rtt / 2)]);
    for mode in [HandoverMode::Single, HandoverMode::Full] {
        let server = Server::start(&net.server, net.server.endpoint());
        let client = net.client.endpoint_with(|builder| builder.handover(mode));
        let mut addresses = client.watch_addresses();
        let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
        let mut echo = net.client.wait(Echo::open(&connection));
        std::thread::sleep(secs(2));
        net.client.leave();
        net.client.host.add_address("up0", "10.0.1.99/24").unwrap();
        let address = Family::V4.ip(1, 99);
        net.client.wait(async { drop(addresses.wait_for(|set| set.contains(address)).await) });
        std::thread::sleep(ms(20));
        let began = Instant::now();
        net.client.host.add_default_route("up0", "10.0.1.1", 100).unwrap();
        net.client.wait(echo.say(b"there"));
        let took = began.elapsed();
        eprintln!("{mode:?}: answered {took:?} after the route came");
        assert!(took < rtt + ms(149), "{mode:?}: {took:?}");
        net.client.host.del_address("up0", "10.0.1.99/24").unwrap();
        net.client.arrive();
    }
}

/// The handshake takes three round trips of 20 ms: the move hits each of its steps.
const STEPS: [u64; 7] = [0, 5, 15, 25, 35, 45, 60];

#[test]
fn the_client_moves_while_it_connects() {
    if !require!() {
        return;
    }
    let net = Net::new(Family::V4);
    let server = Server::start(&net.server, net.server.endpoint());
    for step in STEPS {
        let client = net.client.endpoint();
        let began = Instant::now();
        let (endpoint, addr) = (client.clone(), server.endpoint.addr());
        let connecting = net.client.runtime.spawn(async move { endpoint.connect(addr).await });
        std::thread::sleep(ms(step));
        net.client.move_on();
        let connection = net.client.wait(connecting).unwrap().unwrap();
        eprintln!("connected after {:?} with a move after {step} ms", began.elapsed());
        assert!(began.elapsed() < secs(5), "{:?}", began.elapsed());
        net.client.wait(async { Echo::open(&connection).await.say(b"there").await });
    }
}

/// Ends a connection with data on its way, and moves at each of several moments.
fn moves_during_close(mover: Mover) {
    const PIECE: u64 = 3_000_000;
    let net = Net::new(Family::V4);
    let server = Server::start(&net.server, net.server.endpoint());
    let client = net.client.endpoint();
    // 3 MB take about 250 ms: the last moves come after the data, while the end is agreed.
    for (round, step) in (1..).zip([0, 20, 100, 200, 250, 270, 290, 310]) {
        let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
        let arrived = server.uploaded.clone();
        // All of it fits in the buffers, so it is written long before it arrives.
        let answer = net.client.wait(write_upload(&connection, PIECE)).unwrap();
        net.client.wait(arrived.reach((round - 1) * PIECE + 1));
        let began = Instant::now();
        let closing = net.client.runtime.spawn(async move {
            let closed = connection.close(CloseCode::NONE, "", secs(20)).await;
            drop(answer);
            closed
        });
        std::thread::sleep(ms(step));
        match mover {
            Mover::Client => net.client.move_on(),
            Mover::Server => net.server.move_on(),
        };
        net.client.wait(closing).unwrap().unwrap();
        eprintln!("{mover:?} moved {step} ms into the end, which took {:?}", began.elapsed());
        assert!(began.elapsed() < secs(8), "{:?}", began.elapsed());
        net.client.wait(arrived.reach(round * PIECE));
        net.client.settle(&client);
        net.server.settle(&server.endpoint);
    }
}

#[test]
fn the_client_moves_during_close() {
    if require!() {
        moves_during_close(Mover::Client);
    }
}

#[test]
fn the_server_moves_during_close() {
    if require!() {
        moves_during_close(Mover::Server);
    }
}

/// Moves a second time while the first move is still being dealt with.
fn moves_twice(mover: Mover, way: Way) {
    let net = Net::new(Family::V4);
    let server = Server::start(&net.server, net.server.endpoint());
    let client = net.client.endpoint();
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let transfer = Transfer::start(&net.client, &connection, &server, way, 3 * TOTAL);
    let node = match mover {
        Mover::Client => &net.client,
        Mover::Server => &net.server,
    };
    for (round, pause) in (1..).zip([0, 20, 40, 60, 80]) {
        transfer.reach(&net.client, round * TOTAL / 4);
        let began = Instant::now();
        node.move_on();
        let moved = began.elapsed();
        std::thread::sleep(ms(pause).saturating_sub(moved));
        let now_at = node.move_on();
        let twice = began.elapsed();
        let before = transfer.meter.get();
        // More than what was on its way or in the buffers.
        transfer.reach(&net.client, before + 600_000);
        let took = began.elapsed();
        eprintln!("{mover:?} moved twice within {twice:?}, {way:?}: flows again after {took:?}");
        assert!(took < secs(5), "{took:?}");
        // What was on its way may have been more than that, before anybody noticed.
        let ends = || {
            let paths = connection.stats().paths;
            let end = |path: &PathInfo| match mover {
                Mover::Client => path.local.ip(),
                Mover::Server => path.remote.ip(),
            };
            paths.iter().map(end).collect::<Vec<_>>()
        };
        while ends() != [now_at] {
            assert!(began.elapsed() < secs(5), "{:?}", ends());
            std::thread::sleep(ms(5));
        }
    }
    transfer.finish(&net.client);
}

#[test]
fn the_client_moves_twice_within_a_tenth_of_a_second() {
    if require!() {
        moves_twice(Mover::Client, Way::Up);
    }
}

#[test]
fn the_server_moves_twice_within_a_tenth_of_a_second() {
    if require!() {
        moves_twice(Mover::Server, Way::Down);
    }
}

/// The server knows its inner address only, and the client reaches it at the gateway's: that is where it must
/// come back to.
#[test]
fn a_client_that_moves_finds_a_server_behind_a_gateway_again() {
    if !require!() {
        return;
    }
    let net = Routed::new(Family::V4, false);
    let nat = net.lab.nat_gateway(&net.router, "lan0").unwrap();
    let server = Server::start(&net.server, net.server.endpoint());
    let port = server.endpoint.port();
    nat.forward_port(port, net.server.ip()).unwrap();
    let client = net.client.endpoint();
    let gateway = std::net::SocketAddr::new(Family::V4.ip(1, 1), port);
    let target = whimbrel_base::EndpointAddr::new(server.endpoint.id(), [gateway]);
    let connection = net.client.wait(client.connect(target)).unwrap();
    let mut echo = net.client.wait(Echo::open(&connection));
    for _ in 0..3 {
        net.client.move_on();
        let took = net.client.wait(echo.say(b"still there"));
        eprintln!("answered after {took:?}");
        assert_eq!(newest(&connection).remote.address(), gateway);
    }
}
