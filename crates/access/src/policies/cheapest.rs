//! `cheapest`: no metered path while another one leads there.

use super::arrival::{Race, enter_path};
use crate::{Cost, Decision, Estimate, Forecast, Key, PathId, Policy, Reason, Rule, Situation};

/// Uses unmetered paths by earliest arrival. Metered ones only if there is nothing else, and the cost
/// preference allows.
pub(crate) struct Cheapest;

impl Policy for Cheapest {
    fn name(&self) -> &'static str {
        "cheapest"
    }

    fn decide(&mut self, situation: &Situation<'_>, forecast: &mut dyn Forecast, decision: &mut Decision) {
        let metered = |path: PathId| situation.paths[path.index()].metered;
        let mut race = Race::new(forecast);
        let all_metered = situation.usable().all(metered);
        if all_metered && situation.intents.cost() == Cost::NoExpense {
            return;
        }
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
