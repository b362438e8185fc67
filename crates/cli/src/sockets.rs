//! Local sockets that a command serves: how many there are, and how many it had to turn away.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The same trouble is told no more often than this.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Counts sockets.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    open: AtomicU64,
    refused: AtomicU64,
}

/// What was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SocketReport {
    /// Served now.
    pub(crate) open: u64,
    /// Closed because they could not be served, since the start.
    pub(crate) refused: u64,
}

/// Counts a socket for as long as it lives.
pub(crate) struct Open<'a>(&'a Sockets);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

impl Sockets {
    /// Counts one that is served.
    pub(crate) fn open(&self) -> Open<'_> {
        self.open.fetch_add(1, Relaxed);
        Open(self)
    }

    /// Counts one that was turned away.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// The counts so far.
    pub(crate) fn report(&self) -> SocketReport {
        SocketReport { open: self.open.load(Relaxed), refused: self.refused.load(Relaxed) }
    }
}

/// Trouble that may come thousands of times, and is told once in a while.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    told: Option<Instant>,
}

impl Trouble {
    /// Not told yet.
    pub(crate) const fn new() -> Self {
        Self { told: None }
    }

    /// Whether to tell of it now.
    pub(crate) fn is_to_be_told(&mut self) -> bool {
        let is_due = self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY);
        if is_due {
            self.told = Some(Instant::now());
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_served_and_turned_away_is_counted() {
        let sockets = Sockets::default();
        let one = sockets.open();
        sockets.refuse();
        assert_eq!(sockets.report(), SocketReport { open: 1, refused: 1 });
        drop(one);
        assert_eq!(sockets.report(), SocketReport { open: 0, refused: 1 });
    }

    #[test]
    fn trouble_is_told_once() {
        let mut trouble = Trouble::default();
        assert!(trouble.is_to_be_told());
        assert!(!trouble.is_to_be_told());
    }
}
