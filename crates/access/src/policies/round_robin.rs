//! `round-robin`: the paths take turns (Socket Intents §V-F2).

use super::arrival::{Race, enter_path};
use super::settings::{self, PathNumber};
use crate::{Decision, Forecast, Policy, Situation};
use serde::Deserialize;

/// The path to start with.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Settings {
    path: PathNumber,
}

impl settings::Settings for Settings {
    fn make(self) -> Result<Box<dyn Policy>, String> {
        let first = self.path.0.index();
        Ok(Box::new(RoundRobin { first, turn: first }))
    }
}

/// Each decision takes the next path, whatever is on it.
struct RoundRobin {
    first: usize,
    turn: usize,
}

impl Policy for RoundRobin {
    fn name(&self) -> &str {
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
