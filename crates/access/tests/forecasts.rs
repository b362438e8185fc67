//! Forecasts from estimates, against times worked out by hand.
#![allow(clippy::unwrap_used)]

use crate::support::{Case, best, case, open};
use whimbrel_access::*;

/// When a choice would be complete if it were made at 1 s, in microseconds.
fn at(case: &Case, sharing: Sharing, choice: Choice) -> Option<f64> {
    let situation = Situation { now: Seconds(1.0), ..case.situation() };
    let completes = Analytic::new(situation, sharing, 1).completes(choice, Seconds::NEVER);
    completes.map(|at| (at.0 * 1e6).round())
}

/// A path of 100 ms and 1 MB/s with three objects on it, of which one is on an open connection; 1 MB comes.
fn shared() -> Case {
    let mut case = case("size-received=1000000", &[(0.1, 1e6), (0.02, 1e5)]);
    (case.paths[0].objects, case.paths[0].scheduled) = (3, 500_000);
    case.connections =
        vec![Connection { id: ConnectionId(1), paths: PathList::one(PathId(0)), scheduled: 250_000 }];
    case
}

#[test]
fn by_objects_a_rate_is_divided_as_in_the_paper() {
    let shared = shared();
    // Two round trips, and a quarter of the rate.
    assert_eq!(at(&shared, Sharing::Objects, Choice::open(PathId(0))), Some(1e6 + 2e5 + 4e6));
    // One round trip, and 1.25 MB at a third: the object before it on the connection does not compete.
    assert_eq!(at(&shared, Sharing::Objects, Choice::Reuse(ConnectionId(1))), Some(1e6 + 1e5 + 3.75e6));
    assert_eq!(at(&shared, Sharing::Objects, Choice::Reuse(ConnectionId(9))), None);
    assert_eq!(at(&shared, Sharing::Objects, Choice::open(PathId(7))), None);
    // An idle connection on the other path costs one round trip.
    assert_eq!(at(&shared, Sharing::Objects, Choice::open(PathId(1))), Some(1e6 + 4e4 + 1e7));
}

#[test]
fn by_objects_or_bytes_no_more_is_waited_for_than_there_is() {
    let shared = shared();
    // All that is there and this are 1.5 MB.
    assert_eq!(at(&shared, Sharing::ObjectsOrBytes, Choice::open(PathId(0))), Some(1e6 + 2e5 + 1.5e6));
    let reused = at(&shared, Sharing::ObjectsOrBytes, Choice::Reuse(ConnectionId(1)));
    assert_eq!(reused, Some(1e6 + 1e5 + 1.5e6));
    // A small object gets its share of a path that has a large one: 10 kB at half the rate.
    let mut large = case("size-received=10000", &[(0.1, 1e6)]);
    (large.paths[0].objects, large.paths[0].scheduled) = (1, 1_000_000_000);
    assert_eq!(at(&large, Sharing::ObjectsOrBytes, Choice::open(PathId(0))), Some(1e6 + 2e5 + 2e4));
}

#[test]
fn how_late_units_come_over_a_path_is_a_part_of_our_forecast_of_larger_ones_and_not_of_the_papers() {
    let late = |bytes: &str| {
        let mut case = case(&format!("size-received={bytes}"), &[(0.1, 1e6)]);
        case.paths[0].late = Seconds(2.0);
        [Sharing::Objects, Sharing::ObjectsOrBytes].map(|sharing| at(&case, sharing, Choice::open(PathId(0))))
    };
    assert_eq!(late("10000"), [Some(1e6 + 2e5 + 1e4); 2]);
    assert_eq!(late("1000000"), [Some(1e6 + 2e5 + 1e6), Some(1e6 + 2e5 + 1e6 + 2e6)]);
}

/// Three objects of a byte are on one path, one of 10 MB on the other.
#[test]
fn the_papers_policy_counts_objects_and_ours_also_bytes() {
    let mut case = case("size-received=1000000", &[(0.1, 1e6), (0.1, 1e6)]);
    (case.paths[0].objects, case.paths[0].scheduled) = (3, 3);
    (case.paths[1].objects, case.paths[1].scheduled) = (1, 10_000_000);
    assert_eq!(best(&case.by("eaf")), open(1));
    assert_eq!(best(&case.by("whimbrel")), open(0));
}

#[test]
fn what_is_sent_counts_at_the_rate_of_sending_and_is_divided_too() {
    let mut case = case("size-received=1000000 size-sent=100000", &[(0.1, 1e6)]);
    case.paths[0].up = Rates::idle(BytesPerSecond(1e5));
    assert_eq!(at(&case, Sharing::Objects, Choice::open(PathId(0))), Some(1e6 + 2e5 + 1e6 + 1e6));
    case.paths[0].objects = 1;
    assert_eq!(at(&case, Sharing::Objects, Choice::open(PathId(0))), Some(1e6 + 2e5 + 2e6 + 2e6));
}

#[test]
fn a_path_that_was_never_measured_counts_as_the_best_that_is_known() {
    let mut case = case("size-received=1000000", &[(0.1, 1e6), (0.02, 1e5)]);
    case.paths.push(PathEstimate::default());
    assert_eq!(at(&case, Sharing::Objects, Choice::open(PathId(2))), Some(1e6 + 4e4 + 1e6));
    // Nothing is known of any: the same modest guess for all.
    case.paths = vec![PathEstimate::default(); 2];
    assert_eq!(at(&case, Sharing::Objects, Choice::open(PathId(0))), Some(1e6 + 8e6));
    assert_eq!(at(&case, Sharing::Objects, Choice::open(PathId(1))), Some(1e6 + 8e6));
}

