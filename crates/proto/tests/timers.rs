//! Suspicion, revival, signs of life, and deadlines that never make a driver spin.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use crate::simulation::tcp::Link;
use crate::simulation::{Cut, Options, Sim, ms, secs};
use whimbrel_proto::{Config, Event, HandoverMode, PathId, PathState, Side, Timeouts};

const PATH: PathId = PathId(0);

/// A path of the given one-way delay whose RTT is well known, with a stream.
fn steady(options: Options) -> (Sim, whimbrel_proto::StreamId) {
    let mut sim = Sim::established(options);
    let id = sim.open(Side::Client).unwrap();
    for _ in 0..40 {
        sim.write(Side::Client, id, 100);
        sim.advance(sim.options.delay * 2 + ms(30));
        sim.read_all(Side::Server);
    }
    assert!(!sim.client_events.contains(&Event::PathSuspect(PATH)));
    (sim, id)
}

fn suspected_after(sim: &mut Sim) -> Duration {
    let start = sim.now;
    while !sim.client_events.contains(&Event::PathSuspect(PATH)) {
        assert!(sim.now < start + secs(60), "never suspected");
        let next = sim.next_event().unwrap();
        sim.step_to(next.max(sim.now));
    }
    sim.now - start
}

#[test]
fn a_silent_path_is_suspected_after_a_few_round_trips() {
    for delay in [1, 5, 30, 150] {
        let options = Options { delay: ms(delay), ..Options::default() };
        let (mut sim, id) = steady(options);
        sim.cut(0, Cut::Silent);
        sim.write(Side::Client, id, 100);
        sim.pump();
        let rtt = ms(2 * delay);
        let took = suspected_after(&mut sim);
        assert!(took >= ms(100) && took >= rtt * 2, "{took:?} for {rtt:?}");
        assert!(took <= rtt * 3 + ms(200), "{took:?} for {rtt:?}");
    }
}

/// The formula speaks of the peer's acknowledgement delay, not of our own.
#[test]
fn a_peer_that_acknowledges_late_is_not_suspected() {
    let mut slow = Config::default();
    slow.params.max_ack_delay = ms(900);
    let options = Options { server: slow, delay: ms(5), ..Options::default() };
    let mut sim = Sim::established(options);
    sim.advance(secs(2));
    let id = sim.open(Side::Client).unwrap();
    for _ in 0..60 {
        sim.write(Side::Client, id, 100);
        sim.advance(secs(1));
    }
    assert!(!sim.client_events.contains(&Event::PathSuspect(PATH)));
}

/// Nothing under way, nothing to suspect.
#[test]
fn an_idle_path_is_not_suspected() {
    let (mut sim, _) = steady(Options::default());
    // Whether an answer to what was written gets through was asked by then.
    sim.advance(secs(1));
    sim.cut(0, Cut::Silent);
    sim.carriers[0].client_notices = None;
    sim.carriers[0].server_notices = None;
    sim.advance(secs(55));
    assert!(!sim.client_events.contains(&Event::PathSuspect(PATH)));
    // The client asks after 60 s of silence; then the suspicion follows.
    sim.advance(secs(10));
    assert!(sim.client_events.contains(&Event::PathSuspect(PATH)));
    assert!(!sim.server_events.contains(&Event::PathSuspect(PATH)));
    sim.advance(secs(60));
    assert!(sim.server_events.contains(&Event::PathSuspect(PATH)));
}

#[test]
fn the_carriers_own_progress_puts_suspicion_off() {
    let (mut sim, id) = steady(Options::default());
    sim.stall(0, true);
    sim.write(Side::Client, id, 100);
    for _ in 0..100 {
        sim.advance(ms(50));
        let now = sim.now;
        sim.client.carrier_progress(PATH, now);
    }
    assert!(!sim.client_events.contains(&Event::PathSuspect(PATH)));
    sim.advance(ms(500));
    assert!(sim.client_events.contains(&Event::PathSuspect(PATH)));
}

