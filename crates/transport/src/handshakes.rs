//! How many of those who came have shown who they are.

use std::sync::atomic::{AtomicU64, Ordering};

/// Carriers that came in so far, by what became of their handshakes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeStats {
    /// The peer has shown its key, and said what it wants.
    pub done: u64,
    /// It broke off, or took too long.
    pub failed: u64,
}

/// Counts them.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    done: AtomicU64,
    failed: AtomicU64,
}

impl Handshakes {
    pub(crate) fn done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> HandshakeStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        HandshakeStats { done: count(&self.done), failed: count(&self.failed) }
    }
}
