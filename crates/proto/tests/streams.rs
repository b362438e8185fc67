//! Streams: ends, credit and limits.
#![allow(clippy::unwrap_used)]

use crate::simulation::{Cut, Options, Sim, ms, secs, small_config, wide_config};
use whimbrel_proto::{CloseCode, Config, EARLY_DATA_WINDOW, Event, Read, Side, StreamError};

/// What a peer opened is the application's once it was accepted.
#[test]
fn streams_are_known_from_when_they_were_opened_or_accepted() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 100);
    assert_eq!(sim.client.known_streams(), [id]);
    sim.advance(secs(1));
    assert!(sim.server().known_streams().is_empty());
    assert_eq!(sim.server().accept_stream(), Some(id));
    assert_eq!(sim.server().known_streams(), [id]);
}

/// A stream that is reset after the reader took every byte was still cut off.
#[test]
fn a_reset_is_never_mistaken_for_the_end() {
    for bytes in [0, 1, 5000] {
        let mut sim = Sim::established(Options::default());
        let id = sim.open(Side::Client).unwrap();
        sim.write(Side::Client, id, bytes);
        sim.advance(ms(200));
        assert_eq!(sim.read_all(Side::Server), bytes as u64);
        sim.reset(Side::Client, id);
        sim.advance(ms(200));
        let result = sim.server().read(id, &mut [0; 10]);
        assert_eq!(result, Err(StreamError::Reset(id, CloseCode::application(7))));
    }
}

/// A finished stream that arrived whole stays whole when a reset follows.
#[test]
fn a_reset_after_everything_arrived_takes_nothing_away() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 1000);
    sim.finish(Side::Client, id);
    sim.advance(ms(25));
    sim.reset(Side::Client, id);
    sim.advance(ms(200));
    assert_eq!(sim.read_all(Side::Server), 1000);
    assert!(sim.server_app.streams[&id].saw_fin);
}

/// Resetting and stopping streams gives all connection credit back.
#[test]
fn credit_comes_back_from_streams_that_were_given_up() {
    let options = Options { client: small_config(), server: small_config(), ..Options::default() };
    for how in 0..4 {
        let mut sim = Sim::established(options.clone());
        // Many times the connection's window, through streams that nobody reads to the end.
        for round in 0..40 {
            let id = sim.open(Side::Client).unwrap();
            sim.write(Side::Client, id, 60_000);
            sim.advance(ms(round * 7 % 90));
            sim.server_accepts();
            match how {
                0 => sim.reset(Side::Client, id),
                1 => sim.stop(Side::Server, id),
                2 => {
                    sim.read(Side::Server, id, 1000);
                    sim.stop(Side::Server, id);
                    sim.reset(Side::Client, id);
                }
                _ => {
                    sim.finish(Side::Client, id);
                    sim.stop(Side::Server, id);
                }
            }
            sim.advance(ms(100));
            sim.server_accepts();
            sim.read_all(Side::Server);
            sim.stop(Side::Server, id);
            sim.finish(Side::Server, id);
            sim.reset(Side::Server, id);
            sim.advance(ms(150));
            sim.read_all(Side::Client);
            sim.stop(Side::Client, id);
            sim.advance(ms(150));
        }
        let id = sim.open(Side::Client).unwrap();
        sim.send(Side::Client, id, 500_000);
        sim.finish(Side::Client, id);
        sim.settle();
        sim.finish(Side::Server, id);
        sim.settle();
        sim.advance(ms(200));
        for side in [Side::Client, Side::Server] {
            let connection = sim.connection(side).unwrap();
            assert_eq!(connection.buffered(), 0, "{side:?} way {how}");
            assert_eq!(connection.footprint().streams, 0, "{side:?} way {how}");
        }
    }
}

/// A thousand streams over a limit of twenty.
#[test]
fn stream_credit_comes_back() {
    let options = Options { client: small_config(), server: small_config(), ..Options::default() };
    let mut sim = Sim::established(options);
    let mut opened = 0;
    while opened < 1000 {
        while let Some(id) = sim.open(Side::Client) {
            opened += 1;
            sim.write(Side::Client, id, 10);
            sim.finish(Side::Client, id);
        }
        let before = sim.client_events.len();
        sim.advance(ms(100));
        sim.read_all(Side::Server);
        let ids: Vec<_> = sim.server_app.streams.keys().copied().collect();
        for id in ids {
            sim.finish(Side::Server, id);
        }
        sim.advance(ms(100));
        sim.read_all(Side::Client);
        sim.advance(ms(100));
        assert!(sim.client_events[before..].contains(&Event::StreamsAvailable));
    }
    sim.settle();
}

