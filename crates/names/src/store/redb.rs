//! A store in one file, on the embedded database redb.
//!
//! What was acknowledged is on the disk: it survives the death of the process and of the machine at any
//! instant. One thread writes entries. It takes all the puts that are waiting into one transaction, so that
//! they share the one wait for the disk, and answers each when the disk has answered. Who comes after whom is
//! known before that, in memory.
//!
//! A full or failing disk makes puts fail, and nothing else: the file is opened again for the next put, which
//! succeeds once the disk does.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;

use redb::{Database, DatabaseError, ReadableDatabase as _};
use tokio::sync::{mpsc, oneshot, watch};
use whimbrel_base::{Appointment, Delegation, EndpointId, Name, UnixTime};

use self::ahead::Ahead;
use self::change::Change;
use self::failure::Failure;
use self::writer::Job;
use super::memory::{raise, wait};
use super::{
    Admitted, Answer, Batch, Changes, Cursor, Decided, Entry, Kept, NewBatch, Placed, Proposing, Store,
    StoreError, Stored, Version,
};
use crate::admission::{CodeHash, Invitation};
use crate::proposal::ProposalId;

pub use self::creation::open as open_database;

mod ahead;
mod batches;
mod change;
mod creation;
mod failure;
mod invitations;
mod proposals;
mod tables;
#[cfg(test)]
mod tests;
mod words;
mod writer;

/// How many changes may wait for the disk. More wait to wait.
const QUEUE: usize = 1024;

/// Keeps entries in a file. See the [module's documentation](self).
pub struct RedbStore {
    shared: Arc<Shared>,
    jobs: Option<mpsc::Sender<Job>>,
    writer: Option<JoinHandle<()>>,
}

/// What readers and the writer share.
struct Shared {
    file: PathBuf,
    open: Box<Opener>,
    /// None after the disk failed, until the file is opened again.
    database: Mutex<Option<Arc<Database>>>,
    /// Locked while somebody reads, who may have been given up long ago.
    closed: RwLock<bool>,
    ahead: Mutex<Ahead>,
    head: watch::Sender<u64>,
}

type Opener = dyn Fn(&Path) -> Result<Database, DatabaseError> + Send + Sync;

impl RedbStore {
    /// Opens the store in `file`, and makes it if there is none. Blocks: it reads the file, and after a crash
    /// repairs it.
    ///
    /// # Errors
    /// [`StoreError`] says what is wrong with the file: in use, damaged, of another format, not to be read or
    /// written.
    pub fn open(file: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::open_with(file.into(), Box::new(creation::open))
    }

    fn open_with(file: PathBuf, open: Box<Opener>) -> Result<Self, StoreError> {
        let (database, closed, ahead) = (Mutex::new(None), RwLock::new(false), Mutex::new(Ahead::new(0)));
        let shared = Arc::new(Shared { file, open, database, closed, ahead, head: watch::Sender::new(0) });
        let database = shared.database()?;
        let head = failure::guard(|| tables::head(&database.begin_read()?))
            .map_err(|failure| shared.failed(failure))?;
        raise(&shared.head, head);
        *shared.ahead() = Ahead::new(head);
        drop(database);
        let (jobs, queue) = mpsc::channel(QUEUE);
        let writer = std::thread::Builder::new()
            .name("names-store".into())
            .spawn({
                let shared = shared.clone();
                move || writer::run(&shared, queue)
            })
            .map_err(|error| shared.failed(Failure::io(&error)))?;
        Ok(Self { shared, jobs: Some(jobs), writer: Some(writer) })
    }

    /// The file that the store is in.
    pub fn file(&self) -> &Path {
        &self.shared.file
    }

