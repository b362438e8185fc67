//! What each policy decides, and the reasons that it gives.
#![allow(clippy::unwrap_used)]

use whimbrel_access::*;

/// Foretells from what a test says about each path: round trips and rate, nothing else.
struct Simple(Vec<(f64, f64)>, f64);

impl Simple {
    fn path(&self, choice: Choice) -> (usize, f64) {
        match choice {
            Choice::Open(paths) => (paths.first().index(), 2.0),
            // Connection n runs on path n - 1.
            Choice::Reuse(id) => (id.0 as usize - 1, 1.0),
        }
    }

    fn after(&self, choice: Choice, bytes: f64) -> f64 {
        let (path, trips) = self.path(choice);
        let (rtt, rate) = self.0[path];
        trips * rtt + bytes / rate
    }
}

impl Forecast for Simple {
    fn completes(&mut self, choice: Choice, bound: Seconds) -> Option<Seconds> {
        let at = Seconds(self.after(choice, self.1));
        (at < bound).then_some(at)
    }

    fn completes_split(&mut self, parts: &[Part], bound: Seconds) -> Option<Seconds> {
        let times = parts.iter().map(|part| self.after(part.choice, part.bytes as f64));
        let at = Seconds(times.fold(0.0, f64::max));
        (at < bound).then_some(at)
    }
}

struct Case {
    intents: Intents,
    paths: Vec<PathEstimate>,
    connections: Vec<Connection>,
    destinations: Vec<Destination>,
}

fn case(intents: &str, paths: &[(f64, f64)]) -> Case {
    Case {
        intents: intents.parse().unwrap(),
        paths: paths
            .iter()
            .map(|(rtt, rate)| PathEstimate::known(Seconds(*rtt), BytesPerSecond(*rate)))
            .collect(),
        connections: Vec::new(),
        destinations: Vec::new(),
    }
}

impl Case {
    fn decide(&self, policy: &mut dyn Policy) -> Decision {
        let mut forecast = Simple(
            self.paths
                .iter()
                .map(|p| (p.srtt_min.map_or(0.05, |s| s.0), p.rate_max.map_or(1e6, |r| r.0)))
                .collect(),
            self.intents.size().unwrap_or(1) as f64,
        );
        let mut decision = Decision::default();
        let situation = Situation {
            now: Seconds::ZERO,
            intents: &self.intents,
            paths: &self.paths,
            destinations: &self.destinations,
            connections: &self.connections,
        };
        policy.decide(&situation, &mut forecast, &mut decision);
        decision
    }

    fn by(&self, name: &str) -> Decision {
        self.decide(PolicySpec::named(name).build().unwrap().as_mut())
    }
}

fn open(path: u8) -> Option<Choice> {
    Some(Choice::open(PathId(path)))
}

fn best(decision: &Decision) -> Option<Choice> {
    decision.best().map(|best| best.choice)
}

/// Near and slow, far and fast.
const TWO: [(f64, f64); 2] = [(0.01, 1e5), (0.1, 1e7)];

