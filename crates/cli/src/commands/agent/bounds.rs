//! How many programs run at once, and how many are started in a minute.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

const MINUTE: Duration = Duration::from_secs(60);

/// Bounds of what an agent starts.
pub(super) struct Bounds {
    at_once: Arc<Semaphore>,
    each_minute: usize,
    begun: Mutex<VecDeque<Instant>>,
}

/// Why nothing more is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Busy {
    /// As many run as may.
    AtOnce,
    /// As many were begun within a minute as may be.
    InAMinute,
}

impl std::fmt::Display for Busy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::AtOnce => "as many programs run, or wait for an answer, as may at once",
            Self::InAMinute => "too many were handed over within a minute",
        })
    }
}

impl Bounds {
    /// So many at once, and so many in each minute.
    pub(super) fn new(at_once: usize, each_minute: usize) -> Self {
        let at_once = Arc::new(Semaphore::new(at_once));
        Self { at_once, each_minute, begun: Mutex::default() }
    }

    /// A place for one more, until what is returned is dropped.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn take(&self, now: Instant) -> Result<OwnedSemaphorePermit, Busy> {
        let place = self.at_once.clone().try_acquire_owned().map_err(|_| Busy::AtOnce)?;
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        while begun.front().is_some_and(|first| now.duration_since(*first) >= MINUTE) {
            begun.pop_front();
        }
        if begun.len() >= self.each_minute {
            return Err(Busy::InAMinute);
        }
        begun.push_back(now);
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn no_more_run_at_once_or_begin_in_a_minute_than_may() {
        let (bounds, now) = (Bounds::new(2, 3), Instant::now());
        let first = bounds.take(now).unwrap();
        let _second = bounds.take(now).unwrap();
        assert_eq!(bounds.take(now).unwrap_err(), Busy::AtOnce);
        drop(first);
        drop(bounds.take(now + MINUTE / 2).unwrap());
        assert_eq!(bounds.take(now + MINUTE - Duration::from_millis(1)).unwrap_err(), Busy::InAMinute);
        assert!(bounds.take(now + MINUTE).is_ok());
        assert!(bounds.take(now + MINUTE).is_ok(), "two of the first minute are over");
        assert_eq!(bounds.take(now + MINUTE).unwrap_err(), Busy::InAMinute);
    }
}
