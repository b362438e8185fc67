//! Peers that send a great deal of something: nothing they send makes memory, or the traffic
//! that answers it, grow without bound.
#![allow(clippy::unwrap_used)]

use crate::simulation::{Options, Sim, ms, secs, wide_config};
use whimbrel_proto::fuzzing::frame::{Frame, PathReport};
use whimbrel_proto::fuzzing::varint;
use whimbrel_proto::{CloseCode, PathId, ProtocolError, Side, StreamId};

const PATH: PathId = PathId(0);

fn segment(frames: &[Frame<'_>]) -> Vec<u8> {
    let mut body = Vec::new();
    for frame in frames {
        frame.encode(&mut body);
    }
    body
}

fn data(id: StreamId, offset: u64, data: &[u8]) -> Frame<'_> {
    let fin = false;
    Frame::Stream { id, offset, data, fin }
}

/// An honest segment without its acknowledgements, which would count forged segments too.
fn without_acks(body: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut reader = varint::Reader::new(body);
    while let Some(frame) = whimbrel_proto::fuzzing::frame::decode(&mut reader).unwrap() {
        if !matches!(frame, Frame::Ack(_)) {
            frame.encode(&mut kept);
        }
    }
    kept
}

/// Single bytes with holes between them: on one stream, and spread over many.
#[test]
fn thousands_of_gaps_are_rejected() {
    for streams in [1, 8, 1000] {
        let mut sim = Sim::established(Options::default());
        let now = sim.now;
        let mut pieces = 0;
        let result = (0..60_000u64).try_for_each(|i| {
            let id = StreamId::new(Side::Client, i % streams);
            let frame = data(id, 1 + 2 * (i / streams), b"x");
            let result = sim.server().handle_segment(now, PATH, &segment(&[frame]));
            pieces = pieces.max(sim.server().footprint().pieces);
            result
        });
        assert!(matches!(result, Err(ProtocolError::TooManyGaps(_))), "{streams}");
        assert!(pieces <= 16 * 1024 + 1, "{pieces}");
    }
}

/// Small pieces in a row behind a hole are one piece: an honest peer that moved sends those.
#[test]
fn many_small_pieces_behind_one_gap_are_welcome() {
    let mut sim = Sim::established(Options { server: wide_config(), ..Options::default() });
    let now = sim.now;
    let id = StreamId::new(Side::Client, 0);
    for i in 1..100_000 {
        let body = segment(&[data(id, i, b"x")]);
        assert_eq!(sim.server().handle_segment(now, PATH, &body), Ok(()));
    }
    assert!(sim.server().footprint().pieces < 10);
    let body = segment(&[data(id, 0, b"x")]);
    sim.server().handle_segment(now, PATH, &body).unwrap();
    let mut buf = vec![0; 200_000];
    let read = sim.server().read(id, &mut buf);
    assert_eq!(read, Ok(whimbrel_proto::Read::Data(100_000)));
}

/// Runs `rounds` of a hostile segment against the server, which sends what it wants and is never
/// acknowledged, and returns the largest footprint.
fn flood(rounds: u64, mut body: impl FnMut(u64) -> Vec<u8>) -> whimbrel_proto::Connection {
    let mut sim = Sim::established(Options::default());
    sim.advance(secs(1));
    let mut server = sim.server.take().unwrap();
    let mut wire = Vec::new();
    for round in 0..rounds {
        sim.now += ms(1);
        let _ = server.handle_segment(sim.now, PATH, &body(round));
        if server.poll_timeout().is_some_and(|at| at <= sim.now) {
            server.handle_timeout(sim.now);
        }
        while server.poll_transmit(sim.now, PATH, &mut wire) {
            wire.clear();
        }
        let footprint = server.footprint();
        assert!(footprint.segments < 500, "{footprint:?} after {round}");
        assert!(footprint.unseen_reports <= 64, "{footprint:?}");
        assert!(footprint.paths <= 80, "{footprint:?}");
        // Events are not polled here at all.
        assert!(footprint.events < 3000, "{footprint:?} after {round}");
    }
    server
}

