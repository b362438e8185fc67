//! Every frame comes out of the decoder as it went into the encoder.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use whimbrel_base::{ConnectionId, SecretKey};
use whimbrel_proto::fuzzing::frame::{
    Frame, Join, MAX_REASON, Open, PathReport, Resume, Resumed, TakeOver, TakenOver, decode,
};
use whimbrel_proto::fuzzing::varint::{self, Reader};
use whimbrel_proto::{
    Assignment, CloseCode, EARLY_DATA_WINDOW, EARLY_STREAMS, FirstFlight, Params, PathId, Side, StreamId,
    refusal, segment,
};

/// Numbers of every encoded size, and the edges between them.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..=0x3fu64,
        0x40..=0x3fffu64,
        0x4000..=0x3fff_ffffu64,
        0x4000_0000..=varint::MAX,
        Just(varint::MAX),
    ]
}

fn reports() -> impl Strategy<Value = Vec<PathReport>> {
    vec((number(), number()), 0..=64).prop_map(|list| {
        list.into_iter().map(|(path, received)| PathReport { path: PathId(path), received }).collect()
    })
}

fn addresses() -> impl Strategy<Value = Vec<SocketAddr>> {
    let v4 = (any::<[u8; 4]>(), any::<u16>()).prop_map(SocketAddr::from);
    let v6 = (any::<[u8; 16]>(), any::<u16>()).prop_map(SocketAddr::from);
    vec(prop_oneof![v4, v6], 0..=16)
}

fn params() -> impl Strategy<Value = Params> {
    let numbers = (number(), number(), number(), 0..=1000u64, any::<u32>());
    let target = prop::option::of("[a-z.@]{0,253}");
    (numbers, target, addresses()).prop_map(|(numbers, target, notice_addresses)| Params {
        ticket_proof: (numbers.4 % 3 == 0).then(|| [numbers.4 as u8; 32].into()),
        max_data: numbers.0.max(EARLY_DATA_WINDOW),
        max_stream_data: numbers.1.max(EARLY_DATA_WINDOW),
        max_streams: numbers.2.max(EARLY_STREAMS),
        max_ack_delay: Duration::from_millis(numbers.3),
        linger: Duration::from_secs(numbers.4.into()),
        target,
        notice_addresses,
        retire: numbers.4 % 2 == 0,
        suspend: numbers.4 % 7 < 3,
        messages: numbers.0,
        datagrams: numbers.4 % 5 == 0 && numbers.0 > 0,
        reliable_datagrams: numbers.4 % 10 == 0 && numbers.0 > 0,
        datagram_bundles: numbers.4 % 5 == 0 && numbers.0 > 0 && numbers.4 % 3 == 0,
        hand_over: numbers.4 % 11 < 5,
        journals: numbers.4 % 11 == 0 && numbers.0 > 0,
        punch: numbers.4 % 13 < 6,
        search: numbers.4 % 13 < 3,
        observed: numbers.4 % 17 < 8,
    })
}

