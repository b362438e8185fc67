//! `whimbrel`: ours. Earliest arrival, aware of queues, splitting what is large, honouring every intent.

use super::arrival::{Race, enter_path, is_plain_on};
use super::lowest_latency::fastest_to_answer;
use crate::{
    Choice, Cost, Decision, Estimate, Forecast, Key, MAX_PATHS, Part, PathId, Policy, Reason, Resilience,
    Rule, Seconds, Situation, Timeliness, UnderWay,
};

/// Sends each unit, or each part of a large one, where it is complete first.
///
/// 1. Intents rule paths out: money, losses, the background.
/// 2. So does a rate far below that of the path that answers fastest. Of the remaining ways, the earliest
///    arrival wins; another path than home (the one that brings the first window of a page soonest) must be
///    earlier by a margin, because what comes after the unit will want connections at home whose windows have
///    grown. Not so where it is as near as home.
/// 3. A unit that is large enough is split between the best ways of two paths where all of it is there
///    earlier.
/// 4. When something has become free, the end of what still has far to go moves there.
pub(crate) struct Whimbrel {
    /// Smaller units are never split, bytes.
    pub(crate) split_from: u64,
    /// Leaving home must save this share of the time.
    pub(crate) margin: f64,
    /// Whether to open connections before they are needed.
    pub(crate) warms: bool,
}

impl Default for Whimbrel {
    fn default() -> Self {
        Self { split_from: 2_000, margin: 0.03, warms: true }
    }
}

/// The best way on one path.
#[derive(Debug, Clone, Copy)]
struct Way {
    path: PathId,
    choice: Choice,
    completes: Seconds,
}

impl Policy for Whimbrel {
    fn name(&self) -> &'static str {
        "whimbrel"
    }

    fn decide(&mut self, situation: &Situation<'_>, forecast: &mut dyn Forecast, decision: &mut Decision) {
        let allowed = Allowed::by_intents(situation);
        let mut ways = [None; MAX_PATHS];
        let Some(best) = self.ways(situation, forecast, &allowed, &mut ways) else { return };
        for way in ways.iter().flatten().filter(|way| way.path != best.path) {
            let reason = Reason::rule(Rule::ArrivesLater).intent(Key::SizeReceived);
            decision.append(way.choice, Some(way.completes), reason.estimate(Estimate::Queue, way.path));
        }
        decision.prefer(best.choice, Some(best.completes), allowed.reason(best.path));
        if self.may_split(situation) {
            self.split(situation, forecast, &ways, best, decision);
        }
        self.warm_up(situation, &allowed, best, decision);
    }

    fn reconsiders(&self) -> bool {
        true
    }

    fn reconsider(
        &mut self,
        under_way: &UnderWay,
        situation: &Situation<'_>,
        forecast: &mut dyn Forecast,
        decision: &mut Decision,
    ) {
        if under_way.left < self.split_from || !self.may_split(situation) {
            return;
        }
        let allowed = Allowed::by_intents(situation);
        let mut best = self.deadline(situation, under_way.completes);
        for path in allowed.worthy(situation) {
            for choice in choices(situation, path) {
                if choice == Choice::Reuse(under_way.connection) {
                    continue;
                }
                for share in SHARES {
                    let part = Part { choice, bytes: (under_way.left as f64 * share) as u64 };
                    if let Some(completes) = forecast.completes_split(&[part], best) {
                        best = completes;
                        decision.clear();
                        decision.prefer(
                            choice,
                            Some(completes),
                            Reason::rule(Rule::Split).intent(Key::SizeReceived),
                        );
                        decision.split(&[part]);
                    }
                }
            }
        }
    }
}

/// No unit needs to be earlier by more than this to leave home: where queues are long, latency matters
/// little.
const MOST_MARGIN: Seconds = Seconds(0.02);

/// The shares of a unit that are tried for its second part. The ends of the scale are for paths of very
/// unequal rates.
const SHARES: [f64; 10] = [0.5, 0.25, 0.75, 0.125, 0.375, 0.625, 0.875, 1.0 / 16.0, 1.0 / 32.0, 15.0 / 16.0];

