//! `whimbrel`: ours. Earliest arrival, aware of queues, splitting what is large, honouring every intent.

mod case;
mod settings;

use super::arrival::{Race, enter_path, is_plain_on};
use crate::{
    Choice, Cost, Decision, Estimate, Forecast, Granularity, Key, MAX_PATHS, Part, PathId, PathList, Policy,
    Reason, Rule, Seconds, Sharing, Situation, UnderWay,
};
use case::Case;
pub(super) use settings::Settings;

/// Sends each unit, or each part of a large one, where it is complete first.
///
/// 1. Intents rule paths out: money, losses, rates, delays, the background. Small units explore paths of
///    which nothing is known lately.
/// 2. So does a rate far below that of the path that answers fastest. Of the remaining ways, the earliest
///    arrival wins; another path than home (the one that brings the first window of a page soonest) must be
///    earlier by a margin, because what comes after the unit will want connections at home whose windows have
///    grown. Not so where it is as near as home. A path that costs money must be worth it.
/// 3. A unit that is large enough is split between the best ways of two paths where all of it is there
///    earlier, by a round trip at least, which is what a lost packet costs. Not so where units of more
///    bytes are scheduled on the best of them, or more than hardly any on the other, however much of
///    these has come: its part would come at their expense, and each part more is a burst more in that
///    path's queue.
/// 4. When something has become free, the end of what still has far to go moves there. What stands still is
///    asked for there too.
struct Whimbrel {
    settings: Settings,
}

/// The best way on one path.
#[derive(Debug, Clone, Copy)]
struct Way {
    path: PathId,
    choice: Choice,
    completes: Seconds,
    /// What ways are compared by: when it is complete, and what delays it beyond the forecast.
    counts: Seconds,
}

type Ways = [Option<Way>; MAX_PATHS];

/// No unit needs to be earlier by more than this to leave home: where queues are long, latency matters
/// little. About a round trip of a near path, which is what a smaller window at home costs.
const MOST_MARGIN: Seconds = Seconds(0.02);

/// What fits into the first window must save this share of its time, [`MOST_MARGIN`] at most, to leave home
/// for a path that is clearly further: it is there after a round trip or two, and of those a forecast knows
/// the smallest that was seen lately and the best rate. Over a recorded LTE network small objects were sent
/// there for a few milliseconds that they did not save.
const SMALL_MARGIN: f64 = 0.25;

/// Where metered and free paths are to be balanced, a metered one is worth its money if the unit takes at
/// most this share of the time: it saves as much time as it is paid for.
const WORTH_PAYING: f64 = 0.5;

/// The shares of a unit that are tried for its second part. The ends of the scale are for paths of very
/// unequal rates: the slowest that is considered has [`case::LEAST_RATE`] of the rate, and may take
/// r / (1 + r) = 1/21 of the bytes without being the last; 1/32 is the largest power of two below that.
const SHARES: [f64; 10] = [0.5, 0.25, 0.75, 0.125, 0.375, 0.625, 0.875, 1.0 / 16.0, 1.0 / 32.0, 15.0 / 16.0];

/// What is at most this part of a unit is no reason not to give its path a part of it: a request that is
/// answered late counts as scheduled all the time.
const HARDLY_ANY: u64 = 64;

impl Policy for Whimbrel {
    fn name(&self) -> &str {
        "whimbrel"
    }

    fn sharing(&self) -> Sharing {
        Sharing::ObjectsOrBytes
    }

