//! Comparing ways by when the unit would be complete.

use crate::{Choice, Connection, Decision, Estimate, Forecast, PathId, Reason, Rule, Seconds, Situation, intents::Key};

/// The earliest arrival found so far. The first of equals wins: whoever comes later must be strictly earlier.
pub(super) struct Race<'a> {
    pub(super) best: Seconds,
    forecast: &'a mut dyn Forecast,
    decision: &'a mut Decision,
}

impl<'a> Race<'a> {
    pub(super) fn new(forecast: &'a mut dyn Forecast, decision: &'a mut Decision) -> Self {
        Self { best: Seconds::NEVER, forecast, decision }
    }

    /// Let this choice take part.
    pub(super) fn enter(&mut self, choice: Choice, path: PathId) {
        match self.forecast.completes(choice, self.best) {
            Some(completes) => {
                self.best = completes;
                self.decision.demote(arrival(Rule::ArrivesLater, path));
                self.decision.prefer(choice, Some(completes), arrival(Rule::EarliestArrival, path));
            }
            None => self.decision.append(choice, None, arrival(Rule::ArrivesLater, path)),
        }
    }

    /// Let all connections take part that pass the test, oldest first.
    pub(super) fn enter_connections(&mut self, situation: &Situation<'_>, test: impl Fn(&Connection) -> bool) {
        for connection in situation.connections.iter().filter(|connection| test(connection)) {
            self.enter(Choice::Reuse(connection.id), connection.paths.first());
        }
    }
}

fn arrival(rule: Rule, path: PathId) -> Reason {
    Reason::rule(rule).intent(Key::SizeReceived).estimate(Estimate::Rate, path)
}

/// Whether a connection is a plain one on this path.
pub(super) fn is_plain_on(path: PathId) -> impl Fn(&Connection) -> bool {
    move |connection| !connection.paths.is_multipath() && connection.paths.first() == path
}

/// Rank the ways over one path: reuse what is there unless a new connection completes strictly earlier.
pub(super) fn enter_path(race: &mut Race<'_>, situation: &Situation<'_>, path: PathId) {
    race.enter_connections(situation, is_plain_on(path));
    race.enter(Choice::open(path), path);
}
