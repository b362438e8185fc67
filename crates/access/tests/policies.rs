//! What each policy decides, and the reasons that it gives.
#![allow(clippy::unwrap_used)]

use crate::support::{Case, TWO, best, case, open, why};
use whimbrel_access::*;

#[test]
fn small_units_go_by_latency_and_large_ones_by_rate() {
    for name in ["eaf", "whimbrel"] {
        assert_eq!(best(&case("size-received=1000", &TWO).by(name)), open(0), "{name}");
        let large = case("size-received=1000000", &TWO).by(name);
        assert_eq!(best(&large), open(1), "{name}");
        assert_eq!(why(&large), (Rule::EarliestArrival, Some(Key::SizeReceived)), "{name}");
    }
}

#[test]
fn the_ranking_has_every_way_and_says_why_the_others_lost() {
    let decision = case("size-received=1000", &TWO).by("eaf");
    assert_eq!(decision.ranked().len(), 2);
    assert_eq!(decision.ranked()[1].reason.rule, Rule::ArrivesLater);
    assert_eq!(
        decision.ranked()[0].reason.to_string(),
        "completes first; intent size-received; estimate Rate of path 1"
    );
}

#[test]
fn an_open_connection_is_preferred_only_if_it_is_earlier() {
    let mut case = case("size-received=1000", &TWO);
    case.connections =
        vec![Connection { id: ConnectionId(1), paths: PathList::one(PathId(0)), scheduled: 0 }];
    assert_eq!(best(&case.by("single")), Some(Choice::Reuse(ConnectionId(1))));
    // A tie goes to the connection that is there: the new one must be strictly earlier.
    case.paths[0].srtt_min = Some(Seconds::ZERO);
    assert_eq!(best(&case.by("single")), Some(Choice::Reuse(ConnectionId(1))));
}

#[test]
fn paths_take_turns_and_reset_starts_again() {
    let case = case("size-received=1000", &TWO);
    let mut policy = PolicySpec::named("round-robin").build().unwrap();
    let turns: Vec<_> = (0..3).map(|_| best(&case.decide(policy.as_mut()))).collect();
    assert_eq!(turns, [open(0), open(1), open(0)]);
    policy.reset(0);
    assert_eq!(best(&case.decide(policy.as_mut())), open(0));
}

#[test]
fn random_multipath_depends_on_the_seed_alone() {
    let case = case("size-received=1000", &TWO);
    let mut policy = PolicySpec::named("mptcp").with("random", true).build().unwrap();
    let mut draw = |seed| {
        policy.reset(seed);
        (0..20).map(|_| best(&case.decide(policy.as_mut()))).collect::<Vec<_>>()
    };
    let first = draw(3);
    assert_eq!(first, draw(3));
    assert_ne!(first, draw(4));
    assert!(first.iter().any(|choice| *choice != first[0]), "never another order: {first:?}");
}

#[test]
fn multipath_combinations_compete_with_single_paths() {
    let decision = case("size-received=1000", &TWO).by("eaf-mptcp");
    // Two single paths and two orders of both. The near path alone takes 20 + 10 ms; begun there and moved at
    // both rates it takes 20 + 0.1 ms.
    assert_eq!(decision.ranked().len(), 4);
    let both = PathList::from_slice(&[PathId(0), PathId(1)]);
    assert_eq!(best(&decision), Some(Choice::open_on(both)));
    assert!(PolicySpec::named("eaf-mptcp").build().unwrap().needs_server_support());
}

#[test]
fn thresholds_part_small_from_large() {
    let spec = PolicySpec::from_toml("name = \"threshold\"\nbytes = 5000").unwrap();
    let mut policy = spec.build().unwrap();
    let small = case("size-received=4999", &TWO).decide(policy.as_mut());
    let large = case("size-received=5000", &TWO).decide(policy.as_mut());
    assert_eq!((best(&small), best(&large)), (open(0), open(1)));
    assert_eq!((why(&small).0, why(&large).0), (Rule::BelowThreshold, Rule::AboveThreshold));
}

#[test]
fn metered_paths_are_not_the_cheapest_while_there_are_others() {
    let metered = |which: &[usize]| {
        let mut case = case("size-received=1000000", &TWO);
        which.iter().for_each(|path| case.paths[*path].metered = true);
        case.by("cheapest")
    };
    assert_eq!(best(&metered(&[1])), open(0));
    assert_eq!(best(&metered(&[0, 1])), open(1));
}

