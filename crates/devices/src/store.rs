//! Where a device keeps its group: one file, on the embedded database redb.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `meta` | `format` | the file's format |
//! | `user` | nothing | the user's key |
//! | `snapshots` | 0: the kept one, 1: the one on top of it | packed |
//! | `runs` | author, first number | packed entries with their signature |
//! | `forks` | author | packed proof of two histories |
//!
//! A change is one transaction, on the disk when it returns. Only its process has the file open; commands
//! take turns.

mod failure;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redb::{
    Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, TableDefinition, WriteTransaction,
};
use whimbrel_base::{EndpointId, UnixTime};

use crate::chain::Chain;
use crate::log::{Log, Update};
use crate::snapshot::Snapshot;
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
const SNAPSHOTS: TableDefinition<'_, u8, &[u8]> = TableDefinition::new("snapshots");
const RUNS: TableDefinition<'_, RunKey, &[u8]> = TableDefinition::new("runs");
const FORKS: TableDefinition<'_, &[u8; 32], &[u8]> = TableDefinition::new("forks");

/// How far a log is in the file: where its base ends, where it ends, and whether it split.
type Saved = (u64, u64, Option<u64>);

/// A group in a file.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    database: Database,
    saved: BTreeMap<EndpointId, Saved>,
}

impl Store {
    /// Opens the file, and makes it if there is none, and returns what is in it. Waits a few seconds for
    /// another process that has it. Blocks.
    ///
    /// # Errors
    /// [`StoreError`]; the file is left as it is.
    pub fn open(path: &Path, user: EndpointId) -> Result<(Self, Log), StoreError> {
        let opened = guard(|| {
            let database = open_in_turn(path)?;
            let log = load(&database, user)?;
            Ok((database, log))
        });
        let (database, log) = opened.map_err(|failure| failure.named(path))?;
        let mut store = Self { path: path.to_owned(), database, saved: BTreeMap::new() };
        store.note(&log);
        Ok((store, log))
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
        let kept = log.kept();
        let mut runs = txn.open_table(RUNS)?;
        let mut forks = txn.open_table(FORKS)?;
        for author in self.saved.keys().filter(|author| !kept.chains().contains_key(author)) {
            runs.retain_in((author.as_bytes(), 0)..=(author.as_bytes(), u64::MAX), |_, _| false)?;
            forks.remove(author.as_bytes())?;
        }
        for (author, chain) in kept.chains() {
            let (base, mut head, split) = self.saved.get(author).copied().unwrap_or_default();
            let new = saved(chain);
            if (base, split) != (new.0, new.2) || new.1 < head {
                runs.retain_in((author.as_bytes(), 0)..=(author.as_bytes(), u64::MAX), |_, _| false)?;
                head = new.0;
            }
            let mut next = head.max(new.0) + 1;
            while let Some(run) = (next <= new.1).then(|| chain.run(next)).flatten() {
                runs.insert((author.as_bytes(), next), pack(&run)?.as_slice())?;
                next += run.entries.len() as u64;
            }
            if let Some(proof) = chain.split().and_then(|split| split.proof.as_ref()) {
                forks.insert(author.as_bytes(), pack(proof.as_ref())?.as_slice())?;
            }
        }
        let mut snapshots = txn.open_table(SNAPSHOTS)?;
        let top = log.snapshot().filter(|_| log.stage() != kept.stage());
        for (key, snapshot) in [(0, kept.snapshot()), (1, top)] {
            match snapshot {
                Some(snapshot) => drop(snapshots.insert(key, pack(snapshot)?.as_slice())?),
                None => drop(snapshots.remove(key)?),
            }
        }
        Ok(())
    }

    fn note(&mut self, log: &Log) {
        let kept = log.kept();
        self.saved = kept.chains().iter().map(|(author, chain)| (*author, saved(chain))).collect();
    }
}

fn saved(chain: &Chain) -> Saved {
    (chain.base().sequence, chain.head().sequence, chain.split().map(|split| split.at))
}

/// Opens the file once no other process has it.
fn open_in_turn(path: &Path) -> Result<Database, Failure> {
    let end = Instant::now() + TURN_LIMIT;
    loop {
        match whimbrel_names::open_database(path) {
            Err(DatabaseError::DatabaseAlreadyOpen) if Instant::now() < end => {
                std::thread::sleep(TURN_PAUSE);
            }
            other => return Ok(other?),
        }
    }
}

fn load(database: &Database, user: EndpointId) -> Result<Log, Failure> {
    let txn = database.begin_write()?;
    {
        let mut meta = txn.open_table(META)?;
        let format = meta.get("format")?.map(|format| format.value());
        match format {
            None => drop(meta.insert("format", FORMAT)?),
            Some(FORMAT) => {}
            Some(found) => return Err(Failure::Format(found)),
        }
        let mut users = txn.open_table(USER)?;
        let known = users.get(())?.map(|known| EndpointId::from_bytes(known.value()));
        match known {
            None => drop(users.insert((), user.as_bytes())?),
            Some(known) if known == user => {}
            Some(_) => return Err(Failure::OtherUser),
        }
        txn.open_table(SNAPSHOTS)?;
        txn.open_table(RUNS)?;
        txn.open_table(FORKS)?;
    }
    txn.commit()?;
    read(database, user)
}

fn read(database: &Database, user: EndpointId) -> Result<Log, Failure> {
    let txn = database.begin_read()?;
    let snapshots = txn.open_table(SNAPSHOTS)?;
    let snapshot = |key: u8| match snapshots.get(key)? {
        Some(packed) => Ok::<_, Failure>(Some(unpack::<Snapshot>(packed.value())?)),
        None => Ok(None),
    };
    let (kept, top) = (snapshot(0)?, snapshot(1)?);
    let mut update = Update::default();
    for row in txn.open_table(RUNS)?.range::<(&[u8; 32], u64)>(..)? {
        update.runs.push(unpack(row?.1.value())?);
    }
    for row in txn.open_table(FORKS)?.range::<&[u8; 32]>(..)? {
        update.forks.push(unpack(row?.1.value())?);
    }
    Log::restore(user, kept, update, top).map_err(Failure::Damaged)
}

/// When a file is read, nothing in it is ahead of time: it was taken before.
pub(crate) const FILE_TIME: UnixTime = UnixTime::from_millis(u64::MAX);
