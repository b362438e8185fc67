//! Where a device keeps its group: one file, on the embedded database redb.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `meta` | `format` | the file's format |
//! | `user` | nothing | the user's key |
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
    Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _,
    TableDefinition, WriteTransaction,
};
use whimbrel_base::EndpointId;
use whimbrel_base::order;

use crate::chain::Chain;
use crate::log::{Log, Update};
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
/// Earlier programs kept snapshots in it.
const SNAPSHOTS: TableDefinition<'_, u8, &[u8]> = TableDefinition::new("snapshots");
const RUNS: TableDefinition<'_, RunKey, &[u8]> = TableDefinition::new("runs");
const FORKS: TableDefinition<'_, &[u8; 32], &[u8]> = TableDefinition::new("forks");

/// How far a log is in the file: where it ends, and whether it split.
type Saved = (u64, Option<u64>);
/// A log in the file that is to be written anew.
const DAMAGED: Saved = (u64::MAX, None);

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
        store.saved.extend(log.lost().map(|author| (author, DAMAGED)));
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
        let mut runs = txn.open_table(RUNS)?;
        let mut forks = txn.open_table(FORKS)?;
        for author in self.saved.keys().filter(|author| !log.chains().contains_key(author)) {
            runs.retain_in((author.as_bytes(), 0)..=(author.as_bytes(), u64::MAX), |_, _| false)?;
            forks.remove(author.as_bytes())?;
        }
        for (author, chain) in log.chains() {
            let (mut head, split) = self.saved.get(author).copied().unwrap_or_default();
            let new = saved(chain);
            if split != new.1 || new.0 < head {
                runs.retain_in((author.as_bytes(), 0)..=(author.as_bytes(), u64::MAX), |_, _| false)?;
                forks.remove(author.as_bytes())?;
                head = 0;
            }
            let mut next = head + 1;
            while let Some(run) = (next <= new.0).then(|| chain.run(next)).flatten() {
                runs.insert((author.as_bytes(), next), pack(&run)?.as_slice())?;
                next += run.entries.len() as u64;
            }
            if let Some(split) = chain.split() {
                forks.insert(author.as_bytes(), pack(&split.proof)?.as_slice())?;
            }
        }
        Ok(())
    }

    fn note(&mut self, log: &Log) {
        self.saved = order::map(log.chains().iter().map(|(author, chain)| (*author, saved(chain))));
    }
}

fn saved(chain: &Chain) -> Saved {
    (chain.head().sequence, chain.split().map(|split| split.at))
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
    if !txn.open_table(SNAPSHOTS)?.is_empty()? {
        return Err(Failure::Damaged("it has a snapshot, which this program does not take".to_owned()));
    }
    let mut update = Update::default();
    for row in txn.open_table(RUNS)?.range::<(&[u8; 32], u64)>(..)? {
        update.runs.push(unpack(row?.1.value())?);
    }
    for row in txn.open_table(FORKS)?.range::<&[u8; 32]>(..)? {
        update.forks.push(unpack(row?.1.value())?);
    }
    Ok(Log::restore(user, update))
}