/// The near path is fast and costs money, the far one is slow and free: too slow beside the other, but there
/// is no other.
#[test]
fn a_slow_free_path_is_used_if_the_fast_one_costs_money_and_nothing_may() {
    let mut case = case("size-received=1000000 cost=no-expense", &[(0.1, 1e4), (0.01, 1e7)]);
    case.paths[1].metered = true;
    for name in NAMES {
        let decision = case.by(name);
        assert_eq!(best(&decision), open(0), "{name}");
        assert_eq!(decision.ranked().len(), 1, "{name}");
        assert_eq!((decision.parts(), decision.warm()), (&[][..], None), "{name}");
    }
    let decision = case.by("whimbrel");
    assert_eq!(why(&decision), (Rule::TooExpensive, Some(Key::Cost)));
}

#[test]
fn no_connection_over_a_metered_path_is_reused_if_nothing_may_cost_money() {
    let mut case = case("size-received=1000 cost=no-expense", &TWO);
    case.paths[1].metered = true;
    let both = PathList::from_slice(&[PathId(0), PathId(1)]);
    case.connections = vec![Connection { id: ConnectionId(1), paths: both, scheduled: 0 }];
    for name in ["mptcp", "eaf-mptcp"] {
        assert_eq!(best(&case.by(name)), open(0), "{name}");
        let allowed = Case { intents: "size-received=1000".parse().unwrap(), ..copy(&case) };
        assert_eq!(best(&allowed.by(name)), Some(Choice::Reuse(ConnectionId(1))), "{name}");
    }
}

fn copy(case: &Case) -> Case {
    let Case { granularity, intents, paths, connections, destinations } = case;
    Case {
        granularity: *granularity,
        intents: *intents,
        paths: paths.clone(),
        connections: connections.clone(),
        destinations: destinations.clone(),
    }
}

#[test]
fn energy_leaves_the_costlier_radio_asleep_unless_it_is_awake() {
    let paths = [(0.05, 1e6), (0.04, 1e6)];
    let mut case = case("size-received=100000", &paths);
    assert_eq!(best(&case.by("energy")), open(0));
    case.paths[1].scheduled = 1;
    assert_eq!(best(&case.by("energy")), open(1));
}

#[test]
fn large_units_are_split_and_small_or_sensitive_ones_are_not() {
    let even = [(0.01, 1e6), (0.01, 1e6)];
    let parts = |intents: &str| case(intents, &even).by("whimbrel").parts().to_vec();
    let split = parts("size-received=1000000");
    assert_eq!(split.iter().map(|part| part.bytes).collect::<Vec<_>>(), [500_000, 500_000]);
    assert!(parts("size-received=1000").is_empty());
    assert!(parts("size-received=1000000 resilience=sensitive").is_empty());
    // Each part would send all of it again.
    assert!(parts("size-received=1000000 size-sent=1000000").is_empty());
}

#[test]
fn nothing_is_split_over_a_path_that_has_something_to_do_or_for_less_than_a_round_trip() {
    // It is there first over the first path, also behind as many bytes.
    let mut case = case("size-received=1000000", &[(0.01, 1e6), (0.05, 4e5)]);
    let all = [([0, 0], 2), ([1_000_000, 0], 2), ([1_000_001, 0], 0), ([0, 15_625], 2), ([0, 15_626], 0)];
    for (scheduled, parts) in all {
        for (path, scheduled) in case.paths.iter_mut().zip(scheduled) {
            (path.scheduled, path.objects) = (scheduled, u32::from(scheduled > 0));
        }
        assert_eq!(case.by("whimbrel").parts().len(), parts, "{scheduled:?}");
    }
    case.paths[1].scheduled = 0;
    // With a quarter over the second it is there after 0.77 s instead of 1.02. With an eighth behind round
    // trips of 300 ms it would be after 0.91.
    case.paths[1].srtt_min = Some(Seconds(0.3));
    assert_eq!(case.by("whimbrel").parts().len(), 0);
}

