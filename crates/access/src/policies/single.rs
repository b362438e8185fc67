//! `single`: one path, whatever happens (Socket Intents §V-F1).

use super::arrival::{Race, enter_path};
use super::settings::{self, PathNumber};
use crate::{Decision, Forecast, PathId, Policy, Situation};
use serde::Deserialize;

/// The path to use.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Settings {
    path: PathNumber,
}

impl settings::Settings for Settings {
    fn make(self) -> Result<Box<dyn Policy>, String> {
        Ok(Box::new(Single { path: self.path.0 }))
    }
}

/// Uses one path only; decides between its connections by earliest arrival.
struct Single {
    path: PathId,
}

impl Policy for Single {
    fn name(&self) -> &str {
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
