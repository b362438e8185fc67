//! What no event tells: links that swallow packets, gateways that forget, peers that vanish or stand still.

use std::time::{Duration, Instant};

use crate::lab_support::net::{Family, Net, Routed, Watch};
use crate::lab_support::paths::newest;
use crate::lab_support::process::{Process, Role};
use crate::lab_support::traffic::{Echo, Server, Transfer, Way};
use crate::lab_support::{ms, secs};
use whimbrel_base::Ticket;
use whimbrel_lab::{Direction, LinkSpec, Rate, require};
use whimbrel_transport::{
    CarrierKind, CloseCode, ClosedBy, Config, Connection, ConnectionEvent, ManualMonitor,
};

const TOTAL: u64 = 12_000_000;
/// Four seconds' worth of a drip.
const LITTLE: u64 = 200 * 1024;

/// A connection under way between a client behind a router and a server.
struct Running {
    net: Routed,
    _server: Server,
    connection: Connection,
    transfer: Transfer,
}

fn running(net: Routed, way: Way) -> Running {
    let server = Server::start(&net.server, net.server.endpoint());
    let client = net.client.endpoint();
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let total = if way == Way::Drip { LITTLE } else { TOTAL };
    let transfer = Transfer::start(&net.client, &connection, &server, way, total);
    transfer.reach(&net.client, total / 3);
    Running { net, _server: server, connection, transfer }
}

impl Running {
    /// Breaks something, and tells how long it took until new bytes arrived.
    fn disturb(&self, disturb: impl FnOnce(&Routed)) -> Duration {
        let mut watch = Watch::new(&self.connection);
        let began = Instant::now();
        disturb(&self.net);
        self.net.client.wait_for(secs(90), watch.recovery());
        let before = self.transfer.meter.get();
        self.transfer.reach(&self.net.client, before + 1);
        began.elapsed()
    }

    fn finish(self) {
        self.transfer.finish(&self.net.client);
    }
}

/// The first link dies without a word, while a second interface is up.
fn blackhole(way: Way, family: Family) {
    let running = running(Routed::new(family, true), way);
    let took = running.disturb(|net| net.near[0].set_blackhole(Direction::Both, true));
    eprintln!("blackhole, {way:?}, {family:?}: {took:?}");
    assert!(took < secs(4), "{took:?}");
    assert_eq!(newest(&running.connection).local.ip(), family.ip(2, 10));
    running.finish();
}

#[test]
fn a_silent_blackhole_is_left_for_another_interface_while_uploading() {
    if require!() {
        blackhole(Way::Up, Family::V4);
    }
}

#[test]
fn a_silent_blackhole_is_left_for_another_interface_while_downloading() {
    if require!() {
        blackhole(Way::Down, Family::V6);
    }
}

#[test]
fn a_silent_blackhole_is_left_for_another_interface_while_little_trickles_in() {
    if require!() {
        blackhole(Way::Drip, Family::V4);
    }
}

/// The gateway forgets all flows: what was open is dead, without a word.
fn forgetful_gateway(way: Way) {
    let net = Routed::new(Family::V4, false);
    let nat = net.lab.nat_gateway(&net.router, "wan0").unwrap();
    let running = running(net, way);
    let took = running.disturb(|_| nat.forget_mappings().unwrap());
    eprintln!("gateway forgot its mappings, {way:?}: {took:?}");
    assert!(took < secs(4), "{took:?}");
    running.finish();
}

#[test]
fn a_nat_gateway_forgets_its_mappings_while_uploading() {
    if require!() {
        forgetful_gateway(Way::Up);
    }
}

#[test]
fn a_nat_gateway_forgets_its_mappings_while_downloading() {
    if require!() {
        forgetful_gateway(Way::Down);
    }
}

#[test]
fn a_nat_gateway_forgets_its_mappings_while_little_trickles_in() {
    if require!() {
        forgetful_gateway(Way::Drip);
    }
}

