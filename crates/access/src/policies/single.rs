//! `single`: one path, whatever happens.

use super::arrival::{Race, enter_path};
use crate::{Decision, Forecast, PathId, Policy, Situation};

/// Uses one path only; decides between its connections by earliest arrival.
pub(crate) struct Single {
    pub(crate) path: PathId,
}

impl Policy for Single {
    fn name(&self) -> &'static str {
        "single"
    }

    fn decide(&mut self, situation: &Situation<'_>, forecast: &mut dyn Forecast, decision: &mut Decision) {
        if situation.usable().any(|path| path == self.path) {
            let mut race = Race::new(forecast);
            enter_path(&mut race, situation, self.path);
            race.run(decision);
        }
    }
}
