//! How many of those who came have shown who they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Carriers that came in so far, by what became of their handshakes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeStats {
    /// The peer has shown its key, and said what it wants.
    pub done: u64,
    /// It broke off, took too long, or made room for another one.
    pub failed: u64,
}

/// Counts them.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    done: AtomicU64,
    failed: AtomicU64,
}

impl Handshakes {
    /// A carrier has come in.
    pub(crate) fn begin(self: &Arc<Self>) -> Handshake {
        Handshake(Some(self.clone()))
    }

    pub(crate) fn stats(&self) -> HandshakeStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        HandshakeStats { done: count(&self.done), failed: count(&self.failed) }
    }
}

/// One under way. It has failed when it is dropped before it was done: also one that made room for another.
#[derive(Debug)]
pub(crate) struct Handshake(Option<Arc<Handshakes>>);

impl Handshake {
    pub(crate) fn done(mut self) {
        if let Some(all) = self.0.take() {
            all.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// It was somebody else's, who counts it or not.
    pub(crate) fn was_none(mut self) {
        self.0 = None;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        if let Some(all) = &self.0 {
            all.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_handshake_counts_once_and_what_was_none_does_not() {
        let all = Arc::new(Handshakes::default());
        all.begin().done();
        drop((all.begin(), all.begin()));
        all.begin().was_none();
        assert_eq!(all.stats(), HandshakeStats { done: 1, failed: 2 });
    }
}
