//! Paths that come, go and are settled.
#![allow(clippy::unwrap_used)]

use crate::simulation::tcp::Link;
use crate::simulation::{self, Cut, Options, Sim, ms, secs, small_config};
use whimbrel_proto::{CloseCode, ClosedBy, Event, PathId, PathState, Side};

/// The peer's final count of a path that was lost here first acknowledges segments whose bytes
/// are not in flight any more.
#[test]
fn a_final_count_after_the_loss_acknowledges_without_underflow() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 40_000);
    sim.advance(ms(25));
    // Everything arrived, nothing is acknowledged yet.
    sim.cut(0, Cut::First(Side::Client));
    sim.advance(ms(1));
    sim.dial();
    sim.advance(ms(200));
    assert_eq!(sim.read_all(Side::Server), 40_000);
    assert!(sim.client.is_drained(id));
    let resent = sim.client.stats().stream_bytes_resent;
    assert!(resent <= 14_000, "{resent} bytes resent beyond early data");
}

/// A stream that was only announced, and whose announcement died with its path, is announced
/// again: the peer may be the one that speaks first.
#[test]
fn an_announced_stream_survives_the_loss_of_its_announcement() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.pump();
    sim.cut_and_heal(Cut::Both);
    sim.advance(secs(3));
    assert_eq!(sim.server().accept_stream(), Some(id));
    sim.server_app.streams.entry(id).or_default();
    sim.write(Side::Server, id, 100);
    sim.advance(secs(1));
    assert_eq!(sim.read_all(Side::Client), 100);
}

/// TLS early data is a hard limit: the carrier breaks when more is sent before the answer.
#[test]
fn nothing_beyond_the_early_limit_is_sent_before_the_answer() {
    for early_limit in [0, 100, 1000, 3000, 5000, 8192, 10_000, 14_000, 20_000, 40_000] {
        for join in [false, true] {
            let mut sim =
                if join { Sim::established(Options::default()) } else { Sim::new(Options::default()) };
            for _ in 0..10 {
                let id = sim.open(Side::Client).unwrap();
                sim.write(Side::Client, id, 6000);
            }
            let many: Vec<_> = (0..16).map(|i| ([192, 0, 2, i], 7).into()).collect();
            sim.client.set_notice_addresses(many);
            let now = sim.now;
            let path = sim.client.open_path(now, None, early_limit).unwrap();
            if join {
                sim.client.path_lost(now, PathId(0));
            }
            sim.client.abort(CloseCode::NONE, &"long ".repeat(60));
            let mut wire = Vec::new();
            assert!(sim.client.poll_transmit(now, path, &mut wire));
            let first = wire.len() as u64;
            while sim.client.poll_transmit(now, path, &mut wire) {}
            let sent = wire.len() as u64;
            // The frame that asks for the path has to go in any case; it is a few hundred bytes.
            assert!(sent <= early_limit.max(300), "{sent} of {early_limit}");
            assert!(first >= 50);
            assert!(early_limit < 5000 || sent * 10 > early_limit.min(10_000) * 8, "{sent}");
        }
    }
}

/// The client gave a path up without a word, because nothing hung on it; the server had let it in.
#[test]
fn a_path_that_the_client_forgot_is_settled_at_the_server() {
    let mut sim = Sim::established(Options::default());
    for _ in 0..5 {
        // JOIN arrives, JOINED does not.
        let index = sim.dial().unwrap();
        sim.advance(ms(25));
        sim.cut(index, Cut::Both);
        sim.advance(ms(300));
    }
    sim.dial();
    sim.advance(secs(5));
    for side in [Side::Client, Side::Server] {
        let footprint = sim.connection(side).unwrap().footprint();
        assert_eq!(footprint.paths, 1, "{side:?}");
        assert_eq!(footprint.unseen_reports, 0, "{side:?}");
    }
}