fn round_trip(frame: &Frame<'_>) -> Result<(), TestCaseError> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    // Behind it, an optional frame that nobody knows, and another frame.
    bytes.extend_from_slice(&[0x3f, 2, 0, 0]);
    Frame::CloseAck.encode(&mut bytes);
    let mut reader = Reader::new(&bytes);
    let decoded = decode(&mut reader).unwrap();
    prop_assert_eq!(decoded.as_ref(), Some(frame));
    prop_assert_eq!(decode(&mut reader).unwrap(), Some(Frame::CloseAck));
    prop_assert_eq!(decode(&mut reader).unwrap(), None);
    // Cut short anywhere it is an error, or a shorter list of frames; never a panic.
    for end in 0..bytes.len() {
        let mut reader = Reader::new(&bytes[..end]);
        while let Ok(Some(_)) = decode(&mut reader) {}
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn open_and_accept(id in any::<[u8; 16]>(), path in number(), random in any::<[u8; 32]>(), lost in reports(), params in params()) {
        let open = Open { connection: ConnectionId::from_bytes(&id), path: PathId(path), random, lost: lost.clone(), params: params.clone() };
        let mut bytes = Vec::new();
        Frame::Open(open.clone()).encode(&mut bytes);
        prop_assert_eq!(FirstFlight::decode(&bytes), Ok(FirstFlight::Open(open.clone())));
        round_trip(&Frame::Open(open))?;
        round_trip(&Frame::Accept { random, lost, params })?;
    }

    #[test]
    fn join_and_joined(id in any::<[u8; 16]>(), path in number(), proof in any::<[u8; 32]>(), lost in reports()) {
        let join = Join { connection: ConnectionId::from_bytes(&id), path: PathId(path), proof, lost: lost.clone() };
        let mut bytes = Vec::new();
        Frame::Join(join.clone()).encode(&mut bytes);
        prop_assert_eq!(FirstFlight::decode(&bytes), Ok(FirstFlight::Join(join.clone())));
        round_trip(&Frame::Join(join))?;
        round_trip(&Frame::Joined { lost })?;
    }

    #[test]
    fn assign_take_over_and_taken_over(id in any::<[u8; 16]>(), path in number(), generation in number(), nonce in any::<[u8; 32]>(), proof in any::<[u8; 32]>(), lost in reports(), is_assigned in any::<bool>()) {
        let (connection, to) = (ConnectionId::from_bytes(&id), SecretKey::from_bytes(&proof).id());
        let assignment = Assignment::sign(&SecretKey::from_bytes(&nonce), connection, Side::Client, to, generation);
        let addresses = vec!["192.0.2.1:7".parse().unwrap(), "[2001:db8::1]:9".parse().unwrap()];
        round_trip(&Frame::Assign { assignment: assignment.clone(), addresses })?;
        let assignment = is_assigned.then_some(assignment);
        let take_over = TakeOver { connection, path: PathId(path), generation, nonce, proof, lost: lost.clone(), assignment: assignment.clone() };
        let mut bytes = Vec::new();
        Frame::TakeOver(take_over.clone()).encode(&mut bytes);
        prop_assert_eq!(FirstFlight::decode(&bytes), Ok(FirstFlight::TakeOver(take_over.clone())));
        round_trip(&Frame::TakeOver(take_over))?;
        round_trip(&Frame::TakenOver(TakenOver { generation, nonce, proof, lost, assignment }))?;
    }

    #[test]
    fn suspend_resume_and_resumed(id in any::<[u8; 16]>(), path in number(), generation in number(), nonce in any::<[u8; 32]>(), proof in any::<[u8; 32]>(), lost in reports()) {
        let resume = Resume { connection: ConnectionId::from_bytes(&id), path: PathId(path), generation, nonce, proof, lost: lost.clone() };
        let mut bytes = Vec::new();
        Frame::Resume(resume.clone()).encode(&mut bytes);
        prop_assert_eq!(FirstFlight::decode(&bytes), Ok(FirstFlight::Resume(resume.clone())));
        round_trip(&Frame::Resume(resume))?;
        round_trip(&Frame::Resumed(Resumed { generation, nonce, proof, lost }))?;
        round_trip(&Frame::Suspend(generation))?;
    }

    #[test]
    fn reasons(code in number(), reason in "\\PC{0,200}") {
        let code = CloseCode(code);
        let mut end = reason.len().min(MAX_REASON);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        // Longer ones are cut between two characters.
        for frame in [Frame::Close { code, reason: &reason }, Frame::Refuse { code, reason: &reason }] {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            let (Frame::Close { reason: got, .. } | Frame::Refuse { reason: got, .. }) =
                decode(&mut Reader::new(&bytes)).unwrap().unwrap()
            else {
                panic!("another frame")
            };
            prop_assert_eq!(got, &reason[..end]);
        }
        round_trip(&Frame::Close { code, reason: &reason[..end] })?;
        let bytes = refusal(code, &reason);
        let (body, taken) = segment::split(&bytes).unwrap().unwrap();
        prop_assert_eq!(taken, bytes.len());
        let frame = decode(&mut Reader::new(body)).unwrap();
        prop_assert_eq!(frame, Some(Frame::Refuse { code, reason: &reason[..end] }));
    }

    #[test]
    fn data(id in number(), offset in number(), data in vec(any::<u8>(), 0..2000), fin in any::<bool>()) {
        round_trip(&Frame::Stream { id: StreamId(id), offset, data: &data, fin })?;
    }

    #[test]
    fn acks(acks in vec((number(), number(), number()), 0..=64)) {
        let list = acks.into_iter().map(|(path, received, delay)| (PathReport { path: PathId(path), received }, delay));
        round_trip(&Frame::Ack(list.collect()))?;
    }

    #[test]
    fn datagrams(path in number(), came in vec((number(), 1..1000u64), 0..=32)) {
        let came = came.into_iter().map(|(first, length)| first.min(varint::MAX - length)..first.min(varint::MAX - length) + length);
        round_trip(&Frame::Datagrams { path: PathId(path), came: came.collect() })?;
    }

    #[test]
    fn numbers(id in number(), n in number(), code in number(), addresses in addresses()) {
        let (id, code) = (StreamId(id), CloseCode(code));
        round_trip(&Frame::MaxData(n))?;
        round_trip(&Frame::MaxStreamData(id, n))?;
        round_trip(&Frame::MaxStreams(n))?;
        round_trip(&Frame::Reset { id, code, final_size: n })?;
        round_trip(&Frame::Stop(id, code))?;
        round_trip(&Frame::Retire { path: PathId(n), segments: id.0 })?;
        round_trip(&Frame::PathLost(PathReport { path: PathId(n), received: id.0 }))?;
        if let Some(address) = addresses.first().copied() {
            round_trip(&Frame::Observed { sequence: n, address })?;
        }
        let candidates = addresses.iter().take(8).copied().collect();
        round_trip(&Frame::Candidates { sequence: n, addresses: candidates })?;
        round_trip(&Frame::Addresses { sequence: n, addresses })?;
        round_trip(&Frame::Ping)?;
        round_trip(&Frame::CloseAck)?;
    }

    #[test]
    fn whatever_decodes_encodes_again(bytes in vec(any::<u8>(), 0..200)) {
        let mut reader = Reader::new(&bytes);
        if let Ok(Some(frame)) = decode(&mut reader) {
            let mut again = Vec::new();
            frame.encode(&mut again);
            prop_assert_eq!(decode(&mut Reader::new(&again)), Ok(Some(frame)));
        }
    }

    #[test]
    fn segments_are_found_at_any_split(lengths in vec(0usize..300, 1..20), extra in 0usize..20) {
        let mut wire = Vec::new();
        for n in &lengths {
            varint::write(&mut wire, *n as u64);
            wire.extend(std::iter::repeat_n(0xab, *n));
        }
        let whole = wire.len();
        wire.extend(std::iter::repeat_n(0x7f, extra.min(1)));
        let (mut at, mut found) = (0, Vec::new());
        for end in 0..=whole {
            while let Some((body, taken)) = segment::split(&wire[at..end]).unwrap() {
                found.push(body.len());
                at += taken;
            }
        }
        prop_assert_eq!(found, lengths);
    }
}
