//! The way to the task that steers connections of Multipath TCP ([`crate::steer`]).

use crate::protocol::{Steer, Steered};
use crate::refusal::Refusal;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Jobs that wait for the one that is done.
const WAITING: usize = 256;
/// How long a client waits for its answer at most.
const LIMIT: Duration = Duration::from_secs(8);

/// A client's word about a connection.
pub(crate) struct Job {
    /// Whose the connection has to be; 0 is root, who may speak of all.
    pub(crate) user: u32,
    /// The client's number, as decisions know it.
    pub(crate) client: u64,
    /// The connection is forgotten when the client is gone.
    pub(crate) presence: Weak<()>,
    pub(crate) steer: Steer,
    pub(crate) answer: oneshot::Sender<Result<Vec<Steered>, String>>,
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
    /// Where the jobs arrive. `None` for all but the first who asks.
    pub(crate) fn inbox(&self) -> Option<mpsc::Receiver<Job>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

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
        let busy = || Refusal::busy("too many connections are steered at the same time");
        self.jobs.try_send(job).map_err(|_| busy())?;
        match tokio::time::timeout(LIMIT, answered).await {
            Ok(Ok(done)) => done.map_err(Refusal::wrong),
            _ => Err(busy()),
        }
    }
}
