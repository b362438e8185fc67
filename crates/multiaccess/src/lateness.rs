//! How much later than foreseen units come over each path.
//!
//! A forecast knows the smallest round trip and the best rate of a path, and not how often it brings neither:
//! a mobile network that stands still for a second now and then looks as good as a steady one. What fits into
//! the first window of a connection counts apart from what does not, for which the window has to grow first.
//!
//! Pure: the time is the caller's.

use std::collections::BTreeSet;
use std::time::Duration;
use whimbrel_access::{FIRST_WINDOW, Late, MAX_PATHS, PathEstimate, PathId, Seconds};

/// What a unit tells counts for so long: mobile networks change within minutes.
const COUNTS: Duration = Duration::from_secs(60);
/// The weight of the last unit: that of the mean of the last eight.
const WEIGHT: f64 = 0.125;
/// What is later than this has been lost, and comes another way.
const MOST: f64 = 2.0;
/// Paths that differ by less are equally late: it is about a round trip, and what programs and servers take
/// for themselves differs by as much.
const SAME: f64 = 0.02;

/// Larger units tell nothing: who reads them may not take them as they come.
const LARGEST: u64 = 256 << 10;

/// A unit from which lateness is learnt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Expected {
    path: PathId,
    is_small: bool,
    /// When it was expected to be complete.
    at: Duration,
}

impl Expected {
    /// So many bytes are foreseen to be there at this time over the path. `None`: they tell nothing.
    pub(crate) fn new(path: PathId, bytes: u64, at: Duration) -> Option<Self> {
        let tells = bytes <= LARGEST && path.index() < MAX_PATHS;
        tells.then_some(Self { path, is_small: bytes <= FIRST_WINDOW, at })
    }
}

/// What is known of all paths.
#[derive(Debug, Default)]
pub(crate) struct Lateness {
    small: [Path; MAX_PATHS],
    large: [Path; MAX_PATHS],
}

#[derive(Debug, Default)]
struct Path {
    /// In seconds, on average, and when it was last told.
    mean: Option<(f64, Duration)>,
    /// What is under way, by when it is expected.
    waits: BTreeSet<(Duration, u64)>,
}

impl Path {
    fn tell(&mut self, late: f64, now: Duration) {
        let before = self.at(now).unwrap_or(late);
        self.mean = Some((before + (late - before) * WEIGHT, now));
    }

    /// How late what has come was.
    fn at(&self, now: Duration) -> Option<f64> {
        self.mean.filter(|(_, at)| now.saturating_sub(*at) < COUNTS).map(|(mean, _)| mean)
    }

    /// The same, with what should be there by now and is not.
    fn late(&self, now: Duration) -> Option<f64> {
        let overdue = self.waits.first().map(|(due, _)| beyond(*due, now)).filter(|late| *late > 0.0);
        match (self.at(now), overdue) {
            (Some(mean), Some(overdue)) => Some(mean.max(overdue)),
            (mean, overdue) => mean.or(overdue),
        }
    }
}

impl Lateness {
    /// This unit is under way.
    pub(crate) fn begins(&mut self, unit: u64, expected: Expected) {
        self.path(expected).waits.insert((expected.at, unit));
    }

    /// It has come.
    pub(crate) fn came(&mut self, unit: u64, expected: Expected, now: Duration) {
        self.ends(unit, expected);
        self.path(expected).tell(beyond(expected.at, now), now);
    }

    /// It has ended, and says nothing.
    pub(crate) fn ends(&mut self, unit: u64, expected: Expected) {
        self.path(expected).waits.remove(&(expected.at, unit));
    }

    fn path(&mut self, expected: Expected) -> &mut Path {
        let paths = if expected.is_small { &mut self.small } else { &mut self.large };
        &mut paths[expected.path.index()]
    }

    /// Adds to each path by how much it is later than the least late one. What a server takes for itself is
    /// the same over all of them; and a path that told nothing lately is as good as the best.
    pub(crate) fn add_to(&self, estimates: &mut [PathEstimate], now: Duration) {
        let count = estimates.len();
        let (small, large) = (beyond_least(&self.small, count, now), beyond_least(&self.large, count, now));
        for (n, estimate) in estimates.iter_mut().enumerate().take(MAX_PATHS) {
            estimate.late = Late { small: small[n], large: large[n] };
        }
    }
}

