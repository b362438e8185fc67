//! Hybrid logical time: a wall clock that never runs backwards along what somebody has seen.
//!
//! (S. Kulkarni et al., *Logical Physical Clocks*, OPODIS 2014.) An entry's time is later than that of every
//! entry its author knew, whatever the author's clock shows. So sorting by it never puts an effect before its
//! cause.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use whimbrel_base::UnixTime;

/// How far an entry may be ahead of the clock of the device that receives it. Two honest clocks that are
/// wrong by a day in different directions are two days apart. What is further ahead is not taken until its
/// time comes nearer.
pub const MAX_AHEAD: Duration = Duration::from_secs(3 * 24 * 60 * 60);

const COUNTER_BITS: u32 = 16;

/// Milliseconds since 1970 in the upper 48 bits, a counter in the lower 16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Hybrid(u64);

impl Hybrid {
    /// The end of time.
    pub(crate) const MAX: Self = Self(u64::MAX);

    /// The time of a new entry: the clock's, or right after the latest entry that the author knows.
    #[must_use]
    pub fn after(latest: Self, now: UnixTime) -> Self {
        Self(latest.0.saturating_add(1).max(Self::of(now).0))
    }

    /// The first hybrid time of a millisecond.
    #[must_use]
    pub fn of(time: UnixTime) -> Self {
        Self(time.as_millis().min(u64::MAX >> COUNTER_BITS) << COUNTER_BITS)
    }

    /// The wall-clock part, for people.
    pub fn wall(self) -> UnixTime {
        UnixTime::from_millis(self.0 >> COUNTER_BITS)
    }

    /// Whether this is further ahead of a clock than [`MAX_AHEAD`].
    pub fn is_too_far_ahead(self, now: UnixTime) -> bool {
        self.0 > Self::of(now.saturating_add(MAX_AHEAD)).0
    }

    /// The step from an earlier time to this one; `None` if it is not later.
    pub(crate) fn step_from(self, earlier: Self) -> Option<u64> {
        self.0.checked_sub(earlier.0).filter(|step| *step > 0)
    }

    /// The time a step later; `None` for no step, or beyond the end of time.
    pub(crate) fn step(self, step: u64) -> Option<Self> {
        self.0.checked_add(step).filter(|_| step > 0).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_from_what_was_seen_although_the_clock_was_set_back() {
        let day = Duration::from_secs(86_400);
        let now = UnixTime::from_secs(1_700_000_000);
        let seen = Hybrid::of(now.saturating_add(day));
        let next = Hybrid::after(seen, now);
        assert!(next > seen);
        assert_eq!(next.wall(), seen.wall());
        assert_eq!(Hybrid::after(Hybrid::of(now), now.saturating_add(day)).wall(), now.saturating_add(day));
    }

    #[test]
    fn clocks_wrong_by_a_day_each_way_understand_each_other_and_a_week_ahead_waits() {
        let now = UnixTime::from_secs(1_700_000_000);
        let ahead = |days: u64| Hybrid::of(now.saturating_add(Duration::from_secs(days * 86_400)));
        assert!(!ahead(2).is_too_far_ahead(now));
        assert!(!ahead(3).is_too_far_ahead(now));
        assert!(ahead(7).is_too_far_ahead(now));
        assert!(Hybrid(u64::MAX).is_too_far_ahead(now));
    }
}
