//! Very many streams on one connection.
#![allow(clippy::unwrap_used)]

use crate::simulation::{Options, Sim, ms, secs};
use whimbrel_proto::{Config, Read, Side, StreamId};

const STREAMS: usize = 20_000;

fn open(sim: &mut Sim, count: usize) -> Vec<StreamId> {
    let mut ids = Vec::new();
    for _ in 0..50 {
        while ids.len() < count
            && let Some(id) = sim.client.open_stream()
        {
            ids.push(id);
        }
        sim.advance(ms(100));
    }
    ids
}

/// Moves everything and takes what `side` can read of the streams: one byte each.
fn read_byte_of_each(sim: &mut Sim, side: Side, ids: &[StreamId]) {
    sim.advance(secs(2));
    let connection = sim.connection(side).unwrap();
    for id in ids {
        let mut buf = [0; 2];
        assert_eq!(connection.read(*id, &mut buf), Ok(Read::Data(1)), "{side:?} {id}");
        assert_eq!(buf[0], id.index() as u8);
    }
}

#[test]
fn twenty_thousand_streams_carry_bytes_both_ways() {
    let mut sim = Sim::established(Options::default());
    let ids = open(&mut sim, STREAMS);
    assert_eq!(ids.len(), STREAMS);
    for (from, to) in [(Side::Client, Side::Server), (Side::Server, Side::Client)] {
        for id in &ids {
            assert_eq!(sim.connection(from).unwrap().write(*id, &[id.index() as u8]), Ok(1));
        }
        read_byte_of_each(&mut sim, to, &ids);
    }
    sim.advance(secs(1));
    for side in [Side::Client, Side::Server] {
        let connection = sim.connection(side).unwrap();
        assert_eq!(connection.footprint().streams, STREAMS);
        assert_eq!(connection.buffered(), 0);
    }
    let accepted = std::iter::from_fn(|| sim.server().accept_stream()).count();
    assert_eq!(accepted, STREAMS);
}

#[test]
fn a_peer_opens_no_more_than_the_maximum_and_goes_on_when_some_are_over() {
    let server = Config { streams: 3000, ..Config::default() };
    let mut sim = Sim::established(Options { server, ..Options::default() });
    let ids = open(&mut sim, STREAMS);
    assert_eq!(ids.len(), 3000);
    for id in &ids[..1000] {
        sim.client.finish(*id).unwrap();
        sim.server().finish(*id).unwrap();
    }
    sim.advance(ms(200));
    for id in &ids[..1000] {
        for side in [Side::Client, Side::Server] {
            assert_eq!(sim.connection(side).unwrap().read(*id, &mut [0]), Ok(Read::Fin));
        }
    }
    sim.advance(ms(200));
    // Told in steps of a quarter.
    assert_eq!(open(&mut sim, STREAMS).len(), 750);
}
