//! Paths that retire: they end without losing, repeating or delaying anything.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::simulation::tcp::Link;
use crate::simulation::{Cut, Options, Sim, ms, secs, wide_config};
use whimbrel_proto::fuzzing::frame::Frame;
use whimbrel_proto::{
    Config, Event, HandoverMode, PathEnd, PathId, PathState, ProtocolError, Side, StreamId, Timeouts,
};

const SIDES: [Side; 2] = [Side::Client, Side::Server];
const OLD: PathId = PathId(0);

fn without_retire() -> Config {
    let mut config = Config::default();
    config.params.retire = false;
    config
}

fn options(handover: HandoverMode) -> Options {
    Options { client: Config { handover, ..Config::default() }, ..Options::default() }
}

/// A connection over one link, and a stream both sides know.
fn with_stream(options: Options, link: Link) -> (Sim, StreamId) {
    let mut sim = Sim::over(options, &[link]);
    let id = sim.open(Side::Client).unwrap();
    sim.advance(ms(300));
    sim.server_accepts();
    (sim, id)
}

/// Keeps `from` writing for `time`; returns the longest pause at the reader.
fn bulk(sim: &mut Sim, from: Side, id: StreamId, time: Duration) -> Duration {
    let end = sim.now + time;
    let (mut last, mut longest) = (sim.now, Duration::ZERO);
    while sim.now < end {
        sim.write(from, id, 64 * 1024);
        sim.advance(ms(2));
        if sim.read_all(from.peer()) > 0 {
            longest = longest.max(sim.now - last);
            last = sim.now;
        }
    }
    longest.max(sim.now - last)
}

fn gone(sim: &Sim, path: PathId) -> bool {
    SIDES.iter().all(|side| sim.path(*side, path).is_none())
}

#[test]
fn a_newer_path_takes_over_from_a_busy_one_without_a_stall_or_a_byte_twice() {
    for from in SIDES {
        for (old, new) in [(20, 20), (100, 20), (20, 100), (50, 300)] {
            // Wide windows: credit that is told on the old path just before it retires may be acknowledged
            // late.
            let options = Options { client: wide_config(), server: wide_config(), ..Options::default() };
            let (mut sim, id) = with_stream(options, Link::new(10, old));
            bulk(&mut sim, from, id, secs(2));
            sim.dial_over(Link::new(10, new));
            // The old path's queue still arrives, but the first bytes of the new one only after its answer.
            let gap = bulk(&mut sim, from, id, secs(3));
            let limit = ms(2 * old.max(new) + 60);
            assert!(gap <= limit, "from {from:?}, {old} to {new} ms: {gap:?}");
            assert!(gone(&sim, OLD), "from {from:?}, {old} to {new} ms\n{}", sim.report());
            for side in SIDES {
                let stats = sim.connection(side).unwrap().stats();
                assert_eq!(stats.stream_bytes_resent, 0, "from {from:?}, {old} to {new} ms");
                assert_eq!(sim.connection(side).unwrap().footprint().paths, 1);
                assert!(sim.events(side).contains(&Event::PathDown(OLD, PathEnd::Retired)));
                assert!(!sim.events(side).contains(&Event::PathSuspect(OLD)));
            }
            sim.settle();
        }
    }
}

#[test]
fn an_idle_path_retires_within_two_round_trips() {
    let mut sim = Sim::established(Options::default());
    sim.settle();
    sim.advance(secs(1));
    sim.dial();
    sim.advance(ms(41));
    assert_eq!(sim.path(Side::Client, OLD).unwrap().state, PathState::Retiring);
    sim.advance(ms(80));
    assert!(gone(&sim, OLD), "{}", sim.report());
}

#[test]
fn a_peer_has_as_long_for_its_last_words_on_a_path_as_was_set() {
    let waits = [Duration::ZERO, secs(5)].map(|last_words| {
        let mut sim = Sim::established(Options::default());
        sim.settle();
        sim.advance(secs(1));
        sim.client.set_timeouts(Timeouts { last_words, ..Timeouts::default() }).unwrap();
        sim.dial();
        sim.advance(ms(41));
        assert_eq!(sim.path(Side::Client, OLD).unwrap().state, PathState::Retiring);
        // Nothing arrives any more, on either path.
        (0..2).for_each(|index| sim.stall(index, true));
        let begun = sim.now;
        let is_over = sim.run_until(secs(20), |sim| sim.path(Side::Client, OLD).is_none());
        assert!(is_over, "{}", sim.report());
        sim.now - begun
    });
    assert!(waits[1] > waits[0] + ms(4900) && waits[1] < waits[0] + ms(5100), "{waits:?}");
}

