//! Ranges that stand still or are slow: a second worker fetches what is left of one over another network,
//! too. A radio network may stand still for a second and then go on, or become much slower than it was:
//! whichever of the two brings a byte first has it, and nothing is lost by a guess that was wrong but what
//! came twice.

use super::{First, LEAST_LEFT, LEAST_RANGE, Start, Team};
use crate::http::assembly::{Rest, Standing};
use crate::http::object::Described;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// How often it is looked whether one does. The manager answers within this time, or is asked later.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// A range stands still of which nothing came for so long: what was lost mostly comes again before, after a
/// round trip.
const STILL: Duration = Duration::from_millis(200);
/// How fast a range comes is told by what came since the look before the last one.
const LOOKS: usize = 2;

/// What was to come of each range at the last looks.
#[derive(Default)]
pub(super) struct Seen(VecDeque<(Instant, Vec<Rest>)>);

impl Seen {
    /// The range that takes longest, and how long, as fast as what came of it lately. Not one that had not
    /// begun to come before that, or of which nothing came.
    fn look(&mut self, coming: Vec<Rest>, now: Instant) -> Option<(Rest, Duration)> {
        let takes = |rest: &Rest| {
            let (at, before) = self.0.front().filter(|_| self.0.len() == LOOKS)?;
            let before = before.iter().find(|before| before.start == rest.start && before.at > rest.start)?;
            let came = rest.at.checked_sub(before.at).filter(|came| *came > 0)?;
            let passed = now.saturating_duration_since(*at).as_secs_f64();
            Duration::try_from_secs_f64(passed * rest.left as f64 / came as f64).ok()
        };
        let slowest = coming.iter().filter_map(|rest| Some((*rest, takes(rest)?)));
        let slowest = slowest.max_by_key(|(_, takes)| *takes);
        if self.0.len() == LOOKS {
            self.0.pop_front();
        }
        self.0.push_back((now, coming));
        slowest
    }
}

impl Team {
    /// Has a second worker fetch the range that has stood still for longest, if the policy wants that: it is
    /// to bring all of it before the range has stood still for twice as long. Or the one that takes longest:
    /// it is to bring all of that in half of the time.
    pub(super) async fn help(&mut self) {
        let slow = self.seen.look(self.assembly.coming(), Instant::now());
        let standing = self.standing();
        self.helped = standing.or(self.helped);
        let late = standing.map(|standing| (standing.rest, standing.still));
        let Some((rest, within)) = late.or_else(|| self.slow(slow)) else { return };
        // It is asked again by what comes from now on.
        self.seen = Seen::default();
        let (origins, to) = (&self.object.origins, &self.object.to);
        let asking = origins.reconsider(to, &rest, self.unit, within, true);
        let Ok(Some(mut decided)) = timeout(LOOK, asking).await else { return };
        let Some(part) = decided.parts.pop() else { return };
        let network = part.route.way.interface.clone();
        tracing::debug!(%to, at = rest.at, network, "what stands still or is slow is asked for there too");
        self.units.extend(decided.unit);
        self.hear();
        self.workers.fetch_add(1, Ordering::Relaxed);
        self.add(network, Start::by(part.route), Some(First::Rest { rest, slow: standing.is_none() }), None);
    }

    /// Within which time another network would have to bring the slowest range.
    fn slow(&self, slowest: Option<(Rest, Duration)>) -> Option<(Rest, Duration)> {
        let is_little = self.object.may_split && self.assembly.left() < LEAST_LEFT;
        let slow = slowest.filter(|(rest, takes)| is_little && is_short(rest) && *takes >= STILL);
        slow.map(|(rest, takes)| (rest, takes / 2))
    }

    /// A range that stands still. Of an object of which much is to come, a network is left alone for longer,
    /// unless little of the range is. Before its head it may be the server that takes its time, or be behind
    /// others, as was foreseen. What was asked about and stays is asked about again once it has stood still
    /// for twice as long.
    fn standing(&self) -> Option<Standing> {
        let standing = self.assembly.standing().filter(|_| self.object.may_split)?;
        if self.assembly.left() >= LEAST_LEFT && !is_short(&standing.rest) {
            return None;
        }
        let Described { usual, late, .. } = *self.object;
        let head = standing.foreseen.map_or(late, |foreseen| foreseen.max(usual).min(late));
        let least = if standing.has_begun { STILL } else { STILL.max(head) };
        let before = self.helped.filter(|before| before.rest == standing.rest);
        let least = before.map_or(least, |before| before.still * 2);
        (standing.still >= least).then_some(standing)
    }
}

/// Whether it is too little for its end to move.
fn is_short(rest: &Rest) -> bool {
    rest.left < 2 * LEAST_RANGE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::assembly::On;

    fn rest(start: u64, at: u64, end: u64) -> Rest {
        let on = On { id: 1, source: [192, 0, 2, 1].into() };
        Rest { start, at, left: end - at, on }
    }

    #[test]
    fn the_range_that_takes_longest_is_told_by_what_came_of_each_in_the_last_two_looks() {
        let (mut seen, start) = (Seen::default(), Instant::now());
        let mut look = |millis, coming: &[Rest]| {
            let takes = seen.look(coming.to_vec(), start + Duration::from_millis(millis));
            takes.map(|(rest, takes)| (rest.start, takes.as_millis()))
        };
        assert_eq!(look(0, &[rest(0, 0, 9000), rest(9000, 9100, 30_000)]), None);
        assert_eq!(look(100, &[rest(0, 500, 9000), rest(9000, 9500, 30_000)]), None);
        // Of the first nothing had come at the look before the last one.
        let now = [rest(0, 1000, 9000), rest(9000, 10_100, 30_000)];
        assert_eq!(look(200, &now), Some((9000, 3980)));
        // 1000 bytes in 200 ms are 8000 in 1600, and 2000 are 18 500 in 1850.
        let now = [rest(0, 1500, 9500), rest(9000, 11_500, 30_000)];
        assert_eq!(look(300, &now), Some((9000, 1850)));
        // What stands still is another matter, and so is what is new.
        let now = [rest(0, 1000, 9000), rest(9000, 10_100, 30_000), rest(30_000, 40_000, 90_000)];
        assert_eq!(look(400, &now), None);
    }
}
