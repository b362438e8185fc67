//! Limits of the rate at which a side sends. What goes beyond them waits: nothing is dropped.

use std::time::{Duration, Instant};

use crate::error::DecodeError;
use crate::flow::Urgency;
use crate::message::turns::{LEVELS, Levels};
use crate::snapshot;
use crate::varint::Reader;

/// Billionths of a byte: whole numbers for each nanosecond of each rate.
const UNIT: i128 = 1_000_000_000;
/// An idle side saves up what it may send in this part of a second, ...
const BURST_SHARE: u64 = 40;
/// ... or so many bytes if that is more.
const LEAST_BURST: u64 = 4096;
/// Of the burst, this part must be there before a side that has spent it goes on: not each byte alone.
const QUANTA: u64 = 4;

/// Most bytes a second that may be sent, from [`RateLimit::LEAST`] to [`RateLimit::MOST`].
///
/// What counts is what the engine hands to its carriers: frames with their headers, what is sent again
/// included. What TLS, QUIC, TCP and IP put around it is not counted, nor are segments that hold nothing but
/// acknowledgements. A side that was idle may send a fortieth of a second's worth at once, and at least 4 KiB.
///
/// ```
/// use whimbrel_proto::RateLimit;
///
/// let limit = RateLimit::new(250_000).unwrap(); // 2 Mbit/s
/// assert_eq!(limit.bytes_per_second(), 250_000);
/// assert!(RateLimit::new(100).is_none());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RateLimit(u64);

impl RateLimit {
    /// The lowest limit, 32 KiB a second: below it, one small message would be more than a limit allows.
    pub const LEAST: Self = Self(32 << 10);
    /// The highest limit, 1 TiB a second.
    pub const MOST: Self = Self(1 << 40);

    /// A limit in bytes a second; `None` if it lies outside of the range.
    #[must_use]
    pub const fn new(bytes_per_second: u64) -> Option<Self> {
        if bytes_per_second >= Self::LEAST.0 && bytes_per_second <= Self::MOST.0 {
            Some(Self(bytes_per_second))
        } else {
            None
        }
    }

    /// Bytes a second.
    #[must_use]
    pub const fn bytes_per_second(self) -> u64 {
        self.0
    }

    fn burst(self) -> u64 {
        (self.0 / BURST_SHARE).max(LEAST_BURST)
    }
}

/// A token bucket. It may go below zero, because frames are not cut to the byte; the debt is paid before
/// anything else is sent.
#[derive(Debug)]
struct Bucket {
    limit: RateLimit,
    /// In [`UNIT`]s.
    level: i128,
    at: Instant,
}

impl Bucket {
    fn full(limit: RateLimit, now: Instant) -> Self {
        Self { limit, level: i128::from(limit.burst()) * UNIT, at: now }
    }

    /// Takes in what has accrued.
    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_nanos() as i128;
        let most = i128::from(self.limit.burst()) * UNIT;
        self.level = (self.level + passed.min(1 << 62) * i128::from(self.limit.0)).min(most);
        self.at = self.at.max(now);
    }

    /// Keeps its level under another limit, as far as that lets it.
    fn change(&mut self, limit: RateLimit, now: Instant) {
        self.refill(now);
        self.limit = limit;
        self.level = self.level.min(i128::from(limit.burst()) * UNIT);
    }

    /// Bytes that may go now.
    fn room(&self) -> u64 {
        (self.level / UNIT).max(0) as u64
    }

    /// When enough has accrued for `wanted` bytes to go, or for a good part of a burst. `None`: now.
    fn wait(&self, wanted: u64) -> Option<Instant> {
        let enough = (self.limit.burst() / QUANTA).min(wanted.max(1));
        let missing = i128::from(enough) * UNIT - self.level;
        let nanos = (missing > 0).then(|| missing / i128::from(self.limit.0) + 1)?;
        Some(self.at + Duration::from_nanos(nanos.min(1 << 62) as u64))
    }

    fn spend(&mut self, bytes: u64) {
        self.level -= i128::from(bytes) * UNIT;
    }
}

/// The limits of a connection, and when what they hold back may go.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    all: Option<Bucket>,
    levels: [Option<Box<Bucket>>; LEVELS],
    /// Something waits until then.
    wake: Option<Instant>,
}

impl Pacing {
    /// Sets the limit for everything, or lifts it.
    pub(crate) fn limit(&mut self, now: Instant, limit: Option<RateLimit>) {
        self.wake = None;
        match (&mut self.all, limit) {
            (Some(bucket), Some(limit)) => bucket.change(limit, now),
            (all, limit) => *all = limit.map(|limit| Bucket::full(limit, now)),
        }
    }

    /// Sets the limit for one level of urgency, or lifts it.
    pub(crate) fn limit_level(&mut self, now: Instant, urgency: Urgency, limit: Option<RateLimit>) {
        self.wake = None;
        match (&mut self.levels[usize::from(urgency.level())], limit) {
            (Some(bucket), Some(limit)) => bucket.change(limit, now),
            (level, limit) => *level = limit.map(|limit| Box::new(Bucket::full(limit, now))),
        }
    }