/// As above, but the server notices first, and tells while the client still waits for JOINED.
#[test]
fn a_path_that_the_server_lost_while_it_was_opening_is_settled() {
    let mut sim = Sim::established(Options::default());
    let index = sim.dial().unwrap();
    sim.advance(ms(25));
    sim.cut(index, Cut::First(Side::Server));
    sim.advance(secs(5));
    for side in [Side::Client, Side::Server] {
        assert_eq!(sim.connection(side).unwrap().footprint().paths, 1, "{side:?}");
    }
}

/// More lost paths than one frame reports on.
#[test]
fn any_number_of_lost_paths_is_settled_in_the_end() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    for round in 0..300 {
        sim.write(Side::Client, id, 1000);
        let index = sim.dial().unwrap();
        // Cut at different moments of opening: before, while and after the server hears of it.
        sim.advance(ms(round % 60));
        sim.cut(index, Cut::Both);
        sim.advance(ms(5));
        for side in [Side::Client, Side::Server] {
            let footprint = sim.connection(side).unwrap().footprint();
            assert!(footprint.paths <= 80, "{side:?} keeps {footprint:?}");
            assert!(footprint.unseen_reports <= 64, "{side:?} keeps {footprint:?}");
        }
    }
    sim.heal();
    sim.settle();
    sim.advance(secs(5));
    for side in [Side::Client, Side::Server] {
        let footprint = sim.connection(side).unwrap().footprint();
        assert_eq!(footprint.paths, 1, "{side:?}");
        assert_eq!(footprint.unseen_reports, 0, "{side:?}");
    }
}

/// OPEN is repeated on new paths until one is answered; early data arrives once.
#[test]
fn opening_survives_moves() {
    for cut_at in 0..45 {
        let mut sim = Sim::new(Options::default());
        let id = sim.open(Side::Client).unwrap();
        sim.write(Side::Client, id, 30_000);
        sim.finish(Side::Client, id);
        for _ in 0..3 {
            let index = sim.dial().unwrap();
            sim.advance(ms(cut_at));
            sim.cut(index, Cut::Both);
        }
        sim.heal();
        sim.settle();
        assert_eq!(sim.server().stats().stream_bytes_received, 30_000);
        sim.client.close(CloseCode::NONE, "");
        assert!(sim.run_until(secs(20), |s| s.client.is_closed() && s.server_was_over));
    }
}

/// Data on an old slow path and on a new fast one.
#[test]
fn bytes_arrive_in_order_over_paths_of_different_delay() {
    let mut sim = Sim::new(Options::default());
    sim.dial_with(ms(400));
    let id = sim.open(Side::Client).unwrap();
    sim.advance(secs(2));
    for round in 0..10 {
        sim.write(Side::Client, id, 5000);
        sim.pump();
        let delay = if round % 2 == 0 { ms(5) } else { ms(300) };
        sim.dial_with(delay);
        sim.write(Side::Client, id, 5000);
        sim.advance(ms(90));
        sim.read_all(Side::Server);
    }
    sim.finish(Side::Client, id);
    sim.settle();
    let stats = sim.server().stats();
    assert_eq!(stats.stream_bytes_received, 100_000);
    let resent = sim.client.stats().stream_bytes_resent;
    assert!(stats.stream_bytes_duplicate <= resent);
}

/// Bytes that overtake others are new when they arrive, and so are those that come later.
#[test]
fn overtaking_bytes_are_not_counted_as_duplicates() {
    use whimbrel_proto::fuzzing::frame::Frame;
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    let now = sim.now;
    for (offset, data) in [(100, &[1; 100][..]), (0, &[1; 100]), (50, &[1; 100])] {
        let mut body = Vec::new();
        let fin = false;
        Frame::Stream { id, offset, data, fin }.encode(&mut body);
        sim.server().handle_segment(now, PathId(0), &body).unwrap();
    }
    let stats = sim.server().stats();
    assert_eq!(stats.stream_bytes_received, 200);
    assert_eq!(stats.stream_bytes_duplicate, 100);
}