/// Whatever this side was configured to grant, it honours what every peer may assume.
#[test]
fn tiny_and_huge_configurations_work() {
    let mut tiny = Config::default();
    tiny.params.max_data = 1;
    tiny.params.max_stream_data = 0;
    tiny.params.max_streams = 0;
    tiny.params.max_ack_delay = secs(5);
    tiny.stream_send_buffer = 1;
    tiny.send_buffer = 1;
    let mut huge = Config::default();
    huge.params.max_data = u64::MAX;
    huge.params.max_stream_data = u64::MAX;
    huge.params.max_streams = u64::MAX;
    huge.params.linger = std::time::Duration::MAX;
    huge.timeouts.heartbeat = std::time::Duration::MAX;
    huge.stream_send_buffer = u64::MAX;
    huge.send_buffer = u64::MAX;
    for (client, server) in [
        (tiny.clone(), tiny.clone()),
        (tiny.clone(), huge.clone()),
        (huge.clone(), tiny),
        (huge.clone(), huge),
    ] {
        let options = Options { client, server, ..Options::default() };
        let mut sim = Sim::new(options);
        let id = sim.open(Side::Client).unwrap();
        sim.dial();
        for side in [Side::Client, Side::Server] {
            sim.run_until(secs(1), |sim| !sim.server_app.streams.is_empty() && sim.client.is_established());
            let big = sim.write(side, id, 2);
            sim.send(side, id, if big == 1 { 20 } else { 200_000 });
            sim.finish(side, id);
        }
        sim.settle();
        sim.cut_all(Cut::Both);
        sim.advance(secs(3600));
        sim.client.close(CloseCode::NONE, "");
        sim.heal();
        assert!(sim.run_until(secs(10), |s| s.client.is_closed()), "{}", sim.report());
    }
}

/// Early data fits into what every server accepts.
#[test]
fn early_data_keeps_to_the_early_window() {
    let mut sim = Sim::new(Options { early_limit: 1 << 20, ..Options::default() });
    let id = sim.open(Side::Client).unwrap();
    assert_eq!(sim.write(Side::Client, id, 300_000), 300_000);
    sim.dial();
    sim.pump();
    assert_eq!(sim.client.stats().stream_bytes_sent, EARLY_DATA_WINDOW);
    assert!((1..15).all(|_| sim.open(Side::Client).is_some()));
    assert!(sim.open(Side::Client).is_some());
    assert!(sim.open(Side::Client).is_none());
    sim.finish(Side::Client, id);
    sim.settle();
}

/// Writers that wait learn of every reason to go on.
#[test]
fn blocked_writers_are_woken() {
    let options = Options { client: small_config(), server: small_config(), ..Options::default() };
    for how in 0..4 {
        let mut sim = Sim::established(options.clone());
        let id = sim.open(Side::Client).unwrap();
        while sim.write(Side::Client, id, 10_000) > 0 {}
        sim.advance(secs(1));
        while sim.write(Side::Client, id, 10_000) > 0 {}
        sim.advance(secs(1));
        sim.client_events.clear();
        match how {
            0 => {
                sim.read_all(Side::Server);
            }
            1 => {
                sim.server_accepts();
                sim.stop(Side::Server, id);
            }
            2 => sim.server().abort(CloseCode::NONE, ""),
            _ => sim.client.give_up(CloseCode::EVICTED, ""),
        }
        sim.advance(secs(1));
        assert!(sim.client_events.contains(&Event::Writable(id)), "way {how}");
    }
}

