//! How long to wait between attempts at a path.

use std::time::Duration;

/// After the first failure; doubled after each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// While no path works, every second counts; a further path can wait.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE_BESIDES: Duration = Duration::from_secs(60);
/// An attempt that took no longer was refused. One that takes longer waits for somebody who may not be there.
pub(crate) const QUICK: Duration = Duration::from_secs(1);

/// Attempts that failed in a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Failures {
    all: u32,
    /// From the last one on that waited without success: silence ends at any moment, and what waits for an
    /// answer notices that, which nothing does between attempts.
    since_silence: u32,
}

impl Failures {
    /// With one more, which took so long.
    #[must_use]
    pub(crate) fn and(self, took: Duration) -> Self {
        let before = if took >= QUICK { 0 } else { self.since_silence };
        Self { all: self.all.saturating_add(1), since_silence: before.saturating_add(1) }
    }

    pub(crate) fn any(self) -> bool {
        self.all > 0
    }

    /// How long to wait before the next attempt; `alone`: no path works.
    pub(crate) fn pause(self, alone: bool) -> Duration {
        let (count, longest) = match alone {
            true => (self.since_silence, LONGEST_PAUSE),
            false => (self.all, LONGEST_PAUSE_BESIDES),
        };
        let grown = |doublings| FIRST_PAUSE.saturating_mul(2u32.saturating_pow(doublings)).min(longest);
        count.checked_sub(1).map_or(Duration::ZERO, grown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(times: u32) -> Failures {
        (0..times).fold(Failures::default(), |failures, _| failures.and(QUICK / 2))
    }

    #[test]
    fn pauses_grow_and_end() {
        assert_eq!(refused(0).pause(true), Duration::ZERO);
        assert_eq!(refused(1).pause(true), FIRST_PAUSE);
        assert_eq!(refused(3).pause(false), 4 * FIRST_PAUSE);
        assert_eq!(refused(1000).pause(true), LONGEST_PAUSE);
        assert_eq!(refused(1000).pause(false), LONGEST_PAUSE_BESIDES);
        assert!(!refused(0).any() && refused(1).any());
    }

    #[test]
    fn what_waited_in_vain_begins_anew_at_once_where_no_path_works() {
        let silent = (0..100).fold(refused(100), |failures, _| failures.and(10 * QUICK));
        assert_eq!((silent.pause(true), silent.pause(false)), (FIRST_PAUSE, LONGEST_PAUSE_BESIDES));
        // Where somebody refuses then, the pauses grow from the beginning.
        let refused = silent.and(QUICK / 2);
        assert_eq!((refused.pause(true), refused.pause(false)), (2 * FIRST_PAUSE, LONGEST_PAUSE_BESIDES));
    }
}