/// 1 MB is under way on the near path at 100 kB/s. The far path is free: `share` of it comes there after
/// 0.2 + share seconds, the rest here after 10 × (1 - share). Of the shares that are tried, 15/16 ends first.
#[test]
fn as_much_moves_to_a_free_path_as_lets_both_end_early() {
    let mut case = case("size-received=1000000", &[(0.01, 1e5), (0.1, 1e6)]);
    case.connections =
        vec![Connection { id: ConnectionId(1), paths: PathList::one(PathId(0)), scheduled: 1_000_000 }];
    (case.paths[0].scheduled, case.paths[0].objects, case.paths[0].connections) = (1_000_000, 1, 1);
    let reconsider = |completes: f64| {
        let mut policy = PolicySpec::named("whimbrel").build().unwrap();
        assert!(policy.reconsiders());
        let under_way = UnderWay {
            connection: ConnectionId(1),
            left: 1_000_000,
            completes: Seconds(completes),
            stands: false,
        };
        let mut forecast = Analytic::new(case.situation(), policy.sharing(), 1);
        let mut decision = Decision::default();
        policy.reconsider(&under_way, &case.situation(), &mut forecast, &mut decision);
        decision
    };
    let decision = reconsider(10.0);
    assert_eq!(decision.parts(), [Part { choice: Choice::open(PathId(1)), bytes: 937_500 }]);
    assert_eq!(decision.best().unwrap().completes, Some(Seconds(0.2 + 0.9375)));
    // What is nearly complete stays: over the far path, nothing comes within two round trips.
    assert!(reconsider(0.15).parts().is_empty());
}

#[test]
fn unmeasured_and_stale_paths_are_tried_not_shunned() {
    for name in ["lowest-latency", "threshold"] {
        let mut case = case("size-received=1000", &TWO);
        for unknown in
            [PathEstimate::default(), PathEstimate { age: Some(Seconds(STALE.0 + 1.0)), ..case.paths[1] }]
        {
            case.paths[1] = unknown;
            let decision = case.by(name);
            assert_eq!((best(&decision), why(&decision).0), (open(1), Rule::Explore), "{name}");
            // One that is being tried is enough.
            case.paths[1].connections = 1;
            assert_eq!(best(&case.by(name)), open(0), "{name}");
        }
    }
}

#[test]
fn small_units_explore_what_is_unknown_and_large_ones_wait_until_it_is_known() {
    let explored = (Rule::Explore, Some(Key::SizeReceived));
    let mut stale = case("size-received=1000", &TWO);
    stale.paths[1].age = Some(Seconds(STALE.0 + 1.0));
    let decision = stale.by("whimbrel");
    assert_eq!((best(&decision), why(&decision)), (open(1), explored));
    // If it fails, what is known is tried.
    assert_eq!(decision.ranked()[1].choice, Choice::open(PathId(0)));
    for (key, value) in [("connections", 1), ("objects", 1)] {
        let mut case = copy(&stale);
        match key {
            "connections" => case.paths[1].connections = value,
            _ => case.paths[1].objects = value,
        }
        assert_eq!(best(&case.by("whimbrel")), open(0), "{key} are about to tell");
    }
    stale.intents = "size-received=1000 timeliness=interactive".parse().unwrap();
    assert_eq!(best(&stale.by("whimbrel")), open(0), "somebody waits for it");
    stale.intents = "size-received=1000".parse().unwrap();
    stale.paths[1].metered = true;
    assert_eq!(best(&stale.by("whimbrel")), open(0), "it would cost money");

    let mut unknown = case("size-received=14600", &TWO);
    unknown.paths[1] = PathEstimate::default();
    let decision = unknown.by("whimbrel");
    assert_eq!((best(&decision), why(&decision)), (open(1), explored));
    unknown.intents = "size-received=14601".parse().unwrap();
    assert_eq!(best(&unknown.by("whimbrel")), open(0));
}

#[test]
fn a_path_that_does_not_lead_there_is_never_used() {
    let mut case = case("size-received=1000000", &TWO);
    case.destinations = vec![Destination { address: "192.0.2.1:443".parse().unwrap(), path: PathId(0) }];
    for name in NAMES {
        assert_eq!(
            best(&case.by(name)).map(|choice| format!("{choice}")),
            Some("open on path 1 to destination 1".into()),
            "{name}"
        );
    }
}

#[test]
fn each_way_has_a_destination_that_was_resolved_by_its_path_and_all_are_ranked() {
    let mut case = case("size-received=1000", &TWO);
    let to = |address: &str, path| Destination { address: address.parse().unwrap(), path: PathId(path) };
    case.destinations = vec![to("198.51.100.1:443", 1), to("[2001:db8::1]:443", 0), to("192.0.2.1:443", 0)];
    let way = |path, destination| Choice::open_to(PathId(path), DestinationId(destination));
    for name in ["eaf", "whimbrel"] {
        let decision = case.by(name);
        let ranked: Vec<Choice> = decision.ranked().iter().map(|ranked| ranked.choice).collect();
        // Of one path, in the resolver's order.
        assert_eq!(ranked[0], way(0, 1), "{name}");
        assert_eq!(ranked.len(), 3, "{name}: {ranked:?}");
        assert!(ranked.contains(&way(0, 2)) && ranked.contains(&way(1, 0)), "{name}: {ranked:?}");
    }
}