/// Both answers may be here before anybody looks: then it must not be the successor that retires.
#[test]
fn a_path_that_is_answered_behind_its_successor_gives_way_to_it() {
    for (successor, other) in [(20, 22), (22, 20)] {
        let mut sim = Sim::established(Options::default());
        sim.settle();
        sim.dial_over(Link::new(10, successor));
        sim.dial_over(Link::new(10, other));
        sim.client.give_way(PathId(2), PathId(1));
        sim.advance(secs(1));
        let is_up = |path| sim.path(Side::Client, path).is_some_and(|path| path.state == PathState::Active);
        assert!(gone(&sim, OLD), "{}", sim.report());
        assert!(is_up(PathId(1)), "the successor at {successor} ms retired\n{}", sim.report());
        // If it came first, whoever opened them has it retire when its successor is there.
        assert_eq!(is_up(PathId(2)), successor > other, "{}", sim.report());
    }
}

/// A path that was dialled once more beside its twin, and beside the carrier that is to take over.
#[test]
fn a_path_gives_way_to_whichever_of_several_was_answered_before_it() {
    for (first, second) in [(20, 100), (100, 20)] {
        let mut sim = Sim::established(Options::default());
        sim.settle();
        for delay in [first, second, 22] {
            sim.dial_over(Link::new(10, delay));
        }
        sim.client.give_way(PathId(3), PathId(1));
        sim.client.give_way(PathId(3), PathId(2));
        sim.client.give_way(PathId(2), PathId(1));
        sim.advance(ms(80));
        let is_up = |path| sim.path(Side::Client, path).is_some_and(|path| path.state == PathState::Active);
        let answered = if first < second { PathId(1) } else { PathId(2) };
        assert!(is_up(answered), "{}", sim.report());
        assert!(!is_up(PathId(3)), "{}", sim.report());
    }
}

/// The twin of a path from which another carrier has taken over meanwhile. It was opened last, and yet is no
/// news.
#[test]
fn a_path_gives_way_to_what_took_over_from_the_one_that_was_answered_before_it() {
    let mut sim = Sim::established(Options::default());
    sim.settle();
    for delay in [20, 40, 100] {
        sim.dial_over(Link::new(10, delay));
    }
    let (first, carries, twin) = (PathId(1), PathId(2), PathId(3));
    sim.client.give_way(twin, first);
    sim.advance(ms(180));
    assert!(gone(&sim, first), "{}", sim.report());
    sim.advance(secs(1));
    let is_up = |path| sim.path(Side::Client, path).is_some_and(|path| path.state == PathState::Active);
    assert!(is_up(carries) && !is_up(twin), "{}", sim.report());
}

/// While both send: the carrier must not be closed before the other side knows that all of its bytes have
/// arrived.
#[test]
fn both_directions_end_without_a_byte_twice() {
    for (old, new) in [(20, 20), (200, 20), (20, 200)] {
        let (mut sim, id) = with_stream(Options::default(), Link::new(10, old));
        for round in 0..400 {
            for side in SIDES {
                sim.write(side, id, 6000);
                sim.read_all(side);
            }
            sim.advance(ms(5));
            if round == 200 {
                sim.dial_over(Link::new(10, new));
            }
        }
        sim.settle();
        assert!(gone(&sim, OLD), "{}", sim.report());
        for side in SIDES {
            assert_eq!(sim.connection(side).unwrap().stats().stream_bytes_resent, 0, "{side:?} {old} {new}");
        }
    }
}

#[test]
fn a_path_is_retired_on_request_in_every_mode() {
    for mode in [HandoverMode::Full, HandoverMode::Backup, HandoverMode::Single] {
        for from in SIDES {
            let (mut sim, id) = with_stream(options(mode), Link::new(10, 50));
            if mode == HandoverMode::Single {
                let now = sim.now;
                assert!(!sim.client.retire_path(now, OLD), "the only path stays");
                assert_eq!(sim.path(Side::Client, OLD).unwrap().state, PathState::Active);
                continue;
            }
            sim.dial_over(Link::new(10, 20));
            bulk(&mut sim, from, id, secs(2));
            let (now, before) = (sim.now, SIDES.map(|s| sim.path(s, OLD).unwrap().bytes_sent));
            let resent = sim.connection(from).unwrap().stats().stream_bytes_resent;
            let reinjected = sim.connection(from).unwrap().stats().stream_bytes_reinjected;
            assert_eq!(resent, reinjected, "nothing was lost so far");
            assert!(sim.client.retire_path(now, OLD));
            sim.pump();
            assert_eq!(sim.path(Side::Client, OLD).unwrap().bytes_sent, before[0], "{mode}");
            bulk(&mut sim, from, id, secs(2));
            assert!(gone(&sim, OLD), "{mode} from {from:?}\n{}", sim.report());
            let stats = sim.connection(from).unwrap().stats();
            assert_eq!(stats.stream_bytes_resent, stats.stream_bytes_reinjected, "{mode} from {from:?}");
            sim.settle();
        }
    }
}

