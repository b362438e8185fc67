//! Steers the kernel's connections of Multipath TCP: which subflows each has, by the policy's word.
//!
//! Clients name connections of theirs, with intents. The manager reads without privileges whose a connection
//! is and which subflows it has; a [helper](crate::helper) that has them does what is to be done.

mod helper_link;
mod steered;
mod steerer;

use crate::protocol::{Steer, Steered};
use crate::refusal::Refusal;
use crate::shared::Shared;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use steerer::Steerer;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Jobs that wait for the one that is done.
const WAITING: usize = 256;
/// How long a client waits for its answer at most.
const LIMIT: Duration = Duration::from_secs(8);

/// A client's word about a connection.
struct Job {
    /// Whose the connection has to be; 0 is root, who may speak of all.
    user: u32,
    /// The client's number, as decisions know it.
    client: u64,
    /// The connection is forgotten when the client is gone.
    presence: Weak<()>,
    steer: Steer,
    answer: oneshot::Sender<Result<Vec<Steered>, String>>,
}

/// The way to the task that steers.
pub(crate) struct Steering {
    jobs: mpsc::Sender<Job>,
    inbox: Mutex<Option<mpsc::Receiver<Job>>>,
}

impl Default for Steering {
    fn default() -> Self {
        let (jobs, inbox) = mpsc::channel(WAITING);
        Self { jobs, inbox: Mutex::new(Some(inbox)) }
    }
}

impl Steering {
    /// Has a connection steered from now on, until the client is gone or the connection ends. Returns the
    /// subflows that it is to have.
    pub(crate) async fn steer(
        &self,
        (client, user): (u64, u32),
        presence: Weak<()>,
        steer: Steer,
    ) -> Result<Vec<Steered>, Refusal> {
        let (answer, answered) = oneshot::channel();
        let job = Job { user, client, presence, steer, answer };
        let busy = || Refusal::busy("too many connections are steered at the same time".to_owned());
        self.jobs.try_send(job).map_err(|_| busy())?;
        match tokio::time::timeout(LIMIT, answered).await {
            Ok(Ok(done)) => done.map_err(Refusal::wrong),
            _ => Err(busy()),
        }
    }
}

/// Steers for as long as the manager runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    let inbox = shared.steering.inbox.lock().unwrap_or_else(PoisonError::into_inner).take();
    // There is one task that steers.
    let Some(mut inbox) = inbox else { return std::future::pending().await };
    let mut paths = shared.follow();
    let mut seen = shared.paths();
    let mut steerer = Steerer::new(Arc::clone(&shared));
    loop {
        let due = steerer.due();
        tokio::select! {
            Some(job) = inbox.recv() => steerer.take(job).await,
            Ok(()) = paths.changed() => {
                let now = Arc::clone(&paths.borrow_and_update());
                if now.differs_from(&seen) {
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
