//! The way to the task that steers connections of Multipath TCP ([`crate::steer`]).

use crate::protocol::{Steer, Steered};
use crate::refusal::Refusal;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Jobs that wait for the one that is done.
const WAITING: usize = 256;
/// And those of one user.
const WAITING_OF_USER: usize = 32;
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
    /// How many jobs of each user wait.
    waiting: Mutex<HashMap<u32, usize>>,
}

/// A job that waits, until this is dropped.
struct Waiting<'a> {
    steering: &'a Steering,
    user: u32,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = self.steering.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = waiting.get_mut(&self.user) {
            *count = count.saturating_sub(1);
        }
        waiting.retain(|_, count| *count > 0);
    }
}

impl Default for Steering {
    fn default() -> Self {
        let (jobs, inbox) = mpsc::channel(WAITING);
        Self { jobs, inbox: Mutex::new(Some(inbox)), waiting: Mutex::default() }
    }
}

impl Steering {
    /// Where the jobs arrive. `None` for all but the first who asks.
    pub(crate) fn inbox(&self) -> Option<mpsc::Receiver<Job>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Counts a job of this user. `None`: too many wait already.
    fn wait(&self, user: u32) -> Option<Waiting<'_>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = waiting.entry(user).or_default();
        if *count >= WAITING_OF_USER {
            return None;
        }
        *count += 1;
        Some(Waiting { steering: self, user })
    }

    /// Has a connection steered from now on, until the client is gone or the connection ends. Returns the
    /// subflows that it is to have.
    pub(crate) async fn steer(
        &self,
        (client, user): (u64, u32),
        presence: Weak<()>,
        steer: Steer,
    ) -> Result<Vec<Steered>, Refusal> {
        let busy = || Refusal::busy("too many connections are steered at the same time");
        let _waiting = self.wait(user).ok_or_else(busy)?;
        let (answer, answered) = oneshot::channel();
        let job = Job { user, client, presence, steer, answer };
        self.jobs.try_send(job).map_err(|_| busy())?;
        match tokio::time::timeout(LIMIT, answered).await {
            Ok(Ok(done)) => done.map_err(Refusal::wrong),
            _ => Err(busy()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn one_user_does_not_take_the_place_of_all_whose_connections_wait_to_be_steered() {
        let steering = Steering::default();
        let mut waiting: Vec<Waiting<'_>> =
            (0..WAITING_OF_USER).map(|_| steering.wait(1000).unwrap()).collect();
        assert!(steering.wait(1000).is_none());
        assert!(steering.wait(1001).is_some());
        waiting.pop();
        assert!(steering.wait(1000).is_some());
        drop(waiting);
        assert!(steering.waiting.lock().unwrap().is_empty());
    }
}
