//! Segments, first flights and frames: any bytes are refused or decoded, and what was decoded
//! survives being encoded again. The engine takes them without a panic.
#![no_main]

use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use whimbrel_base::{ConnectionId, SecretKey};
use whimbrel_proto::fuzzing::frame;
use whimbrel_proto::fuzzing::varint::Reader;
use whimbrel_proto::{Config, Connection, FirstFlight, notice, segment};

fuzz_target!(|data: &[u8]| {
    let _ = FirstFlight::decode(data);
    let _ = notice::tag(data);
    let mut rest = data;
    while let Ok(Some((body, used))) = segment::split(rest) {
        let mut reader = Reader::new(body);
        while let Ok(Some(decoded)) = frame::decode(&mut reader) {
            let mut bytes = Vec::new();
            decoded.encode(&mut bytes);
            let again = frame::decode(&mut Reader::new(&bytes));
            assert_eq!(again, Ok(Some(decoded)));
        }
        rest = &rest[used..];
    }
    let now = Instant::now();
    let (a, b) = (SecretKey::from_bytes(&[1; 32]).id(), SecretKey::from_bytes(&[2; 32]).id());
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
});