#[test]
fn a_flood_of_tiny_segments_costs_little() {
    let server = flood(50_000, |_| segment(&[Frame::Ping]));
    // Acknowledged in time, not one by one: 25 ms apart.
    let sent = server.paths()[0].bytes_sent;
    assert!(sent < 50_000 / 25 * 30, "{sent} bytes of acknowledgements");
}

#[test]
fn a_flood_of_acknowledgements_costs_nothing() {
    let ack = Frame::Ack(vec![(PathReport { path: PATH, received: 1 }, 0); 64].into());
    let server = flood(20_000, |_| segment(std::slice::from_ref(&ack)));
    assert!(server.close_reason().is_none());
}

#[test]
fn news_of_paths_that_never_existed_cannot_pile_up() {
    let lost = |path, received| segment(&[Frame::PathLost(PathReport { path: PathId(path), received })]);
    flood(20_000, |round| lost(1000 + round, round % 3));
    flood(20_000, |_| lost(1000, 1));
    flood(20_000, |round| lost(1000 + round % 64, 1));
}

#[test]
fn a_flood_of_control_frames_cannot_pile_up() {
    let id = StreamId::new(Side::Client, 0);
    flood(5000, |round| {
        segment(&[
            Frame::MaxData(round),
            Frame::MaxStreams(round),
            Frame::MaxStreamData(id, round),
            Frame::Stop(id, CloseCode::NONE),
            data(id, 0, b"same"),
            data(StreamId::new(Side::Client, 1), 0, b"same"),
            Frame::Addresses { sequence: round + 1, addresses: vec![([10, 0, 0, 1], 1).into()] },
        ])
    });
}

/// A server cannot use up a client's path ids by talking of paths that the client never opened.
#[test]
fn path_ids_are_the_clients_own() {
    let mut sim = Sim::established(Options::default());
    let now = sim.now;
    let path = PathId(varint::MAX);
    let body = segment(&[Frame::PathLost(PathReport { path, received: 3 })]);
    sim.client.handle_segment(now, PATH, &body).unwrap();
    assert_eq!(sim.client.open_path(now, None, 0), Some(PathId(1)));
}

/// The exchange about paths that one side never saw comes to rest.
#[test]
fn talk_about_unknown_paths_ends() {
    for received in [0, 1, 5] {
        let mut sim = Sim::established(Options::default());
        sim.advance(secs(1));
        for side in [Side::Client, Side::Server] {
            let now = sim.now;
            for path in 10..200 {
                let path = PathId(path);
                let body = segment(&[Frame::PathLost(PathReport { path, received })]);
                let connection = sim.connection(side).unwrap();
                connection.handle_segment(now, PATH, &body).unwrap();
            }
        }
        // The engines count these segments, so from here on they speak only of the rest.
        let mut wires = [Vec::new(), Vec::new()];
        for _ in 0..20 {
            let now = sim.now;
            for (i, side) in [Side::Client, Side::Server].into_iter().enumerate() {
                let connection = sim.connection(side).unwrap();
                while connection.poll_transmit(now, PATH, &mut wires[i]) {}
                let wire = std::mem::take(&mut wires[i]);
                let mut rest = &wire[..];
                while let Some((body, taken)) = whimbrel_proto::segment::split(rest).unwrap() {
                    let peer = sim.connection(side.peer()).unwrap();
                    peer.handle_segment(now, PATH, &without_acks(body)).unwrap();
                    rest = &rest[taken..];
                }
            }
        }
        let now = sim.now;
        for side in [Side::Client, Side::Server] {
            let connection = sim.connection(side).unwrap();
            let mut wire = Vec::new();
            connection.poll_transmit(now, PATH, &mut wire);
            assert!(wire.len() < 20, "{side:?} still talks");
        }
    }
}
