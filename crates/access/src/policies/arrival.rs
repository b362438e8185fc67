//! Comparing ways by when the unit would be complete.

use crate::{
    Choice, Connection, Decision, Estimate, Forecast, Key, PathId, PathList, Reason, Rule, Seconds, Situation,
};

/// Choices that compete for the earliest arrival. Of equals, the one that entered first wins.
pub(super) struct Race<'a> {
    entrants: [Entrant; MOST],
    count: usize,
    forecast: &'a mut dyn Forecast,
}

/// More choices than this don't take part; limits on connections keep real situations far below.
const MOST: usize = 64;

#[derive(Clone, Copy)]
struct Entrant {
    choice: Choice,
    path: PathId,
    no_earlier: Seconds,
}

impl<'a> Race<'a> {
    pub(super) fn new(forecast: &'a mut dyn Forecast) -> Self {
        let none = Entrant { choice: Choice::open(PathId(0)), path: PathId(0), no_earlier: Seconds::ZERO };
        Self { entrants: [none; MOST], count: 0, forecast }
    }

    /// Let this choice take part, if it is possible at all.
    pub(super) fn enter(&mut self, choice: Choice, path: PathId) {
        let no_earlier = self.forecast.no_earlier_than(choice);
        if self.count < MOST && no_earlier < Seconds::NEVER {
            self.entrants[self.count] = Entrant { choice, path, no_earlier };
            self.count += 1;
        }
    }

    /// Let new connections on these paths take part, one for each destination.
    pub(super) fn enter_openings(&mut self, situation: &Situation<'_>, paths: PathList) {
        situation.openings(paths).for_each(|choice| self.enter(choice, paths.first()));
    }

    /// Let all connections take part that may be reused and pass the test, oldest first.
    pub(super) fn enter_connections(
        &mut self,
        situation: &Situation<'_>,
        test: impl Fn(&Connection) -> bool,
    ) {
        for connection in situation.reusable().filter(|connection| test(connection)) {
            self.enter(Choice::Reuse(connection.id), connection.paths.first());
        }
    }

    /// Rank all that take part. Where there is no choice, nothing is foretold.
    pub(super) fn run(self, decision: &mut Decision) {
        if self.count == 1 {
            let Entrant { choice, path, .. } = self.entrants[0];
            decision.prefer(choice, None, arrival(Rule::EarliestArrival, path));
            return;
        }
        self.run_until(Seconds::NEVER, decision);
    }

    /// Rank all that take part, and say when the best would be complete, if that is strictly before `latest`.
    ///
    /// The most promising is asked first, so that the others soon hit the bound.
    pub(super) fn run_until(self, latest: Seconds, decision: &mut Decision) {
        let mut order = [0; MOST];
        let order = &mut order[..self.count];
        order.iter_mut().enumerate().for_each(|(n, place)| *place = n);
        let no_earlier = |n: usize| self.entrants[n].no_earlier.0;
        order.sort_unstable_by(|a, b| no_earlier(*a).total_cmp(&no_earlier(*b)).then(a.cmp(b)));
        let mut best = latest;
        let mut winner = usize::MAX;
        for &n in &*order {
            let Entrant { choice, path, no_earlier } = self.entrants[n];
            // What entered before the winner also wins a tie.
            let bound = if n < winner && winner != usize::MAX { Seconds(best.0.next_up()) } else { best };
            let completes = if no_earlier < bound { self.forecast.completes(choice, bound) } else { None };
            match completes {
                Some(completes) => {
                    (best, winner) = (completes, n);
                    decision.demote(arrival(Rule::ArrivesLater, path));
                    decision.prefer(choice, Some(completes), arrival(Rule::EarliestArrival, path));
                }
                None => decision.append(choice, None, arrival(Rule::ArrivesLater, path)),
            }
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
    race.enter_openings(situation, PathList::one(path));
}
