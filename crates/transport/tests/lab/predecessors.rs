//! What predecessors got wrong (`docs/lessons.md`), where it takes a network to see it.

use std::time::{Duration, Instant};

use crate::lab_support::net::{Family, Net, Node, Routed, Watch};
use crate::lab_support::process::{Process, Role};
use crate::lab_support::traffic::{DeafPeer, Echo, Server, Transfer, Way};
use crate::lab_support::{heavy, ms, secs};
use whimbrel_base::Ticket;
use whimbrel_lab::{Direction, LinkSpec, require};
use whimbrel_transport::{CarrierKind, Carriers, Config, Connection, ConnectionEvent, Timeouts};

/// A connection between two hosts, with these limits on both.
fn connected(net: &Net, config: &Config) -> (Server, Connection) {
    let endpoint = net.server.endpoint_with(|builder| builder.config(config.clone()));
    let server = Server::start(&net.server, endpoint);
    let client = net.client.endpoint_with(|builder| builder.config(config.clone()));
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    (server, connection)
}

fn small_buffers() -> Config {
    let kib = 1024;
    Config {
        stream_window: 256 * kib,
        window: 512 * kib,
        stream_send_buffer: 256 * kib,
        send_buffer: 512 * kib,
        ..Config::default()
    }
}

#[test]
fn a_blocked_writer_does_not_stop_the_reader_across_moves() {
    if !require!() {
        return;
    }
    const TOTAL: u64 = 12_000_000;
    let net = Net::new(Family::V4);
    let (server, connection) = connected(&net, &small_buffers());
    let deaf = net.client.wait(DeafPeer::start(&connection, TOTAL));
    net.client.wait(deaf.received.reach(TOTAL / 4));
    let written = deaf.written.get();
    assert!(written < 1_000_000, "the writer is not blocked: {written} bytes");
    net.client.move_on();
    net.client.wait(deaf.received.reach(TOTAL / 2));
    net.server.move_on();
    net.client.wait(deaf.received.reach(TOTAL));
    let total = net.client.wait(deaf.finish());
    assert_eq!(total, TOTAL);
    net.client.wait(server.uploaded.reach(TOTAL));
}

#[test]
fn a_move_right_after_connecting_finds_the_connection() {
    if !require!() {
        return;
    }
    let net = Net::with(Family::V4, LinkSpec::default());
    let (server, _) = connected(&net, &Config::default());
    let client = net.client.endpoint();
    for _ in 0..10 {
        let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
        let mut watch = Watch::new(&connection);
        net.client.move_on();
        let took = net.client.wait(watch.recovery());
        assert!(took < secs(1), "{took:?}");
        net.client.wait(async { Echo::open(&connection).await.say(b"there").await });
    }
}

#[test]
fn full_buffers_keep_what_a_move_loses() {
    if !require!() {
        return;
    }
    const TOTAL: u64 = 10_000_000;
    let config = Config { stream_send_buffer: 64 * 1024, send_buffer: 128 * 1024, ..small_buffers() };
    let net = Net::new(Family::V4);
    let (server, connection) = connected(&net, &config);
    let up = Transfer::start(&net.client, &connection, &server, Way::Up, TOTAL);
    let down = Transfer::start(&net.client, &connection, &server, Way::Down, TOTAL);
    for quarter in 1..4 {
        up.reach(&net.client, quarter * TOTAL / 4);
        net.client.move_on();
    }
    up.finish(&net.client);
    down.finish(&net.client);
}

/// From the change itself to the connection's event, many times.
fn noticed(net: &Net, rounds: u32, lose: impl Fn(&Node), regain: impl Fn(&Node)) -> Vec<Duration> {
    let (_server, connection) = connected(net, &Config::default());
    let mut echo = net.client.wait(Echo::open(&connection));
    let round = || {
        let mut watch = Watch::new(&connection);
        let began = Instant::now();
        lose(&net.client);
        net.client.wait(watch.next(|event| matches!(event, ConnectionEvent::Unreachable { .. })));
        let took = began.elapsed();
        regain(&net.client);
        net.client.wait(watch.recovery());
        net.client.wait(echo.say(b"again"));
        took
    };
    let mut times: Vec<_> = std::iter::repeat_with(round).take(rounds as usize).collect();
    times.sort();
    times
}

/// Polling each second would need more than half a second in every other round.
fn assert_at_once(what: &str, times: &[Duration]) {
    eprintln!("{what} was noticed after {times:?}");
    assert!(times.iter().all(|time| *time < ms(500)), "{times:?}");
}

#[test]
fn a_lost_address_is_noticed_at_once() {
    if !require!() {
        return;
    }
    for family in [Family::V4, Family::V6] {
        let net = Net::new(family);
        let times = noticed(&net, 9, Node::leave, |node| _ = node.arrive());
        assert_at_once("a lost address", &times);
    }
}

