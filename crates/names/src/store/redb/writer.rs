//! The one thread that writes.

use redb::Durability;
use tokio::sync::{mpsc, oneshot};

use super::ahead::Turn;
use super::change::Change;
use super::failure::{Failure, guard};
use super::{Shared, tables};
use crate::store::memory::raise;
use crate::store::{StoreError, Version};

/// How many changes share a transaction.
const BATCH: usize = 256;

/// A change, and who waits for it.
pub(super) struct Job {
    pub(super) change: Change,
    pub(super) turn: Turn,
    /// The name's version afterwards.
    pub(super) version: Version,
    pub(super) reply: oneshot::Sender<Result<(), StoreError>>,
}

/// Writes until nobody can ask for more.
pub(super) fn run(shared: &Shared, mut queue: mpsc::Receiver<Job>) {
    let mut jobs = Vec::with_capacity(BATCH);
    while queue.blocking_recv_many(&mut jobs, BATCH) > 0 {
        let written = write(shared, &jobs);
        shared.settle(&jobs);
        match written {
            Ok((answers, head)) => {
                raise(&shared.head, head);
                for (job, answer) in jobs.drain(..).zip(answers) {
                    // Whoever asked may have gone.
                    let _ = job.reply.send(answer);
                }
            }
            Err(error) => {
                tracing::error!(%error, changes = jobs.len(), "nothing could be stored");
                for job in jobs.drain(..) {
                    let _ = job.reply.send(Err(error.clone()));
                }
            }
        }
    }
}

type Answers = Vec<Result<(), StoreError>>;

/// Makes all the changes or none, except that those in conflict are left out. On the disk when it returns.
fn write(shared: &Shared, jobs: &[Job]) -> Result<(Answers, u64), StoreError> {
    let database = shared.database()?;
    let written = guard(|| {
        let mut txn = database.begin_write()?;
        txn.set_durability(Durability::Immediate).map_err(|error| Failure::Io(error.to_string()))?;
        let mut answers = Vec::with_capacity(jobs.len());
        let head = {
            let mut tables = tables::Writing::open(&txn)?;
            for job in jobs {
                answers.push(match tables.apply(&job.change, job.version) {
                    Ok(()) => Ok(()),
                    Err(Failure::Conflict) => Err(StoreError::Conflict),
                    Err(failure) => return Err(failure),
                });
            }
            tables.finish()?
        };
        txn.commit()?;
        Ok((answers, head))
    });
    // The last user of a failed database closes its file.
    drop(database);
    written.map_err(|failure| shared.failed(failure))
}
