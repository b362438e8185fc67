//! Memory that all downloads have together for what came ahead of its turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many bytes for all.
pub(super) struct Budget {
    left: AtomicU64,
}

/// A share of it, until this is dropped.
pub(super) struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    pub(super) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { left: AtomicU64::new(bytes) })
    }

    /// Whether a share of this size could be had now.
    pub(super) fn has(&self, bytes: u64) -> bool {
        self.left.load(Ordering::Relaxed) >= bytes
    }

    /// Takes a share. `None`: too little is left.
    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> Option<Share> {
        let less = |left: u64| left.checked_sub(bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
        Some(Share { budget: Arc::clone(self), bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_handed_out_than_there_is_and_what_comes_back_is_handed_out_again() {
        let budget = Budget::new(10);
        let first = budget.take(6).unwrap();
        assert!(budget.take(5).is_none() && !budget.has(5) && budget.has(4));
        let second = budget.take(4).unwrap();
        drop(first);
        assert!(budget.take(7).is_none());
        drop(second);
        assert!(budget.take(10).is_some());
    }
}