/// 10 MB/s is the best that is known, and 20 ms the shortest round trip: 1 MB takes 40 ms, and then what the
/// air makes of it.
#[test]
fn wifi_that_was_never_measured_counts_as_no_more_than_its_link_can_carry() {
    let mut case = case("size-received=1000000", &[(0.1, 1e7), (0.02, 1e5)]);
    case.paths.push(PathEstimate::default());
    let mut with = |rate: f64, busy: Option<f64>, objects: u32| {
        let radio = Radio { rate: Some(BytesPerSecond(rate)), busy, ..Radio::default() };
        (case.paths[2].radio, case.paths[2].objects) = (Some(radio), objects);
        at(&case, Sharing::Objects, Choice::open(PathId(2))).unwrap() - 1_040_000.0
    };
    // Three quarters of 4 MB/s; half of that where others use the channel for half of the time.
    assert_eq!(with(4e6, None, 0), 333_333.0);
    assert_eq!(with(4e6, Some(0.5), 0), 666_667.0);
    // A tenth of the time, however busy it is.
    assert_eq!(with(4e6, Some(1.0), 0), 3_333_333.0);
    // What keeps the channel busy may be the object that is on it already, with which this one shares.
    assert_eq!(with(4e6, Some(0.9), 1), 666_667.0);
    // It may carry more than what is known of others: nothing says that it does.
    assert_eq!(with(1e8, None, 0), 100_000.0);
    // Where nothing is known of any, the guess is bounded as well: 75 kB/s instead of 125.
    let radio = Radio { rate: Some(BytesPerSecond(1e5)), ..Radio::default() };
    case.paths = vec![PathEstimate { radio: Some(radio), ..PathEstimate::default() }];
    assert_eq!(at(&case, Sharing::Objects, Choice::open(PathId(0))), Some(1e6 + 13_333_333.0));
    // What was measured counts, whatever the driver says.
    case.paths[0].down.best = Some(BytesPerSecond(1e6));
    assert_eq!(at(&case, Sharing::Objects, Choice::open(PathId(0))), Some(1e6 + 1e6));
}

/// 1 MB is under way and complete at 11 s, if nothing changes: 100 kB/s from now, 1 s, on.
#[test]
fn moving_the_end_waits_for_what_stays_and_for_what_moves() {
    let mut case = case("size-received=1000000", &[(0.1, 1e5), (0.1, 1e6)]);
    case.connections =
        vec![Connection { id: ConnectionId(1), paths: PathList::one(PathId(0)), scheduled: 1_000_000 }];
    let situation = Situation { now: Seconds(1.0), ..case.situation() };
    let mut forecast = Analytic::new(situation, Sharing::Objects, 1);
    let under_way =
        UnderWay { connection: ConnectionId(1), left: 1_000_000, completes: Seconds(11.0), stands: false };
    let mut moved = |bytes| {
        let part = Part { choice: Choice::open(PathId(1)), bytes };
        forecast.completes_moved(&under_way, part, Seconds::NEVER).map(|at| (at.0 * 1e3).round())
    };
    // A tenth moves: nine tenths stay. All moves: two round trips and a second.
    assert_eq!(moved(100_000), Some(1e3 + 9e3));
    assert_eq!(moved(1_000_000), Some(1e3 + 2e2 + 1e3));
    assert_eq!(moved(1_000_001), None);
}

/// 2 Mbit/s at 10 ms and 20 Mbit/s at 100 ms, to a server with which a connection is open over each.
#[test]
fn over_a_far_and_fast_path_a_second_step_takes_longer_than_what_the_first_one_left_out() {
    let of = |bytes: u64| {
        let mut case = case(&format!("size-received={bytes}"), &[(0.01, 250_000.0), (0.1, 2_500_000.0)]);
        let idle = |id: u32, path: u8| Connection {
            id: ConnectionId(id),
            paths: PathList::one(PathId(path)),
            scheduled: 0,
        };
        case.connections = vec![idle(1, 0), idle(2, 1)];
        case
    };
    let over = |id, bytes| at(&of(bytes), Sharing::ObjectsOrBytes, Choice::Reuse(ConnectionId(id)));
    // An object of 100 kB: a round trip and 40 ms. In two steps it is two, with as much after both.
    assert_eq!(over(2, 100_000), Some(1e6 + 1e5 + 4e4));
    assert_eq!((over(2, 14_000), over(2, 86_000)), (Some(1e6 + 1e5 + 5.6e3), Some(1e6 + 1e5 + 3.44e4)));
    // The first step of one object is nearer. That of a second one at the same time would save 16 ms by the
    // way round, less than the margin, and that of a third one 72.
    let mut first = of(14_000);
    for (others, expected) in [(0, 1), (1, 1), (2, 2)] {
        (first.paths[0].objects, first.paths[0].scheduled) = (others, u64::from(others) * 14_000);
        assert_eq!(best(&first.by("whimbrel")), Some(Choice::Reuse(ConnectionId(expected))), "{others}");
    }
    // So what comes in a round trip there is asked for at once: more than the object.
    assert!(first.paths[1].in_a_round_trip().is_some_and(|bytes| bytes >= 100_000));
    assert!(first.paths[0].in_a_round_trip().is_some_and(|bytes| bytes < 14_000));
}
