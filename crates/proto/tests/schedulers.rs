//! Schedulers: pure functions over snapshots, and their hold on what is really written.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::simulation::tcp::Link;
use crate::simulation::{Options, Sim, ms, secs, wide_config};
use proptest::prelude::*;
use whimbrel_proto::fuzzing::scheduler::{Choice, PathSnapshot, Snapshots, decide, retain_eligible};
use whimbrel_proto::{Config, HandoverMode, PathId, SchedulerKind, Side};

/// The writer has more than is taken.
const ENDLESS: u64 = u64::MAX;

fn snapshot() -> impl Strategy<Value = PathSnapshot> {
    let times = (1u64..2000, 0u64..500, 1u64..2000, 0u64..3000);
    let load = (0u64..2_000_000, 0u64..1000, 0u64..1_000_000);
    let rate = prop_oneof![Just(None), (1000u64..200_000_000).prop_map(Some)];
    (times, load, rate, any::<[bool; 6]>()).prop_map(|(times, load, rate, flags)| {
        let (srtt, rttvar, base, silent) = times;
        let (in_flight, last_used, delivered) = load;
        PathSnapshot {
            id: PathId(0),
            opening: flags[0] && flags[1],
            unproven: flags[0] && flags[5],
            suspect: flags[1] && flags[2],
            backup: flags[2] && flags[3],
            srtt: ms(srtt),
            rttvar: ms(rttvar),
            base_rtt: ms(base.min(srtt)),
            rate,
            growing: flags[4],
            in_flight,
            room: flags[3] || flags[4],
            silent: if in_flight > 0 { ms(silent) } else { Duration::ZERO },
            last_used,
            delivered,
            datagram: None,
        }
    })
}

fn paths() -> impl Strategy<Value = Snapshots> {
    prop::collection::vec(snapshot(), 1..12).prop_map(|mut paths| {
        (0..).zip(&mut paths).for_each(|(id, path)| path.id = PathId(id));
        paths.into_iter().collect()
    })
}