    /// Writes the limits down, without what was saved up.
    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        let limit = |bucket: Option<&Bucket>| bucket.map(|bucket| bucket.limit.0);
        snapshot::optional(out, limit(self.all.as_ref()));
        self.levels.iter().for_each(|bucket| snapshot::optional(out, limit(bucket.as_deref())));
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>, now: Instant) -> Result<Self, DecodeError> {
        let mut bucket = || -> Result<Option<Bucket>, DecodeError> {
            let Some(limit) = snapshot::read_optional(reader)? else { return Ok(None) };
            let limit = RateLimit::new(limit).ok_or(DecodeError::Invalid("rate limit"))?;
            Ok(Some(Bucket::full(limit, now)))
        };
        let mut this = Self { all: bucket()?, ..Self::default() };
        for level in &mut this.levels {
            *level = bucket()?.map(Box::new);
        }
        Ok(this)
    }

    /// Something is limited.
    pub(crate) fn limits_any(&self) -> bool {
        self.all.is_some() || self.levels.iter().any(Option::is_some)
    }

    /// The limit for everything.
    pub(crate) fn limited_to(&self) -> Option<RateLimit> {
        self.all.as_ref().map(|bucket| bucket.limit)
    }

    /// Of the levels that wait, those that may send now.
    pub(crate) fn open_levels(&mut self, now: Instant, waiting: Levels) -> Levels {
        let mut open = waiting;
        if waiting == 0 {
            return open;
        }
        for (level, bucket) in self.levels.iter_mut().enumerate() {
            if let Some(bucket) = bucket.as_mut().filter(|_| waiting >> level & 1 == 1) {
                bucket.refill(now);
                if let Some(at) = bucket.wait(u64::MAX) {
                    open &= !(1 << level);
                    self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
                }
            }
        }
        open
    }

    /// Bytes that may go now of `wanted` that wait; 0: not before [`deadline`](Self::deadline).
    pub(crate) fn room(&mut self, now: Instant, wanted: u64) -> u64 {
        let Some(bucket) = &mut self.all else {
            return u64::MAX;
        };
        bucket.refill(now);
        match bucket.wait(wanted) {
            None => bucket.room(),
            Some(at) => {
                self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
                0
            }
        }
    }

    /// Bytes that a level may send, as of the last call of [`open_levels`](Self::open_levels).
    pub(crate) fn level_room(&self, level: u8) -> u64 {
        self.levels[usize::from(level)].as_ref().map_or(u64::MAX, |bucket| bucket.room())
    }

    /// Notes what has gone.
    pub(crate) fn spend(&mut self, bytes: u64) {
        if let Some(bucket) = &mut self.all {
            bucket.spend(bytes);
        }
    }

    /// Notes what has gone at a level.
    pub(crate) fn spend_at(&mut self, level: u8, bytes: u64) {
        if let Some(bucket) = &mut self.levels[usize::from(level)] {
            bucket.spend(bytes);
        }
    }

    /// When what was held back may go.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.wake
    }

    /// Time has come to `now`: what is held back says so again.
    pub(crate) fn run(&mut self, now: Instant) {
        self.wake = self.wake.filter(|at| *at > now);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Sends pieces of `size` whenever it may, for `time`. Returns how many bytes went.
    fn run(pacing: &mut Pacing, now: &mut Instant, time: Duration, size: u64) -> u64 {
        let (end, mut sent) = (*now + time, 0);
        loop {
            while pacing.room(*now, u64::MAX) > 0 {
                pacing.spend(size);
                sent += size;
            }
            let at = pacing.deadline().unwrap();
            assert!(at > *now);
            if at > end {
                *now = end;
                return sent;
            }
            *now = at;
            pacing.run(*now);
        }
    }

    #[test]
    fn a_limit_is_kept_within_three_percent_over_ten_seconds_at_every_rate() {
        for rate in [RateLimit::LEAST.0, 100_000, 1_250_000, 125_000_000, 10_000_000_000] {
            for size in [100, 1200, 4096] {
                let mut now = Instant::now();
                let mut pacing = Pacing::default();
                pacing.limit(now, RateLimit::new(rate));
                // Idle time gains no more than the burst.
                now += SECOND * 100;
                let asked = rate * 10;
                let sent =
                    if rate < 1_000_000_000 { run(&mut pacing, &mut now, SECOND * 10, size) } else { asked };
                assert!(sent.abs_diff(asked) * 100 <= asked * 3, "{sent} instead of {asked}, {size} each");
            }
        }
    }

    #[test]
    fn a_lone_small_message_waits_for_no_more_than_itself() {
        let now = Instant::now();
        let mut pacing = Pacing::default();
        pacing.limit(now, RateLimit::new(100_000));
        pacing.spend(4096);
        assert_eq!(pacing.room(now, 100), 0);
        let wait = pacing.deadline().unwrap() - now;
        assert!(wait >= Duration::from_micros(1000) && wait < Duration::from_micros(1100), "{wait:?}");
    }

    #[test]
    fn a_limit_that_changes_gives_no_second_burst() {
        let mut now = Instant::now();
        let mut pacing = Pacing::default();
        pacing.limit(now, RateLimit::new(1_000_000));
        run(&mut pacing, &mut now, SECOND, 1000);
        pacing.limit(now, RateLimit::new(2_000_000));
        let sent = run(&mut pacing, &mut now, SECOND, 1000);
        assert!(sent.abs_diff(2_000_000) <= 40_000, "{sent}");
        pacing.limit(now, None);
        assert_eq!((pacing.room(now, 1), pacing.deadline()), (u64::MAX, None));
    }

    #[test]
    fn a_level_that_has_spent_its_share_leaves_the_others_open() {
        let now = Instant::now();
        let mut pacing = Pacing::default();
        pacing.limit_level(now, Urgency::LAST, RateLimit::new(100_000));
        assert_eq!(pacing.open_levels(now, 0b1000_0001), 0b1000_0001);
        pacing.spend_at(7, pacing.level_room(7));
        assert_eq!(pacing.open_levels(now, 0b1000_0001), 1);
        let at = pacing.deadline().unwrap();
        assert_eq!(pacing.open_levels(at, 0b1000_0001), 0b1000_0001);
        assert_eq!(pacing.room(now, 1), u64::MAX);
    }
}
