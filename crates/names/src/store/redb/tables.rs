//! What is in the file.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `meta` | `format`, `head`, `users` | a number |
//! | `entries` | name | a [`Row`] in postcard |
//! | `changes` | version of an entry | its name |
//! | `owners` | owner's key, name | nothing |
//! | `due` | held until (milliseconds), name | nothing |
//! | `users` | SHA-256 of the user's name, name | nothing |
//!
//! `entries` says it all but for `head`; the last four tables are ways into it, changed in the same
//! transactions. Older programs do not know `users`: it is made anew where the number `users` is not that of
//! `head`. A name that an older program removed may then still be in it. Versions are places in the feed of
//! changes, given once and never again.

use redb::{
    Database, ReadTransaction, ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _, Table,
    TableDefinition, WriteTransaction,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use whimbrel_base::{EndpointId, Name, SignedRecord, UnixTime};

use super::change::Change;
use super::failure::Failure;
use crate::readers::Readers;
use crate::store::{Changes, Cursor, Entry, Stored, Version};

/// The format of the file, raised when older programs can no longer read it.
const FORMAT: u64 = 1;

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const ENTRIES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("entries");
const CHANGES: TableDefinition<'_, u64, &str> = TableDefinition::new("changes");
const OWNERS: TableDefinition<'_, (&[u8; 32], &str), ()> = TableDefinition::new("owners");
const DUE: TableDefinition<'_, (u64, &str), ()> = TableDefinition::new("due");
/// The hash gives it the types of `owners`: each pair of types costs the program 20 KB.
const USERS: TableDefinition<'_, (&[u8; 32], &str), ()> = TableDefinition::new("users");

/// An entry in the file. Its readers follow if it has any; older programs wrote none.
#[derive(Serialize, Deserialize)]
struct Row<'a> {
    version: u64,
    granted: UnixTime,
    expires: UnixTime,
    held_until: UnixTime,
    #[serde(borrow)]
    record: &'a [u8],
}

/// Makes the tables of a new file, or checks that this program can read an old one's.
pub(super) fn prepare(database: &Database) -> Result<(), Failure> {
    let found = match database.begin_read()?.open_table(META) {
        Ok(meta) => meta.get("format")?.map(|format| format.value()),
        Err(redb::TableError::TableDoesNotExist(_)) => None,
        Err(error) => return Err(error.into()),
    };
    match found {
        Some(FORMAT) => return index_users(database),
        Some(found) => {
            let expected = FORMAT;
            return Err(Failure::Format { found, expected });
        }
        None => {}
    }
    let txn = database.begin_write()?;
    if txn.list_tables()?.next().is_some() {
        return Err(Failure::Corrupt("it is another program's database".to_owned()));
    }
    {
        let mut meta = txn.open_table(META)?;
        meta.insert("format", FORMAT)?;
        meta.insert("head", 0)?;
        meta.insert("users", 0)?;
        txn.open_table(USERS)?;
        txn.open_table(ENTRIES)?;
        txn.open_table(CHANGES)?;
        txn.open_table(OWNERS)?;
        txn.open_table(DUE)?;
    }
    txn.commit()?;
    Ok(())
}

/// Makes the way from users to their names, where an older program wrote the file.
fn index_users(database: &Database) -> Result<(), Failure> {
    {
        let meta = database.begin_read()?.open_table(META)?;
        let number = |key: &str| Ok::<_, Failure>(meta.get(key)?.map(|number| number.value()));
        if number("users")? == number("head")? {
            return Ok(());
        }
    }
    let txn = database.begin_write()?;
    {
        let (entries, mut users) = (txn.open_table(ENTRIES)?, txn.open_table(USERS)?);
        for row in entries.iter()? {
            let key = row?.0;
            let name = parse(key.value())?;
            users.insert((&hash_of_user(&name), name.as_str()), ())?;
        }
        let mut meta = txn.open_table(META)?;
        let head = head_in(&meta)?;
        meta.insert("users", head)?;
    }
    txn.commit()?;
    Ok(())
}