/// A download's slow start fills the queue of a slow link within a second: a round trip takes many times what
/// it took, and nothing is wrong.
#[test]
fn who_is_heard_on_the_only_path_behind_a_queue_that_grows_is_not_suspected() {
    for kbit in [500, 1000, 2000] {
        let packet = Duration::from_micros(1514 * 8 * 1000 / kbit);
        let link = Link { rate: kbit * 1000, queue: packet * 40, ..Link::new(1, 38) };
        let mut sim = Sim::over(Options { capacity: 6 << 10, ..Options::default() }, &[link]);
        let id = sim.open(Side::Client).unwrap();
        sim.advance(secs(1));
        sim.server_accepts();
        for _ in 0..1000 {
            sim.write(Side::Server, id, 64 << 10);
            sim.advance(ms(10));
            sim.read_all(Side::Client);
        }
        for events in [&sim.client_events, &sim.server_events] {
            assert!(!events.contains(&Event::PathSuspect(PATH)), "at {kbit} kbit/s");
        }
        // One that falls silent is suspected all the same.
        sim.cut(0, Cut::Silent);
        let took = suspected_after(&mut sim);
        assert!(took < secs(5), "{took:?} at {kbit} kbit/s");
    }
}

/// What a carrier hears and cannot read yet counts for a while, on the only path alone.
#[test]
fn the_carriers_own_hearing_puts_suspicion_off_for_a_while_on_the_only_path() {
    for beside in [false, true] {
        let config = Config { handover: HandoverMode::Full, ..Config::default() };
        let (mut sim, id) = steady(Options { client: config.clone(), server: config, ..Options::default() });
        if beside {
            sim.dial();
            sim.advance(secs(1));
        }
        let patience = {
            sim.stall(0, true);
            sim.write(Side::Client, id, 100);
            sim.pump();
            sim.client.suspect_deadline(PATH).unwrap() - sim.now
        };
        let start = sim.now;
        while !sim.client_events.contains(&Event::PathSuspect(PATH)) {
            let now = sim.now;
            sim.client.carrier_heard(PATH, now);
            sim.advance(ms(10));
            assert!(sim.now < start + secs(60), "never suspected");
        }
        let took = sim.now - start;
        let expected = if beside { patience } else { patience * 6 };
        assert!(took.abs_diff(expected) <= ms(20), "{took:?}, not {expected:?}");
    }
}

/// Outside knowledge that is older than ours changes nothing.
#[test]
fn progress_never_runs_backwards() {
    let (mut sim, id) = steady(Options::default());
    sim.write(Side::Client, id, 100);
    sim.pump();
    let deadline = sim.client.suspect_deadline(PATH);
    let past = sim.now - ms(1);
    sim.client.carrier_progress(PATH, past);
    assert_eq!(sim.client.suspect_deadline(PATH), deadline);
}

/// A single segment is acknowledged within the delay that was promised, and once.
#[test]
fn acknowledgements_are_delayed_but_no_longer_than_stated() {
    let (mut sim, id) = steady(Options::default());
    sim.advance(secs(1));
    let (segments, start) = (sim.carriers[0].down.boundaries.len(), sim.now);
    sim.write(Side::Client, id, 100);
    sim.pump();
    while !sim.client.is_drained(id) {
        let next = sim.next_event().unwrap();
        sim.step_to(next.max(sim.now));
    }
    assert!(sim.now - start <= ms(40 + 25));
    sim.advance(secs(1));
    assert_eq!(sim.carriers[0].down.boundaries.len() - segments, 1);
}

/// After `handle_timeout(now)` the next deadline lies ahead, whatever state the engine is in.
#[test]
fn deadlines_lie_ahead_after_they_were_handled() {
    fn drive(connection: &mut whimbrel_proto::Connection, mut now: Instant, transmit: bool) {
        for _ in 0..200 {
            let Some(at) = connection.poll_timeout() else {
                return;
            };
            now = now.max(at);
            connection.handle_timeout(now);
            assert!(connection.poll_timeout().is_none_or(|next| next > now));
            if transmit {
                for path in connection.paths() {
                    while connection.poll_transmit(now, path.id, &mut Vec::new()) {}
                }
                assert!(connection.poll_timeout().is_none_or(|next| next > now));
            }
        }
    }
    for keepalive in [Duration::ZERO, ms(1), secs(60)] {
        for scenario in 0..6 {
            for transmit in [false, true] {
                let mut config = Config::default();
                config.timeouts.heartbeat = keepalive;
                config.params.linger = if scenario == 5 { Duration::ZERO } else { secs(100) };
                let options = Options { client: config, ..Options::default() };
                let mut sim = Sim::new(options);
                sim.dial();
                sim.advance(ms(300));
                let id = sim.open(Side::Client).unwrap();
                sim.write(Side::Client, id, 50_000);
                match scenario {
                    0 => {}
                    1 => drop(sim.dial()),
                    2 => sim.cut_all(Cut::Both),
                    3 => sim.client.close(whimbrel_proto::CloseCode::NONE, ""),
                    4 => {
                        sim.cut_all(Cut::Both);
                        sim.client.close(whimbrel_proto::CloseCode::NONE, "");
                    }
                    _ => sim.cut_all(Cut::Both),
                }
                sim.now += ms(1);
                let now = sim.now;
                if scenario == 2 || scenario >= 4 {
                    sim.client.path_lost(now, PATH);
                }
                drive(&mut sim.client, now, transmit);
                drive(sim.server(), now, transmit);
            }
        }
    }
}

