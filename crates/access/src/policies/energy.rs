//! `energy`: the radio that takes least energy, unless the unit would be much later.

use super::arrival::{Race, enter_path};
use super::settings::{self, sensible};
use crate::{Decision, Estimate, Forecast, MAX_PATHS, PathId, Policy, Reason, Rule, Seconds, Situation};
use serde::Deserialize;

/// Weighs the energy of a path's radio against the time it takes.
///
/// A cellular radio stays powered for seconds after each transfer, Wi-Fi hardly: what counts is to leave the
/// expensive radio asleep. A path that carries something already costs nothing more to wake.
struct Energy {
    settings: Settings,
}

/// What the radios cost, and what they may.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Settings {
    /// The energy of each path relative to the first, from its wake-up to its sleep; paths beyond the list
    /// count [`UNKNOWN`].
    energy: Vec<f64>,
    /// How many times as long a unit may take to save the energy of 1.
    patience: f64,
}

impl Default for Settings {
    /// Wi-Fi and LTE: an LTE radio takes several times the energy of Wi-Fi for a transfer of a few hundred
    /// kilobytes, most of it after the last byte. What a user would wait for it is a matter of taste.
    fn default() -> Self {
        Self { energy: vec![1.0, 5.0], patience: 0.2 }
    }
}

impl settings::Settings for Settings {
    fn make(self) -> Result<Box<dyn Policy>, String> {
        let possible = |number: f64| number.is_finite() && number >= 0.0;
        sensible(self.energy.len() <= MAX_PATHS, || format!("energy: there are at most {MAX_PATHS} paths"))?;
        sensible(self.energy.iter().copied().all(possible), || "energy: numbers from 0 on".to_owned())?;
        sensible(possible(self.patience), || "patience: a number from 0 on".to_owned())?;
        Ok(Box::new(Energy { settings: self }))
    }
}

/// The energy of a path of which nothing is said: more than that of every radio that one would name.
const UNKNOWN: f64 = 10.0;

impl Policy for Energy {
    fn name(&self) -> &str {
        "energy"
    }

    fn decide(&mut self, situation: &Situation<'_>, forecast: &mut dyn Forecast, decision: &mut Decision) {
        let mut least = f64::INFINITY;
        let mut ranking = Decision::default();
        for path in situation.usable() {
            let dearer = 1.0 + self.settings.patience * self.cost_of(situation, path);
            // What completes later scores worse than the best so far; rounding must not hide what scores
            // better.
            let latest = Seconds((situation.now.0 + least / dearer) * (1.0 + 1e-9));
            let mut race = Race::new(forecast);
            enter_path(&mut race, situation, path);
            ranking.clear();
            race.run_until(latest, &mut ranking);
            let Some(completes) = ranking.best().and_then(|best| best.completes) else { continue };
            let score = (completes - situation.now).0.max(1e-6) * dearer;
            if score >= least {
                continue;
            }
            least = score;
            std::mem::swap(decision, &mut ranking);
            decision.demote(Reason::rule(Rule::LeastEnergy).estimate(Estimate::Queue, path));
        }
    }
}

impl Energy {
    fn cost_of(&self, situation: &Situation<'_>, path: PathId) -> f64 {
        if situation.paths[path.index()].scheduled > 0 {
            return 0.0;
        }
        self.settings.energy.get(path.index()).copied().unwrap_or(UNKNOWN)
    }
}