pub(super) fn names_under(
    txn: &ReadTransaction,
    user: &Name,
    after: Option<&Name>,
    limit: usize,
) -> Result<Vec<Name>, Failure> {
    let (user, first) = (hash_of_user(user), after.map_or("", Name::as_str));
    let mut names = Vec::new();
    for row in txn.open_table(USERS)?.range((&user, first)..)? {
        let row = row?.0;
        let (of, name) = row.value();
        if *of != user || names.len() == limit {
            break;
        }
        if name != first {
            names.push(parse(name)?);
        }
    }
    Ok(names)
}

pub(super) fn get(txn: &ReadTransaction, name: &Name) -> Result<Option<Stored>, Failure> {
    match txn.open_table(ENTRIES)?.get(name.as_str())? {
        Some(row) => decode(name.as_str(), row.value()).map(Some),
        None => Ok(None),
    }
}

pub(super) fn owned_by(txn: &ReadTransaction, owner: &EndpointId) -> Result<u64, Failure> {
    let mut count = 0;
    for row in txn.open_table(OWNERS)?.range((owner.as_bytes(), "")..)? {
        if row?.0.value().0 != owner.as_bytes() {
            break;
        }
        count += 1;
    }
    Ok(count)
}

pub(super) fn names_of(txn: &ReadTransaction, owner: &EndpointId) -> Result<Vec<Name>, Failure> {
    let mut names = Vec::new();
    for row in txn.open_table(OWNERS)?.range((owner.as_bytes(), "")..)? {
        let row = row?.0;
        let (of, name) = row.value();
        if of != owner.as_bytes() {
            break;
        }
        names.push(parse(name)?);
    }
    Ok(names)
}

pub(super) fn count(txn: &ReadTransaction) -> Result<u64, Failure> {
    Ok(txn.open_table(ENTRIES)?.len()?)
}

pub(super) fn due(txn: &ReadTransaction, now: UnixTime, limit: usize) -> Result<Vec<Name>, Failure> {
    // Every name sorts before this.
    let end = (now.as_millis(), "\u{7f}");
    let mut names = Vec::new();
    for row in txn.open_table(DUE)?.range(..end)?.take(limit) {
        names.push(parse(row?.0.value().1)?);
    }
    Ok(names)
}

pub(super) fn head(txn: &ReadTransaction) -> Result<u64, Failure> {
    head_in(&txn.open_table(META)?)
}

pub(super) fn changes_since(
    txn: &ReadTransaction,
    mut cursor: Cursor,
    limit: usize,
) -> Result<Changes, Failure> {
    let mut names = Vec::new();
    let changes = txn.open_table(CHANGES)?;
    for row in changes.range(cursor.0.saturating_add(1)..)?.take(limit) {
        let (version, name) = row?;
        names.push(parse(name.value())?);
        cursor = Cursor(version.value());
    }
    Ok(Changes { names, cursor })
}

/// The tables, open for changes.
pub(super) struct Writing<'txn> {
    meta: Table<'txn, &'static str, u64>,
    entries: Table<'txn, &'static str, &'static [u8]>,
    changes: Table<'txn, u64, &'static str>,
    owners: Table<'txn, (&'static [u8; 32], &'static str), ()>,
    due: Table<'txn, (u64, &'static str), ()>,
    users: Table<'txn, (&'static [u8; 32], &'static str), ()>,
    head: u64,
}

impl<'txn> Writing<'txn> {
    pub(super) fn open(txn: &'txn WriteTransaction) -> Result<Self, Failure> {
        let meta = txn.open_table(META)?;
        let head = head_in(&meta)?;
        Ok(Self {
            meta,
            entries: txn.open_table(ENTRIES)?,
            changes: txn.open_table(CHANGES)?,
            owners: txn.open_table(OWNERS)?,
            due: txn.open_table(DUE)?,
            users: txn.open_table(USERS)?,
            head,
        })
    }