#[test]
fn small_units_go_by_latency_and_large_ones_by_rate() {
    for name in ["eaf", "whimbrel"] {
        assert_eq!(best(&case("size-received=1000", &TWO).by(name)), open(0), "{name}");
        let large = case("size-received=1000000", &TWO).by(name);
        assert_eq!(best(&large), open(1), "{name}");
        let reason = large.best().unwrap().reason;
        assert_eq!((reason.rule, reason.intent), (Rule::EarliestArrival, Some(Key::SizeReceived)), "{name}");
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
    let spec = PolicySpec { random: true, ..PolicySpec::named("mptcp") };
    let mut policy = spec.build().unwrap();
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
    let mut forecast = Simple(TWO.to_vec(), 1000.0);
    let case = case("size-received=1000", &TWO);
    let mut decision = Decision::default();
    let situation = Situation {
        now: Seconds::ZERO,
        intents: &case.intents,
        paths: &case.paths,
        destinations: &[],
        connections: &[],
    };
    let mut policy = PolicySpec::named("eaf-mptcp").build().unwrap();
    policy.decide(&situation, &mut forecast, &mut decision);
    // Two single paths and two orders of both; of equals the single one wins.
    assert_eq!(decision.ranked().len(), 4);
    assert_eq!(best(&decision), open(0));
    assert!(policy.needs_server_support());
}

#[test]
fn thresholds_part_small_from_large() {
    let spec = PolicySpec::from_toml("name = \"threshold\"\nbytes = 5000").unwrap();
    let mut policy = spec.build().unwrap();
    let small = case("size-received=4999", &TWO).decide(policy.as_mut());
    let large = case("size-received=5000", &TWO).decide(policy.as_mut());
    assert_eq!((best(&small), best(&large)), (open(0), open(1)));
    assert_eq!(small.best().unwrap().reason.rule, Rule::BelowThreshold);
    assert_eq!(large.best().unwrap().reason.rule, Rule::AboveThreshold);
}

#[test]
fn money_is_spent_only_as_far_as_allowed() {
    let metered = |intents: &str, which: &[usize]| {
        let mut case = case(intents, &TWO);
        which.iter().for_each(|path| case.paths[*path].metered = true);
        case
    };
    let large = "size-received=1000000";
    assert_eq!(best(&metered(large, &[1]).by("cheapest")), open(0));
    assert_eq!(best(&metered(large, &[0, 1]).by("cheapest")), open(1));
    assert_eq!(best(&metered(&format!("{large} cost=no-expense"), &[0, 1]).by("cheapest")), None);
    let policy = "whimbrel";
    assert_eq!(best(&metered(&format!("{large} cost=no-expense"), &[1]).by(policy)), open(0));
    assert_eq!(best(&metered(&format!("{large} cost=no-expense"), &[0, 1]).by(policy)), None);
    assert_eq!(best(&metered(&format!("{large} cost=optimise"), &[0, 1]).by(policy)), open(1));
    assert_eq!(best(&metered(&format!("{large} cost=ignore"), &[1]).by(policy)), open(1));
    let reason = metered(&format!("{large} cost=optimise"), &[1]).by(policy).best().unwrap().reason;
    assert_eq!((reason.rule, reason.intent), (Rule::Cheapest, Some(Key::Cost)));
}

#[test]
fn energy_leaves_the_dear_radio_asleep_unless_it_is_awake() {
    let paths = [(0.05, 1e6), (0.04, 1e6)];
    let mut case = case("size-received=100000", &paths);
    assert_eq!(best(&case.by("energy")), open(0));
    case.paths[1].scheduled = 1;
    assert_eq!(best(&case.by("energy")), open(1));
}

#[test]
fn sensitive_and_background_units_choose_their_paths() {
    let mut lossy = case("size-received=1000000 resilience=sensitive", &TWO);
    lossy.paths[1].loss = Some(0.05);
    let decision = lossy.by("whimbrel");
    assert_eq!(best(&decision), open(0));
    assert_eq!(decision.best().unwrap().reason.intent, Some(Key::Resilience));
    let mut busy = case("size-received=1000000 timeliness=background", &TWO);
    busy.paths[1].scheduled = 5000;
    assert_eq!(best(&busy.by("whimbrel")), open(0));
}

#[test]
fn large_units_are_split_and_small_or_sensitive_ones_are_not() {
    let even = [(0.01, 1e6), (0.01, 1e6)];
    let parts = |intents: &str| case(intents, &even).by("whimbrel").parts().to_vec();
    let split = parts("size-received=1000000");
    assert_eq!(split.iter().map(|part| part.bytes).collect::<Vec<_>>(), [500_000, 500_000]);
    assert!(parts("size-received=1000").is_empty());
    assert!(parts("size-received=1000000 resilience=sensitive").is_empty());
}

#[test]
fn unmeasured_paths_are_tried_not_shunned() {
    for name in ["lowest-latency", "threshold"] {
        let mut case = case("size-received=1000", &TWO);
        case.paths[1] = PathEstimate::default();
        let decision = case.by(name);
        assert_eq!(best(&decision), open(1), "{name}");
        // One that is being tried is enough.
        case.paths[1].connections = 1;
        assert_eq!(best(&case.by(name)), open(0), "{name}");
    }
}

#[test]
fn a_path_that_does_not_lead_there_is_never_used() {
    let mut case = case("size-received=1000000", &TWO);
    case.destinations = vec![Destination { address: "192.0.2.1:443".parse().unwrap(), path: PathId(0) }];
    for name in NAMES {
        assert_eq!(
            best(&case.by(name)).map(|choice| format!("{choice}")),
            Some("open on path 1".into()),
            "{name}"
        );
    }
}

#[test]
fn policies_are_made_by_name_and_errors_say_what_there_is() {
    for name in NAMES {
        assert_eq!(PolicySpec::named(name).build().unwrap().name(), *name);
    }
    let error = |text: &str| PolicySpec::from_toml(text).unwrap_err().to_string();
    assert!(error("name = \"best\"").starts_with("there is no policy `best`; there are: single round-robin"));
    assert_eq!(
        error("name = \"single\"\npath = 0"),
        "policy single: path 0 is out of range; paths count from 1 to 8"
    );
    assert!(error("name = \"single\"\nspeed = 1").contains("speed"));
}

#[test]
fn forecasts_from_estimates_count_trips_queues_and_hope() {
    let mut case = case("size-received=1000000", &[(0.1, 1e6), (0.02, 1e5)]);
    case.paths[0].scheduled = 500_000;
    case.connections =
        vec![Connection { id: ConnectionId(1), paths: PathList::one(PathId(0)), scheduled: 500_000 }];
    let at = |case: &Case, choice| {
        let situation = Situation {
            now: Seconds(1.0),
            intents: &case.intents,
            paths: &case.paths,
            destinations: &[],
            connections: &case.connections,
        };
        Analytic::new(situation, 1).completes(choice, Seconds::NEVER).map(|at| (at.0 * 1e6).round() / 1e6)
    };
    assert_eq!(at(&case, Choice::open(PathId(0))), Some(1.0 + 0.2 + 1.5));
    assert_eq!(at(&case, Choice::Reuse(ConnectionId(1))), Some(1.0 + 0.1 + 1.5));
    assert_eq!(at(&case, Choice::Reuse(ConnectionId(9))), None);
    // A path that was never measured counts as the best of all: it is tried.
    case.paths[1] = PathEstimate::default();
    assert_eq!(at(&case, Choice::open(PathId(1))), Some(1.0 + 0.2 + 1.0));
}
