//! `energy`: the radio that takes least energy, unless the unit would be much later.

use super::arrival::{Race, enter_path};
use crate::{Decision, Estimate, Forecast, PathId, Policy, Reason, Rule, Seconds, Situation};

/// Weighs the energy of a path's radio against the time it takes.
///
/// A cellular radio stays powered for seconds after each transfer, Wi-Fi hardly: what counts is to leave the
/// dear radio asleep. A path that carries something already costs nothing more to wake.
pub(crate) struct Energy {
    /// The energy of each path relative to the first, from its wake-up to its sleep; paths beyond the list
    /// count 10.
    pub(crate) cost: Vec<f64>,
    /// How many times as long a unit may take to save all the energy.
    pub(crate) patience: f64,
}

impl Policy for Energy {
    fn name(&self) -> &'static str {
        "energy"
    }

    fn decide(&mut self, situation: &Situation<'_>, forecast: &mut dyn Forecast, decision: &mut Decision) {
        let mut least = f64::INFINITY;
        let mut ranking = Decision::default();
        for path in situation.usable() {
            let dearer = 1.0 + self.patience * self.cost_of(situation, path);
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
        const UNKNOWN: f64 = 10.0;
        if situation.paths[path.index()].scheduled > 0 {
            return 0.0;
        }
        self.cost.get(path.index()).copied().unwrap_or(UNKNOWN)
    }
}