/// A lost FIN, a lost RESET and a lost STOP are told again.
#[test]
fn ends_survive_moves() {
    for at in 0..70 {
        let mut sim = Sim::established(Options::default());
        let ids: Vec<_> = (0..3).map(|_| sim.open(Side::Client).unwrap()).collect();
        for id in &ids {
            sim.write(Side::Client, *id, 3000);
        }
        sim.advance(ms(100));
        sim.server_accepts();
        sim.finish(Side::Client, ids[0]);
        sim.reset(Side::Client, ids[1]);
        sim.stop(Side::Server, ids[2]);
        sim.advance(ms(at));
        sim.cut_and_heal(Cut::Both);
        sim.settle();
        sim.advance(secs(3));
        assert!(sim.server_app.streams[&ids[0]].saw_fin);
        assert!(sim.server_app.streams[&ids[1]].saw_reset);
        let stopped = sim.client.write(ids[2], b"x");
        let code = CloseCode::application(8);
        assert_eq!(stopped, Err(StreamError::Stopped(ids[2], code)));
    }
}

/// Reading once more after the end is harmless.
#[test]
fn the_end_stays_the_end() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.finish(Side::Client, id);
    sim.advance(ms(200));
    assert_eq!(sim.server().accept_stream(), Some(id));
    for _ in 0..3 {
        assert_eq!(sim.server().read(id, &mut [0; 4]), Ok(Read::Fin));
    }
    sim.server().finish(id).unwrap();
    sim.advance(ms(200));
    let gone = sim.server().read(id, &mut [0; 4]);
    assert_eq!(gone, Err(StreamError::Closed(id)));
}

/// Every segment of streams that are over arrives once more.
#[test]
fn frames_of_streams_that_are_over_are_ignored() {
    use whimbrel_proto::fuzzing::frame::Frame;
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 10);
    sim.finish(Side::Client, id);
    sim.advance(ms(100));
    sim.server_accepts();
    sim.finish(Side::Server, id);
    sim.settle();
    sim.advance(ms(200));
    assert_eq!(sim.server().footprint().streams, 0);
    sim.server_events.clear();
    let before = sim.server().stats();
    let code = CloseCode::NONE;
    let mut body = Vec::new();
    for frame in [
        Frame::Stream { id, offset: 0, data: b"0123456789", fin: true },
        Frame::Reset { id, code, final_size: 10 },
        Frame::Stop(id, code),
        Frame::MaxStreamData(id, 1 << 40),
    ] {
        frame.encode(&mut body);
    }
    let now = sim.now;
    let path = whimbrel_proto::PathId(0);
    assert_eq!(sim.server().handle_segment(now, path, &body), Ok(()));
    sim.pump();
    assert_eq!(sim.server_events, []);
    assert_eq!(sim.server().footprint().streams, 0);
    let after = sim.server().stats();
    assert_eq!(after.stream_bytes_received, before.stream_bytes_received);
    assert_eq!(after.stream_bytes_duplicate, before.stream_bytes_duplicate + 10);
}

/// A writer far ahead of the path waits, and goes on when half of what waited has left; without a
/// path the buffers alone bound what it may write.
#[test]
fn a_writer_is_not_let_far_ahead_of_a_path_that_is_up() {
    let config = Config { stream_unsent: 50_000, ..Config::default() };
    let mut sim = Sim::established(Options { client: config, server: wide_config(), ..Options::default() });
    let id = sim.open(Side::Client).unwrap();
    assert_eq!(sim.client.write(id, &[1; 100_000]), Ok(50_000));
    assert_eq!(sim.client.write(id, &[1; 100_000]), Ok(0), "nothing has left yet");
    let now = sim.now;
    let path = sim.client.paths()[0].id;
    while sim.client.poll_transmit(now, path, &mut Vec::new()) {}
    let events: Vec<Event> = std::iter::from_fn(|| sim.client.poll_event()).collect();
    assert!(events.contains(&Event::Writable(id)), "{events:?}");

    sim.client.path_lost(now, path);
    assert_eq!(sim.client.write(id, &[1; 100_000]), Ok(100_000));
}

/// What waits of all streams should fit into the processor's caches; each may have a little in any case.
#[test]
fn many_writers_share_what_one_may_be_ahead() {
    let config = Config { stream_unsent: 256 << 10, ..Config::default() };
    let mut sim = Sim::established(Options { client: config, server: wide_config(), ..Options::default() });
    let taken: Vec<usize> = (0..12)
        .map(|_| {
            let id = sim.open(Side::Client).unwrap();
            sim.client.write(id, &[1; 1 << 20]).unwrap()
        })
        .collect();
    assert_eq!(taken[0], 256 << 10, "the only one");
    assert_eq!(taken[2], (256 << 10) / 3, "one of three");
    assert_eq!(taken[11], 32 << 10, "one of a crowd");
}