    /// Reads on a thread that may block.
    fn read<'a, T: Send + 'static>(
        &self,
        read: impl FnOnce(&redb::ReadTransaction) -> Result<T, Failure> + Send + 'static,
    ) -> Answer<'a, T> {
        let shared = self.shared.clone();
        blocking(move || shared.read(read))
    }

    /// Gives a change its turn, once the queue has room for it.
    fn order<'a>(&self, change: Change) -> Answer<'a, Placed> {
        let (shared, jobs) = (self.shared.clone(), self.jobs.clone());
        Box::pin(async move {
            let jobs = jobs.ok_or(StoreError::Stopped)?;
            let place = jobs.reserve_owned().await.map_err(|_| StoreError::Stopped)?;
            // The place in the queue keeps the writer alive, until it is taken or given up there.
            blocking(move || shared.order(change, place)).await
        })
    }
}

/// Runs something on a thread that may block. All of it as tasks of one type: what the runtime does with a
/// task is compiled for each type of one, 2 KB.
fn blocking<'a, T: Send + 'static>(
    run: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Answer<'a, T> {
    let (reply, answer) = oneshot::channel();
    let run: Box<dyn FnOnce() + Send> = Box::new(move || drop(reply.send(run())));
    Box::pin(async move {
        drop(tokio::task::spawn_blocking(run));
        // Where it panicked, or the runtime ends, there is none.
        answer.await.unwrap_or(Err(StoreError::Stopped))
    })
}

impl Shared {
    /// The database, opened again if it had failed.
    fn database(&self) -> Result<Arc<Database>, StoreError> {
        let mut open = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(database) = &*open {
            return Ok(database.clone());
        }
        let database = failure::guard(|| {
            let database = (self.open)(&self.file)?;
            tables::prepare(&database)?;
            Ok(Arc::new(database))
        });
        let database = database.map_err(|failure| failure.named(&self.file))?;
        *open = Some(database.clone());
        Ok(database)
    }

    fn read<T>(
        &self,
        read: impl FnOnce(&redb::ReadTransaction) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(StoreError::Stopped);
        }
        let database = self.database()?;
        failure::guard(|| read(&database.begin_read()?)).map_err(|failure| self.failed(failure))
    }

    /// Changes something that has no versions, in a transaction of its own.
    fn change<T>(
        &self,
        change: impl FnOnce(&redb::WriteTransaction) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(StoreError::Stopped);
        }
        let database = self.database()?;
        let changed = failure::guard(|| {
            let mut txn = database.begin_write()?;
            let durable = redb::Durability::Immediate;
            txn.set_durability(durable).map_err(|error| Failure::Io(error.to_string()))?;
            let changed = change(&txn)?;
            txn.commit()?;
            Ok(changed)
        });
        drop(database);
        changed.map_err(|failure| self.failed(failure))
    }

    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        // Nothing under this lock panics half-way through a change.
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, name: &Name) -> Result<Option<Stored>, StoreError> {
        // What is not ahead any more is in the file already.
        let ahead = self.ahead().get(name).cloned();
        match ahead {
            Some(stored) => Ok(stored),
            None => self.read(|txn| tables::get(txn, name)),
        }
    }

    fn order(&self, change: Change, place: mpsc::OwnedPermit<Job>) -> Result<Placed, StoreError> {
        // Reads under the lock: what is decided on must not change before the change has its turn.
        let mut ahead = self.ahead();
        let newest = match ahead.get(change.name()) {
            Some(stored) => stored.as_ref().map(|stored| stored.version),
            None => self.read(|txn| tables::get(txn, change.name()))?.map(|stored| stored.version),
        };
        if newest != change.expected() {
            return Err(StoreError::Conflict);
        }
        let (turn, version) = ahead.add(&change);
        let (reply, answer) = oneshot::channel();
        place.send(Job { change, turn, version, reply });
        let durable = Box::pin(async move { answer.await.unwrap_or(Err(StoreError::Stopped)) });
        Ok(Placed { version, durable })
    }

    /// The file says what became of these.
    fn settle(&self, jobs: &[Job]) {
        let mut ahead = self.ahead();
        jobs.iter().for_each(|job| ahead.settle(job.change.name(), job.turn));
    }

    /// Waits for who reads, and lets go of the file.
    fn close(&self) {
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        *self.database.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Names the file in an error. After one that redb doesn't recover from, lets go of the file, to open it
    /// again.
    fn failed(&self, failure: Failure) -> StoreError {
        if failure.closes() {
            let mut open = self.database.lock().unwrap_or_else(PoisonError::into_inner);
            *open = None;
        }
        failure.named(&self.file)
    }
}