/// A driver may suspect a path on which nothing is under way; the path has to find out.
#[test]
fn an_idle_path_that_was_suspected_from_outside_revives() {
    for side in [Side::Client, Side::Server] {
        let mut sim = Sim::established(Options::default());
        let id = sim.open(Side::Client).unwrap();
        sim.settle();
        sim.advance(secs(5));
        let now = sim.now;
        sim.connection(side).unwrap().suspect_path(now, PathId(0));
        sim.write(side, id, 1000);
        sim.advance(ms(200));
        assert_eq!(sim.read_all(side.peer()), 1000);
        let state = sim.path(side, PathId(0)).map(|p| p.state);
        assert_eq!(state, Some(PathState::Active));
    }
}

/// A stall makes the path suspect; when the stall ends it serves again, without a new path.
#[test]
fn a_suspect_path_comes_back() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.stall(0, true);
    sim.write(Side::Client, id, 100);
    sim.advance(secs(2));
    assert!(sim.client_events.contains(&Event::PathSuspect(PathId(0))));
    sim.write(Side::Client, id, 100);
    sim.stall(0, false);
    sim.advance(ms(200));
    assert!(sim.client_events.contains(&Event::PathRevived(PathId(0))));
    assert_eq!(sim.read_all(Side::Server), 200);
    assert_eq!(sim.client.stats().stream_bytes_resent, 0);
}

/// While another path works, nothing is entrusted to a suspect one, acknowledgements included.
#[test]
fn acknowledgements_avoid_a_suspect_path_while_another_works() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.settle();
    sim.stall(0, true);
    let now = sim.now;
    sim.server().suspect_path(now, PathId(0));
    sim.client.suspect_path(now, PathId(0));
    let index = sim.dial_with(ms(10)).unwrap();
    sim.write(Side::Client, id, 5000);
    // JOIN and data are at the server, JOINED is on its way.
    sim.advance(ms(15));
    assert_eq!(sim.read_all(Side::Server), 5000);
    let before = sim.carriers[0].down.sent;
    sim.advance(ms(60));
    assert!(sim.client.is_drained(id));
    let after = sim.carriers[0].down.sent;
    assert!(after - before < 20, "{} bytes on the suspect path", after - before);
    assert!(sim.carriers[index].down.sent > 0);
}

/// The server lets in a limited number of live paths; the oldest make room.
#[test]
fn a_client_cannot_pile_up_live_paths() {
    let mut sim = Sim::established(Options::default());
    for _ in 0..200 {
        let now = sim.now;
        let path = sim.client.open_path(now, None, 0).unwrap();
        let mut wire = Vec::new();
        sim.client.poll_transmit(now, path, &mut wire);
        let (body, _) = whimbrel_proto::segment::split(&wire).unwrap().unwrap();
        let whimbrel_proto::FirstFlight::Join(join) = whimbrel_proto::FirstFlight::decode(body).unwrap()
        else {
            panic!("a JOIN")
        };
        sim.server().join(now, &join).unwrap();
        sim.server().handle_segment(now, path, body).unwrap();
    }
    assert!(sim.server().paths().len() <= 16);
    assert!(sim.server().footprint().paths <= 80);
}

/// A path that the server has already called unseen is not let in later.
#[test]
fn a_join_behind_the_news_of_its_loss_is_refused() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    let slow = sim.dial_with(ms(500)).unwrap();
    sim.write(Side::Client, id, 1000);
    sim.pump();
    // Given up here while its bytes are under way; a real network delivers them all the same.
    let (now, path) = (sim.now, sim.carriers[slow].path);
    sim.client.path_lost(now, path);
    while sim.client.poll_event().is_some() {}
    let mut wire = Vec::new();
    while sim.client.poll_transmit(now, PathId(0), &mut wire) {}
    let mut rest = &wire[..];
    while let Some((body, taken)) = whimbrel_proto::segment::split(rest).unwrap() {
        sim.server().handle_segment(now, PathId(0), body).unwrap();
        rest = &rest[taken..];
    }
    sim.advance(ms(600));
    assert!(!sim.server_events.contains(&Event::PathUp(path)));
    assert_eq!(sim.server().paths().len(), 1);
    assert_eq!(sim.read_all(Side::Server), 1000);
}