fn waiting() -> impl Strategy<Value = u64> {
    prop_oneof![1u64..2000, 1u64..5_000_000, Just(ENDLESS)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    /// When all that may carry data have room, one of them is told to, and never a path of a worse kind.
    #[test]
    fn some_path_always_sends(mut all in paths(), waiting in waiting()) {
        all.iter_mut().for_each(|path| path.room = true);
        let mut eligible = all.clone();
        retain_eligible(&mut eligible);
        for kind in SchedulerKind::ALL {
            let sends = |path: &PathSnapshot| {
                matches!(decide(kind.scheduler(), all.clone(), path.id, waiting), Choice::Send(n) if n > 0)
            };
            prop_assert!(eligible.iter().any(sends), "{kind}: nobody sends");
            let others = all.iter().filter(|path| !eligible.contains(path));
            prop_assert!(others.into_iter().all(|path| !sends(path)), "{kind}: a worse path sends");
        }
    }

    /// Schedulers that look at nothing but room never leave a path idle that has some, unless another has
    /// too.
    #[test]
    fn full_carriers_are_not_waited_for(all in paths(), waiting in waiting()) {
        let mut eligible = all.clone();
        retain_eligible(&mut eligible);
        prop_assume!(eligible.iter().any(|path| path.room));
        for kind in SchedulerKind::ALL.into_iter().filter(|kind| *kind != SchedulerKind::EarliestArrival) {
            let mut with_room = eligible.iter().filter(|path| path.room);
            let send = with_room.any(|path| decide(kind.scheduler(), all.clone(), path.id, waiting) != Choice::Leave);
            prop_assert!(send, "{kind}");
        }
    }

    /// Earliest arrival leaves a path only for good reason: the best path is full for now, and either brings
    /// all that waits sooner, or the other one has enough to do already. (One that has not delivered much may
    /// be held back, see below.)
    #[test]
    fn an_idle_path_is_left_only_if_others_bring_everything_sooner(all in paths(), waiting in waiting()) {
        let mut eligible = all.clone();
        retain_eligible(&mut eligible);
        for here in eligible.iter().filter(|path| path.delivered >= 512 * 1024) {
            let choice = decide(SchedulerKind::EarliestArrival.scheduler(), all.clone(), here.id, waiting);
            if choice == Choice::Leave && here.queueing() == Duration::ZERO {
                let arrival = here.arrival(here.chunk().min(waiting));
                let others = eligible.iter().filter(|other| other.id != here.id);
                let brought: u64 = others.map(|other| other.deliverable(arrival)).fold(0, u64::saturating_add);
                prop_assert!(brought >= waiting);
                prop_assert!(waiting < ENDLESS);
            }
        }
    }

    /// A path that has carried the most is never held back for being unknown; another may be only while it
    /// has something in flight, whose acknowledgement asks again.
    #[test]
    fn only_a_busy_path_is_held_back_for_being_unknown(all in paths()) {
        let mut eligible = all.clone();
        retain_eligible(&mut eligible);
        let most = eligible.iter().map(|path| path.delivered + path.in_flight).max().unwrap_or(0);
        for here in &eligible {
            let choice = decide(SchedulerKind::EarliestArrival.scheduler(), all.clone(), here.id, ENDLESS);
            let has_enough = here.queueing() > Duration::ZERO;
            let knows = here.delivered + here.in_flight == most;
            if choice == Choice::Leave && !has_enough {
                prop_assert!(!knows && here.in_flight > 0, "{here:?} is left");
            }
        }
    }

    /// The same input gives the same decision, whatever the order in which the paths are listed.
    #[test]
    fn a_decision_depends_on_its_input_only(all in paths(), waiting in waiting()) {
        let reversed: Snapshots = all.iter().rev().copied().collect();
        for kind in SchedulerKind::ALL {
            for path in &all {
                let once = decide(kind.scheduler(), all.clone(), path.id, waiting);
                prop_assert_eq!(once, decide(kind.scheduler(), all.clone(), path.id, waiting));
                prop_assert_eq!(once, decide(kind.scheduler(), reversed.clone(), path.id, waiting));
            }
        }
    }

    /// A path that was passed over gets its turn when the others have filled up; data never waits for ever
    /// for a path that has gone silent.
    #[test]
    fn nobody_starves(mut all in paths(), waiting in waiting()) {
        all.iter_mut().for_each(|path| path.room = true);
        let mut eligible = all.clone();
        retain_eligible(&mut eligible);
        let chosen = eligible.iter().map(|path| path.id).collect::<Vec<_>>();
        for kind in SchedulerKind::ALL {
            for id in &chosen {
                let mut all = all.clone();
                for path in &mut all {
                    path.room = path.id == *id;
                    let stuck = path.id != *id;
                    path.in_flight = if stuck { path.in_flight.max(1) } else { 0 };
                    path.silent = if stuck { secs(1_000_000) } else { Duration::ZERO };
                }
                let choice = decide(kind.scheduler(), all, *id, waiting);
                prop_assert!(choice != Choice::Leave, "{} leaves path {}", kind, id);
            }
        }
    }
}

/// A path at 1.4 MB/s and a round trip of 100 ms, with nothing on it.
fn idle(growing: bool) -> PathSnapshot {
    PathSnapshot {
        id: PathId(0),
        opening: false,
        unproven: false,
        suspect: false,
        backup: false,
        srtt: ms(100),
        rttvar: ms(0),
        base_rtt: ms(100),
        rate: Some(1_400_000),
        growing,
        in_flight: 0,
        room: true,
        silent: Duration::ZERO,
        last_used: 0,
        delivered: 1_000_000,
        datagram: None,
    }
}

#[test]
fn what_is_deliverable_in_the_time_that_bytes_take_to_arrive_is_as_many() {
    // A window is 140 kB; a path that grows has to wait for acknowledgements beyond it.
    for (growing, in_flight) in [(false, 0), (true, 0), (true, 100_000)] {
        let path = PathSnapshot { in_flight, ..idle(growing) };
        for bytes in [30_000u64, 70_000, 300_000, 1_000_000, 5_000_000] {
            let time = path.arrival(bytes);
            let delivered = path.deliverable(time);
            assert!(delivered.abs_diff(bytes) <= bytes / 1000, "{bytes}: {delivered} in {time:?}, {path:?}");
        }
    }
    // Two round trips bring three windows, and what did not fit the first waits for half of one more.
    let time = idle(true).arrival(3 * 140_000);
    assert_eq!(time.as_millis(), 50 + 200 + 50);
}

#[test]
fn a_path_alone_is_given_chunks_that_fit_its_window_while_that_grows() {
    let slow = |growing| PathSnapshot { rate: Some(10_000), ..idle(growing) };
    for kind in SchedulerKind::ALL {
        let chosen = |path: PathSnapshot, waiting| {
            decide(kind.scheduler(), [path].into_iter().collect(), path.id, waiting)
        };
        // 20 ms of an initial window of 14 000 bytes a round trip are too little for a segment.
        assert_eq!(chosen(slow(true), ENDLESS), Choice::Send(2 * 1400), "{kind}");
        assert_eq!(chosen(slow(false), ENDLESS), Choice::Send(16 * 1024), "{kind}");
        assert_eq!(chosen(slow(false), 0), Choice::Leave, "{kind}");
    }
}

/// Bytes of the segments in which 10 000 bytes leave on a path of so many Mbit/s, on which nothing is
/// under way.
fn segments_on_an_empty_path(mbit: u64) -> Vec<usize> {
    let mut sim = Sim::over(Options::default(), &[Link::new(mbit, 20)]);
    let id = sim.open(Side::Client).unwrap();
    for _ in 0..1000 {
        sim.write(Side::Client, id, 16 * 1024);
        sim.advance(ms(2));
        sim.read_all(Side::Server);
    }
    for _ in 0..2 {
        sim.advance(secs(5));
        sim.read_all(Side::Server);
    }
    sim.advance(secs(1));
    assert_eq!(sim.client.write(id, &[7; 10_000]), Ok(10_000));
    let path = sim.client.paths()[0].id;
    let segment = |sim: &mut Sim| {
        let mut wire = Vec::new();
        sim.client.poll_transmit(sim.now, path, &mut wire).then_some(wire.len())
    };
    std::iter::from_fn(|| segment(&mut sim)).collect()
}

/// A segment is read once all of it is there.
#[test]
fn what_begins_on_an_empty_slow_path_leaves_as_one_packet_and_goes_on_in_twos() {
    let slow = segments_on_an_empty_path(1);
    let [first, second, ..] = slow[..] else { panic!("there is more than {slow:?}") };
    assert!((1200..1350).contains(&first) && (2800..2850).contains(&second), "{first} and {second} bytes");
    // 2 ms of this path are more than all of it.
    assert!(segments_on_an_empty_path(50)[0] > 10_000);
}

/// Of two paths with one delay the faster one has a large message sooner.
#[test]
fn a_message_in_datagrams_takes_as_long_as_its_bytes() {
    let path = PathSnapshot { rate: Some(100_000), datagram: Some(ms(10)), ..idle(false) };
    let longer = path.message_arrival(10_000) - path.message_arrival(0);
    assert!(longer.abs_diff(ms(100)) < ms(1), "{longer:?}");
}

#[test]
fn names_are_read_back() {
    for kind in SchedulerKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    let error = "fastest".parse::<SchedulerKind>().unwrap_err();
    assert!(error.to_string().contains("earliest-arrival"), "{error}");
}

/// Bytes that each path carried, and what the stream got, when the client sends for `time`.
fn shares(kind: SchedulerKind, links: &[Link], time: Duration) -> (Vec<u64>, u64) {
    let config = Config { handover: HandoverMode::Full, scheduler: kind, ..Config::default() };
    let options = Options { client: config.clone(), server: config, ..Options::default() };
    let mut sim = Sim::over(options, links);
    let before: Vec<u64> = sim.client.paths().iter().map(|path| path.bytes_sent).collect();
    let id = sim.open(Side::Client).unwrap();
    let end = sim.now + time;
    let mut read = 0;
    while sim.now < end {
        while sim.write(Side::Client, id, 16 * 1024) > 0 {}
        sim.advance(ms(2));
        read += sim.read_all(Side::Server);
    }
    let after = sim.client.paths();
    (after.iter().zip(before).map(|(path, before)| path.bytes_sent - before).collect(), read)
}

#[test]
fn min_rtt_fills_the_shorter_path_first() {
    let links = [Link::new(8, 80), Link::new(8, 10)];
    let (sent, _) = shares(SchedulerKind::MinRtt, &links, secs(2));
    assert!(sent[1] > 1_500_000, "the short path is kept full: {sent:?}");
    // A trickle goes on the short path alone.
    let config = Config { handover: HandoverMode::Full, scheduler: SchedulerKind::MinRtt, ..wide_config() };
    let mut sim = Sim::over(Options { client: config.clone(), server: config, ..Options::default() }, &links);
    let before = sim.client.paths()[0].bytes_sent;
    let id = sim.open(Side::Client).unwrap();
    for _ in 0..50 {
        sim.write(Side::Client, id, 2000);
        sim.advance(ms(20));
    }
    assert_eq!(sim.read_all(Side::Server), 100_000);
    assert!(sim.client.paths()[0].bytes_sent - before < 2_000);
}

#[test]
fn round_robin_shares_evenly_among_paths_that_keep_up() {
    let links = [Link::new(50, 20), Link::new(50, 20), Link::new(50, 20)];
    let config =
        Config { handover: HandoverMode::Full, scheduler: SchedulerKind::RoundRobin, ..Config::default() };
    let mut sim = Sim::over(Options { client: config.clone(), server: config, ..Options::default() }, &links);
    let before: Vec<u64> = sim.client.paths().iter().map(|path| path.bytes_sent).collect();
    let id = sim.open(Side::Client).unwrap();
    for _ in 0..300 {
        sim.write(Side::Client, id, 10_000);
        sim.advance(ms(10));
        sim.read_all(Side::Server);
    }
    let paths = sim.client.paths();
    let sent: Vec<u64> = paths.iter().zip(before).map(|(path, before)| path.bytes_sent - before).collect();
    assert!(sent.iter().all(|n| n.abs_diff(1_000_000) < 50_000), "{sent:?}");
}

#[test]
fn redundant_sends_everything_on_every_path() {
    let links = [Link::new(20, 20), Link::new(20, 50)];
    let config =
        Config { handover: HandoverMode::Full, scheduler: SchedulerKind::Redundant, ..wide_config() };
    let mut sim = Sim::over(Options { client: config.clone(), server: config, ..Options::default() }, &links);
    let before: Vec<u64> = sim.client.paths().iter().map(|path| path.bytes_sent).collect();
    let id = sim.open(Side::Client).unwrap();
    for _ in 0..20 {
        sim.write(Side::Client, id, 5000);
        sim.advance(ms(100));
    }
    assert_eq!(sim.read_all(Side::Server), 100_000);
    let paths = sim.client.paths();
    let sent: Vec<u64> = paths.iter().zip(before).map(|(path, before)| path.bytes_sent - before).collect();
    assert!(sent.iter().all(|n| *n >= 100_000), "{sent:?}");
    let stats = sim.client.stats();
    assert_eq!(stats.stream_bytes_reinjected, stats.stream_bytes_resent);
    assert!((90_000..=110_000).contains(&stats.stream_bytes_resent), "{stats:?}");
}

#[test]
fn rate_proportional_shares_by_rate() {
    let links = [Link::new(30, 40), Link::new(10, 40)];
    let (sent, read) = shares(SchedulerKind::RateProportional, &links, secs(5));
    let ratio = sent[0] as f64 / sent[1] as f64;
    assert!((2.5..3.6).contains(&ratio), "{sent:?}");
    assert!(read > 20_000_000, "{read}");
}

#[test]
fn earliest_arrival_leaves_a_slow_path_idle_when_it_would_only_delay() {
    let links = [Link::new(20, 20), Link::new(1, 300)];
    let config = Config { handover: HandoverMode::Full, ..Config::default() };
    let mut sim = Sim::over(Options { client: config.clone(), server: config, ..Options::default() }, &links);
    let before = sim.client.paths()[1].bytes_sent;
    for _ in 0..20 {
        let id = sim.open(Side::Client).unwrap();
        sim.write(Side::Client, id, 50_000);
        sim.finish(Side::Client, id);
        sim.advance(ms(500));
        sim.read_all(Side::Server);
    }
    let slow = sim.client.paths()[1].bytes_sent - before;
    assert!(slow < 5_000, "{slow} bytes on the slow path");
    assert!(sim.client.stats().stream_bytes_resent < 10_000, "{:?}", sim.client.stats());
    // With enough to send it is used.
    let (sent, _) = shares(SchedulerKind::EarliestArrival, &links, secs(5));
    assert!(sent[1] > 400_000, "{sent:?}");
}
