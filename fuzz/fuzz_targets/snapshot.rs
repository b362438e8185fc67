//! Connections that were written down. One that another owner hands over may hold anything: it is refused, or
//! can be used, whatever the peer says, and written down again.
#![no_main]

use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use whimbrel_proto::fuzzing::frame::Frame;
use whimbrel_proto::{
    Class, CloseCode, Config, Connection, FlowOptions, PathId, RateLimit, SendOptions, Side, Urgency,
};

const NONCE: [u8; 32] = [9; 32];

fn config() -> Config {
    let mut config = Config::default();
    config.params.messages = 1 << 20;
    config
}

/// Takes what there is to take, and says something everywhere.
fn use_it(connection: &mut Connection, now: Instant) {
    for id in connection.known_streams() {
        while connection.read_chunk(id).is_ok_and(|read| matches!(read, whimbrel_proto::Read::Data(_))) {}
        let _ = (connection.write(id, b"more"), connection.is_drained(id));
        let _ = if id.0 & 2 == 0 { connection.finish(id) } else { connection.reset(id, CloseCode(7)) };
        let _ = connection.stop(id, CloseCode(8));
    }
    while connection.accept_stream().is_some() || connection.accept_one_way().is_some() {}
    if let Some(id) = connection.open_stream() {
        let _ = connection.write(id, b"new");
    }
    while connection.recv_message().is_some() || connection.recv_journal().is_some() {}
    let _ = connection.open_flow(FlowOptions::new(Class::RELIABLE));
    for flow in connection.known_flows() {
        let _ = connection.send_message(now, flow, b"message".to_vec(), SendOptions::default());
    }
    connection.set_urgency_limit(now, Urgency::FIRST, RateLimit::new(1000));
    let _ =
        (connection.stats(), connection.flow_stats(), connection.message_delays(), connection.footprint());
    let _ = (connection.peer_addresses(), connection.announced_addresses(), connection.superseded_copy());
    while connection.poll_event().is_some() {}
}

/// Sends all that may go, and goes on to the next timeout.
fn drive(connection: &mut Connection, path: PathId, mut now: Instant) -> Instant {
    for _ in 0..4 {
        for _ in 0..64 {
            let mut out = Vec::new();
            if !connection.poll_transmit(now, path, &mut out) {
                break;
            }
        }
        let Some(at) = connection.poll_timeout() else { break };
        now = now.max(at.min(now + Duration::from_secs(60)));
        connection.handle_timeout(now);
    }
    now
}

// The first byte is the length of what the peer says, which stands at the end.
fuzz_target!(|data: &[u8]| {
    let Some((&length, bytes)) = data.split_first() else { return };
    let (bytes, said) = bytes.split_at(bytes.len().saturating_sub(length.into()));
    let mut now = Instant::now();
    let Ok(mut connection) = Connection::restore(config(), bytes, NONCE, now) else { return };
    if let Some(again) = connection.snapshot() {
        let again = Connection::restore(config(), &again, NONCE, now).expect("what was just written");
        assert_eq!(again.stats().stream_bytes_sent, connection.stats().stream_bytes_sent);
    }
    if connection.side() == Side::Client
        && let Some(path) = connection.open_path(now, None, 14_000)
    {
        now = drive(&mut connection, path, now);
        let mut answer = Vec::new();
        Frame::Joined { lost: Vec::new() }.encode(&mut answer);
        let _ = connection.handle_segment(now, path, &answer);
        let _ = connection.handle_segment(now, path, said);
        use_it(&mut connection, now);
        now = drive(&mut connection, path, now);
        connection.detach(now);
    } else {
        use_it(&mut connection, now);
    }
    // Counts that were as high as may be are higher now.
    let _ = connection.snapshot().map(|again| Connection::restore(config(), &again, NONCE, now));
    connection.close(CloseCode::NONE, "");
    while connection.poll_event().is_some() {}
});
