//! `threshold`: small units by latency, large ones by rate.

use super::arrival::{Race, enter_path};
use super::lowest_latency::fastest_to_answer;
use super::settings::{self, sensible};
use crate::{BytesPerSecond, Decision, Estimate, Forecast, Key, PathId, Policy, Reason, Rule, Situation};
use serde::Deserialize;

/// What counts as large.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Settings {
    /// Units of at least so many bytes go by rate.
    bytes: u64,
}

impl Default for Settings {
    /// 100 kB: some 80 ms at 10 Mbit/s, where the rate begins to count for more than a round trip.
    fn default() -> Self {
        Self { bytes: 100_000 }
    }
}

impl settings::Settings for Settings {
    fn make(self) -> Result<Box<dyn Policy>, String> {
        sensible(self.bytes > 0, || "bytes = 0: then nothing is small; use another policy".to_owned())?;
        Ok(Box::new(Threshold { bytes: self.bytes }))
    }
}

/// Units below so many bytes take the path that answers fastest, others the one with the highest rate.
struct Threshold {
    bytes: u64,
}

impl Policy for Threshold {
    fn name(&self) -> &str {
        "threshold"
    }

    fn decide(&mut self, situation: &Situation<'_>, forecast: &mut dyn Forecast, decision: &mut Decision) {
        let is_small = situation.intents.size().is_some_and(|size| size < self.bytes);
        let chosen = if is_small {
            fastest_to_answer(situation)
                .map(|(path, reason)| (path, Reason { rule: below(reason.rule), ..reason }))
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

/// Exploring is told as such.
fn below(rule: Rule) -> Rule {
    if rule == Rule::Explore { rule } else { Rule::BelowThreshold }
}

/// One that was not measured lately counts as the highest, until a connection is there that will tell.
fn highest_rate(situation: &Situation<'_>) -> Option<(PathId, Reason)> {
    let rate = |path: PathId| {
        let estimate = &situation.paths[path.index()];
        let untried = BytesPerSecond(if estimate.needs_exploring() { f64::INFINITY } else { 0.0 });
        estimate.down.best.filter(|_| !estimate.needs_exploring()).unwrap_or(untried)
    };
    // Of equals the first, as everywhere.
    let path = situation.usable().reduce(|best, path| if rate(path) > rate(best) { path } else { best })?;
    let explores = situation.paths[path.index()].needs_exploring();
    let rule = if explores { Rule::Explore } else { Rule::AboveThreshold };
    Some((path, Reason::rule(rule).estimate(Estimate::Rate, path)))
}