#[test]
fn a_peer_that_does_not_know_retire_hears_that_the_path_is_lost() {
    for strange in SIDES {
        let mut options = Options::default();
        match strange {
            Side::Client => options.client = without_retire(),
            Side::Server => options.server = without_retire(),
        }
        let mut sim = Sim::established(options);
        let id = sim.open(Side::Client).unwrap();
        sim.write(Side::Client, id, 50_000);
        sim.advance(ms(5));
        sim.dial();
        sim.advance(ms(41));
        assert_eq!(sim.path(Side::Client, OLD), None, "{strange:?}");
        sim.settle();
        sim.advance(ms(100));
        assert!(gone(&sim, OLD), "{strange:?}");
    }
}

/// Whatever happens to the path, or to the one that took over, everything arrives, and in bounded time.
#[test]
fn a_retiring_path_that_dies_is_settled_like_any_other() {
    for from in SIDES {
        for cut in [Cut::Both, Cut::First(Side::Client), Cut::First(Side::Server), Cut::Silent] {
            for at in [0, 5, 12, 25, 40, 60] {
                let (mut sim, id) = with_stream(Options::default(), Link::new(10, 50));
                bulk(&mut sim, from, id, secs(1));
                sim.dial_over(Link::new(10, 50));
                sim.advance(ms(52 + at));
                sim.cut(0, cut);
                let gap = bulk(&mut sim, from, id, secs(3));
                // As for a path that dies while it is used: three round trips, those with a full queue, and
                // 200 ms.
                assert!(gap <= ms(900), "from {from:?}, {cut:?} after {at} ms: {gap:?}");
                assert!(gone(&sim, OLD), "from {from:?}, {cut:?} after {at} ms\n{}", sim.report());
                sim.settle();
            }
        }
    }
}

#[test]
fn the_loss_of_the_path_that_took_over_hangs_nothing() {
    for cut in [Cut::Both, Cut::Silent] {
        for at in [0, 10, 30, 60] {
            let (mut sim, id) = with_stream(Options::default(), Link::new(10, 50));
            bulk(&mut sim, Side::Server, id, secs(1));
            let newer = sim.dial_over(Link::new(10, 50)).unwrap();
            sim.advance(ms(52 + at));
            sim.cut(newer, cut);
            sim.options.redial = true;
            sim.redial_at = Some(sim.now + ms(500));
            bulk(&mut sim, Side::Server, id, secs(5));
            sim.settle();
            sim.advance(secs(5));
            assert!(gone(&sim, OLD), "{cut:?} after {at} ms\n{}", sim.report());
            for side in SIDES {
                assert_eq!(sim.connection(side).unwrap().footprint().paths, 1, "{side:?}");
            }
        }
    }
}

fn hear(sim: &mut Sim, side: Side, frame: &Frame<'_>) -> Result<(), ProtocolError> {
    let mut body = Vec::new();
    frame.encode(&mut body);
    let now = sim.now;
    sim.connection(side).unwrap().handle_segment(now, PathId(1), &body)
}

#[test]
fn a_peer_that_takes_its_last_segment_back_breaks_the_protocol() {
    for side in SIDES {
        let mut sim = Sim::over(options(HandoverMode::Full), &[Link::new(10, 20), Link::new(10, 20)]);
        sim.settle();
        let result = hear(&mut sim, side, &Frame::Retire { path: OLD, segments: 0 });
        assert_eq!(result, Err(ProtocolError::Unexpected("RETIRE")), "fewer than arrived");

        let mut sim = Sim::over(options(HandoverMode::Full), &[Link::new(10, 20), Link::new(10, 20)]);
        let far = Frame::Retire { path: OLD, segments: 1000 };
        assert_eq!(hear(&mut sim, side, &far), Ok(()));
        assert_eq!(hear(&mut sim, side, &far), Ok(()), "said again");
        let other = Frame::Retire { path: OLD, segments: 1001 };
        assert_eq!(hear(&mut sim, side, &other), Err(ProtocolError::Unexpected("RETIRE")));

        let mut sim = Sim::over(options(HandoverMode::Full), &[Link::new(10, 20), Link::new(10, 20)]);
        let unknown = Frame::Retire { path: PathId(77), segments: 3 };
        assert_eq!(hear(&mut sim, side, &unknown), Ok(()), "settled long ago");
    }
}