/// What was open when the host fell asleep is dead when it wakes, and nobody says so.
#[test]
fn a_host_that_wakes_from_sleep_dials_at_once_what_died_meanwhile() {
    if !require!() {
        return;
    }
    let net = Routed::new(Family::V4, false);
    let nat = net.lab.nat_gateway(&net.router, "wan0").unwrap();
    let server = Server::start(&net.server, net.server.endpoint());
    let monitor = ManualMonitor::new([net.client.ip()]);
    let client = net.client.endpoint_with(|builder| builder.monitor(monitor.clone()));
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let mut echo = net.client.wait(Echo::open(&connection));
    net.client.wait(echo.say(b"good night"));
    // Everything is acknowledged, and only one carrier is left.
    std::thread::sleep(secs(1));
    nat.forget_mappings().unwrap();
    let asleep = connection.stats().paths;
    // The control: without waking, the next sign of life is a minute away.
    std::thread::sleep(secs(3));
    let same = connection.stats().paths;
    assert_eq!(same.len(), 1);
    assert_eq!((same[0].id, same[0].state), (asleep[0].id, asleep[0].state));
    let mut watch = Watch::new(&connection);
    let began = Instant::now();
    monitor.wake();
    net.client.wait(watch.recovery());
    let took = began.elapsed();
    eprintln!("woke: a new path after {took:?}");
    assert!(took < secs(2), "{took:?}");
    net.client.wait(echo.say(b"good morning"));
}

/// A client that downloads from a server in another process.
struct Remote {
    net: Net,
    server: Process,
    connection: Connection,
    echo: Echo,
}

const SERVER: Role = Role::Serve { key: 7, port: 4480 };

fn remote() -> Remote {
    let net = Net::new(Family::V4);
    let server = Process::start(&net.server, &SERVER);
    let client = net.client.endpoint();
    let (connection, echo) = net.client.wait(async {
        let connection = client.connect(server.ticket()).await.unwrap();
        let echo = Echo::open(&connection).await;
        (connection, echo)
    });
    Remote { net, server, connection, echo }
}

#[test]
fn a_killed_peer_makes_the_connection_unreachable_and_a_restarted_one_ends_it() {
    if !require!() {
        return;
    }
    let Remote { net, server, connection, echo: _echo } = remote();
    let mut watch = Watch::new(&connection);
    let began = Instant::now();
    server.kill();
    net.client.wait(watch.next(|event| matches!(event, ConnectionEvent::Unreachable { .. })));
    eprintln!("the death of the peer was noticed after {:?}", began.elapsed());
    // Not an error: the peer may come back, for all that is known.
    assert_eq!(connection.close_reason(), None);
    assert!(connection.stats().unreachable.is_some());

    let began = Instant::now();
    let _restarted = Process::start(&net.server, &SERVER);
    let reason = net.client.wait(connection.closed());
    eprintln!("the restarted peer ended the connection after {:?}", began.elapsed());
    assert_eq!((reason.by, reason.code), (ClosedBy::Peer, CloseCode::UNKNOWN_CONNECTION));
}

#[test]
fn a_connection_to_a_killed_peer_ends_when_its_linger_time_does() {
    if !require!() {
        return;
    }
    let net = Net::new(Family::V4);
    let server = Process::start(&net.server, &SERVER);
    let linger = secs(3);
    let client = net.client.endpoint_with(|builder| builder.config(Config { linger, ..Config::default() }));
    let connection = net.client.wait(client.connect(server.ticket())).unwrap();
    let began = Instant::now();
    server.kill();
    let reason = net.client.wait(connection.closed());
    assert_eq!((reason.by, reason.code), (ClosedBy::Local, CloseCode::LINGER_EXPIRED));
    let took = began.elapsed();
    assert!(took >= linger && took < linger + secs(3), "{took:?}");
}

