//! What holds for every policy in every situation.
#![allow(clippy::unwrap_used)]

use crate::support::{Case, intents};
use proptest::prelude::*;
use whimbrel_access::*;

prop_compose! {
    fn rates()(best in proptest::option::of(1e3..1e9), used in 0.0..1.5f64) -> Rates {
        Rates { now: best.map(|best: f64| BytesPerSecond(best * used)), best: best.map(BytesPerSecond) }
    }
}

prop_compose! {
    fn radio()(
        signal_dbm in proptest::option::of(-100..0i8), rate in proptest::option::of(1e3..1e9f64),
        busy in proptest::option::of(0.0..=1.0f64),
    ) -> Radio {
        Radio { signal_dbm, rate: rate.map(BytesPerSecond), busy }
    }
}

prop_compose! {
    fn path()(
        rtt in proptest::option::of(0.0..2.0f64), jitter in 0.0..1.0f64, down in rates(), up in rates(),
        connections in 0..3u32, objects in 0..3u32, scheduled in 0..10_000_000u64,
        loss in proptest::option::of(0.0..0.5f64), metered in any::<bool>(),
        age in proptest::option::of(0.0..200.0f64), link in proptest::option::of(radio()),
        late in 0.0..2.0f64,
    ) -> PathEstimate {
        PathEstimate {
            srtt_min: rtt.map(Seconds), srtt_median: rtt.map(|rtt| Seconds(rtt + jitter)), down, up, connections,
            objects, scheduled, loss, metered, age: age.map(Seconds), radio: link,
            late: Seconds(late),
        }
    }
}

fn list(paths: usize) -> impl Strategy<Value = PathList> {
    proptest::sample::subsequence((0..paths as u8).map(PathId).collect::<Vec<_>>(), 1..=paths)
        .prop_map(|ids| PathList::from_slice(&ids))
}

fn situation() -> impl Strategy<Value = Case> {
    let granularity =
        proptest::sample::select(&[Granularity::Connection, Granularity::Stream, Granularity::Message][..]);
    (
        proptest::collection::vec(path(), 1..5),
        intents(proptest::array::uniform5(proptest::option::of(0..100_000_000u64))),
        granularity,
    )
        .prop_flat_map(|(paths, intents, granularity)| {
            let connections = proptest::collection::vec((list(paths.len()), 0..1_000_000u64), 0..4);
            let destinations = proptest::collection::vec(0..paths.len() as u8, 0..4);
            (connections, destinations).prop_map(move |(connections, destinations)| Case {
                granularity,
                intents,
                paths: paths.clone(),
                connections: (1..)
                    .zip(connections)
                    .map(|(id, (paths, scheduled))| Connection { id: ConnectionId(id), paths, scheduled })
                    .collect(),
                destinations: destinations
                    .iter()
                    .map(|path| Destination {
                        address: "192.0.2.1:443".parse().unwrap(),
                        path: PathId(*path),
                    })
                    .collect(),
            })
        })
}

/// Every way in a decision: ranked, as a part, or to be warmed up.
fn ways(decision: &Decision) -> Vec<Choice> {
    let ranked = decision.ranked().iter().map(|ranked| ranked.choice);
    ranked.chain(decision.parts().iter().map(|part| part.choice)).chain(decision.warm()).collect()
}

fn assert_allowed(case: &Case, choice: Choice) -> Result<(), TestCaseError> {
    let paths = match choice {
        Choice::Open { paths, destination } => {
            let led = destination.map(|number| case.destinations[usize::from(number.0)].path);
            prop_assert_eq!(led, (!case.destinations.is_empty()).then_some(paths.first()));
            paths
        }
        Choice::Reuse(id) => {
            prop_assert_ne!(case.granularity, Granularity::Connection);
            case.connections.iter().find(|connection| connection.id == id).unwrap().paths
        }
    };
    if case.intents.cost() == Cost::NoExpense {
        prop_assert!(paths.as_slice().iter().all(|path| !case.paths[path.index()].metered), "{choice}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_unit_waits_only_if_there_is_no_way_and_never_costs_what_it_may_not(case in situation()) {
        let usable: Vec<PathId> = case.situation().usable().collect();
        for name in NAMES {
            let decision = case.by(name);
            let wanted = match *name {
                "single" => usable.contains(&PathId(0)),
                _ => !usable.is_empty(),
            };
            prop_assert!(!wanted || decision.best().is_some(), "{} decides nothing", name);
            for choice in ways(&decision) {
                assert_allowed(&case, choice)?;
            }
            let total: u64 = decision.parts().iter().map(|part| part.bytes).sum();
            prop_assert!(decision.parts().is_empty() || Some(total) == case.intents.size_received, "{}", name);
        }
    }

    #[test]
    fn no_more_moves_than_there_is(
        case in situation(), left in 1..10_000_000u64, completes in 0.0..100.0f64, stands in any::<bool>(),
    ) {
        let Some(&connection) = case.connections.first() else { return Ok(()) };
        let under_way = UnderWay { connection: connection.id, left, completes: Seconds(completes), stands };
        let case = Case { intents: Intents { size_received: Some(left), ..case.intents }, ..case };
        for name in NAMES {
            let mut policy = PolicySpec::named(name).build().unwrap();
            let mut forecast = Analytic::new(case.situation(), policy.sharing(), 1);
            let mut decision = Decision::default();
            policy.reconsider(&under_way, &case.situation(), &mut forecast, &mut decision);
            for part in decision.parts() {
                prop_assert!(part.bytes <= left);
                prop_assert_ne!(part.choice, Choice::Reuse(connection.id));
                assert_allowed(&case, part.choice)?;
            }
        }
    }
}
