//! Streams: ends, credit, limits, and the end of the connection.
#![allow(clippy::unwrap_used)]

mod simulation;

use simulation::{Cut, Options, Sim, ms, secs, small_config};
use whimbrel_proto::{
    CloseCode, ClosedBy, Config, EARLY_DATA_WINDOW, Event, Read, Side, StreamError,
};

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
        assert_eq!(
            result,
            Err(StreamError::Reset(id, CloseCode::application(7)))
        );
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
    let options = Options {
        client: small_config(),
        server: small_config(),
        ..Options::default()
    };
    for how in 0..4 {
        let mut sim = Sim::established(options.clone());
        // Many times the connection's window, through streams that nobody reads to the end.
        for round in 0..40 {
            let id = sim.open(Side::Client).expect("stream credit comes back");
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
    let options = Options {
        client: small_config(),
        server: small_config(),
        ..Options::default()
    };
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
    huge.keepalive = std::time::Duration::MAX;
    huge.stream_send_buffer = u64::MAX;
    huge.send_buffer = u64::MAX;
    for (client, server) in [
        (tiny.clone(), tiny.clone()),
        (tiny.clone(), huge.clone()),
        (huge.clone(), tiny),
        (huge.clone(), huge),
    ] {
        let options = Options {
            client,
            server,
            ..Options::default()
        };
        let mut sim = Sim::new(options);
        let id = sim.open(Side::Client).unwrap();
        sim.dial();
        for side in [Side::Client, Side::Server] {
            sim.run_until(secs(1), |sim| {
                !sim.server_app.streams.is_empty() && sim.client.is_established()
            });
            let big = sim.write(side, id, 2);
            sim.send(side, id, if big == 1 { 20 } else { 200_000 });
            sim.finish(side, id);
        }
        sim.settle();
        sim.cut_all(Cut::Both);
        sim.advance(secs(3600));
        sim.client.close(CloseCode::NONE, "");
        sim.heal();
        assert!(
            sim.run_until(secs(10), |s| s.client.is_closed()),
            "{}",
            sim.report()
        );
    }
}

/// Early data fits into what every server accepts.
#[test]
fn early_data_keeps_to_the_early_window() {
    let mut sim = Sim::new(Options {
        early_limit: 1 << 20,
        ..Options::default()
    });
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

/// `close` delivers first, whatever moves meanwhile, and both sides agree.
#[test]
fn closing_survives_a_move_at_any_moment() {
    for at in 0..120 {
        for closer in [Side::Client, Side::Server] {
            let mut sim = Sim::established(Options::default());
            let id = sim.open(Side::Client).unwrap();
            sim.advance(ms(50));
            sim.server_accepts();
            sim.write(closer, id, 30_000);
            sim.connection(closer)
                .unwrap()
                .close(CloseCode::application(1), "done");
            sim.advance(ms(at));
            sim.cut_and_heal(Cut::Both);
            // A client that has acknowledged CLOSE is gone. Should the acknowledgement be lost, a
            // server, which cannot dial, waits its time out.
            let limit = if closer == Side::Client {
                secs(30)
            } else {
                secs(610)
            };
            let done = sim.run_until(limit, |sim| sim.client.is_over() && sim.server_was_over);
            assert!(done, "at {at}: {}", sim.report());
            let closed = sim.connection(closer).unwrap();
            let code = closed.close_reason().map(|reason| reason.1);
            assert_eq!(code, Some(CloseCode::application(1)));
            let peer = sim.connection(closer.peer()).unwrap();
            let (by, code, reason) = peer.close_reason().unwrap();
            assert_eq!(
                (by, code, reason),
                (ClosedBy::Peer, CloseCode::application(1), "done")
            );
            sim.read_all(closer.peer());
            let app = match closer {
                Side::Client => &sim.server_app,
                Side::Server => &sim.client_app,
            };
            assert_eq!(app.streams[&id].read, 30_000);
        }
    }
}

/// Both close at the same moment.
#[test]
fn both_sides_may_close_at_once() {
    let mut sim = Sim::established(Options::default());
    sim.client.close(CloseCode::application(1), "");
    sim.server().close(CloseCode::application(2), "");
    sim.advance(secs(1));
    assert!(sim.client.is_over() && sim.server().is_over());
}

/// A peer that never reads holds up an orderly end as long as it is there, no longer; an abort
/// is never held up.
#[test]
fn a_peer_that_never_reads_cannot_hold_a_close_for_ever() {
    let options = Options {
        client: small_config(),
        server: small_config(),
        ..Options::default()
    };
    for abort in [false, true] {
        let mut sim = Sim::established(options.clone());
        let id = sim.open(Side::Client).unwrap();
        sim.write(Side::Client, id, 80_000);
        sim.advance(secs(1));
        sim.client.close(CloseCode::NONE, "");
        sim.advance(secs(3600));
        assert!(
            !sim.client.is_closed(),
            "there is data to deliver, and the peer is alive"
        );
        if abort {
            sim.client.abort(CloseCode::NONE, "");
            sim.advance(secs(1));
        } else {
            sim.cut_all(Cut::Both);
            sim.advance(secs(601));
        }
        assert!(sim.client.is_over());
    }
}

/// Closing while the peer is away: there is time to come back, counted from the close.
#[test]
fn closing_while_detached_leaves_time_to_come_back() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.cut_all(Cut::Both);
    sim.advance(secs(7200));
    sim.write(Side::Client, id, 1000);
    sim.client.close(CloseCode::NONE, "");
    sim.advance(secs(500));
    assert!(!sim.client.is_closed(), "the close was only asked for now");
    sim.heal();
    assert!(sim.run_until(secs(10), |sim| sim.client.is_over()));
    assert_eq!(
        sim.client.close_reason().map(|r| r.1),
        Some(CloseCode::NONE)
    );
    assert_eq!(sim.server_app.streams[&id].read, 1000);

    let mut sim = Sim::established(Options::default());
    sim.cut_all(Cut::Both);
    sim.advance(secs(7200));
    sim.client.close(CloseCode::NONE, "");
    sim.advance(secs(602));
    assert!(sim.client.is_over());
}

/// A connection that is closed before any path was answered ends when its last path does.
#[test]
fn closing_before_anybody_answered_does_not_linger() {
    let mut sim = Sim::new(Options::default());
    let index = sim.dial().unwrap();
    sim.stall(index, true);
    sim.advance(secs(1));
    sim.client
        .abort(CloseCode::application(3), "changed my mind");
    sim.cut(index, Cut::Both);
    sim.advance(secs(1));
    let (by, code, _) = sim.client.close_reason().unwrap();
    assert_eq!((by, code), (ClosedBy::Local, CloseCode::application(3)));
}

/// A peer that acknowledges CLOSE's segment but never answers CLOSE cannot keep us.
#[test]
fn an_unanswered_close_ends_by_itself() {
    use whimbrel_proto::frame::{Frame, PathReport};
    let mut sim = Sim::established(Options::default());
    let now = sim.now;
    let path = whimbrel_proto::PathId(0);
    sim.client.abort(CloseCode::NONE, "");
    let mut wire = Vec::new();
    while sim.client.poll_transmit(now, path, &mut wire) {}
    let mut spins = 0;
    let mut at = now;
    let received = sim.carriers[0].up.boundaries.len() as u64 + 1;
    while !sim.client.is_closed() {
        let mut body = Vec::new();
        Frame::Ack(vec![(PathReport { path, received }, 0)]).encode(&mut body);
        sim.client.handle_segment(at, path, &body).unwrap();
        at = sim
            .client
            .poll_timeout()
            .expect("every wait has a limit")
            .max(at);
        sim.client.handle_timeout(at);
        while sim.client.poll_transmit(at, path, &mut wire) {}
        spins += 1;
        assert!(spins < 100_000);
    }
    assert!(at - now <= secs(601));
}

/// What arrived before the end can be read after it.
#[test]
fn what_arrived_before_the_close_is_readable_after_it() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 5000);
    sim.client.close(CloseCode::NONE, "");
    sim.advance(secs(1));
    assert!(sim.server().is_over());
    assert_eq!(sim.read_all(Side::Server), 5000);
    let mut buf = [0; 1];
    let after = sim.server().read(id, &mut buf);
    assert_eq!(after, Err(StreamError::ConnectionClosed(CloseCode::NONE)));
}

/// Writers that wait learn of every reason to go on.
#[test]
fn blocked_writers_are_woken() {
    let options = Options {
        client: small_config(),
        server: small_config(),
        ..Options::default()
    };
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
        assert!(
            sim.client_events.contains(&Event::Writable(id)),
            "way {how}"
        );
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
