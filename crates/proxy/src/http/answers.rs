//! How long a server's objects took to come lately, of large ones the head, to know when one is late.

use std::time::Duration;

/// So many of the last objects count.
const KEPT: usize = 8;
/// An object is late that takes so many times as long as the slowest of them.
const TIMES: u32 = 3;
/// Slower ones count as this: some servers hold an answer back for long.
const MOST: Duration = Duration::from_secs(4);
/// None is late before that: a slow network may be busy with others.
const LEAST: Duration = Duration::from_millis(500);
/// None is late before that of whose server nothing is known.
pub(super) const UNKNOWN: Duration = Duration::from_secs(1);

/// What the last objects took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Answers([Duration; KEPT]);

impl Answers {
    /// The same after another object that took so long.
    pub(super) fn after(mut self, took: Duration) -> Self {
        self.0.rotate_right(1);
        self.0[0] = took.min(MOST);
        self
    }

    /// When the next one is late.
    pub(super) fn late(&self) -> Duration {
        self.slowest().saturating_mul(TIMES).max(LEAST)
    }

    /// What the slowest took.
    pub(super) fn slowest(&self) -> Duration {
        self.0.into_iter().max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_three_times_as_long_as_the_slowest_of_the_last_eight_is_late() {
        let after = |millis: &[u64]| {
            let took = millis.iter().map(|millis| Duration::from_millis(*millis));
            took.fold(Answers::default(), Answers::after).late().as_millis()
        };
        assert_eq!(after(&[20]), 500, "a network may be busy");
        assert_eq!(after(&[20, 900, 20]), 2700);
        assert_eq!(after(&[30_000]), 12_000, "as one that waits for news");
        assert_eq!(after(&[900, 1, 2, 3, 4, 5, 6, 7]), 2700);
        assert_eq!(after(&[900, 1, 2, 3, 4, 5, 6, 7, 300]), 900);
    }
}