#[test]
fn a_whole_connection_is_never_an_old_one_and_only_messages_are_split() {
    let even = [(0.01, 1e6), (0.01, 1e6)];
    let mut case = case("size-received=1000000", &even);
    case.connections =
        vec![Connection { id: ConnectionId(1), paths: PathList::one(PathId(0)), scheduled: 0 }];
    for name in NAMES {
        case.granularity = Granularity::Connection;
        let decision = case.by(name);
        let opens = |ranked: &Ranked| matches!(ranked.choice, Choice::Open { .. });
        assert!(decision.ranked().iter().all(opens), "{name}");
        assert_eq!((decision.parts(), decision.warm()), (&[][..], None), "{name}");
        case.granularity = Granularity::Stream;
        assert!(case.by(name).parts().is_empty(), "{name}");
    }
    case.granularity = Granularity::Message;
    assert_eq!(best(&case.by("whimbrel")), Some(Choice::Reuse(ConnectionId(1))));
    assert_eq!(case.by("whimbrel").parts().len(), 2);
}

fn heard_at(signal: i8) -> Option<Radio> {
    Some(Radio { signal_dbm: Some(signal), ..Radio::default() })
}

/// 1 kB takes 30 ms over the near path and 200 ms over the far one.
#[test]
fn what_must_not_wait_or_break_leaves_wifi_that_is_about_to_go() {
    let over = |intents: &str, near: i8, far: Option<Radio>| {
        let mut case = case(&format!("size-received=1000 {intents}"), &TWO);
        (case.paths[0].radio, case.paths[1].radio) = (heard_at(near), far);
        case.by("whimbrel")
    };
    for (intents, key) in [
        ("timeliness=interactive", Key::Timeliness),
        ("timeliness=stream", Key::Timeliness),
        ("resilience=sensitive", Key::Resilience),
    ] {
        let decision = over(intents, -81, None);
        assert_eq!((best(&decision), why(&decision)), (open(1), (Rule::Stays, Some(key))), "{intents}");
        assert!(decision.ranked().iter().all(|way| Some(way.choice) != open(0)), "{intents}");
        // At the level it is good still, and where both are about to go none is left for that.
        assert_eq!(best(&over(intents, -80, None)), open(0), "{intents}");
        let both = over(intents, -81, heard_at(-90));
        assert_eq!((best(&both), why(&both).0), (open(0), Rule::EarliestArrival), "{intents}");
    }
    for intents in ["", "timeliness=transfer", "timeliness=background", "resilience=resilient"] {
        assert_eq!(best(&over(intents, -81, None)), open(0), "{intents}");
    }
}

#[test]
fn an_open_connection_over_wifi_that_is_about_to_go_is_not_used_for_what_must_not_wait() {
    let reused = Some(Choice::Reuse(ConnectionId(1)));
    for (intents, expected) in [("timeliness=interactive", open(1)), ("timeliness=transfer", reused)] {
        let mut case = case(&format!("size-received=1000 {intents}"), &TWO);
        case.paths[0].radio = heard_at(-81);
        case.connections =
            vec![Connection { id: ConnectionId(1), paths: PathList::one(PathId(0)), scheduled: 0 }];
        assert_eq!(best(&case.by("whimbrel")), expected, "{intents}");
    }
}

/// Nothing is known of the first path, so that it counts as the second one: 200 ms and a second for 1 MB, and
/// of equals the first one wins. Of 1 MB/s through the air programs get 750 kB/s: 200 ms and 1.33 s.
#[test]
fn wifi_that_was_never_measured_is_not_hoped_to_be_faster_than_its_link() {
    let mut case = case("size-received=1000000", &[(0.1, 1e6), (0.1, 1e6)]);
    case.paths[0] = PathEstimate::default();
    assert_eq!(best(&case.by("eaf")), open(0));
    let radio = |rate: f64| Some(Radio { rate: Some(BytesPerSecond(rate)), ..Radio::default() });
    case.paths[0].radio = radio(1e6);
    assert_eq!(best(&case.by("eaf")), open(1));
    // 1.5 MB/s would do for it.
    case.paths[0].radio = radio(2e6);
    assert_eq!(best(&case.by("eaf")), open(0));
}