impl Whimbrel {
    /// Find the best way on each path, and the best of them: the earliest, unless home is hardly later. If
    /// the unit can't be split, ways that can't be the best are left out.
    fn ways(
        &self,
        situation: &Situation<'_>,
        forecast: &mut dyn Forecast,
        allowed: &Allowed,
        ways: &mut [Option<Way>; MAX_PATHS],
    ) -> Option<Way> {
        let home = home(situation).filter(|home| allowed.worthy(situation).any(|path| path == *home));
        let mut best = home.and_then(|home| earliest_on(situation, forecast, home, Seconds::NEVER));
        let mut latest = best.map_or(Seconds::NEVER, |best| self.deadline(situation, best.completes));
        if let Some(best) = best {
            ways[best.path.index()] = Some(best);
        }
        for path in allowed.worthy(situation).filter(|path| Some(*path) != home) {
            let bound = if self.may_split(situation) { Seconds::NEVER } else { latest };
            let way = earliest_on(situation, forecast, path, bound);
            ways[path.index()] = way;
            if let Some(way) = way.filter(|way| way.completes < latest) {
                latest = way.completes;
                best = Some(way);
            }
        }
        best
    }

    /// What must be beaten to be worth the trouble.
    fn deadline(&self, situation: &Situation<'_>, completes: Seconds) -> Seconds {
        let margin = if has_equals(situation) { 0.0 } else { self.margin };
        let saves = ((completes - situation.now) * margin).min(MOST_MARGIN);
        completes - saves
    }

    /// The first connection to a destination opens a second one on the nearest other path, for what comes
    /// next.
    fn warm_up(&self, situation: &Situation<'_>, allowed: &Allowed, best: Way, decision: &mut Decision) {
        if !self.warms || !decision.parts().is_empty() {
            return;
        }
        let is_cold = |path: &PathId| !situation.connections.iter().any(is_plain_on(*path));
        let is_affordable = |path: &PathId| {
            !situation.paths[path.index()].metered || situation.intents.cost() == Cost::Ignore
        };
        let others = allowed.worthy(situation).filter(|path| *path != best.path);
        let rtt = |path: &PathId| situation.paths[path.index()].srtt_min.unwrap_or(Seconds::ZERO).0;
        let nearest = others.filter(is_cold).filter(is_affordable).min_by(|a, b| rtt(a).total_cmp(&rtt(b)));
        if let Some(path) = nearest {
            decision.warm_up(Choice::open(path));
        }
    }

    fn may_split(&self, situation: &Situation<'_>) -> bool {
        let intents = situation.intents;
        intents.size().is_some_and(|size| size >= self.split_from)
            && intents.resilience() != Resilience::Sensitive
            && !matches!(intents.timeliness(), Timeliness::Background | Timeliness::Stream)
    }

    fn split(
        &self,
        situation: &Situation<'_>,
        forecast: &mut dyn Forecast,
        ways: &[Option<Way>],
        best: Way,
        decision: &mut Decision,
    ) {
        let size = situation.intents.size().unwrap_or(0);
        let mut earliest = self.deadline(situation, best.completes);
        for other in ways.iter().flatten().filter(|way| way.path != best.path) {
            for share in SHARES {
                let second = (size as f64 * share) as u64;
                let parts = [
                    Part { choice: best.choice, bytes: size - second },
                    Part { choice: other.choice, bytes: second },
                ];
                if let Some(completes) = forecast.completes_split(&parts, earliest) {
                    earliest = completes;
                    decision.split(&parts);
                }
            }
        }
    }
}

/// Paths that the intents leave, and the intent that decided.
struct Allowed {
    paths: [bool; MAX_PATHS],
    why: Option<(Rule, Key)>,
}

impl Allowed {
    fn by_intents(situation: &Situation<'_>) -> Self {
        let mut allowed = Self { paths: [false; MAX_PATHS], why: None };
        situation.usable().for_each(|path| allowed.paths[path.index()] = true);
        let estimate = |path: PathId| &situation.paths[path.index()];
        match situation.intents.cost() {
            Cost::NoExpense => {
                allowed.keep(true, (Rule::TooExpensive, Key::Cost), |path| !estimate(path).metered)
            }
            Cost::Optimise => {
                allowed.keep(false, (Rule::Cheapest, Key::Cost), |path| !estimate(path).metered)
            }
            Cost::Balance | Cost::Ignore => {}
        }
        if situation.intents.resilience() == Resilience::Sensitive {
            let loss = |path: PathId| estimate(path).loss.unwrap_or(0.0);
            let least = allowed.paths().map(loss).fold(f64::INFINITY, f64::min);
            allowed
                .keep(false, (Rule::MostReliable, Key::Resilience), |path| loss(path) <= least * 2.0 + 0.001);
        }
        if situation.intents.timeliness() == Timeliness::Background {
            allowed.keep(false, (Rule::Yields, Key::Timeliness), |path| {
                estimate(path).scheduled == 0 && !estimate(path).metered
            });
        }
        allowed
    }

