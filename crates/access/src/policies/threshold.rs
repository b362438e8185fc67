//! `threshold`: small units by latency, large ones by rate.

use super::arrival::{Race, enter_path};
use super::lowest_latency::fastest_to_answer;
use crate::{BytesPerSecond, Decision, Estimate, Forecast, Key, PathId, Policy, Reason, Rule, Situation};

/// Units below so many bytes take the path that answers fastest, others the one with the highest rate.
pub(crate) struct Threshold {
    pub(crate) bytes: u64,
}

impl Policy for Threshold {
    fn name(&self) -> &'static str {
        "threshold"
    }

    fn decide(&mut self, situation: &Situation<'_>, forecast: &mut dyn Forecast, decision: &mut Decision) {
        let is_small = situation.intents.size().is_some_and(|size| size < self.bytes);
        let chosen = if is_small {
            fastest_to_answer(situation)
                .map(|(path, reason)| (path, Reason { rule: Rule::BelowThreshold, ..reason }))
        } else {
            highest_rate(situation)
        };
        if let Some((path, reason)) = chosen {
            let mut race = Race::new(forecast);
            enter_path(&mut race, situation, path);
            race.run(decision);
            decision.demote(reason.intent(Key::SizeReceived));
        }
    }
}

/// One that was never measured counts as the highest, until a connection is there that will tell.
fn highest_rate(situation: &Situation<'_>) -> Option<(PathId, Reason)> {
    let rate = |path: PathId| {
        let estimate = &situation.paths[path.index()];
        let unknown = BytesPerSecond(if estimate.connections > 0 { 0.0 } else { f64::INFINITY });
        estimate.rate_max.unwrap_or(unknown)
    };
    // Of equals the first, as everywhere.
    let path = situation.usable().reduce(|best, path| if rate(path) > rate(best) { path } else { best })?;
    let explored = situation.paths[path.index()].rate_max.is_some();
    let rule = if explored { Rule::AboveThreshold } else { Rule::Explore };
    Some((path, Reason::rule(rule).estimate(Estimate::Rate, path)))
}
