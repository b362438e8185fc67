//! `lowest-latency`: the path that answers fastest.

use super::arrival::{Race, enter_path};
use crate::{Decision, Estimate, Forecast, PathId, Policy, Reason, Rule, Seconds, Situation};

/// Always takes the path with the smallest round-trip time. One that was not measured lately counts as
/// fastest, once: using it measures it.
#[derive(Default)]
pub(super) struct LowestLatency;

/// The usable path with the smallest round-trip time, and why.
pub(super) fn fastest_to_answer(situation: &Situation<'_>) -> Option<(PathId, Reason)> {
    let rtt = |path: PathId| {
        let estimate = &situation.paths[path.index()];
        // A connection that is just being opened will tell; more of them would not tell more.
        let untried = if estimate.needs_exploring() { Seconds::ZERO } else { Seconds::NEVER };
        estimate.srtt_min.filter(|_| !estimate.needs_exploring()).unwrap_or(untried)
    };
    let path = situation.usable().min_by(|a, b| rtt(*a).0.total_cmp(&rtt(*b).0))?;
    let explores = situation.paths[path.index()].needs_exploring();
    let rule = if explores { Rule::Explore } else { Rule::LowestLatency };
    Some((path, Reason::rule(rule).estimate(Estimate::RoundTrip, path)))
}

impl Policy for LowestLatency {
    fn name(&self) -> &str {
        "lowest-latency"
    }

    fn decide(&mut self, situation: &Situation<'_>, forecast: &mut dyn Forecast, decision: &mut Decision) {
        if let Some((path, reason)) = fastest_to_answer(situation) {
            let mut race = Race::new(forecast);
            enter_path(&mut race, situation, path);
            race.run(decision);
            decision.demote(reason);
        }
    }
}
