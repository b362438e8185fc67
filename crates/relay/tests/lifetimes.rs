//! How long gateways keep mappings is measured, and no more is sent than keeps them. They take five minutes:
//! `make eval-reach`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use crate::homes::Homes;
use crate::lab_support::secs;
use crate::lab_support::traffic::{Transfer, Way};
use whimbrel_lab::require;
use whimbrel_transport::{CarrierKind, Carriers, Config};

/// A server behind a gateway whose mappings live for `lives`. Returns how often it uses its own once that is
/// measured; afterwards it was idle for so long, and was reached over QUIC.
fn measured(lives: Duration, within: Duration) -> Duration {
    let homes = Homes::new(1);
    homes.gateways[1].forget_idle_udp_after(lives).unwrap();
    let relay = homes.relay(0);
    let (server, _keeper) = homes.serve(&[&relay]);
    let to = relay.endpoint().addr().addrs[0];
    let begun = Instant::now();
    let mut refresh = None;
    while begun.elapsed() < within {
        refresh = server.endpoint.refresh_after(to);
        std::thread::sleep(secs(1));
    }
    let refresh = refresh.expect("nothing was measured");
    assert!(refresh < lives, "mappings that live {lives:?} are used each {refresh:?}");
    // Two turns, so that it is known to be kept by them.
    std::thread::sleep(refresh * 2);
    let config =
        Config { carriers: Carriers::Only(CarrierKind::Quic), direct_paths: false, ..Config::default() };
    let client = homes.client.endpoint_with(|builder| builder.config(config));
    let connection = homes.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let transfer = Transfer::start(&homes.client, &connection, &server, Way::Down, 1 << 20);
    transfer.finish(&homes.client);
    assert!(relay.stats().flowed > 0, "{:?}", relay.stats());
    refresh
}

#[test]
#[ignore = "some five minutes: make eval-reach"]
fn mappings_that_live_thirty_seconds_and_those_that_live_for_minutes_are_used_as_often_as_that_needs() {
    if !require!() {
        return;
    }
    let short = std::thread::spawn(|| measured(secs(30), secs(130)));
    let long = std::thread::spawn(|| measured(secs(180), secs(140)));
    let (short, long) = (short.join().unwrap(), long.join().unwrap());
    println!("mappings that live 30 s are used each {short:?}, those that live 180 s each {long:?}");
    // 30 s themselves are tried, and may be survived or not.
    assert!(short == secs(16) || short == secs(24), "{short:?}");
    assert_eq!(long, secs(60));
}