/// Notice addresses reach the other side over whatever moves.
#[test]
fn notice_addresses_survive_moves() {
    for at in 0..60 {
        let mut sim = Sim::established(Options::default());
        let addresses = vec![([192, 0, 2, 1], 4480).into()];
        sim.server().set_notice_addresses(addresses.clone());
        sim.pump();
        sim.advance(ms(at));
        sim.cut_and_heal(Cut::Both);
        sim.advance(secs(5));
        assert!(sim.client_events.contains(&Event::PeerAddresses(addresses)));
    }
}

/// The server forgot the connection: the client learns that from the refusal.
#[test]
fn a_forgotten_connection_ends_with_the_next_join() {
    let mut sim = Sim::established(Options { client: small_config(), ..Options::default() });
    sim.forget();
    sim.heal();
    sim.advance(secs(5));
    let (by, code, _) = sim.client.close_reason().unwrap();
    assert_eq!((by, code), (ClosedBy::Peer, CloseCode::UNKNOWN_CONNECTION));
}

/// The server sends on a path that died silently; the client comes back on another and never
/// speaks of the old one. The data has to go again on the new path, without any word on the old.
#[test]
fn data_on_a_suspect_path_goes_again_on_a_newer_one() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.advance(ms(100));
    sim.server_accepts();
    sim.cut_direction(0, Side::Server);
    sim.carriers[0].server_notices = None;
    sim.write(Side::Server, id, 5000);
    sim.advance(secs(2));
    assert!(sim.server_events.contains(&Event::PathSuspect(PathId(0))));
    // JOIN comes in; nothing else does.
    let index = sim.dial_with(ms(5)).unwrap();
    sim.pump();
    sim.carriers[0].stalled = true;
    sim.advance(ms(6));
    sim.pump();
    assert!(sim.carriers[index].down.sent > 5000, "nothing goes again");
    sim.advance(ms(10));
    assert_eq!(sim.read_all(Side::Client), 5000);
    assert_eq!(sim.client.stats().stream_bytes_duplicate, 0);
}

/// A path that was given up before it was answered may be in use at the server.
#[test]
fn a_path_given_up_while_another_lives_is_told() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.advance(ms(100));
    sim.server_accepts();
    let index = sim.dial().unwrap();
    sim.advance(ms(25));
    // The server has it and prefers it; its answer does not arrive, and nobody notices there.
    sim.carriers[index].down.kill();
    let (now, path) = (sim.now, sim.carriers[index].path);
    sim.client.path_lost(now, path);
    sim.carriers[index].client = simulation::carrier::End::Gone;
    sim.write(Side::Server, id, 1000);
    sim.advance(ms(80));
    assert_eq!(sim.read_all(Side::Client), 1000, "without waiting for a suspicion");
}

/// The first window of a carrier does not hold the longest segment, nor may a QUIC server send that much to
/// an address that is not proven yet: one that did not fit would cost a round trip more.
#[test]
fn after_a_move_the_reader_hears_in_one_round_trip_however_much_waits() {
    let mut sim = Sim::established(Options { early_limit: 4000, ..Options::default() });
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 100);
    sim.advance(ms(100));
    sim.server_accepts();
    sim.cut(0, Cut::Both);
    sim.write(Side::Server, id, 60_000);
    sim.dial_over(Link::new(100, 100)).unwrap();
    sim.advance(ms(110));
    assert!(sim.read_all(Side::Client) >= 1000, "{}", sim.report());
}