    /// Leave out paths that fail the test; if all do, only where it is strict.
    fn keep(&mut self, strict: bool, why: (Rule, Key), test: impl Fn(PathId) -> bool) {
        let mut kept = [false; MAX_PATHS];
        self.paths().filter(|path| test(*path)).for_each(|path| kept[path.index()] = true);
        if kept != self.paths && (strict || kept.contains(&true)) {
            self.paths = kept;
            self.why = Some(why);
        }
    }

    fn paths(&self) -> impl Iterator<Item = PathId> + use<> {
        let paths = self.paths;
        (0..MAX_PATHS as u8).map(PathId).filter(move |path| paths[path.index()])
    }

    /// Those of them that are not far slower than the path that answers fastest: they could add little, and
    /// would hold hostage what is sent there.
    fn worthy(&self, situation: &Situation<'_>) -> impl Iterator<Item = PathId> + use<> {
        const LEAST: f64 = 0.05;
        let rate = |path: PathId| situation.paths[path.index()].rate_max;
        let fastest = fastest_to_answer(situation).and_then(|(path, _)| rate(path));
        let mut worthy = [false; MAX_PATHS];
        for path in self.paths() {
            worthy[path.index()] = match (rate(path), fastest) {
                (Some(rate), Some(fastest)) => rate.0 >= fastest.0 * LEAST,
                // Not measured: to be explored.
                _ => true,
            };
        }
        (0..MAX_PATHS as u8).map(PathId).filter(move |path| worthy[path.index()])
    }

    fn reason(&self, path: PathId) -> Reason {
        match self.why {
            Some((rule, key)) => Reason::rule(rule).intent(key).estimate(Estimate::Queue, path),
            None => {
                Reason::rule(Rule::EarliestArrival).intent(Key::SizeReceived).estimate(Estimate::Queue, path)
            }
        }
    }
}

/// The earliest way over a path, if it completes before `latest`.
fn earliest_on(
    situation: &Situation<'_>,
    forecast: &mut dyn Forecast,
    path: PathId,
    latest: Seconds,
) -> Option<Way> {
    let mut race = Race::new(forecast);
    enter_path(&mut race, situation, path);
    let mut ranking = Decision::default();
    race.run_until(latest, &mut ranking);
    let best = ranking.best()?;
    Some(Way { path, choice: best.choice, completes: best.completes? })
}

/// Whether another path answers about as fast as the fastest. Then no path is home: what comes next is as
/// well served there.
fn has_equals(situation: &Situation<'_>) -> bool {
    const ABOUT: f64 = 1.2;
    let rtts = || situation.usable().filter_map(|path| situation.paths[path.index()].srtt_min);
    let fastest = rtts().fold(Seconds::NEVER, Seconds::min);
    rtts().filter(|rtt| *rtt < fastest * ABOUT).count() > 1
}

/// The path that brings the first window of a connection soonest. One that was never measured counts as the
/// best, until it is being used.
fn home(situation: &Situation<'_>) -> Option<PathId> {
    const FIRST_WINDOW: f64 = 14_600.0;
    let takes = |path: PathId| {
        let estimate = &situation.paths[path.index()];
        match (estimate.srtt_min, estimate.rate_max) {
            (Some(rtt), Some(rate)) => rtt + rate.time_for(FIRST_WINDOW),
            _ if estimate.connections > 0 => Seconds::NEVER,
            _ => Seconds::ZERO,
        }
    };
    situation.usable().min_by(|a, b| takes(*a).0.total_cmp(&takes(*b).0))
}

/// All ways over one path.
fn choices<'a>(situation: &'a Situation<'_>, path: PathId) -> impl Iterator<Item = Choice> + use<'a> {
    let reused = situation.connections.iter().filter(move |connection| is_plain_on(path)(connection));
    reused.map(|connection| Choice::Reuse(connection.id)).chain([Choice::open(path)])
}
