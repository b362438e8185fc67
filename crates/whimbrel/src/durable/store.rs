//! Where durable messages are kept: one file, on the embedded database redb.
//!
//! One thread writes. It takes all changes that wait into one transaction, so that they share the one wait
//! for the disk, and answers each when the disk has answered. What peers have acknowledged is taken out along
//! the way, without a wait of its own: what a crash brings back is sent again, and known there.
//!
//! A full or failing disk makes changes fail, and nothing else: the file is opened again for the next one.

mod failure;
#[cfg(test)]
mod power_cut;
mod tables;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;

use redb::{Database, DatabaseError, ReadableDatabase as _};
use tokio::sync::{mpsc, oneshot};

use self::failure::{Failure, guard};
use super::StateLimits;
use super::change::{Change, Done, Loaded};
use super::error::StateError;
use super::ledger::Ledger;
use super::lock;
use super::outgoing::Room;

/// Changes that may wait for the disk. More wait to wait.
const QUEUE: usize = 1024;
/// The file in the state's directory.
const FILE: &str = "durable.redb";

/// A change, and who waits for it. Without a change: look what need not be kept any more.
struct Job {
    change: Option<Change>,
    reply: Option<oneshot::Sender<Result<Done, StateError>>>,
}

type Opener = dyn Fn(&Path) -> Result<Database, DatabaseError> + Send + Sync;

enum Slot {
    Open(Database),
    /// The disk failed: the file is opened again for the next change.
    Failed,
    Closed,
}

/// What readers and the writer share.
struct File {
    path: PathBuf,
    open: Box<Opener>,
    /// Locked while somebody reads or writes, who may have been given up long ago.
    slot: RwLock<Slot>,
    /// The writer ends when nothing waits any more.
    stopping: AtomicBool,
}

