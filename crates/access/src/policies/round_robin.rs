//! `round-robin`: the paths take turns.

use super::arrival::{Race, enter_path};
use crate::{Decision, Forecast, Policy, Situation};

/// Each decision takes the next path, whatever is on it.
pub(crate) struct RoundRobin {
    first: usize,
    turn: usize,
}

impl RoundRobin {
    pub(crate) fn new(first: usize) -> Self {
        Self { first, turn: first }
    }
}

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "round-robin"
    }

    fn decide(&mut self, situation: &Situation<'_>, forecast: &mut dyn Forecast, decision: &mut Decision) {
        let count = situation.usable().count();
        if count == 0 {
            return;
        }
        if let Some(path) = situation.usable().nth(self.turn % count) {
            let mut race = Race::new(forecast);
            enter_path(&mut race, situation, path);
            race.run(decision);
        }
        self.turn = (self.turn + 1) % count;
    }

    fn reset(&mut self, _seed: u64) {
        self.turn = self.first;
    }
}
