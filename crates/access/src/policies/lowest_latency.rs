//! `lowest-latency`: the path that answers fastest.

use super::arrival::{Race, enter_path};
use crate::{Decision, Estimate, Forecast, PathId, Policy, Reason, Rule, Seconds, Situation};

/// Always takes the path with the smallest round-trip time. One that was never measured counts as fastest,
/// once: using it measures it.
pub(crate) struct LowestLatency;

/// The path with the smallest round-trip time, and why.
pub(super) fn fastest_to_answer(situation: &Situation<'_>) -> Option<(PathId, Reason)> {
    let rtt = |path: PathId| {
        let estimate = &situation.paths[path.index()];
        // A connection that is just being opened will tell; more of them would not tell more.
        let unknown = if estimate.connections > 0 { Seconds::NEVER } else { Seconds::ZERO };
        estimate.srtt_min.unwrap_or(unknown)
    };
    let path = situation.usable().min_by(|a, b| rtt(*a).0.total_cmp(&rtt(*b).0))?;
    let explored = situation.paths[path.index()].srtt_min.is_some();
    let rule = if explored { Rule::LowestLatency } else { Rule::Explore };
    Some((path, Reason::rule(rule).estimate(Estimate::RoundTrip, path)))
}

impl Policy for LowestLatency {
    fn name(&self) -> &'static str {
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