    fn decide(&mut self, situation: &Situation<'_>, forecast: &mut dyn Forecast, decision: &mut Decision) {
        let case = Case::new(situation);
        let mut ways = [None; MAX_PATHS];
        let Some(best) = self.ways(&case, forecast, &mut ways) else { return };
        let explored = case.explores();
        let others = ways.iter().flatten().filter(|way| way.path != best.path);
        for way in others.filter(|way| explored.is_none_or(|(path, _)| path != way.path)) {
            let reason = Reason::rule(Rule::ArrivesLater).intent(case.size_key());
            decision.append(way.choice, Some(way.completes), reason.estimate(Estimate::Queue, way.path));
        }
        match explored {
            Some((path, why)) if path == best.path => {
                decision.prefer(best.choice, Some(best.completes), why);
            }
            Some((path, why)) => {
                decision.prefer(best.choice, Some(best.completes), reason(&case, &ways, best));
                let opening = situation.openings(PathList::one(path)).next();
                opening.into_iter().for_each(|choice| decision.prefer(choice, None, why));
            }
            None => {
                decision.prefer(best.choice, Some(best.completes), reason(&case, &ways, best));
                self.split(&case, forecast, &ways, best, decision);
                self.warm_up(&case, best, decision);
            }
        }
        add_destinations(&case, best.path, decision);
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
        let case = Case::new(situation);
        let (least, shares) =
            if under_way.stands { (1, &[1.0][..]) } else { (self.settings.bytes, &SHARES[..]) };
        if under_way.left < least || !case.may_split(least) {
            return;
        }
        let mut best = self.deadline(&case, under_way.completes);
        for path in case.worthy().filter(|path| !case.is_reserve(*path)) {
            for choice in choices(situation, path) {
                if choice == Choice::Reuse(under_way.connection) {
                    continue;
                }
                for share in shares {
                    let part = Part { choice, bytes: (under_way.left as f64 * share) as u64 };
                    if let Some(completes) = forecast.completes_moved(under_way, part, best) {
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

impl Whimbrel {
    /// Find the best way on each path, and the best of them: the earliest, unless home is hardly later. Ways
    /// that can't be the best are left out if nothing else is asked of them.
    fn ways(&self, case: &Case<'_>, forecast: &mut dyn Forecast, ways: &mut Ways) -> Option<Way> {
        let home = case.home();
        let mut best = home.and_then(|home| earliest_on(case, forecast, home, Seconds::NEVER));
        let mut latest = best.map_or(Seconds::NEVER, |best| self.deadline(case, best.counts));
        let far = best.map_or(Seconds::NEVER, |best| earlier_by(case, best.counts, SMALL_MARGIN));
        if let Some(best) = best {
            ways[best.path.index()] = Some(best);
        }
        let asks_all = case.may_split(self.settings.bytes)
            || case.worthy().any(|path| case.is_reserve(path) || case.handicap(path) > Seconds::ZERO);
        for path in case.worthy().filter(|path| Some(*path) != home && !case.is_reserve(*path)) {
            let is_far = case.is_small() && case.is_further(path);
            let limit = if is_far { latest.min(far) } else { latest };
            let bound = if asks_all { Seconds::NEVER } else { limit };
            let way = earliest_on(case, forecast, path, bound);
            ways[path.index()] = way;
            if let Some(way) = way.filter(|way| way.counts < limit) {
                latest = way.counts;
                best = Some(way);
            }
        }
        let now = case.situation.now;
        let mut pays = best.map_or(Seconds::NEVER, |best| now + (best.counts - now) * WORTH_PAYING);
        for path in case.worthy().filter(|path| case.is_reserve(*path)) {
            let way = earliest_on(case, forecast, path, Seconds::NEVER);
            ways[path.index()] = way;
            if let Some(way) = way.filter(|way| way.counts < pays) {
                pays = way.counts;
                best = Some(way);
            }
        }
        best
    }

    /// What must be beaten to be worth the trouble.
    fn deadline(&self, case: &Case<'_>, completes: Seconds) -> Seconds {
        let margin = if case.has_equals() { 0.0 } else { self.settings.margin };
        earlier_by(case, completes, margin)
    }

    /// The first connection to a destination opens a second one on the nearest other path, for what comes
    /// next.
    fn warm_up(&self, case: &Case<'_>, best: Way, decision: &mut Decision) {
        let keeps_connections = case.situation.granularity != Granularity::Connection;
        if !self.settings.warm || !keeps_connections || !decision.parts().is_empty() {
            return;
        }
        let is_cold = |path: &PathId| !case.situation.connections.iter().any(is_plain_on(*path));
        let is_affordable =
            |path: &PathId| !case.estimate(*path).metered || case.stated.cost() == Cost::Ignore;
        let others = case.worthy().filter(|path| *path != best.path);
        let rtt = |path: &PathId| case.estimate(*path).srtt_min.unwrap_or(Seconds::ZERO).0;
        let nearest = others.filter(is_cold).filter(is_affordable).min_by(|a, b| rtt(a).total_cmp(&rtt(b)));
        let opening = nearest.and_then(|path| case.situation.openings(PathList::one(path)).next());
        if let Some(choice) = opening {
            decision.warm_up(choice);
        }
    }

    fn split(
        &self,
        case: &Case<'_>,
        forecast: &mut dyn Forecast,
        ways: &Ways,
        best: Way,
        decision: &mut Decision,
    ) {
        let size = case.stated.received().unwrap_or(0);
        let is_busy = |path: PathId| case.estimate(path).scheduled > size;
        if !case.may_split(self.settings.bytes) || is_busy(best.path) {
            return;
        }
        let mut earliest = self.deadline(case, best.completes);
        let round_trip = |path| case.estimate(path).srtt_min.unwrap_or(Seconds::ZERO);
        let fits = |way: &&Way| {
            let costs_nothing_new = !case.is_reserve(way.path) || case.is_reserve(best.path);
            let is_other = way.path != best.path && case.estimate(way.path).scheduled <= size / HARDLY_ANY;
            is_other && costs_nothing_new && case.handicap(way.path) == Seconds::ZERO
        };
        for other in ways.iter().flatten().filter(fits) {
            // One packet of the burst that is lost takes so long.
            let lost = round_trip(best.path).max(round_trip(other.path));
            let latest = best.completes - lost;
            for share in SHARES {
                let second = (size as f64 * share) as u64;
                let parts = [
                    Part { choice: best.choice, bytes: size - second },
                    Part { choice: other.choice, bytes: second },
                ];
                if let Some(completes) = forecast.completes_split(&parts, earliest.min(latest)) {
                    earliest = completes;
                    decision.split(&parts);
                }
            }
        }
    }
}

/// Before it is complete, by this share of its time.
fn earlier_by(case: &Case<'_>, completes: Seconds, margin: f64) -> Seconds {
    completes - ((completes - case.situation.now) * margin).min(MOST_MARGIN)
}

/// Why the best way is the best: because of an intent if it did not win by its arrival alone.
fn reason(case: &Case<'_>, ways: &Ways, best: Way) -> Reason {
    let earlier = ways.iter().flatten().filter(|way| way.completes < best.completes);
    for way in earlier {
        if case.is_reserve(way.path) && !case.is_reserve(best.path) {
            return Reason::rule(Rule::Cheapest).intent(Key::Cost).estimate(Estimate::Metered, way.path);
        }
        if case.handicap(way.path) > case.handicap(best.path) {
            let answers_late = Reason::rule(Rule::LowestLatency).intent(Key::Timeliness);
            return answers_late.estimate(Estimate::Jitter, way.path);
        }
    }
    case.reason(best.path)
}

/// Put what else leads there behind the ranked ways: other addresses, to be tried if those fail.
fn add_destinations(case: &Case<'_>, best: PathId, decision: &mut Decision) {
    if case.situation.destinations.is_empty() {
        return;
    }
    let paths = [best].into_iter().chain(case.worthy().filter(|path| *path != best));
    for path in paths {
        for choice in case.situation.openings(PathList::one(path)) {
            if decision.ranked().iter().all(|ranked| ranked.choice != choice) {
                decision.append(choice, None, Reason::rule(Rule::ArrivesLater));
            }
        }
    }
}

/// The earliest way over a path, if it counts as complete before `latest`.
fn earliest_on(case: &Case<'_>, forecast: &mut dyn Forecast, path: PathId, latest: Seconds) -> Option<Way> {
    let handicap = case.handicap(path);
    let mut race = Race::new(forecast);
    enter_path(&mut race, case.situation, path);
    let mut ranking = Decision::default();
    race.run_until(latest - handicap, &mut ranking);
    let best = ranking.best()?;
    let completes = best.completes?;
    Some(Way { path, choice: best.choice, completes, counts: completes + handicap })
}

/// All ways over one path, to one destination of it if there are several.
fn choices<'a>(situation: &Situation<'a>, path: PathId) -> impl Iterator<Item = Choice> + use<'a> {
    let reused = situation.reusable().filter(move |connection| is_plain_on(path)(connection));
    let opened = situation.openings(PathList::one(path)).take(1);
    reused.map(|connection| Choice::Reuse(connection.id)).chain(opened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_share_is_the_largest_power_of_two_that_the_slowest_path_can_take() {
        let most = case::LEAST_RATE / (1.0 + case::LEAST_RATE);
        let smallest = SHARES.into_iter().fold(1.0, f64::min);
        assert!(smallest < most && smallest * 2.0 > most, "{smallest} for {most}");
    }

    #[test]
    fn the_slowest_path_that_is_considered_can_save_more_than_leaving_home_must() {
        let saves = 1.0 - 1.0 / (1.0 + case::LEAST_RATE);
        assert!(saves > Settings::default().margin, "{saves}");
    }
}
