//! How long messages take: a distribution in constant memory.

use std::time::Duration;

use crate::error::DecodeError;
use crate::snapshot;
use crate::varint::Reader;

/// Steps within each doubling: a figure is off by at most half a step, 6 %.
const STEPS: u64 = 8;
/// Doublings of a microsecond: the last step holds everything above 140 hours.
const DOUBLINGS: u64 = 36;
const BUCKETS: usize = ((DOUBLINGS + 1) * STEPS) as usize;

/// The delays of a flow's, or a connection's, delivered messages: from when a message was taken until this
/// side knew that the peer has it. Takes 1.2 KB once there is a delay in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delays {
    /// Counts by step; empty as long as there is nothing to count.
    buckets: Vec<u32>,
    count: u64,
    longest: Duration,
}

impl Delays {
    /// Counts one.
    #[inline]
    pub(crate) fn note(&mut self, delay: Duration) {
        if self.buckets.is_empty() {
            self.buckets = vec![0; BUCKETS];
        }
        if let Some(bucket) = self.buckets.get_mut(bucket_of(delay)) {
            *bucket = bucket.saturating_add(1);
        }
        self.count += 1;
        self.longest = self.longest.max(delay);
    }

    /// Counts what others have counted.
    pub(crate) fn add(&mut self, other: &Self) {
        if self.buckets.is_empty() {
            self.buckets.clone_from(&other.buckets);
        } else {
            for (bucket, more) in self.buckets.iter_mut().zip(&other.buckets) {
                *bucket = bucket.saturating_add(*more);
            }
        }
        self.count = self.count.saturating_add(other.count);
        self.longest = self.longest.max(other.longest);
    }

    /// Writes down the steps in which there is anything.
    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        let full = || self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        snapshot::number(out, full().count() as u64);
        full().for_each(|(step, count)| snapshot::numbers(out, [step as u64, u64::from(*count)]));
        snapshot::number(out, self.count);
        snapshot::time(out, self.longest);
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut this = Self::default();
        for _ in 0..reader.varint()? {
            let [step, count] = snapshot::read_numbers(reader)?;
            if this.buckets.is_empty() {
                this.buckets = vec![0; BUCKETS];
            }
            let bucket = usize::try_from(step).ok().and_then(|step| this.buckets.get_mut(step));
            *bucket.ok_or(DecodeError::Invalid("delay"))? = u32::try_from(count).unwrap_or(u32::MAX);
        }
        this.count = reader.varint()?;
        this.longest = snapshot::read_time(reader)?;
        Ok(this)
    }

    /// How many messages were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest delay, exactly.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// The delay that `percent` of all messages do not exceed (0 to 100), within 6 %; `None` if there were
    /// none.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Option<Duration> {
        let all: u64 = self.buckets.iter().map(|count| u64::from(*count)).sum();
        let wanted = ((all as f64 * percent.clamp(0.0, 100.0) / 100.0).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|count| {
            seen += u64::from(*count);
            seen >= wanted
        })?;
        Some(middle_of(bucket).min(self.longest))
    }
}

#[inline]
fn bucket_of(delay: Duration) -> usize {
    let micros = delay.as_secs().saturating_mul(1_000_000).saturating_add(delay.subsec_micros().into());
    if micros < STEPS {
        return micros as usize;
    }
    // The leading bit says which doubling, the three bits behind it which step of it.
    let doubling = u64::from(micros.ilog2()) - 2;
    let step = (micros >> (doubling - 1)) - STEPS;
    ((doubling * STEPS + step) as usize).min(BUCKETS - 1)
}

fn middle_of(bucket: usize) -> Duration {
    let (doubling, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    if doubling == 0 {
        return Duration::from_micros(step);
    }
    let width = 1 << (doubling - 1);
    Duration::from_micros((STEPS + step) * width + width / 2)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_delay_is_found_again_within_six_percent() {
        for micros in (0..2000).chain((0..40).map(|bits| (1_u64 << bits) / 3)) {
            let delay = Duration::from_micros(micros);
            let mut delays = Delays::default();
            delays.note(delay);
            // Another one, so that the longest does not bound it.
            delays.note(Duration::from_secs(1_000_000));
            let found = delays.percentile(50.0).unwrap();
            assert!(found.abs_diff(delay) <= delay.mul_f64(0.0626), "{delay:?} {found:?}");
        }
    }

    #[test]
    fn percentiles_are_those_of_all_that_were_counted() {
        let (mut all, mut slow) = (Delays::default(), Delays::default());
        assert_eq!(all.percentile(50.0), None);
        (0..98).for_each(|_| all.note(Duration::from_millis(10)));
        (0..2).for_each(|_| slow.note(Duration::from_secs(2)));
        all.add(&slow);
        assert_eq!(all.count(), 100);
        let (half, last) = (all.percentile(50.0).unwrap(), all.percentile(99.0).unwrap());
        assert!(half.abs_diff(Duration::from_millis(10)) < Duration::from_millis(1), "{half:?}");
        assert!(last.abs_diff(Duration::from_secs(2)) < Duration::from_millis(125), "{last:?}");
        assert_eq!(all.longest(), Duration::from_secs(2));
    }

    #[test]
    fn a_delay_beyond_all_steps_is_counted_in_the_last() {
        let mut delays = Delays::default();
        delays.note(Duration::MAX);
        assert_eq!(bucket_of(Duration::MAX), BUCKETS - 1);
        assert!(delays.percentile(100.0).unwrap() > Duration::from_secs(60 * 60 * 140));
    }
}
