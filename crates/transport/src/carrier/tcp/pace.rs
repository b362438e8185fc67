//! How much of what was written the kernel should hold unsent, by how fast the path takes it.

use std::time::{Duration, Instant};

/// The kernel should not hold more unsent bytes than this: they are stuck if the path dies.
pub(super) const UNSENT_LIMIT: u32 = 128 * 1024;
/// Where that is less than the path takes within [`UNSENT_TIME`], up to this: every wait for room costs
/// two thread switches, which a path of gigabits would do little else than.
const MAX_UNSENT_LIMIT: u32 = 512 * 1024;
const UNSENT_TIME: Duration = Duration::from_millis(1);
/// Where it is more than a slow path takes within [`SLOW_UNSENT_TIME`], down to this: what waits in the
/// kernel can't go another way, and a new stream waits behind it, and behind a batch of half of it.
const MIN_UNSENT_LIMIT: u32 = 2 * 1460;
const SLOW_UNSENT_TIME: Duration = Duration::from_millis(4);
/// Encrypt so much before writing, where the path is not slow.
const WRITE_BATCH: usize = 128 * 1024;
/// How fast a path takes bytes is measured over so many, or so long.
const PACE_BYTES: u64 = 1024 * 1024;
const PACE_TIME: Duration = Duration::from_millis(250);

/// How fast the socket takes bytes, and the limit that follows.
pub(super) struct Pace {
    since: Instant,
    pub(super) written: u64,
    /// The socket was full at times: what it took is what it could.
    pub(super) full: bool,
    pub(super) limit: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { since: Instant::now(), written: 0, full: false, limit: UNSENT_LIMIT }
    }
}

impl Pace {
    /// The limit for the kernel's unsent queue, if it has to change.
    pub(super) fn changed_limit(&mut self, now: Instant) -> Option<u32> {
        let elapsed = now.saturating_duration_since(self.since);
        if self.written < PACE_BYTES && elapsed < PACE_TIME {
            return None;
        }
        let (before, limit) = (self.limit, unsent_limit(self.written, elapsed));
        // Who writes little says nothing about the path.
        self.limit = if self.full { limit } else { limit.max(before) };
        (self.since, self.written, self.full) = (now, 0, false);
        (self.limit != before).then_some(self.limit)
    }

    /// How much to encrypt before writing: that cannot be taken back either, and comes on top of what the
    /// kernel holds.
    pub(super) fn batch(&self) -> usize {
        if self.limit < UNSENT_LIMIT { self.limit as usize / 2 } else { WRITE_BATCH }
    }
}

/// For a path that took so many bytes in that time. On a path of gigabits a power of two, so that it seldom
/// changes.
fn unsent_limit(bytes: u64, time: Duration) -> u32 {
    let within = |limit: Duration, most: u32| {
        let taken = u128::from(bytes) * limit.as_nanos() / time.as_nanos().max(1);
        u32::try_from(taken).unwrap_or(most).min(most)
    };
    let quick = within(UNSENT_TIME, MAX_UNSENT_LIMIT);
    if quick > UNSENT_LIMIT {
        return quick.next_power_of_two();
    }
    within(SLOW_UNSENT_TIME, UNSENT_LIMIT).max(MIN_UNSENT_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_gigabits_may_leave_more_unsent_and_slow_ones_less() {
        let limit = |bits: u64| unsent_limit(PACE_BYTES, Duration::from_secs(PACE_BYTES * 8) / bits as u32);
        assert_eq!(limit(1_000_000), MIN_UNSENT_LIMIT);
        assert_eq!(limit(20_000_000), 10_000);
        assert_eq!(limit(100_000_000), 50_000);
        assert_eq!(limit(1_000_000_000), UNSENT_LIMIT);
        assert_eq!(limit(2_000_000_000), 2 * UNSENT_LIMIT);
        assert_eq!(limit(4_000_000_000), MAX_UNSENT_LIMIT);
        assert_eq!(unsent_limit(PACE_BYTES, Duration::ZERO), MAX_UNSENT_LIMIT);
    }

    #[test]
    fn a_slow_path_is_not_given_in_one_batch_what_its_kernel_may_not_hold() {
        let batch = |limit| Pace { limit, ..Pace::default() }.batch();
        assert_eq!(batch(UNSENT_LIMIT), WRITE_BATCH);
        assert_eq!(batch(10_000), 5000);
    }

    #[test]
    fn who_writes_little_does_not_make_a_path_slow() {
        let long_ago = Instant::now() - 2 * PACE_TIME;
        let pace = |full| {
            Pace { since: long_ago, written: 5000, full, limit: UNSENT_LIMIT }.changed_limit(Instant::now())
        };
        assert_eq!(pace(false), None);
        assert_eq!(pace(true), Some(MIN_UNSENT_LIMIT));
    }
}
