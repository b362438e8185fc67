//! A lot of it: connections that move together, and gigabytes across many moves.

use std::time::{Duration, Instant};

use crate::lab_support::net::{Family, Net, Node};
use crate::lab_support::traffic::{Echo, Server, Transfer, Way};
use crate::lab_support::{heavy, ms, secs};
use whimbrel_lab::{Host, Lab, LinkSpec, Rate, require};
use whimbrel_transport::{CarrierKind, Carriers};

/// The server moves; tells for each connection how long its next answer took from when the new address was
/// there.
fn server_move(connections: usize) -> Vec<Duration> {
    let net = Net::new(Family::V4);
    let server = Server::start(&net.server, net.server.endpoint());
    let client = net.client.endpoint();
    let mut echoes: Vec<Echo> = net.client.wait(async {
        let mut echoes = Vec::new();
        for _ in 0..connections {
            let connection = client.connect(server.endpoint.addr()).await.unwrap();
            echoes.push(Echo::open(&connection).await);
        }
        echoes
    });
    net.server.leave();
    let began = Instant::now();
    net.server.arrive();
    let mut times = net.client.wait(async {
        let mut answers = tokio::task::JoinSet::new();
        for mut echo in echoes.drain(..) {
            answers.spawn(async move {
                echo.say(b"where are you?").await;
                began.elapsed()
            });
        }
        answers.join_all().await
    });
    times.sort();
    times
}

fn report(times: &[Duration]) {
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    eprintln!(
        "{} connections of a server that moved: min {:?}, p50 {:?}, p90 {:?}, p99 {:?}, max {:?}",
        times.len(),
        at(0),
        at(50),
        at(90),
        at(99),
        at(100)
    );
}

#[test]
fn a_server_moves_with_one_connection() {
    if !require!() {
        return;
    }
    let _alone = heavy();
    let times = server_move(1);
    report(&times);
    assert!(times[0] < secs(2));
}

#[test]
fn a_server_moves_with_two_hundred_connections() {
    if !require!() {
        return;
    }
    let _alone = heavy();
    let times = server_move(200);
    report(&times);
    assert_eq!(times.len(), 200);
    assert!(times[199] < secs(10));
}

#[test]
fn five_gib_across_twenty_moves() {
    if !require!() {
        return;
    }
    const TOTAL: u64 = 5 << 30;
    const MOVES: u64 = 20;
    let _alone = heavy();
    let lab = Lab::new().unwrap();
    let hosts = [lab.host("client").unwrap(), lab.host("server").unwrap()];
    let link = lab.direct_link(&hosts[0], &hosts[1], LinkSpec::default()).unwrap();
    let node = |host: &Host, at| Node::new(host, link.end(host).name(), Family::V4, 1, at);
    let (client, server) = (node(&hosts[0], 10), node(&hosts[1], 130));
    let service = Server::start(&server, server.endpoint());
    let endpoint = client.endpoint();
    let connection = client.wait(endpoint.connect(service.endpoint.addr())).unwrap();
    let began = Instant::now();
    let transfer = Transfer::start(&client, &connection, &service, Way::Up, TOTAL);
    for round in 1..=MOVES {
        client.wait_for(secs(60), transfer.meter.reach(round * TOTAL / (MOVES + 1)));
        let mover = if round % 2 == 0 { &server } else { &client };
        mover.move_on();
    }
    transfer.finish_within(&client, secs(60));
    let stats = connection.stats();
    eprintln!(
        "5 GiB across {} moves in {:?}; {} bytes sent again",
        stats.moves,
        began.elapsed(),
        stats.bytes_resent
    );
    assert!(stats.moves >= MOVES, "{}", stats.moves);
    assert_eq!(stats.bytes_sent - 1, TOTAL);
}

/// The link holds 62 packets and its queue ten. A window that is doubled in bursts overflows that with its
/// third round, of 40 packets; spread out, it does not before the pipe is full.
#[test]
fn a_window_is_doubled_over_a_slow_and_distant_link_without_a_loss() {
    if !require!() {
        return;
    }
    let net = Net::with(Family::V4, LinkSpec::default().delay(ms(370)).rate(Rate::mbit(1)));
    for (node, peer) in [(&net.client, &net.server), (&net.server, &net.client)] {
        // For a namespace's default the kernel takes only what the system allows.
        let route = ["route", "add", &peer.ip().to_string(), "dev", "eth0", "congctl", "cubic"];
        let done = node.host.command("ip").args(route).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    let server = Server::start(&net.server, net.server.endpoint());
    let tcp = Carriers::Only(CarrierKind::Tcp);
    let client = net.client.endpoint_with(|builder| builder.carriers(tcp));
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    // Three rounds and a half.
    let transfer = Transfer::start(&net.client, &connection, &server, Way::Up, 120_000);
    transfer.finish(&net.client);
    let lost = connection.stats().paths[0].carrier_stats.as_ref().map(|stats| stats.lost);
    assert_eq!(lost, Some(0), "{:?}", connection.stats().paths[0].carrier_stats);
}