/// See the [module's documentation](self).
pub(super) struct Store {
    file: Arc<File>,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Store {
    /// Opens the file in a directory, and makes both if they are not there. Blocks.
    pub(super) fn open(
        directory: &Path,
        limits: StateLimits,
    ) -> Result<(Self, Arc<Mutex<Ledger>>), StateError> {
        let path = directory.join(FILE);
        crate::private_directory(directory).map_err(|error| Failure::from(error).named(&path))?;
        Self::open_with(path, Box::new(whimbrel_names::open_database), limits)
    }

    fn open_with(
        path: PathBuf,
        open: Box<Opener>,
        limits: StateLimits,
    ) -> Result<(Self, Arc<Mutex<Ledger>>), StateError> {
        let opened = guard(|| {
            let database = open(&path)?;
            let loaded = tables::open(&database)?;
            Ok((database, loaded))
        });
        let (database, loaded) = opened.map_err(|failure| failure.named(&path))?;
        let (slot, stopping) = (RwLock::new(Slot::Open(database)), AtomicBool::new(false));
        let file = Arc::new(File { path, open, slot, stopping });
        let ledger = Arc::new(Mutex::new(Ledger::new(loaded, limits)));
        let (jobs, queue) = mpsc::channel(QUEUE);
        let writer = std::thread::Builder::new()
            .name("durable".into())
            .spawn({
                let (file, ledger) = (file.clone(), ledger.clone());
                move || run(&file, &ledger, queue)
            })
            .map_err(|error| Failure::from(error).named(&file.path))?;
        let (jobs, writer) = (Mutex::new(Some(jobs)), Mutex::new(Some(writer)));
        Ok((Self { file, jobs, writer }, ledger))
    }

    pub(super) fn path(&self) -> &Path {
        &self.file.path
    }

    /// Writes a change once `admit` takes it, and returns when the disk has it. If this is given up after
    /// that, the change is made all the same.
    pub(super) async fn write(
        &self,
        change: Change,
        admit: impl FnOnce() -> Result<(), StateError>,
    ) -> Result<Done, StateError> {
        let jobs = lock(&self.jobs).clone().ok_or(StateError::Stopped)?;
        let place = jobs.reserve_owned().await.map_err(|_| StateError::Stopped)?;
        admit()?;
        let (reply, answer) = oneshot::channel();
        place.send(Job { change: Some(change), reply: Some(reply) });
        match answer.await.unwrap_or(Err(StateError::Stopped))? {
            Done::Gone => Err(StateError::Forgotten),
            Done::NoRoom => Err(StateError::TooManyPeers),
            done => Ok(done),
        }
    }

    /// Has what need not be kept any more taken out, and the file opened again if it failed, some time.
    pub(super) fn tidy(&self) {
        if let Some(jobs) = &*lock(&self.jobs) {
            // If the queue is full, it is done along the way.
            let _ = jobs.try_send(Job { change: None, reply: None });
        }
    }

    /// Messages of a journal: as many as there is room for, but one in any case.
    pub(super) async fn read(&self, journal: u64, room: Room) -> Result<Vec<(u64, Vec<u8>)>, StateError> {
        let file = self.file.clone();
        let Room { from, messages, bytes } = room;
        let reading = tokio::task::spawn_blocking(move || {
            file.with(|database| tables::read(&database.begin_read()?, journal, from, messages, bytes))
        });
        reading.await.unwrap_or(Err(StateError::Stopped))
    }

    /// Writes what waits, and lets go of the file. Blocks.
    pub(super) fn close(&self) {
        self.file.stopping.store(true, Ordering::Relaxed);
        if let Some(jobs) = lock(&self.jobs).take() {
            // If the queue is full, the writer is awake.
            let _ = jobs.try_send(Job { change: None, reply: None });
        }
        let writer = lock(&self.writer).take();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!(file = %self.file.path.display(), "the thread that writes durable messages died");
        }
        *self.file.slot.write().unwrap_or_else(PoisonError::into_inner) = Slot::Closed;
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

impl File {
    /// Does something with the database. After a failure that redb does not recover from, lets go of the
    /// file.
    fn with<T>(&self, run: impl FnOnce(&Database) -> Result<T, Failure>) -> Result<T, StateError> {
        let result = match &*self.slot.read().unwrap_or_else(PoisonError::into_inner) {
            Slot::Open(database) => guard(|| run(database)),
            Slot::Failed => Err(Failure::Io("it failed before, and was not opened again yet".to_owned())),
            Slot::Closed => return Err(StateError::Stopped),
        };
        result.map_err(|failure| {
            let mut slot = self.slot.write().unwrap_or_else(PoisonError::into_inner);
            if matches!(*slot, Slot::Open(_)) {
                *slot = Slot::Failed;
            }
            failure.named(&self.path)
        })
    }

    /// Opens the file again if it failed. Returns what is in it then.
    fn reopen(&self) -> Result<Option<Loaded>, StateError> {
        let mut slot = self.slot.write().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*slot, Slot::Failed) {
            return Ok(None);
        }
        let opened = guard(|| {
            let database = (self.open)(&self.path)?;
            let loaded = tables::load(&database.begin_read()?, 0)?;
            Ok((database, loaded))
        });
        let (database, loaded) = opened.map_err(|failure| failure.named(&self.path))?;
        *slot = Slot::Open(database);
        Ok(Some(loaded))
    }
}

/// Writes until it is told to stop, or nobody can ask for more.
fn run(file: &File, ledger: &Mutex<Ledger>, mut queue: mpsc::Receiver<Job>) {
    let mut jobs = Vec::with_capacity(QUEUE);
    let mut loose = false;
    while queue.blocking_recv_many(&mut jobs, QUEUE) > 0 {
        loose = write_jobs(file, ledger, &mut jobs).unwrap_or(loose);
        if file.stopping.load(Ordering::Relaxed) && queue.is_empty() {
            break;
        }
    }
    if loose && let Err(error) = file.with(|database| tables::commit(database, &[], true)) {
        // What is lost of it was acknowledged by peers, which know it when it is sent again.
        tracing::warn!(%error, "the file of durable messages could not be tidied up");
    }
}

/// Makes all changes or none, and answers. Returns whether the disk still has to be waited for; `None` if
/// there was nothing to write.
fn write_jobs(file: &File, ledger: &Mutex<Ledger>, jobs: &mut Vec<Job>) -> Option<bool> {
    let reopened = file.reopen().map(|loaded| {
        if let Some(loaded) = loaded {
            lock(ledger).reconcile(loaded);
        }
    });
    let trims = lock(ledger).trims();
    let changes: Vec<&Change> = jobs.iter().filter_map(|job| job.change.as_ref()).chain(&trims).collect();
    if changes.is_empty() {
        jobs.clear();
        return None;
    }
    let durable = changes.len() > trims.len();
    let written = reopened.and_then(|()| file.with(|database| tables::commit(database, &changes, durable)));
    let answers: Vec<Result<Done, StateError>> = match written {
        Ok(done) => {
            let mut ledger = lock(ledger);
            changes.iter().zip(&done).for_each(|(change, done)| ledger.settle(change, done));
            done.into_iter().map(Ok).collect()
        }
        Err(error) => {
            tracing::error!(%error, changes = changes.len(), "durable messages could not be written");
            for change in &changes {
                if let Change::Append { journal, data } = change {
                    lock(ledger).release(*journal, data.len());
                }
            }
            changes.iter().map(|_| Err(error.clone())).collect()
        }
    };
    let asked = jobs.drain(..).filter(|job| job.change.is_some());
    for (job, answer) in asked.zip(answers) {
        if let Some(reply) = job.reply {
            // The task that asked may be gone.
            let _ = reply.send(answer);
        }
    }
    Some(!durable)
}
