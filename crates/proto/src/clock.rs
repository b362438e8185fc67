//! A connection's own time: durations since it began, which mean something to whoever reads them later and
//! elsewhere.

use std::time::{Duration, Instant};

/// Translates between points in time and time since the connection began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    origin: Instant,
    /// How old the connection was at the origin.
    age: Duration,
    /// How old it was when this side was last told the time.
    told: Duration,
}

impl Clock {
    /// The connection is `age` old now.
    pub(crate) fn new(now: Instant, age: Duration) -> Self {
        Self { origin: now, age, told: age }
    }

    /// When the connection was as old as this began to count.
    pub(crate) fn origin(&self) -> Instant {
        self.origin
    }

    /// The connection was `age` old at `origin`. When this side was told the time last stays.
    pub(crate) fn begin_again(&mut self, origin: Instant, age: Duration) {
        (self.origin, self.age) = (origin, age);
    }

    /// This side is told the time. Returns how old the connection is then.
    #[inline]
    pub(crate) fn tell(&mut self, now: Instant) -> Duration {
        let age = self.since_begin(now);
        self.told = self.told.max(age);
        age
    }

    /// How old the connection was when this side was last told the time.
    pub(crate) fn told(&self) -> Duration {
        self.told
    }

    /// How old the connection is at a point in time.
    #[inline]
    pub(crate) fn since_begin(&self, now: Instant) -> Duration {
        self.age + now.saturating_duration_since(self.origin)
    }

    /// When the connection is so old; `None` in a future that cannot be told.
    pub(crate) fn at(&self, age: Duration) -> Option<Instant> {
        self.origin.checked_add(age.saturating_sub(self.age))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_the_same_there_and_back_and_time_told_never_goes_back() {
        let (now, age) = (Instant::now(), Duration::from_secs(3));
        let mut clock = Clock::new(now, age);
        let later = now + Duration::from_secs(2);
        assert_eq!(clock.at(clock.since_begin(later)), Some(later));
        clock.tell(later);
        clock.tell(now);
        assert_eq!(clock.told(), Duration::from_secs(5));
        assert_eq!(clock.at(Duration::MAX), None);
    }
}
