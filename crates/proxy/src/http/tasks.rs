//! Tasks of one connection of HTTP/2, which end with it.

use futures_util::FutureExt;
use hyper::rt::Executor;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::JoinSet;

/// Tasks that are started for one connection. Clones start more of the same.
#[derive(Clone, Default)]
pub(super) struct Tasks(Arc<Mutex<JoinSet<()>>>);

/// Ends them all when it is dropped: some of them can start others, and would keep each other alive.
pub(super) struct Ends(Tasks);

impl Tasks {
    /// Ends them all when what it returns is dropped.
    pub(super) fn end_with(&self) -> Ends {
        Ends(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        let mut tasks = self.lock();
        // Those that have ended are not kept.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task.boxed());
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.lock().abort_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tasks_end_when_their_connection_does_also_if_they_could_start_others() {
        let tasks = Tasks::default();
        let (alive, mut ends) = tokio::sync::mpsc::channel::<()>(1);
        let own = tasks.clone();
        tasks.execute(async move {
            let _held = (own, alive);
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        drop(tasks.end_with());
        assert_eq!(ends.recv().await, None);
    }
}
