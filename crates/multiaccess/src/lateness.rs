//! How much later than foreseen units come over each path.
//!
//! A forecast knows the smallest round trip and the best rate of a path, and not how often it brings neither:
//! a mobile network that stands still for a second now and then looks as good as a steady one. Units that are
//! larger than a first window tell: what is smaller tells of the server as much as of the path.
//!
//! Pure: the time is the caller's.

use std::time::Duration;
use whimbrel_access::{FIRST_WINDOW, MAX_PATHS, PathEstimate, PathId, Seconds};

/// What a unit tells counts for so long: mobile networks change within minutes.
const COUNTS: Duration = Duration::from_secs(60);
/// The weight of the last unit: that of the mean of the last eight.
const WEIGHT: f64 = 0.125;
/// What is later than this has been lost, and comes another way, in seconds.
const MOST: f64 = 2.0;
/// Paths that differ by less are equally late: it is about a round trip, and what programs and servers take
/// for themselves differs by as much. In seconds.
const SAME: f64 = 0.02;
/// Larger units tell nothing: who reads them may not take them as they come.
const LARGEST: u64 = 256 << 10;

/// A unit from which lateness is learnt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Expected {
    path: PathId,
    /// When it was foreseen to be complete.
    at: Duration,
}

impl Expected {
    /// So many bytes are foreseen to be there at this time over the path. `None`: they tell nothing.
    pub(crate) fn new(path: PathId, bytes: u64, at: Duration) -> Option<Self> {
        let tells = bytes > FIRST_WINDOW && bytes <= LARGEST && path.index() < MAX_PATHS;
        tells.then_some(Self { path, at })
    }
}

/// What is known of all paths.
#[derive(Debug, Default)]
pub(crate) struct Lateness {
    /// By how many seconds on average, and when that was last told.
    paths: [Option<(f64, Duration)>; MAX_PATHS],
}

impl Lateness {
    /// A unit has come.
    pub(crate) fn came(&mut self, expected: Expected, now: Duration) {
        let late = now.saturating_sub(expected.at).as_secs_f64().min(MOST);
        let before = self.of(expected.path.index(), now).unwrap_or(late);
        self.paths[expected.path.index()] = Some((before + (late - before) * WEIGHT, now));
    }

    /// Adds to each path by how much it is later than the least late one. What a server takes for itself is
    /// the same over all of them; and a path that told nothing lately is as good as the best.
    pub(crate) fn add_to(&self, estimates: &mut [PathEstimate], now: Duration) {
        let known = (0..estimates.len().min(MAX_PATHS)).filter_map(|path| self.of(path, now));
        let least = known.fold(f64::INFINITY, f64::min);
        for (path, estimate) in estimates.iter_mut().enumerate().take(MAX_PATHS) {
            let more = self.of(path, now).map_or(0.0, |late| late - least);
            estimate.late = Seconds(if more > SAME { more } else { 0.0 });
        }
    }

    fn of(&self, path: usize, now: Duration) -> Option<f64> {
        self.paths[path].filter(|(_, at)| now.saturating_sub(*at) < COUNTS).map(|(late, _)| late)
    }
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
        lateness.came(Expected::new(path, LARGEST, at(expected)).unwrap(), at(came));
    }

    /// In milliseconds, of three paths.
    fn late(lateness: &Lateness, now: u64) -> [u64; 3] {
        let mut estimates = [PathEstimate::default(); 3];
        lateness.add_to(&mut estimates, at(now));
        estimates.map(|estimate| (estimate.late.0 * 1000.0).round() as u64)
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
        came(&mut lateness, FAR, 0, 60_000);
        assert_eq!(late(&lateness, 60_000), [0, 493, 0], "no more than two seconds count, by an eighth");
        (0..40).for_each(|_| came(&mut lateness, FAR, 1000, 1000));
        assert_eq!(late(&lateness, 1000), [0; 3], "they are hardly different");
    }

    #[test]
    fn after_a_minute_a_path_counts_as_good_as_the_best() {
        let mut lateness = Lateness::default();
        came(&mut lateness, NEAR, 0, 0);
        came(&mut lateness, FAR, 0, 500);
        assert_eq!(late(&lateness, 60_000), [0; 3], "of the near one nothing is known either");
        came(&mut lateness, NEAR, 60_000, 60_000);
        assert_eq!(late(&lateness, 60_400), [0, 500, 0]);
        assert_eq!(late(&lateness, 60_500), [0; 3]);
    }

    #[test]
    fn what_fits_into_a_first_window_and_what_is_huge_tells_nothing() {
        for (bytes, tells) in
            [(FIRST_WINDOW, false), (FIRST_WINDOW + 1, true), (LARGEST, true), (LARGEST + 1, false)]
        {
            assert_eq!(Expected::new(FAR, bytes, at(0)).is_some(), tells, "{bytes}");
        }
    }
}
