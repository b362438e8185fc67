//! Why a path was given up is told as far as the engine can know.
#![allow(clippy::unwrap_used)]

use crate::simulation::{Cut, Options, Sim, ms, secs};
use whimbrel_proto::{Config, Event, HandoverMode, PathEnd, PathId, Side};

const FIRST: PathId = PathId(0);

fn one_at_a_time() -> Options {
    let config = Config { handover: HandoverMode::Single, ..Config::default() };
    Options { client: config.clone(), server: config, redial: true, ..Options::default() }
}

/// How the first path ended, as this side was told.
fn end(sim: &Sim, side: Side) -> Option<PathEnd> {
    sim.events(side).iter().find_map(|event| match event {
        Event::PathDown(FIRST, end) => Some(*end),
        _ => None,
    })
}

fn send_until_it_arrives(sim: &mut Sim) {
    let stream = sim.open(Side::Client).unwrap();
    sim.send(Side::Client, stream, 30_000);
    let done = sim.run_until(secs(30), |sim| sim.client_app.bytes_missing_at(&sim.server_app).is_none());
    assert!(done, "{}", sim.report());
    sim.advance(secs(1));
}

#[test]
fn a_path_that_fell_silent_is_told_from_one_that_broke() {
    let mut sim = Sim::established(one_at_a_time());
    sim.cut(0, Cut::Silent);
    send_until_it_arrives(&mut sim);
    assert_eq!(end(&sim, Side::Client), Some(PathEnd::Silent));
    // The server hears of it from the client, or sees the carrier end.
    assert!(matches!(end(&sim, Side::Server), Some(PathEnd::ByPeer | PathEnd::Here)));

    let mut sim = Sim::established(one_at_a_time());
    sim.cut(0, Cut::Both);
    send_until_it_arrives(&mut sim);
    for side in [Side::Client, Side::Server] {
        assert_eq!(end(&sim, side), Some(PathEnd::Here), "the driver knows: {side:?}");
    }
}

#[test]
fn a_path_whose_place_another_one_took_is_retired_at_both_ends() {
    let mut sim = Sim::established(one_at_a_time());
    sim.dial().unwrap();
    sim.advance(ms(500));
    send_until_it_arrives(&mut sim);
    for side in [Side::Client, Side::Server] {
        assert_eq!(end(&sim, side), Some(PathEnd::Retired), "{side:?}");
    }
}