#[test]
fn an_interface_switched_off_is_noticed_at_once() {
    if !require!() {
        return;
    }
    let net = Net::new(Family::V6);
    let name = net.link.end(&net.client.host).name().to_owned();
    let off = |node: &Node| node.host.set_link(&name, false).unwrap();
    let on = |node: &Node| node.host.restore(&name).unwrap();
    assert_at_once("an interface switched off", &noticed(&net, 5, off, on));
}

/// The kernel holds the news of a lost carrier back for up to a second; what was just said is missed earlier.
#[test]
fn a_pulled_cable_is_noticed_within_a_second() {
    if !require!() {
        return;
    }
    let net = Net::new(Family::V4);
    let pull = |node: &Node| net.link.set_carrier(&node.host, false).unwrap();
    let plug = |node: &Node| net.link.set_carrier(&node.host, true).unwrap();
    let times = noticed(&net, 5, pull, plug);
    eprintln!("a pulled cable was noticed after {times:?}");
    assert!(times[4] < ms(1500), "{times:?}");
}

#[test]
fn a_blackhole_is_noticed_within_a_second() {
    if !require!() {
        return;
    }
    for way in [Way::Up, Way::Down, Way::Drip] {
        let net = Net::new(Family::V4);
        let (server, connection) = connected(&net, &Config::default());
        let transfer = Transfer::start(&net.client, &connection, &server, way, 100_000_000);
        transfer.reach(&net.client, 50_000);
        let mut watch = Watch::new(&connection);
        let began = Instant::now();
        net.link.set_blackhole(Direction::Both, true);
        net.client.wait(watch.next(|event| matches!(event, ConnectionEvent::PathSuspect { .. })));
        let took = began.elapsed();
        eprintln!("a blackhole was noticed after {took:?}, {way:?}");
        assert!(took < ms(1500), "{took:?}");
    }
}

#[test]
fn an_idle_path_survives_a_gateway_that_forgets_idle_flows() {
    if !require!() {
        return;
    }
    let net = Routed::new(Family::V4, false);
    let _nat = net.lab.nat_gateway(&net.router, "wan0").unwrap();
    let timeout = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established";
    net.router.run(|| std::fs::write(timeout, "3")).unwrap();
    let server = Server::start(&net.server, net.server.endpoint());
    let config =
        Config { timeouts: Timeouts { heartbeat: secs(1), ..Timeouts::default() }, ..Config::default() };
    let only_tcp = Carriers::Only(CarrierKind::Tcp);
    let client = net.client.endpoint_with(|builder| builder.config(config).carriers(only_tcp));
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let mut echo = net.client.wait(Echo::open(&connection));
    let mut events = connection.events();
    // The time itself is what is tested.
    std::thread::sleep(secs(10));
    let took = net.client.wait(echo.say(b"still there"));
    eprintln!("after ten idle seconds the first answer came after {took:?}");
    assert!(took < ms(300), "{took:?}");
    assert!(events.try_next().is_none(), "something happened to the path");
    assert_eq!(connection.stats().paths[0].id, 0);
}

#[test]
fn idle_connections_use_one_descriptor_each_and_no_time() {
    if !require!() {
        return;
    }
    const CONNECTIONS: usize = 50;
    let _alone = heavy();
    let net = Net::new(Family::V4);
    let mut server = Process::start(&net.server, &Role::Serve { key: 11, port: 4480 });
    let idler =
        |server: Ticket, connections| Process::start(&net.client, &Role::Idle { server, connections });
    let before = server.descriptors();
    let mut none = idler(server.ticket(), 0);
    let mut many = idler(server.ticket(), CONNECTIONS);
    // Some still change from QUIC to TCP, and have a socket of each meanwhile, or none but the listener's.
    let began = Instant::now();
    let mut used = || (server.descriptors() - before, many.descriptors() - none.descriptors());
    while used() != (CONNECTIONS, CONNECTIONS) && began.elapsed() < secs(5) {
        std::thread::sleep(ms(50));
    }
    assert_eq!(used(), (CONNECTIONS, CONNECTIONS), "descriptors at the server and at the client");

    // Tickets and acknowledgements of the handshakes are still under way.
    std::thread::sleep(ms(500));
    let before = [server.cpu(), many.cpu()];
    std::thread::sleep(secs(5));
    let used = [server.cpu() - before[0], many.cpu() - before[1]];
    eprintln!("{CONNECTIONS} idle connections used {used:?} in 5 s on the server and the client");
    assert!(used.iter().all(|used| *used < ms(50)), "{used:?}");
}
