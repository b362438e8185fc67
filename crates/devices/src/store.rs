//! Where a device keeps its group: one file, on the embedded database redb.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `meta` | `format` | the file's format |
//! | `user` | nothing | the user's key |
//! | `runs` | author, first number | packed entries with their signature |
//! | `forks` | author | packed proof of two histories |
//! | `snapshots` | 1: the closed checkpoint, 2: the open one | that, packed |
//!
//! A change is one transaction, on the disk when it returns. Only its process has the file open then;
//! commands take turns. Those that only look share the file, and do not wait for the disk: to open it for a
//! change and to close it again takes three waits of its own.

mod failure;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redb::{
    Database, DatabaseError, ReadOnlyDatabase, ReadOnlyTable, ReadTransaction, ReadableDatabase as _,
    ReadableTable as _, TableDefinition, TableError, WriteTransaction,
};
use whimbrel_base::EndpointId;
use whimbrel_base::order;

use crate::chain::Chain;
use crate::checkpoint::{Checkpoints, Closed, Stated};
use crate::log::{Log, Update};
use crate::vector::Mark;
use crate::wire::{pack, unpack};

pub use self::failure::StoreError;
use self::failure::{Failure, guard};

const FORMAT: u64 = 1;
/// How long another command of the same user is waited for.
const TURN_LIMIT: Duration = Duration::from_secs(5);
const TURN_PAUSE: Duration = Duration::from_millis(20);

type RunKey = (&'static [u8; 32], u64);
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const USER: TableDefinition<'_, (), &[u8; 32]> = TableDefinition::new("user");
/// Programs older than checkpoints refuse a file that has something in it, as they must.
const SNAPSHOTS: TableDefinition<'_, u8, &[u8]> = TableDefinition::new("snapshots");
const RUNS: TableDefinition<'_, RunKey, &[u8]> = TableDefinition::new("runs");
const FORKS: TableDefinition<'_, &[u8; 32], &[u8]> = TableDefinition::new("forks");

const CLOSED: u8 = 1;
const OPEN: u8 = 2;

/// How far a log is in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Saved {
    /// The last entry that a closed checkpoint covers.
    base: u64,
    /// Where the log ends.
    end: u64,
    split: Option<u64>,
}
/// A log in the file that is to be written anew.
const DAMAGED: Saved = Saved { base: u64::MAX, end: u64::MAX, split: None };

/// A group in a file.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    database: Database,
    saved: BTreeMap<EndpointId, Saved>,
    /// Which checkpoints are in the file.
    kept: Mark,
}

impl Store {
    /// Opens the file, and makes it if there is none, and returns what is in it. Waits a few seconds for
    /// another process that has it. Blocks.
    ///
    /// # Errors
    /// [`StoreError`]; the file is left as it is.
    pub fn open(path: &Path, user: EndpointId) -> Result<(Self, Log), StoreError> {
        let opened = guard(|| {
            let database = in_turn(|| whimbrel_names::open_database(path))?;
            let log = load(&database, user)?;
            Ok((database, log))
        });
        let (database, log) = opened.map_err(|failure| failure.named(path))?;
        let mut store =
            Self { path: path.to_owned(), database, saved: BTreeMap::new(), kept: Mark::default() };
        store.note(&log);
        store.saved.extend(log.lost().map(|author| (author, DAMAGED)));
        Ok((store, log))
    }

    /// What a file has, which is not changed. `None` if it must be opened for a change first: it is new, or
    /// the process that had it was killed. Waits a few seconds for another process that has it. Blocks.
    ///
    /// # Errors
    /// [`StoreError`]
    pub(crate) fn look(path: &Path, user: EndpointId) -> Result<Option<Log>, StoreError> {
        let looked = guard(|| {
            let database = match in_turn(|| ReadOnlyDatabase::open(path)) {
                Ok(database) => database,
                Err(DatabaseError::DatabaseAlreadyOpen) => return Err(Failure::InUse),
                // What is wrong is found, or mended, by opening it for a change.
                Err(_) => return Ok(None),
            };
            read(&database.begin_read()?, user)
        });
        looked.map_err(|failure| failure.named(path))
    }

    /// Writes what is new in a log. It is on the disk when this returns. Blocks.
    ///
    /// # Errors
    /// [`StoreError`]; then the file has what it had.
    pub fn save(&mut self, log: &Log) -> Result<(), StoreError> {
        let written = guard(|| {
            let txn = self.database.begin_write()?;
            self.write(&txn, log)?;
            txn.commit()?;
            Ok(())
        });
        written.map_err(|failure| failure.named(&self.path))?;
        self.note(log);
        Ok(())
    }