/// How much later than the least late of the first so many paths each is.
fn beyond_least(paths: &[Path; MAX_PATHS], count: usize, now: Duration) -> [Seconds; MAX_PATHS] {
    let late = paths.each_ref().map(|path| path.late(now));
    let least = late.iter().take(count).flatten().copied().fold(f64::INFINITY, f64::min);
    late.map(|late| {
        let more = late.map_or(0.0, |late| late - least);
        Seconds(if more > SAME { more } else { 0.0 })
    })
}

/// By how much a time is past, in seconds, within bounds.
fn beyond(due: Duration, now: Duration) -> f64 {
    now.saturating_sub(due).as_secs_f64().min(MOST)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const NEAR: PathId = PathId(0);
    const FAR: PathId = PathId(1);

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A unit that was expected at the first of these times came at the second.
    fn came(lateness: &mut Lateness, path: PathId, expected: u64, came: u64) {
        unit_came(lateness, path, 1000, expected, came);
    }

    fn unit_came(lateness: &mut Lateness, path: PathId, bytes: u64, expected: u64, came: u64) {
        let expected = Expected::new(path, bytes, at(expected)).unwrap();
        lateness.begins(1, expected);
        lateness.came(1, expected, at(came));
    }

    /// In milliseconds, of three paths, for small units.
    fn late(lateness: &Lateness, now: u64) -> [u64; 3] {
        late_for(lateness, 1000, now)
    }

    fn late_for(lateness: &Lateness, bytes: u64, now: u64) -> [u64; 3] {
        let mut estimates = [PathEstimate::default(); 3];
        lateness.add_to(&mut estimates, at(now));
        estimates.map(|estimate| (estimate.late.of(bytes).0 * 1000.0).round() as u64)
    }

    #[test]
    fn a_path_is_late_by_what_its_last_units_were_beyond_those_of_the_least_late_one() {
        let mut lateness = Lateness::default();
        assert_eq!(late(&lateness, 0), [0; 3]);
        came(&mut lateness, NEAR, 100, 110);
        assert_eq!(late(&lateness, 110), [0; 3], "the server may take as long over another path");
        came(&mut lateness, FAR, 100, 430);
        assert_eq!(late(&lateness, 430), [0, 320, 0]);
        // An eighth less; what comes early is not late.
        came(&mut lateness, FAR, 1000, 900);
        assert_eq!(late(&lateness, 900), [0, 279, 0]);
        (0..40).for_each(|_| came(&mut lateness, FAR, 1000, 1000));
        assert_eq!(late(&lateness, 1000), [0; 3], "they are hardly different");
    }

    #[test]
    fn what_should_be_there_by_now_tells_as_much_until_it_ends() {
        let mut lateness = Lateness::default();
        came(&mut lateness, NEAR, 100, 110);
        let expected = Expected::new(FAR, 1000, at(200)).unwrap();
        lateness.begins(7, expected);
        assert_eq!(late(&lateness, 200), [0; 3]);
        assert_eq!(late(&lateness, 500), [0, 290, 0]);
        assert_eq!(late(&lateness, 60_000), [0, 1990, 0], "it is lost");
        lateness.ends(7, expected);
        assert_eq!(late(&lateness, 500), [0; 3], "nobody said when it came");
    }

    #[test]
    fn what_does_not_fit_into_a_first_window_counts_apart() {
        let mut lateness = Lateness::default();
        for path in [NEAR, FAR] {
            came(&mut lateness, path, 100, 100);
        }
        unit_came(&mut lateness, NEAR, FIRST_WINDOW + 1, 100, 150);
        unit_came(&mut lateness, FAR, LARGEST, 100, 350);
        assert_eq!(late_for(&lateness, FIRST_WINDOW, 400), [0; 3]);
        assert_eq!(late_for(&lateness, FIRST_WINDOW + 1, 400), [0, 200, 0]);
        assert_eq!(late_for(&lateness, u64::MAX, 400), [0, 200, 0], "of which nothing is learnt");
    }

    #[test]
    fn after_a_minute_a_path_counts_as_good_as_the_best_and_huge_units_tell_nothing() {
        let mut lateness = Lateness::default();
        came(&mut lateness, NEAR, 0, 0);
        came(&mut lateness, FAR, 0, 500);
        assert_eq!(late(&lateness, 60_000), [0; 3], "of the near one nothing is known either");
        came(&mut lateness, NEAR, 60_000, 60_000);
        assert_eq!(late(&lateness, 60_400), [0, 500, 0]);
        assert_eq!(late(&lateness, 60_500), [0; 3]);
        assert_eq!(Expected::new(FAR, LARGEST + 1, at(0)), None);
    }
}
