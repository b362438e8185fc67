//! `cheapest`: no metered path while another one leads there.

use super::arrival::{Race, enter_path};
use crate::{Decision, Estimate, Forecast, Key, PathId, Policy, Reason, Rule, Situation};

/// Uses unmetered paths by earliest arrival, metered ones only if there is nothing else.
#[derive(Default)]
pub(super) struct Cheapest;

impl Policy for Cheapest {
    fn name(&self) -> &str {
        "cheapest"
    }

    fn decide(&mut self, situation: &Situation<'_>, forecast: &mut dyn Forecast, decision: &mut Decision) {
        let metered = |path: PathId| situation.paths[path.index()].metered;
        let mut race = Race::new(forecast);
        let all_metered = situation.usable().all(metered);
        for path in situation.usable().filter(|path| all_metered || !metered(*path)) {
            enter_path(&mut race, situation, path);
        }
        race.run(decision);
        if let Some(path) = situation.usable().find(|path| metered(*path) != all_metered) {
            let reason = Reason::rule(Rule::Cheapest).intent(Key::Cost).estimate(Estimate::Metered, path);
            decision.demote(reason);
        }
    }
}