/// A suspect path is revived by whatever arrives on it.
#[test]
fn anything_that_arrives_revives() {
    let (mut sim, _) = steady(Options::default());
    sim.stall(0, true);
    let now = sim.now;
    sim.client.suspect_path(now, PATH);
    sim.server().suspect_path(now, PATH);
    sim.advance(secs(5));
    let state = sim.path(Side::Client, PATH).map(|p| p.state);
    assert_eq!(state, Some(PathState::Suspect));
    sim.stall(0, false);
    sim.advance(ms(100));
    for side in [Side::Client, Side::Server] {
        let state = sim.path(side, PATH).map(|p| p.state);
        assert_eq!(state, Some(PathState::Active), "{side:?}");
    }
}

/// A client that only receives finds out that its path went silent, and asks only once.
#[test]
fn a_download_that_stops_is_asked_about_once() {
    let (mut sim, id) = steady(Options::default());
    sim.advance(secs(30));
    sim.server_accepts();
    sim.write(Side::Server, id, 5000);
    sim.advance(secs(1));
    assert_eq!(sim.read_all(Side::Client), 5000);
    let segments = sim.carriers[0].up.boundaries.len();
    sim.advance(secs(30));
    assert_eq!(sim.carriers[0].up.boundaries.len(), segments, "an answered question is not repeated");
    // The same with a path that dies in the middle.
    sim.write(Side::Server, id, 5000);
    sim.advance(ms(25));
    sim.cut(0, Cut::Silent);
    let took = suspected_after(&mut sim);
    assert!(took <= ms(80 * 3 + 200), "{took:?}");
}

/// What revives a suspect path depends on whether the peer was heard there lately. Asking is not hearing.
#[test]
fn a_question_is_not_taken_for_an_answer() {
    let (mut sim, id) = steady(Options::default());
    sim.advance(secs(1));
    sim.server_accepts();
    sim.stall(0, true);
    sim.write(Side::Server, id, 100);
    sim.write(Side::Client, id, 100);
    sim.pump();
    let patience = sim.client.suspect_deadline(PATH).unwrap() - sim.now;
    sim.advance(patience * 3 / 4);
    let now = sim.now;
    sim.client.ping(now, PATH);
    sim.advance(patience);
    assert_eq!(sim.path(Side::Client, PATH).map(|p| p.state), Some(PathState::Suspect));
    // The server's bytes come before its acknowledgement, and show that both directions work.
    sim.stall(0, false);
    sim.advance(ms(1));
    assert_eq!(sim.read_all(Side::Client), 100);
    assert_eq!(sim.path(Side::Client, PATH).map(|p| p.state), Some(PathState::Active));
}

/// A peer that claims to have held an acknowledgement back for longer than it promised would make the path
/// look faster than it is.
#[test]
fn a_claimed_delay_beyond_the_promise_does_not_shorten_the_round_trip() {
    use whimbrel_proto::fuzzing::frame::{Frame, PathReport};
    let (mut sim, id) = steady(Options { delay: ms(50), ..Options::default() });
    sim.stall(0, true);
    let before = sim.path(Side::Client, PATH).unwrap().srtt;
    sim.write(Side::Client, id, 100);
    sim.pump();
    let received = sim.carriers[0].up.boundaries.len() as u64;
    sim.now += ms(340);
    let (now, mut body) = (sim.now, Vec::new());
    Frame::Ack([(PathReport { path: PATH, received }, 240_000)].into_iter().collect()).encode(&mut body);
    sim.client.handle_segment(now, PATH, &body).unwrap();
    let after = sim.path(Side::Client, PATH).unwrap().srtt;
    assert!(after > before + ms(20), "{before:?} to {after:?}");
}

