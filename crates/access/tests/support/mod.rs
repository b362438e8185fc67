//! Situations, and what policies decide in them by forecasts from estimates.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use whimbrel_access::*;

/// Near and slow; far and fast: round-trip time in seconds, rate in bytes per second.
pub(crate) const TWO: [(f64, f64); 2] = [(0.01, 1e5), (0.1, 1e7)];

#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) granularity: Granularity,
    pub(crate) intents: Intents,
    pub(crate) paths: Vec<PathEstimate>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) destinations: Vec<Destination>,
}

/// A message over paths that are known exactly and idle.
pub(crate) fn case(intents: &str, paths: &[(f64, f64)]) -> Case {
    Case {
        granularity: Granularity::Message,
        intents: intents.parse().unwrap(),
        paths: paths
            .iter()
            .map(|(rtt, rate)| PathEstimate::known(Seconds(*rtt), BytesPerSecond(*rate)))
            .collect(),
        connections: Vec::new(),
        destinations: Vec::new(),
    }
}

/// The same for a stream.
pub(crate) fn stream(intents: &str, paths: &[(f64, f64)]) -> Case {
    Case { granularity: Granularity::Stream, ..case(intents, paths) }
}

impl Case {
    pub(crate) fn situation(&self) -> Situation<'_> {
        Situation {
            now: Seconds::ZERO,
            granularity: self.granularity,
            intents: &self.intents,
            paths: &self.paths,
            destinations: &self.destinations,
            connections: &self.connections,
        }
    }

    pub(crate) fn decide(&self, policy: &mut dyn Policy) -> Decision {
        let mut forecast = Analytic::new(self.situation(), policy.sharing(), 1);
        let mut decision = Decision::default();
        policy.decide(&self.situation(), &mut forecast, &mut decision);
        decision
    }

    pub(crate) fn by(&self, name: &str) -> Decision {
        self.decide(PolicySpec::named(name).build().unwrap().as_mut())
    }
}

pub(crate) fn open(path: u8) -> Option<Choice> {
    Some(Choice::open(PathId(path)))
}

pub(crate) fn best(decision: &Decision) -> Option<Choice> {
    decision.best().map(|best| best.choice)
}

/// The rule and the intent by which the best choice is the best.
pub(crate) fn why(decision: &Decision) -> (Rule, Option<Key>) {
    let reason = decision.best().unwrap().reason;
    (reason.rule, reason.intent)
}

fn pick<T: Copy + std::fmt::Debug>(all: &'static [T]) -> impl Strategy<Value = Option<T>> {
    proptest::option::of(proptest::sample::select(all))
}

/// Any intents, with such numbers.
pub(crate) fn intents(numbers: impl Strategy<Value = [Option<u64>; 5]>) -> impl Strategy<Value = Intents> {
    let words = (
        pick(Category::ALL),
        pick(Burstiness::ALL),
        pick(Timeliness::ALL),
        pick(Resilience::ALL),
        pick(Cost::ALL),
    );
    (words, numbers).prop_map(|((category, burstiness, timeliness, resilience, cost), numbers)| {
        let [size_sent, size_received, duration, bitrate_sent, bitrate_received] = numbers;
        Intents {
            category,
            size_sent,
            size_received,
            duration,
            bitrate_sent,
            bitrate_received,
            burstiness,
            timeliness,
            resilience,
            cost,
        }
    })
}
