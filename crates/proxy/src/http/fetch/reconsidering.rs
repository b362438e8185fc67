//! The last step of the manager's policy: the end of an object that takes long comes another way, once that
//! is sooner.

use super::{First, LEAST_RANGE, Start, Team, WORKERS_EACH};
use crate::http::assembly::Rest;
use crate::http::decided::Part;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often it is asked.
pub(super) const LOOK: Duration = Duration::from_millis(500);
/// With less to come of a range nothing is asked: both of its parts have to be ranges.
const LEAST_LEFT: u64 = 2 * LEAST_RANGE;
/// So often the end of an object moves at most.
const MOST_MOVES: u32 = 8;

/// How fast the longest range comes, and how often the end of one has moved.
#[derive(Default)]
pub(super) struct Pace {
    before: Option<Look>,
    moves: u32,
}

/// What was seen of the longest range.
struct Look {
    longest: Rest,
    at: Instant,
    /// Something of it had come since the look before: it had begun then, and its window has grown since.
    has_begun: bool,
}

impl Pace {
    /// When this range will be complete if it goes on as it came since the last look. `None`: it was another
    /// one or had hardly begun then, or nothing came of it, which is a matter of its worker's patience.
    fn look(&mut self, longest: Rest, now: Instant) -> Option<Duration> {
        let first = Look { longest, at: now, has_begun: false };
        let before = self.before.replace(first)?;
        let came = longest.at.checked_sub(before.longest.at);
        let came = came.filter(|came| *came > 0 && before.longest.start == longest.start)?;
        self.before = Some(Look { longest, at: now, has_begun: true });
        let passed = now.saturating_duration_since(before.at);
        let takes = passed.as_secs_f64() * longest.left as f64 / came as f64;
        Duration::try_from_secs_f64(takes).ok().filter(|_| before.has_begun)
    }
}

/// How many bytes stay, of so many that are left of a range when the policy moves these: no less than a range
/// has. What is far ahead of the reader would wait for it: then so little stays that what moves begins within
/// the window. `None`: too little for a range would move.
fn stays(left: u64, moves: u64, window: u64) -> Option<u64> {
    let stays = if left > window { window / 4 } else { left.checked_sub(moves)? };
    let stays = stays.max(LEAST_RANGE);
    (left.checked_sub(stays)? >= LEAST_RANGE).then_some(stays)
}

impl Team {
    /// Lets the end of the longest range come another way, if the policy wants that.
    pub(super) async fn reconsider(&mut self) {
        let Some((longest, completes)) = self.longest() else { return };
        let (origins, to) = (&self.object.origins, &self.object.to);
        let Some(mut decided) = origins.reconsider(to, &longest, self.unit, completes, false).await else {
            return;
        };
        // It has one part: the one that moves.
        let Some(part) = decided.parts.pop() else { return };
        let Some(stays) = stays(longest.left, part.bytes, self.assembly.window()) else { return };
        let Some(rest) = self.assembly.shorten(longest.start, stays) else { return };
        tracing::debug!(%to, at = rest.start, network = %part.route.way.interface, "the end of an object moves");
        self.pace.moves += 1;
        self.units.extend(decided.unit);
        self.hand_over(rest, part, longest.left > self.assembly.window());
    }

    /// The range of which the end may move, and when it would be complete.
    fn longest(&mut self) -> Option<(Rest, Duration)> {
        let may_move = self.object.may_split && self.pace.moves < MOST_MOVES && self.is_one_free();
        let longest = self.assembly.longest().filter(|longest| may_move && longest.left >= LEAST_LEFT);
        let Some(longest) = longest else {
            self.pace.before = None;
            return None;
        };
        Some((longest, self.pace.look(longest, Instant::now())?))
    }

    /// Whether a network may be free: one has no worker, or a worker has nothing to do.
    fn is_one_free(&self) -> bool {
        let working = || self.at_work.values().filter(|count| **count > 0);
        working().count() == 1 || working().sum::<usize>() > self.assembly.at_work()
    }

    /// Has the rest of a range fetched by a new worker on that network; or, in ranges that all of them ask
    /// for, by two on each.
    fn hand_over(&mut self, rest: Range<u64>, part: Part, in_ranges: bool) {
        let interface = part.route.way.interface.clone();
        self.hear();
        if !in_ranges {
            self.workers.fetch_add(1, Ordering::Relaxed);
            return self.add(interface, Start::by(part.route), Some(First::Range(rest)), None);
        }
        let is_there = self.at_work.get(&interface).is_some_and(|count| *count > 0);
        self.assembly.give_back(rest.start);
        if let Some((beside, by)) = self.alone.take() {
            self.workers.store(2 * WORKERS_EACH, Ordering::Relaxed);
            self.add(beside, Start::New(by), None, None);
        }
        if !is_there {
            self.add_all_of(part.route, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::assembly::On;

    const MIB: u64 = 1 << 20;

    fn longest(start: u64, at: u64, left: u64) -> Rest {
        let on = On { id: 1, source: [192, 0, 2, 1].into() };
        Rest { start, at, left, on }
    }

    #[test]
    fn it_is_complete_when_the_rest_has_come_as_fast_as_what_came_since_the_last_look() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let after = |millis| start + Duration::from_millis(millis);
        assert_eq!(pace.look(longest(0, 0, 5 * MIB), start), None, "it is the first look");
        assert_eq!(pace.look(longest(0, MIB, 4 * MIB), after(500)), None, "it has hardly begun");
        let completes = pace.look(longest(0, 2 * MIB, 3 * MIB), after(1000));
        assert_eq!(completes, Some(Duration::from_millis(1500)));
        // It has become slower.
        let completes = pace.look(longest(0, 2 * MIB + MIB / 2, 2 * MIB + MIB / 2), after(1500));
        assert_eq!(completes, Some(Duration::from_millis(2500)));
        assert_eq!(pace.look(longest(0, 2 * MIB + MIB / 2, 2 * MIB), after(2000)), None, "nothing came");
        assert_eq!(pace.look(longest(8, 3 * MIB, 2 * MIB), after(2500)), None, "it is another range");
        assert_eq!(pace.look(longest(8, 4 * MIB, MIB), after(3000)), None, "which has hardly begun");
        assert_eq!(pace.look(longest(8, 4 * MIB + 1, 1), after(3500)), Some(Duration::from_millis(500)));
    }

    #[test]
    fn as_much_stays_as_the_policy_says_or_so_little_that_the_rest_begins_within_the_window() {
        assert_eq!(stays(4 * MIB, 3 * MIB, 8 * MIB), Some(MIB));
        assert_eq!(stays(8 * MIB, MIB, 8 * MIB), Some(7 * MIB));
        assert_eq!(stays(64 * MIB, MIB, 8 * MIB), Some(2 * MIB));
        // Nothing moves that is no range, and a range stays; nor does more than there is.
        assert_eq!(stays(MIB, LEAST_RANGE - 1, 8 * MIB), None);
        assert_eq!(stays(MIB, MIB - LEAST_RANGE + 1, 8 * MIB), Some(LEAST_RANGE));
        assert_eq!(stays(2 * LEAST_RANGE - 1, LEAST_RANGE, 8 * MIB), None);
        assert_eq!(stays(MIB, MIB + 1, 8 * MIB), None);
        assert_eq!(stays(MIB, 1, 0), Some(LEAST_RANGE), "no window is smaller");
    }
}
