//! `energy`: the radio that takes least energy, unless the unit would be much later.

use super::arrival::{Race, is_plain_on};
use crate::{Choice, Decision, Estimate, Forecast, PathId, Policy, Reason, Rule, Seconds, Situation};

/// Weighs the energy of a path's radio against the time it takes.
///
/// A cellular radio stays powered for seconds after each transfer, Wi-Fi hardly: what counts is to leave the dear radio
/// asleep. A path that carries something already costs nothing more to wake.
pub(crate) struct Energy {
    /// The energy of each path relative to the first, from its wake-up to its sleep; paths beyond the list count 10.
    pub(crate) cost: Vec<f64>,
    /// How many times as long a unit may take to save all the energy.
    pub(crate) patience: f64,
}

impl Policy for Energy {
    fn name(&self) -> &'static str {
        "energy"
    }

    fn decide(&mut self, situation: &Situation<'_>, forecast: &mut dyn Forecast, decision: &mut Decision) {
        let mut best: Option<(f64, PathId)> = None;
        for path in situation.usable() {
            let Some(arrival) = arrival_on(situation, forecast, path) else { continue };
            let takes = (arrival - situation.now).0.max(1e-6);
            let score = takes * (1.0 + self.patience * self.cost_of(situation, path));
            if best.is_none_or(|(least, _)| score < least) {
                best = Some((score, path));
            }
        }
        let Some((_, path)) = best else { return };
        let mut race = Race::new(forecast);
        super::arrival::enter_path(&mut race, situation, path);
        race.run(decision);
        decision.demote(Reason::rule(Rule::LeastEnergy).estimate(Estimate::Queue, path));
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

fn arrival_on(situation: &Situation<'_>, forecast: &mut dyn Forecast, path: PathId) -> Option<Seconds> {
    let mut best = forecast.completes(Choice::open(path), Seconds::NEVER);
    for connection in situation.connections.iter().filter(|connection| is_plain_on(path)(connection)) {
        let bound = best.unwrap_or(Seconds::NEVER);
        best = forecast.completes(Choice::Reuse(connection.id), bound).or(best);
    }
    best
}
