//! Wake-up from sleep: the boot clock runs on while the host sleeps, the monotonic clock does not
//! (`docs/lessons.md`, 12).

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A gap this large is a sleep, not scheduling noise.
const GAP: Duration = Duration::from_millis(500);

/// Compares the two clocks.
#[derive(Debug)]
pub(super) struct SleepDetector {
    asleep: Duration,
}

impl SleepDetector {
    pub(super) fn new() -> Self {
        Self { asleep: time_asleep() }
    }

    /// How long the host slept since the last call, if it did.
    pub(super) fn poll(&mut self) -> Option<Duration> {
        self.advance(time_asleep())
    }

    fn advance(&mut self, asleep: Duration) -> Option<Duration> {
        let slept = asleep.saturating_sub(self.asleep);
        self.asleep = asleep;
        (slept >= GAP).then_some(slept)
    }
}

/// How long the host has been asleep since it booted.
fn time_asleep() -> Duration {
    // Read in this order, so that a pause between the two readings shortens the difference.
    let boot = read(ClockId::Boottime);
    boot.saturating_sub(read(ClockId::Monotonic))
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_asleep_counts_as_sleep() {
        let mut detector = SleepDetector { asleep: Duration::from_secs(5) };
        assert_eq!(detector.advance(Duration::from_secs(5)), None);
        assert_eq!(detector.advance(Duration::from_millis(65_000)), Some(Duration::from_secs(60)));
        assert_eq!(detector.advance(Duration::from_millis(65_001)), None);
        std::thread::sleep(Duration::from_millis(600));
        let mut real = SleepDetector::new();
        std::thread::sleep(Duration::from_millis(600));
        assert_eq!(real.poll(), None, "a sleeping thread is not a sleeping host");
    }
}
