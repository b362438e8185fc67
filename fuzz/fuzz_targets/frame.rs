//! Segments, first flights and frames: any bytes are refused or decoded, and what was decoded
//! survives being encoded again. The engine takes them without a panic.
#![no_main]

use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use whimbrel_base::{ConnectionId, EndpointId};
use whimbrel_proto::fuzzing::frame;
use whimbrel_proto::fuzzing::varint::Reader;
use whimbrel_proto::{Config, Connection, FirstFlight, PathId, notice, segment};

fuzz_target!(|data: &[u8]| {
    let _ = FirstFlight::decode(data);
    let _ = notice::tag(data);
    let mut rest = data;
    while let Ok(Some((body, used))) = segment::split(rest) {
        let mut reader = Reader::new(body);
        while let Ok(Some(decoded)) = frame::decode(&mut reader) {
            let mut bytes = Vec::new();
            decoded.encode(&mut bytes);
            let Ok(Some(again)) = frame::decode(&mut Reader::new(&bytes)) else { panic!("{decoded:?}") };
            // Parameters that mean nothing without others are not said again.
            let mut twice = Vec::new();
            again.encode(&mut twice);
            assert_eq!(twice, bytes, "{decoded:?}");
        }
        rest = &rest[used..];
    }
    let now = Instant::now();
    let [a, b] = [1, 2].map(|byte| EndpointId::from_bytes(&[byte; 32]));
    let id = ConnectionId::from_bytes(&[3; 16]);
    let mut config = Config::default();
    config.params.messages = 1 << 20;
    let mut client = Connection::client(config, id, a, b, [4; 32], now);
    if let Some(path) = client.open_path(now, None, 14_000) {
        let mut out = Vec::new();
        client.poll_transmit(now, path, &mut out);
        if data.first().is_some_and(|first| first % 2 == 1) {
            let _ = client.handle_datagram(now, path, &data[1..]);
        }
        let _ = client.handle_segment(now, path, data);
        while client.poll_event().is_some() {}
        client.poll_transmit(now, path, &mut out);
    }
    // The same behind the greetings.
    for side in [0, 1] {
        let (mut ends, path) = established(now);
        let end = &mut ends[side];
        let _ = end.handle_segment(now, path, data);
        while end.accept_stream().is_some() || end.recv_message().is_some() {}
        while end.poll_event().is_some() {}
        end.poll_transmit(now, path, &mut Vec::new());
        let _ = (end.stats(), end.peer_addresses(), end.peer_candidates().len(), end.observed());
    }
});

/// Both ends of a connection over one path.
fn established(now: Instant) -> ([Connection; 2], PathId) {
    let [a, b] = [1, 2].map(|byte| EndpointId::from_bytes(&[byte; 32]));
    let mut config = Config::default();
    config.params.messages = 1 << 20;
    let id = ConnectionId::from_bytes(&[3; 16]);
    let mut client = Connection::client(config.clone(), id, a, b, [4; 32], now);
    let path = client.open_path(now, None, 14_000).expect("a first path");
    let opening = segment_of(&mut client, path, now);
    let Ok(FirstFlight::Open(open)) = FirstFlight::decode(&opening) else { panic!("it opens") };
    let mut server = Connection::server(config, &open, b, a, [5; 32], now);
    server.handle_segment(now, path, &opening).expect("it is open");
    let answer = segment_of(&mut server, path, now);
    client.handle_segment(now, path, &answer).expect("it is answered");
    assert!(client.is_established() && server.is_established());
    ([client, server], path)
}

fn segment_of(end: &mut Connection, path: PathId, now: Instant) -> Vec<u8> {
    let mut out = Vec::new();
    end.poll_transmit(now, path, &mut out);
    let (body, _) = segment::split(&out).expect("it is sound").expect("it is whole");
    body.to_vec()
}
