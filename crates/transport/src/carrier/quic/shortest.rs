//! The shortest round trip of late: what a path takes when nothing waits on it.

use std::time::{Duration, Instant};

/// So long a round trip counts, and once more: paths change.
const SHORTEST_FOR: Duration = Duration::from_secs(10);

/// The shortest of the round trips of the last ten to twenty seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shortest {
    current: Duration,
    previous: Duration,
    since: Instant,
}

impl Shortest {
    /// Of one round trip so far.
    pub(super) fn new(now: Instant, took: Duration) -> Self {
        Self { current: took, previous: took, since: now }
    }

    /// A round trip took so long.
    pub(super) fn saw(&mut self, now: Instant, took: Duration) {
        if now.saturating_duration_since(self.since) >= SHORTEST_FOR {
            *self = Self { previous: self.current, ..Self::new(now, took) };
        }
        self.current = self.current.min(took);
    }

    /// How long it is.
    pub(super) fn get(&self) -> Duration {
        self.current.min(self.previous)
    }
}