/// What was asked got through and was acknowledged; the answer may be too large for the way back.
#[test]
fn an_answer_that_does_not_begin_is_asked_about_once() {
    let mut sim = Sim::established(Options { delay: ms(10), ..Options::default() });
    sim.advance(secs(1));
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 100);
    sim.advance(secs(1));
    let segments = sim.carriers[0].up.boundaries.len();
    sim.advance(secs(30));
    assert_eq!(sim.carriers[0].up.boundaries.len(), segments, "an answered question is not repeated");
    assert!(!sim.client_events.contains(&Event::PathSuspect(PATH)));

    let mut sim = Sim::established(Options { delay: ms(10), ..Options::default() });
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 100);
    sim.advance(ms(60));
    sim.cut(0, Cut::Silent);
    let took = suspected_after(&mut sim);
    assert!(took < secs(1), "{took:?}");
}

fn told(sim: &Sim, side: Side) -> Vec<Event> {
    let reach = |event: &&Event| matches!(event, Event::Unreachable { .. } | Event::Reachable { .. });
    sim.events(side).iter().filter(reach).cloned().collect()
}

/// The setting of the paper: signs of life each second, and two seconds of silence.
#[test]
fn a_peer_that_falls_silent_is_called_unreachable_after_two_seconds_then_each_second_and_reachable_again() {
    let mut config = Config::default();
    (config.timeouts.heartbeat, config.timeouts.unreachable_after) = (secs(1), secs(2));
    let mut sim = Sim::established(Options { client: config, ..Options::default() });
    sim.client.follow_outages(true);
    sim.advance(ms(2500));
    assert!(told(&sim, Side::Client).is_empty());
    let begin = sim.now;
    sim.stall(0, true);
    let mut at = Vec::new();
    while sim.now < begin + secs(6) {
        sim.advance(ms(10));
        if told(&sim, Side::Client).len() > at.len() {
            at.push(sim.now - begin);
        }
    }
    // The last sign of life came at most a second before.
    assert!(at[0] >= secs(1) && at[0] <= ms(2010), "{at:?}");
    assert!(at.len() >= 4, "{at:?}");
    assert!(at.windows(2).all(|pair| pair[1] - pair[0] == secs(1)), "{at:?}");
    sim.stall(0, false);
    sim.advance(secs(1));
    let told = told(&sim, Side::Client);
    let (last, during) = told.split_last().unwrap();
    let Event::Reachable { after } = last else { panic!("{told:?}") };
    let lasts: Vec<_> = during
        .iter()
        .map(|event| match event {
            Event::Unreachable { lasts } => *lasts,
            _ => panic!("{told:?}"),
        })
        .collect();
    assert!(lasts.is_sorted() && lasts.last() < Some(after) && *after < secs(7), "{told:?}");
}

#[test]
fn an_outage_that_nobody_follows_is_told_once_at_once_and_wakes_nobody() {
    let mut sim = Sim::established(Options::default());
    sim.cut_all(Cut::Both);
    sim.advance(secs(30));
    for side in [Side::Client, Side::Server] {
        assert_eq!(told(&sim, side), [Event::Unreachable { lasts: ms(0) }], "{side:?}");
        let next = sim.connection(side).unwrap().poll_timeout();
        assert!(next.is_none_or(|at| at > sim.now + secs(3600)), "only the linger time is left");
    }
    sim.heal();
    sim.advance(secs(1));
    for side in [Side::Client, Side::Server] {
        let last = told(&sim, side).pop();
        assert!(matches!(last, Some(Event::Reachable { after }) if after > secs(29)), "{side:?}: {last:?}");
    }
}

