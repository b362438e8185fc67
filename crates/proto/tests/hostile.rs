//! Peers that break the rules: each break ends the connection with the right code, nothing
//! panics, and nothing that a peer sends makes memory grow without bound.
#![allow(clippy::unwrap_used)]

use crate::simulation::{CONNECTION, Options, Sim, identity, ms, secs};
use proptest::prelude::*;
use whimbrel_base::ConnectionId;
use whimbrel_proto::fuzzing::frame::{Frame, Join, MessageHeader, Open, PathReport, Skip};
use whimbrel_proto::fuzzing::varint;
use whimbrel_proto::{
    Class, CloseCode, ClosedBy, Connection, DecodeError, Event, FirstFlight, JoinError, MAX_MESSAGE,
    MESSAGE_WINDOW, Params, PathId, ProtocolError, Side, StreamId,
};

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

/// Hands the frames to an established engine of `side` and returns what it says.
fn give(side: Side, frames: &[Frame<'_>]) -> (Sim, Result<(), ProtocolError>) {
    let mut sim = Sim::established(Options::default());
    sim.open(side).unwrap();
    sim.advance(ms(200));
    let now = sim.now;
    let body = segment(frames);
    let connection = sim.connection(side).unwrap();
    let result = connection.handle_segment(now, PATH, &body);
    (sim, result)
}

/// The engine rejects the frames, is closed with the error's code, and says so to the peer.
fn rejects(side: Side, frames: &[Frame<'_>], expected: ProtocolError) {
    let (mut sim, result) = give(side, frames);
    assert_eq!(result, Err(expected.clone()), "{side:?} {frames:?}");
    let (by, code, _) = sim.connection(side).unwrap().close_reason().unwrap();
    assert_eq!((by, code), (ClosedBy::Local, expected.code()));
    sim.keep_server = true;
    let now = sim.now;
    let mut wire = Vec::new();
    while sim.connection(side).unwrap().poll_transmit(now, PATH, &mut wire) {}
    let mut rest = &wire[..];
    while let Some((body, taken)) = whimbrel_proto::segment::split(rest).unwrap() {
        let peer = sim.connection(side.peer()).unwrap();
        peer.handle_segment(now, PATH, &without_acks(body)).unwrap();
        rest = &rest[taken..];
    }
    let peer = sim.connection(side.peer()).unwrap();
    let told = peer.close_reason().map(|(by, code, _)| (by, code));
    assert_eq!(told, Some((ClosedBy::Peer, expected.code())));
}

const MINE: fn(Side) -> StreamId = |side| StreamId::new(side, 0);
const THEIRS: fn(Side) -> StreamId = |side| StreamId::new(side.peer(), 0);

#[test]
fn data_beyond_the_windows_is_rejected() {
    for side in [Side::Client, Side::Server] {
        let window = Params::default().max_stream_data;
        let id = THEIRS(side);
        rejects(side, &[data(id, window, b"x")], ProtocolError::FlowControl);
        rejects(side, &[data(id, varint::MAX, b"xyz")], ProtocolError::FlowControl);
        rejects(side, &[data(id, varint::MAX - 3, b"xyz")], ProtocolError::FlowControl);
        let reset = Frame::Reset { id, code: CloseCode::NONE, final_size: window + 1 };
        rejects(side, &[reset], ProtocolError::FlowControl);
    }
}

#[test]
fn streams_beyond_the_limit_and_streams_never_opened_are_rejected() {
    for side in [Side::Client, Side::Server] {
        let limit = Params::default().max_streams;
        let beyond = StreamId::new(side.peer(), limit);
        let farthest = StreamId::new(side.peer(), varint::MAX >> 1);
        for id in [beyond, farthest] {
            rejects(side, &[data(id, 0, b"x")], ProtocolError::StreamLimit);
            rejects(side, &[Frame::MaxStreamData(id, 1)], ProtocolError::StreamLimit);
            rejects(side, &[Frame::Stop(id, CloseCode::NONE)], ProtocolError::StreamLimit);
        }
        let unopened = StreamId::new(side, 1);
        let error = ProtocolError::Unexpected("frame for a stream never opened");
        rejects(side, &[data(unopened, 0, b"x")], error.clone());
        rejects(side, &[Frame::MaxStreamData(unopened, 1)], error);
        // The last one that is allowed opens all before it, and that is all it does.
        let last = StreamId::new(side.peer(), limit - 1);
        let (mut sim, result) = give(side, &[data(last, 0, b"")]);
        assert_eq!(result, Ok(()));
        let footprint = sim.connection(side).unwrap().footprint();
        assert_eq!(footprint.streams as u64, limit + 1);
    }
}

#[test]
fn a_changed_final_size_is_rejected() {
    for side in [Side::Client, Side::Server] {
        let id = MINE(side);
        let end = |offset, data| Frame::Stream { id, offset, data, fin: true };
        let reset = |final_size| Frame::Reset { id, code: CloseCode::NONE, final_size };
        for frames in [
            vec![end(0, b"abc"), end(0, b"abcd")],
            vec![end(0, b"abc"), end(0, b"ab")],
            vec![end(0, b"abc"), data(id, 3, b"d")],
            vec![data(id, 10, b"x"), end(0, b"abc")],
            vec![end(0, b"abc"), reset(4)],
            vec![data(id, 10, b"x"), reset(10)],
            vec![reset(4), reset(5)],
            vec![reset(4), data(id, 4, b"x")],
            vec![reset(4), end(0, b"abc")],
        ] {
            rejects(side, &frames, ProtocolError::FinalSize(id));
        }
        for frames in [
            vec![end(0, b"abc"), end(3, b""), data(id, 1, b"bc")],
            vec![reset(4), data(id, 3, b"x"), end(4, b""), reset(4)],
        ] {
            assert_eq!(give(side, &frames).1, Ok(()));
        }
    }
}

#[test]
fn acknowledgements_of_unsent_segments_are_rejected() {
    for side in [Side::Client, Side::Server] {
        for received in [1000, varint::MAX] {
            let ack = Frame::Ack(vec![(PathReport { path: PATH, received }, varint::MAX)].into());
            rejects(side, &[ack], ProtocolError::AckOfUnsent);
        }
        // Of paths that are not known, nothing is known: settled ones look the same.
        let path = PathId(77);
        let ack = Frame::Ack(vec![(PathReport { path, received: 5 }, 0)].into());
        assert_eq!(give(side, &[ack]).1, Ok(()));
    }
}

#[test]
fn first_frames_in_wrong_places_are_rejected() {
    let params = Params::default;
    let connection = ConnectionId::from_bytes(&CONNECTION);
    let open =
        Frame::Open(Open { connection, path: PathId(1), random: [7; 32], lost: vec![], params: params() });
    let join = Frame::Join(Join { connection, path: PathId(1), proof: [0; 32], lost: vec![] });
    let accept = Frame::Accept { random: [0; 32], lost: vec![], params: params() };
    let refuse = Frame::Refuse { code: CloseCode::NONE, reason: "" };
    let joined = Frame::Joined { lost: vec![] };
    for side in [Side::Client, Side::Server] {
        rejects(side, std::slice::from_ref(&open), ProtocolError::Unexpected("OPEN"));
        rejects(side, std::slice::from_ref(&join), ProtocolError::Unexpected("JOIN"));
        rejects(side, &[Frame::CloseAck], ProtocolError::Unexpected("CLOSE_ACK"));
    }
    for answer in [&accept, &joined, &refuse] {
        rejects(Side::Client, std::slice::from_ref(answer), ProtocolError::Unexpected("answer"));
    }
    rejects(Side::Server, std::slice::from_ref(&accept), ProtocolError::Unexpected("ACCEPT"));
    rejects(Side::Server, std::slice::from_ref(&joined), ProtocolError::Unexpected("JOINED"));
    rejects(Side::Server, &[refuse], ProtocolError::Unexpected("REFUSE"));

    // A first segment that does not start with the answer, or with the wrong one.
    for first in [Frame::Ping, joined.clone()] {
        let mut sim = Sim::new(Options::default());
        sim.dial();
        let now = sim.now;
        let result = sim.client.handle_segment(now, PATH, &segment(&[first]));
        assert!(matches!(result, Err(ProtocolError::Unexpected(_))));
    }
    let mut sim = Sim::established(Options::default());
    let now = sim.now;
    let path = sim.client.open_path(now, None, 0).unwrap();
    let result = sim.client.handle_segment(now, path, &segment(&[accept]));
    assert_eq!(result, Err(ProtocolError::Unexpected("ACCEPT")));
}

#[test]
fn joins_that_prove_nothing_are_refused() {
    let mut sim = Sim::established(Options::default());
    let now = sim.now;
    let path = sim.client.open_path(now, None, 0).unwrap();
    let mut wire = Vec::new();
    sim.client.poll_transmit(now, path, &mut wire);
    let (body, _) = whimbrel_proto::segment::split(&wire).unwrap().unwrap();
    let Ok(FirstFlight::Join(good)) = FirstFlight::decode(body) else { panic!("a JOIN") };
    for bit in 0..256 {
        let mut bad = good.clone();
        bad.proof[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(sim.server().join(now, &bad), Err(JoinError::BadProof));
    }
    for id in [0, 2, varint::MAX] {
        let mut bad = good.clone();
        bad.path = PathId(id);
        assert_eq!(sim.server().join(now, &bad), Err(JoinError::BadProof));
    }
    // A proof of one connection is none of another between the same two.
    let open = Open {
        connection: ConnectionId::from_bytes(&[0x22; 16]),
        path: PATH,
        random: [7; 32],
        lost: vec![],
        params: Params::default(),
    };
    let (local, peer) = (identity(Side::Server), identity(Side::Client));
    let config = whimbrel_proto::Config::default();
    let mut other = Connection::server(config, &open, local, peer, [9; 32], now);
    assert_eq!(other.join(now, &good), Err(JoinError::BadProof));
    assert_eq!(sim.server().paths().len(), 1);
    // OPEN again, by somebody who does not know the client's random or when it is too late.
    let mut again = open;
    again.connection = ConnectionId::from_bytes(&CONNECTION);
    again.path = PathId(9);
    again.random = [8; 32];
    assert_eq!(sim.server().reopen(now, &again), Err(JoinError::AlreadyOpen));
    assert_eq!(sim.server().paths().len(), 1);
}

#[test]
fn unknown_frames_are_skipped_when_odd_and_fatal_when_even() {
    for side in [Side::Client, Side::Server] {
        for kind in [0x22_u64, 0x24, 0x60, 0x3ffe, varint::MAX - 1] {
            let mut sim = Sim::established(Options::default());
            let now = sim.now;
            let mut body = Vec::new();
            varint::write(&mut body, kind);
            body.extend_from_slice(&[3, b'n', b'e', b'w']);
            let result = sim.connection(side).unwrap().handle_segment(now, PATH, &body);
            let error = DecodeError::UnknownFrame(kind);
            assert_eq!(result, Err(ProtocolError::Decode(error)));
        }
        for kind in [0x01_u64, 0x2d, 0x41, 0x3fff, varint::MAX] {
            let mut sim = Sim::established(Options::default());
            sim.advance(secs(1));
            let now = sim.now;
            let mut body = Vec::new();
            varint::write(&mut body, kind);
            body.extend_from_slice(&[3, b'n', b'e', b'w']);
            let connection = sim.connection(side).unwrap();
            assert_eq!(connection.handle_segment(now, PATH, &body), Ok(()));
            // Its sender waits for the acknowledgement, so there is one.
            assert_eq!(connection.poll_timeout(), Some(now + ms(25)));
        }
    }
}

#[test]
fn oversized_fields_are_rejected() {
    let report = PathReport { path: PathId(1), received: 0 };
    for side in [Side::Client, Side::Server] {
        let acks = Frame::Ack(vec![(report, 0); 65].into());
        let error = DecodeError::TooLarge("path reports");
        rejects(side, &[acks], ProtocolError::Decode(error));
    }
    let join = |n| {
        segment(&[Frame::Join(Join {
            connection: ConnectionId::from_bytes(&CONNECTION),
            path: PathId(1),
            proof: [0; 32],
            lost: vec![report; n],
        })])
    };
    assert!(FirstFlight::decode(&join(64)).is_ok());
    assert_eq!(FirstFlight::decode(&join(65)), Err(DecodeError::TooLarge("path reports")));
    let mut long = vec![0x1c, 0x41, 0x02, 0x00];
    long.resize(4 + 257, b'x');
    let mut sim = Sim::established(Options::default());
    let now = sim.now;
    let result = sim.client.handle_segment(now, PATH, &long);
    assert_eq!(result, Err(DecodeError::TooLarge("reason").into()));
    assert!(whimbrel_proto::segment::split(&[0x80, 0, 0x40, 1]).is_err());
}

/// A piece says how large its message is, and may be the only one that ever comes.
#[test]
fn a_message_of_16_mib_and_a_byte_is_rejected_at_its_first_piece() {
    let header = MessageHeader { flow: 0, number: 0, class: Class::RELIABLE, tag: None, place: None };
    let piece = |size, offset| Frame::Message { header, size, offset, data: b"x" };
    let options = || {
        let mut options = Options::default();
        options.client.params.messages = MESSAGE_WINDOW;
        options.server.params.messages = MESSAGE_WINDOW;
        options
    };
    let beyond = MAX_MESSAGE + 1;
    for side in [Side::Client, Side::Server] {
        let skip = Frame::Skip(Skip { header, size: beyond });
        for frame in [piece(beyond, 0), piece(beyond, MAX_MESSAGE), piece(varint::MAX, 0), skip] {
            let mut sim = Sim::established(options());
            let (now, body) = (sim.now, segment(&[frame]));
            let connection = sim.connection(side).unwrap();
            let error = ProtocolError::Decode(DecodeError::TooLarge("size of a message"));
            assert_eq!(connection.handle_segment(now, PATH, &body), Err(error));
            let reason = connection.close_reason().map(|(by, code, _)| (by, code));
            assert_eq!(reason, Some((ClosedBy::Local, CloseCode::PROTOCOL)));
            assert_eq!((connection.footprint().messages, connection.buffered()), (0, 0));
        }
        // One byte less is the largest that there is.
        let mut sim = Sim::established(options());
        let (now, body) = (sim.now, segment(&[piece(MAX_MESSAGE, 0)]));
        let connection = sim.connection(side).unwrap();
        assert_eq!(connection.handle_segment(now, PATH, &body), Ok(()));
        assert_eq!((connection.footprint().messages, connection.buffered()), (1, 1));
    }
}

/// Addresses that are older than those known change nothing.
#[test]
fn old_addresses_are_ignored() {
    let addresses =
        |sequence, port| Frame::Addresses { sequence, addresses: vec![([10, 0, 0, 1], port).into()] };
    let frames = [addresses(5, 1), addresses(4, 2), addresses(5, 3)];
    let (mut sim, result) = give(Side::Client, &frames);
    assert_eq!(result, Ok(()));
    let told: Vec<Event> = std::iter::from_fn(|| sim.client.poll_event()).collect();
    assert_eq!(told, [Event::PeerAddresses(vec![([10, 0, 0, 1], 1).into()])]);
}

fn arbitrary_bytes() -> impl Strategy<Value = Vec<u8>> {
    // Half noise, half things that look like frames.
    let framelike = prop::collection::vec((0u8..0x28, prop::collection::vec(any::<u8>(), 0..40)), 1..12)
        .prop_map(|frames| {
            let mut body = Vec::new();
            for (kind, content) in frames {
                body.push(kind);
                body.push(content.len() as u8);
                body.extend_from_slice(&content);
            }
            body
        });
    prop_oneof![prop::collection::vec(any::<u8>(), 0..300), framelike]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn random_bytes_never_panic(segments in prop::collection::vec((any::<bool>(), arbitrary_bytes()), 1..20)) {
        let mut sim = Sim::established(Options::default());
        let id = sim.open(Side::Client).unwrap();
        sim.write(Side::Client, id, 3000);
        for (client, body) in segments {
            let side = if client { Side::Client } else { Side::Server };
            let now = sim.now + ms(1);
            sim.now = now;
            let connection = sim.connection(side).unwrap();
            let _ = connection.handle_segment(now, PATH, &body);
            connection.handle_timeout(now);
            let mut wire = Vec::new();
            for path in connection.paths() {
                while connection.poll_transmit(now, path.id, &mut wire) {}
            }
            prop_assert!(wire.len() < 300_000);
            let footprint = connection.footprint();
            prop_assert!(footprint.streams < 3000 && footprint.events < 5000);
            let _ = FirstFlight::decode(&body);
            let _ = whimbrel_proto::segment::split(&body);
            let _ = whimbrel_proto::notice::tag(&body);
        }
    }
}
