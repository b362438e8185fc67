//! Whether an endpoint lives, and what ends with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Whether an endpoint lives, and the tasks that end with it.
#[derive(Debug)]
pub(crate) struct Life {
    closed: AtomicBool,
    /// Another endpoint goes on with its sockets and connections: those that come in are that one's.
    passed_on: watch::Sender<bool>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Default for Life {
    fn default() -> Self {
        let (closed, passed_on) = (AtomicBool::new(false), watch::Sender::new(false));
        Self { closed, passed_on, tasks: Mutex::new(Vec::new()) }
    }
}

impl Life {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_passed_on(&self) -> bool {
        *self.passed_on.borrow()
    }

    pub(crate) fn pass_on(&self) {
        self.passed_on.send_replace(true);
    }

    /// Completes when another endpoint goes on with its sockets. Cancel-safe.
    pub(crate) async fn left(&self) {
        // The sender is this one's own.
        let _ = self.passed_on.subscribe().wait_for(|passed_on| *passed_on).await;
    }

    /// This task ends with the endpoint.
    pub(crate) fn keep(&self, task: AbortHandle) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    /// Ends all tasks.
    pub(crate) fn end_tasks(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.drain(..).for_each(|task| task.abort());
    }
}