#[test]
fn what_is_kept_for_a_killed_client_is_given_up_when_its_linger_time_ends() {
    if !require!() {
        return;
    }
    let net = Net::new(Family::V4);
    let linger = secs(3);
    let config = Config { linger, ..Config::default() };
    let server = Server::start(&net.server, net.server.endpoint_with(|builder| builder.config(config)));
    let role = Role::Idle { server: Ticket::from(server.endpoint.addr()), connections: 5 };
    let client = Process::start(&net.client, &role);
    assert_eq!(server.endpoint.connections().len(), 5);
    // The kernel ends TCP for a process that it killed; QUIC, which opened the connections, just falls
    // silent.
    let is_settled = || {
        let mut connections = server.endpoint.connections().into_iter();
        connections.all(|info| info.stats.paths.iter().all(|path| path.carrier == CarrierKind::Tcp))
    };
    net.server.wait(async {
        while !is_settled() {
            tokio::time::sleep(ms(20)).await;
        }
    });
    let began = Instant::now();
    client.kill();
    net.server.wait(async {
        while !server.endpoint.connections().is_empty() {
            tokio::time::sleep(ms(20)).await;
        }
    });
    let took = began.elapsed();
    assert!(took >= linger && took < linger + secs(3), "{took:?}");
}

#[test]
fn a_peer_that_stands_still_for_thirty_seconds_goes_on_where_it_was() {
    if !require!() {
        return;
    }
    let Remote { net, mut server, connection, mut echo } = remote();
    let transfer = Transfer::from_process(&net.client, &connection, 4 * TOTAL);
    transfer.reach(&net.client, TOTAL);
    server.stop();
    // The time itself is what is tested.
    std::thread::sleep(secs(30));
    let stopped_at = transfer.meter.get();
    assert!(stopped_at < 4 * TOTAL);
    assert_eq!(connection.close_reason(), None);
    let began = Instant::now();
    server.go_on();
    net.client.wait(async {
        transfer.meter.reach(stopped_at + 1).await;
        eprintln!("first byte {:?} after standing still for 30 s", began.elapsed());
        echo.say(b"awake").await;
    });
    assert!(began.elapsed() < secs(8), "{:?}", began.elapsed());
    transfer.finish(&net.client);
}

/// Longer than the half minute after which predecessors forgot. It goes on when the first packet gets through
/// that is sent each half second, or, if one is lost once more, a little later.
#[test]
fn a_peer_that_is_gone_for_sixty_seconds_goes_on_where_it_was() {
    if !require!() {
        return;
    }
    const SOME: u64 = TOTAL / 4;
    const MUCH: u64 = 8 * SOME;
    // So slow that the processor does not decide which direction gets how far.
    let net = Net::with(Family::V4, LinkSpec::default().delay(ms(10)).rate(Rate::mbit(20)));
    let server = Server::start(&net.server, net.server.endpoint());
    let client = net.client.endpoint();
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let up = Transfer::start(&net.client, &connection, &server, Way::Up, MUCH);
    let down = Transfer::start(&net.client, &connection, &server, Way::Down, MUCH);
    net.client.wait(async { tokio::join!(up.meter.reach(SOME), down.meter.reach(SOME)) });
    let mut watch = Watch::new(&connection);
    net.link.set_blackhole(Direction::Both, true);
    // The time itself is what is tested.
    std::thread::sleep(secs(60));
    let (sent, received) = (up.meter.get(), down.meter.get());
    assert!(sent < MUCH && received < MUCH, "{sent} and {received} bytes");
    let began = Instant::now();
    net.link.set_blackhole(Direction::Both, false);
    net.client.wait(async {
        watch.recovery().await;
        tokio::join!(up.meter.reach(sent + 1), down.meter.reach(received + 1));
    });
    let took = began.elapsed();
    eprintln!("both directions went on {took:?} after a minute's absence");
    assert!(took < ms(1500), "{took:?}");
    up.finish(&net.client);
    down.finish(&net.client);
}
