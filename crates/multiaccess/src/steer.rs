//! Steers the kernel's connections of Multipath TCP: which subflows each has, by the policy's word.
//!
//! Clients name connections of theirs, with intents. The manager reads without privileges whose a connection
//! is; a [helper](crate::helper) that has them says which subflows it has, and does what is to be done.

mod helper_link;
mod steered;
mod steerer;

use crate::shared::Shared;
use std::sync::Arc;
use steerer::Steerer;
use tokio::time::Instant;

/// Steers for as long as the manager runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    // There is one task that steers.
    let Some(mut inbox) = shared.steering.inbox() else { return std::future::pending().await };
    let mut paths = shared.follow();
    let mut seen = shared.paths();
    let mut steerer = Steerer::new(Arc::clone(&shared));
    loop {
        let due = steerer.due();
        tokio::select! {
            Some(job) = inbox.recv() => steerer.take(job).await,
            Ok(()) = paths.changed() => {
                let now = Arc::clone(&paths.borrow_and_update());
                if now.differs_from(&seen) || now.costs_differ_from(&seen) {
                    steerer.want_all();
                }
                seen = now;
            }
            () = steerer.heard() => {}
            () = until(due) => {}
        }
        steerer.work().await;
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