#[test]
fn timeouts_of_a_living_connection_change_at_once_or_not_at_all() {
    let mut sim = Sim::established(Options::default());
    let wrong = Timeouts { suspect_least: secs(20), heartbeat: secs(3), ..Timeouts::default() };
    assert_eq!(sim.client.set_timeouts(wrong).unwrap_err().name, "suspect_least");
    assert_eq!(sim.client.timeouts(), Timeouts::default());
    let patient = Timeouts { suspect_least: secs(4), heartbeat: ms(500), ..Timeouts::default() };
    sim.client.set_timeouts(patient).unwrap();
    let sent = sim.carriers[0].up.boundaries.len();
    sim.advance(secs(10));
    let signs = sim.carriers[0].up.boundaries.len() - sent;
    assert!((15..=20).contains(&signs), "one each half second: {signs}");
    sim.stall(0, true);
    sim.advance(secs(4));
    assert!(!sim.client_events.contains(&Event::PathSuspect(PATH)));
    sim.advance(secs(1));
    assert!(sim.client_events.contains(&Event::PathSuspect(PATH)));
}

#[test]
fn a_close_that_cannot_be_told_is_given_up_after_the_time_that_was_set() {
    let mut sim = Sim::established(Options::default());
    let timeouts = Timeouts { closing: secs(5), ..Timeouts::default() };
    sim.client.set_timeouts(timeouts).unwrap();
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 1000);
    sim.cut_all(Cut::Both);
    sim.client.close(whimbrel_proto::CloseCode::NONE, "");
    sim.advance(ms(4900));
    assert!(!sim.client.is_closed());
    sim.advance(ms(200));
    assert!(sim.client.is_over());
}

#[test]
fn an_idle_path_that_may_fail_soon_is_asked_each_second_until_it_may_not_any_more() {
    let (mut sim, _) = steady(Options::default());
    sim.advance(secs(1));
    let sent = |sim: &Sim| sim.carriers[0].up.boundaries.len();
    let idle = sent(&sim);
    sim.advance(secs(10));
    assert_eq!(sent(&sim), idle, "an idle path is left alone");
    sim.client.set_at_risk(PATH, true);
    sim.advance(secs(10));
    let signs = sent(&sim) - idle;
    assert!((8..=11).contains(&signs), "one each second: {signs}");
    sim.client.set_at_risk(PATH, false);
    let before = sent(&sim);
    sim.advance(secs(30));
    assert_eq!(sent(&sim), before, "it is idle again");
    // The silence of one that may fail is noticed within about a second.
    sim.client.set_at_risk(PATH, true);
    sim.advance(ms(500));
    assert!(!sim.client_events.contains(&Event::PathSuspect(PATH)));
    sim.cut(0, Cut::Silent);
    let took = suspected_after(&mut sim);
    assert!(took <= ms(1500), "{took:?}");
}

#[test]
fn the_end_that_was_dialled_asks_a_path_that_may_fail_soon_after_two_seconds() {
    let (mut sim, _) = steady(Options::default());
    sim.advance(secs(1));
    sim.server().set_at_risk(PATH, true);
    let sent = sim.carriers[0].down.boundaries.len();
    sim.advance(secs(20));
    let signs = sim.carriers[0].down.boundaries.len() - sent;
    assert!((8..=11).contains(&signs), "one each two seconds: {signs}");
}

/// What was set is never made slower by that.
#[test]
fn a_heartbeat_that_is_shorter_than_a_second_stays_where_a_path_may_fail_soon() {
    let mut config = Config::default();
    config.timeouts.heartbeat = ms(500);
    let mut sim = Sim::established(Options { client: config, ..Options::default() });
    sim.client.set_at_risk(PATH, true);
    let sent = sim.carriers[0].up.boundaries.len();
    sim.advance(secs(10));
    let signs = sim.carriers[0].up.boundaries.len() - sent;
    assert!((15..=20).contains(&signs), "one each half second: {signs}");
}

/// Also after the peer has sent, when a patient connection would ask later.
#[test]
fn a_path_that_may_fail_soon_is_asked_after_a_second_however_patient_its_connection_is() {
    let mut config = Config::default();
    (config.timeouts.suspect_least, config.timeouts.suspect_most) = (secs(10), secs(10));
    let (mut sim, id) = steady(Options { client: config, ..Options::default() });
    sim.advance(secs(30));
    sim.server_accepts();
    sim.client.set_at_risk(PATH, true);
    sim.write(Side::Server, id, 5000);
    sim.advance(ms(400));
    assert_eq!(sim.read_all(Side::Client), 5000);
    sim.advance(ms(100));
    let sent = sim.carriers[0].up.boundaries.len();
    sim.advance(ms(1500));
    assert!(sim.carriers[0].up.boundaries.len() > sent, "nothing was asked");
}
