//! What is found out for an object while it is passed on whole: that several networks are to carry the rest.

use super::decided::Decided;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::AbortHandle;

/// Where the task that looks and the body of the object meet.
#[derive(Default)]
pub(super) struct Found {
    passed: AtomicU64,
    decided: Mutex<Option<Decided>>,
}

impl Found {
    /// How many bytes of the object have been passed on.
    pub(super) fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    /// Leaves what was decided for the rest.
    pub(super) fn put(&self, decided: Decided) {
        *self.lock() = Some(decided);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Decided>> {
        self.decided.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task that looks for other networks for an object. It ends when this is dropped.
pub(super) struct Late {
    found: Arc<Found>,
    task: AbortHandle,
}

impl Late {
    pub(super) fn new(found: Arc<Found>, task: AbortHandle) -> Self {
        Self { found, task }
    }

    /// So many bytes have been passed on by now.
    pub(super) fn passed(&self, bytes: u64) {
        self.found.passed.store(bytes, Ordering::Relaxed);
    }

    /// How the rest is to come, once: as it came until now if this is `None`.
    pub(super) fn take(&self) -> Option<Decided> {
        self.found.lock().take()
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.task.abort();
    }
}