    fn write(&self, txn: &WriteTransaction, log: &Log) -> Result<(), Failure> {
        let mut runs = txn.open_table(RUNS)?;
        let mut forks = txn.open_table(FORKS)?;
        for author in self.saved.keys().filter(|author| !log.chains().contains_key(author)) {
            runs.retain_in((author.as_bytes(), 0)..=(author.as_bytes(), u64::MAX), |_, _| false)?;
            forks.remove(author.as_bytes())?;
        }
        for (author, chain) in log.chains() {
            let (was, new) = (self.saved.get(author).copied().unwrap_or_default(), saved(chain));
            let mut end = was.end;
            if was.split != new.split || was.base != new.base || new.end < end {
                runs.retain_in((author.as_bytes(), 0)..=(author.as_bytes(), u64::MAX), |_, _| false)?;
                forks.remove(author.as_bytes())?;
                end = new.base;
            }
            let mut next = end.max(new.base) + 1;
            while let Some(run) = (next <= new.end).then(|| chain.run(next)).flatten() {
                runs.insert((author.as_bytes(), next), pack(&run)?.as_slice())?;
                next += run.entries.len() as u64;
            }
            if let Some(split) = chain.split() {
                forks.insert(author.as_bytes(), pack(&split.proof)?.as_slice())?;
            }
        }
        // They are large.
        if log.checkpoints().mark(log.user()) == self.kept {
            return Ok(());
        }
        let mut checkpoints = txn.open_table(SNAPSHOTS)?;
        let Checkpoints { closed, open } = log.checkpoints();
        let mut keep = |row, packed: Option<Vec<u8>>| -> Result<(), Failure> {
            match packed {
                Some(packed) => drop(checkpoints.insert(row, packed.as_slice())?),
                None => drop(checkpoints.remove(row)?),
            }
            Ok(())
        };
        keep(CLOSED, closed.as_ref().map(pack).transpose()?)?;
        keep(OPEN, open.as_ref().map(pack).transpose()?)
    }

    fn note(&mut self, log: &Log) {
        self.saved = order::map(log.chains().iter().map(|(author, chain)| (*author, saved(chain))));
        self.kept = log.checkpoints().mark(log.user());
    }
}

fn saved(chain: &Chain) -> Saved {
    let (base, end) = (chain.base().sequence, chain.head().sequence);
    Saved { base, end, split: chain.split().map(|split| split.at) }
}

/// Opens the file once no other process has it.
fn in_turn<T>(open: impl Fn() -> Result<T, DatabaseError>) -> Result<T, DatabaseError> {
    let end = Instant::now() + TURN_LIMIT;
    loop {
        match open() {
            Err(DatabaseError::DatabaseAlreadyOpen) if Instant::now() < end => {
                std::thread::sleep(TURN_PAUSE);
            }
            other => return other,
        }
    }
}

fn load(database: &Database, user: EndpointId) -> Result<Log, Failure> {
    // Only a new file is changed: that waits for the disk.
    if let Some(log) = read(&database.begin_read()?, user)? {
        return Ok(log);
    }
    make(database, user)?;
    let made = read(&database.begin_read()?, user)?;
    made.ok_or_else(|| Failure::Damaged("its tables are not there once they were made".to_owned()))
}

/// Makes the tables that are not there.
fn make(database: &Database, user: EndpointId) -> Result<(), Failure> {
    let txn = database.begin_write()?;
    {
        let mut meta = txn.open_table(META)?;
        if meta.get("format")?.is_none() {
            meta.insert("format", FORMAT)?;
        }
        let mut users = txn.open_table(USER)?;
        if users.get(())?.is_none() {
            users.insert((), user.as_bytes())?;
        }
        txn.open_table(SNAPSHOTS)?;
        txn.open_table(RUNS)?;
        txn.open_table(FORKS)?;
    }
    txn.commit()?;
    Ok(())
}

/// What is in a file; `None` if it has not all of its tables yet.
fn read(txn: &ReadTransaction, user: EndpointId) -> Result<Option<Log>, Failure> {
    let (Some(meta), Some(users)) = (there(txn.open_table(META))?, there(txn.open_table(USER))?) else {
        return Ok(None);
    };
    let format = meta.get("format")?.map(|format| format.value());
    let known = users.get(())?.map(|known| EndpointId::from_bytes(known.value()));
    match (format, known) {
        (Some(found), _) if found != FORMAT => return Err(Failure::Format(found)),
        (_, Some(known)) if known != user => return Err(Failure::OtherUser),
        (Some(_), Some(_)) => {}
        (None, _) | (_, None) => return Ok(None),
    }
    let (snapshots, runs, forks) =
        (there(txn.open_table(SNAPSHOTS))?, there(txn.open_table(RUNS))?, there(txn.open_table(FORKS))?);
    let (Some(snapshots), Some(runs), Some(forks)) = (snapshots, runs, forks) else { return Ok(None) };
    let checkpoints = read_checkpoints(&snapshots, user)?;
    let mut update = Update { checkpoints, ..Update::default() };
    for row in runs.range::<(&[u8; 32], u64)>(..)? {
        update.runs.push(unpack(row?.1.value())?);
    }
    for row in forks.range::<&[u8; 32]>(..)? {
        update.forks.push(unpack(row?.1.value())?);
    }
    Ok(Some(Log::restore(user, update)))
}

/// The checkpoints in a file. One that is damaged leaves nothing to go on from.
fn read_checkpoints(
    table: &ReadOnlyTable<u8, &'static [u8]>,
    user: EndpointId,
) -> Result<Checkpoints, Failure> {
    let mut checkpoints = Checkpoints::default();
    if let Some(packed) = table.get(CLOSED)? {
        let closed: Closed = unpack(packed.value())?;
        if !closed.verify(user) {
            return Err(Failure::Damaged("its checkpoint is not what was signed".to_owned()));
        }
        checkpoints.closed = Some(Box::new(closed));
    }
    if let Some(packed) = table.get(OPEN)? {
        let open: Stated = unpack(packed.value())?;
        checkpoints.open = Some(Box::new(open)).filter(|open| open.verify(user));
    }
    Ok(checkpoints)
}

/// A table, if it is there.
fn there<T>(opened: Result<T, TableError>) -> Result<Option<T>, Failure> {
    match opened {
        Ok(table) => Ok(Some(table)),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
