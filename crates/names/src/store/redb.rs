//! A store in one file, on the embedded database redb.
//!
//! What was acknowledged is on the disk: it survives the death of the process and of the machine at any instant. One
//! thread writes. It takes all the puts that are waiting into one transaction, so that they share the one wait for the
//! disk, and answers each when the disk has answered.
//!
//! A full or failing disk makes puts fail, and nothing else: the file is opened again for the next put, which succeeds
//! once the disk does.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;

use redb::{Database, DatabaseError, ReadableDatabase as _};
use tokio::sync::{mpsc, oneshot, watch};
use whimbrel_base::{EndpointId, Name, UnixTime};

use self::failure::Failure;
use self::writer::{Change, Job};
use super::memory::{raise, wait};
use super::{Answer, Changes, Cursor, Entry, Store, StoreError, Stored, Version};

mod creation;
mod failure;
mod tables;
#[cfg(test)]
mod tests;
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
    head: watch::Sender<u64>,
}

type Opener = dyn Fn(&Path) -> Result<Database, DatabaseError> + Send + Sync;

impl RedbStore {
    /// Opens the store in `file`, and makes it if there is none. Blocks: it reads the file, and after a crash repairs it.
    ///
    /// # Errors
    /// [`StoreError`] says what is wrong with the file: in use, damaged, of another format, not to be read or written.
    pub fn open(file: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::open_with(file.into(), Box::new(creation::open))
    }

    fn open_with(file: PathBuf, open: Box<Opener>) -> Result<Self, StoreError> {
        let (database, closed) = (Mutex::new(None), RwLock::new(false));
        let shared = Arc::new(Shared { file, open, database, closed, head: watch::Sender::new(0) });
        let database = shared.database()?;
        let head = failure::guard(|| tables::head(&database.begin_read()?))
            .map_err(|failure| shared.failed(failure))?;
        raise(&shared.head, head);
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
        Box::pin(async move {
            let task = tokio::task::spawn_blocking(move || shared.read(read));
            task.await.unwrap_or(Err(StoreError::Stopped))
        })
    }

    fn write<'a>(&self, change: Change) -> Answer<'a, Version> {
        let jobs = self.jobs.clone();
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            let jobs = jobs.ok_or(StoreError::Stopped)?;
            let sent = jobs.send(Job { change, reply }).await;
            // Don't keep the writer alive while waiting for it.
            drop(jobs);
            sent.map_err(|_| StoreError::Stopped)?;
            answer.await.unwrap_or(Err(StoreError::Stopped))
        })
    }
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

    /// Waits for who reads, and lets go of the file.
    fn close(&self) {
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        *self.database.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Names the file in an error. After one that redb doesn't recover from, lets go of the file, to open it again.
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
        let name = name.clone();
        self.read(move |txn| tables::get(txn, &name))
    }

    fn put(&self, expected: Option<Version>, entry: Entry) -> Answer<'_, Version> {
        let entry = Box::new(entry);
        self.write(Change::Put { expected, entry })
    }

    fn remove<'a>(&'a self, name: &'a Name, expected: Version) -> Answer<'a, ()> {
        let name = name.clone();
        let removed = self.write(Change::Remove { name, expected });
        Box::pin(async move { removed.await.map(|_| ()) })
    }

    fn owned_by<'a>(&'a self, owner: &'a EndpointId) -> Answer<'a, u64> {
        let owner = *owner;
        self.read(move |txn| tables::owned_by(txn, &owner))
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
}