    /// Makes a change; an entry that is put has this version then. In a conflict, changes nothing.
    pub(super) fn apply(&mut self, change: &Change, version: Version) -> Result<(), Failure> {
        self.take_out(change.name(), change.expected())?;
        if let Change::Put { entry, .. } = change {
            self.head = self.head.max(version.0);
            self.insert(entry, version)?;
        }
        Ok(())
    }

    /// Notes how far the feed of changes goes.
    pub(super) fn finish(mut self) -> Result<u64, Failure> {
        self.meta.insert("head", self.head)?;
        self.meta.insert("users", self.head)?;
        Ok(self.head)
    }

    /// Takes out the entry with the expected version. In a conflict, changes nothing.
    fn take_out(&mut self, name: &Name, expected: Option<Version>) -> Result<(), Failure> {
        let name = name.as_str();
        let stored = match self.entries.get(name)? {
            Some(row) => Some(decode(name, row.value())?),
            None => None,
        };
        if stored.as_ref().map(|stored| stored.version) != expected {
            return Err(Failure::Conflict);
        }
        if let Some(Stored { version, entry }) = stored {
            self.entries.remove(name)?;
            self.changes.remove(version.0)?;
            self.owners.remove((entry.owner().as_bytes(), name))?;
            self.due.remove((entry.held_until.as_millis(), name))?;
            self.users.remove((&hash_of_user(entry.name()), name))?;
        }
        Ok(())
    }

    fn insert(&mut self, entry: &Entry, version: Version) -> Result<(), Failure> {
        let row = Row {
            version: version.0,
            granted: entry.granted,
            expires: entry.expires,
            held_until: entry.held_until,
            record: entry.record.encode(),
        };
        let mut row = postcard::to_stdvec(&row).map_err(|error| Failure::Io(error.to_string()))?;
        if entry.readers != Readers::Public {
            row = postcard::to_extend(&entry.readers, row).map_err(|error| Failure::Io(error.to_string()))?;
        }
        let name = entry.name().as_str();
        self.entries.insert(name, row.as_slice())?;
        self.changes.insert(version.0, name)?;
        self.owners.insert((entry.owner().as_bytes(), name), ())?;
        self.due.insert((entry.held_until.as_millis(), name), ())?;
        self.users.insert((&hash_of_user(entry.name()), name), ())?;
        Ok(())
    }
}

/// Whose a name is, as in `users`.
fn hash_of_user(name: &Name) -> [u8; 32] {
    Sha256::digest(name.user().as_str()).into()
}

fn head_in(meta: &impl redb::ReadableTable<&'static str, u64>) -> Result<u64, Failure> {
    let head = meta.get("head")?.map(|head| head.value());
    head.ok_or_else(|| Failure::Corrupt("the number of changes is missing".to_owned()))
}

fn decode(name: &str, row: &[u8]) -> Result<Stored, Failure> {
    let damaged = |what: &dyn std::fmt::Display| Failure::Corrupt(format!("the entry of {name}: {what}"));
    let (row, rest): (Row<'_>, _) = postcard::take_from_bytes(row).map_err(|error| damaged(&error))?;
    let readers = match rest {
        [] => Readers::Public,
        rest => postcard::from_bytes(rest).map_err(|error| damaged(&error))?,
    };
    let record = SignedRecord::decode(row.record).map_err(|error| damaged(&error))?;
    if record.record().name.as_str() != name {
        return Err(damaged(&"it is about another name"));
    }
    Ok(Stored {
        version: Version(row.version),
        entry: Entry {
            record,
            granted: row.granted,
            expires: row.expires,
            held_until: row.held_until,
            readers,
        },
    })
}

fn parse(name: &str) -> Result<Name, Failure> {
    name.parse().map_err(|error| Failure::Corrupt(format!("{name:?} is no name: {error}")))
}