/// Waits for the puts and the reads that are under way: then the file is free.
impl Drop for RedbStore {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!(file = %self.shared.file.display(), "the store's thread died");
        }
        self.shared.close();
    }
}

impl fmt::Debug for RedbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbStore").field("file", &self.shared.file).finish_non_exhaustive()
    }
}

impl Store for RedbStore {
    fn get<'a>(&'a self, name: &'a Name) -> Answer<'a, Option<Stored>> {
        let (shared, name) = (self.shared.clone(), name.clone());
        blocking(move || shared.get(&name))
    }

    fn place(&self, expected: Option<Version>, entry: Entry) -> Answer<'_, Placed> {
        let entry = Box::new(entry);
        self.order(Change::Put { expected, entry })
    }

    fn remove<'a>(&'a self, name: &'a Name, expected: Version) -> Answer<'a, ()> {
        let name = name.clone();
        let placed = self.order(Change::Remove { name, expected });
        Box::pin(async move { placed.await?.durable.await })
    }

    fn owned_by<'a>(&'a self, owner: &'a EndpointId) -> Answer<'a, u64> {
        let owner = *owner;
        self.read(move |txn| tables::owned_by(txn, &owner))
    }

    fn names_of<'a>(&'a self, owner: &'a EndpointId) -> Answer<'a, Vec<Name>> {
        let owner = *owner;
        self.read(move |txn| tables::names_of(txn, &owner))
    }

    fn count(&self) -> Answer<'_, u64> {
        self.read(tables::count)
    }

    fn due(&self, now: UnixTime, limit: usize) -> Answer<'_, Vec<Name>> {
        self.read(move |txn| tables::due(txn, now, limit))
    }

    fn head(&self) -> Answer<'_, Cursor> {
        self.read(|txn| tables::head(txn).map(Cursor))
    }

    fn changes_since(&self, cursor: Cursor, limit: usize) -> Answer<'_, Changes> {
        self.read(move |txn| tables::changes_since(txn, cursor, limit))
    }

    fn changed_since(&self, cursor: Cursor) -> Answer<'_, ()> {
        Box::pin(wait(self.shared.head.subscribe(), cursor))
    }

    fn invite(&self, code: CodeHash, invitation: Invitation, now: UnixTime) -> Answer<'_, ()> {
        let shared = self.shared.clone();
        blocking(move || {
            let kept = shared.change(|txn| invitations::invite(txn, &code, &invitation, now))?;
            if kept { Ok(()) } else { Err(StoreError::TooManyInvitations) }
        })
    }

    fn redeem(&self, code: CodeHash, key: EndpointId, now: UnixTime) -> Answer<'_, Option<Admitted>> {
        let shared = self.shared.clone();
        blocking(move || {
            // Guesses must not cost a write.
            if !shared.read(|txn| invitations::is_known(txn, &code))? {
                return Ok(None);
            }
            shared.change(|txn| invitations::redeem(txn, &code, key, now))
        })
    }

    fn admissions<'a>(&'a self, key: &'a EndpointId) -> Answer<'a, Vec<Admitted>> {
        let key = *key;
        self.read(move |txn| invitations::admissions(txn, &key))
    }

    fn renew(&self, delegation: Delegation, now: UnixTime) -> Answer<'_, bool> {
        let shared = self.shared.clone();
        blocking(move || shared.change(|txn| words::renew(txn, &delegation, now)))
    }

    fn renewed<'a>(&'a self, issuer: &'a EndpointId, name: &'a Name) -> Answer<'a, Option<Delegation>> {
        let (issuer, name) = (*issuer, name.clone());
        self.read(move |txn| words::renewed(txn, &issuer, &name))
    }

    fn forget_renewals(&self, now: UnixTime) -> Answer<'_, ()> {
        let shared = self.shared.clone();
        blocking(move || shared.change(|txn| words::RENEWALS.forget_ended(txn, now)))
    }

    fn appoint(&self, appointment: Appointment, now: UnixTime) -> Answer<'_, bool> {
        let shared = self.shared.clone();
        blocking(move || shared.change(|txn| words::appoint(txn, &appointment, now)))
    }

    fn appointment<'a>(
        &'a self,
        issuer: &'a EndpointId,
        device: &'a Name,
    ) -> Answer<'a, Option<Appointment>> {
        let (issuer, device) = (*issuer, device.clone());
        self.read(move |txn| words::appointment(txn, &issuer, &device))
    }

    fn dismiss<'a>(&'a self, issuer: &'a EndpointId, device: &'a Name) -> Answer<'a, ()> {
        let (shared, issuer, device) = (self.shared.clone(), *issuer, device.clone());
        blocking(move || shared.change(|txn| words::APPOINTMENTS.forget(txn, &issuer, &device)))
    }

    fn forget_appointments(&self, now: UnixTime) -> Answer<'_, ()> {
        let shared = self.shared.clone();
        blocking(move || shared.change(|txn| words::APPOINTMENTS.forget_ended(txn, now)))
    }

    fn names_under<'a>(
        &'a self,
        user: &'a Name,
        after: Option<&'a Name>,
        limit: usize,
    ) -> Answer<'a, Vec<Name>> {
        let (user, after) = (user.clone(), after.cloned());
        self.read(move |txn| tables::names_under(txn, &user, after.as_ref(), limit))
    }

    fn propose(&self, proposal: Kept, now: UnixTime) -> Answer<'_, Proposing> {
        let shared = self.shared.clone();
        blocking(move || shared.change(|txn| proposals::propose(txn, &proposal, now)))
    }

    fn proposals<'a>(&'a self, user: &'a EndpointId) -> Answer<'a, Vec<Kept>> {
        let user = *user;
        self.read(move |txn| proposals::of(txn, &user))
    }

    fn decide<'a>(
        &'a self,
        user: &'a EndpointId,
        id: ProposalId,
        decided: Decided,
        now: UnixTime,
    ) -> Answer<'a, bool> {
        let (shared, user) = (self.shared.clone(), *user);
        blocking(move || shared.change(|txn| proposals::decide(txn, (&user, id), decided, now)))
    }

    fn withdraw<'a>(&'a self, user: &'a EndpointId, id: ProposalId) -> Answer<'a, bool> {
        let (shared, user) = (self.shared.clone(), *user);
        blocking(move || shared.change(|txn| proposals::withdraw(txn, &user, id)))
    }

    fn forget_proposals(&self, now: UnixTime) -> Answer<'_, ()> {
        let shared = self.shared.clone();
        blocking(move || shared.change(|txn| proposals::forget_ended(txn, now)))
    }

    fn leave_batch(&self, new: NewBatch, now: UnixTime) -> Answer<'_, Option<UnixTime>> {
        let shared = self.shared.clone();
        blocking(move || shared.change(|txn| batches::leave(txn, &new, now)))
    }

    fn batches<'a>(&'a self, user: &'a EndpointId, after: u64, now: UnixTime) -> Answer<'a, Vec<Batch>> {
        let user = *user;
        self.read(move |txn| batches::behind(txn, &user, after, now))
    }

    fn forget_batches(&self, now: UnixTime) -> Answer<'_, ()> {
        let shared = self.shared.clone();
        blocking(move || shared.change(|txn| batches::forget_ended(txn, now)))
    }
}
