//! What is in the file.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `meta` | `format`, `opening`, `journals` | a number |
//! | `store` | nothing | the store's id |
//! | `peers` | name or id | whom to dial, the id as far as it is known |
//! | `journals` | number | peer, label, id, number of the last message |
//! | `messages` | journal, number | the stamp and the message, from 1 on and without gaps |
//! | `marks` | peer's id, label, journal's id | acknowledged up to, turn, that one's stamp, those beyond and theirs |

use std::collections::BTreeMap;

use redb::{
    Database, Durability, ReadTransaction, ReadableDatabase as _, ReadableTable as _,
    ReadableTableMetadata as _, Table, TableDefinition, TableError, WriteTransaction,
};
use whimbrel_base::{EndpointId, random_bytes};

use super::failure::{FORMAT, Failure};
use crate::durable::change::{Change, Done, InboxKey, Loaded, LoadedJournal};
use crate::durable::inbox::Mark;
use crate::durable::wire::{Stamp, stamp_of};
use whimbrel_base::order;

/// Journals with one label that a peer's messages are told apart in; of more, the one that was acknowledged
/// longest ago is forgotten.
const MARKS_PER_LABEL: usize = 8;
/// Journals of peers that are remembered in all.
const MAX_MARKS: u64 = 65_536;

type MarkRow = (u64, u64, Option<u64>, Vec<(u64, u64)>);
type MarkName<'a> = (&'a [u8; 32], &'a str, u128);

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const STORE: TableDefinition<'_, (), u128> = TableDefinition::new("store");
const PEERS: TableDefinition<'_, &str, (Option<&str>, Option<&[u8; 32]>)> = TableDefinition::new("peers");
const JOURNALS: TableDefinition<'_, u64, (&str, &str, u128, u64)> = TableDefinition::new("journals");
const MESSAGES: TableDefinition<'_, (u64, u64), &[u8]> = TableDefinition::new("messages");
const MARKS: TableDefinition<'_, MarkName<'static>, MarkRow> = TableDefinition::new("marks");

/// Makes the tables of a new file, or checks that this program can read an old one's. Counts the opening, and
/// reads what there is.
pub(in crate::durable) fn open(database: &Database) -> Result<Loaded, Failure> {
    prepare(database)?;
    let txn = database.begin_write()?;
    let opening = {
        let mut meta = txn.open_table(META)?;
        let opening = meta.get("opening")?.map_or(0, |opening| opening.value()) + 1;
        meta.insert("opening", opening)?;
        opening
    };
    txn.commit()?;
    load(&database.begin_read()?, opening)
}

fn prepare(database: &Database) -> Result<(), Failure> {
    let found = match database.begin_read()?.open_table(META) {
        Ok(meta) => meta.get("format")?.map(|format| format.value()),
        Err(TableError::TableDoesNotExist(_)) => None,
        Err(error) => return Err(error.into()),
    };
    match found {
        Some(FORMAT) => return Ok(()),
        Some(found) => return Err(Failure::Format(found)),
        None => {}
    }
    let txn = database.begin_write()?;
    if txn.list_tables()?.next().is_some() {
        return Err(Failure::Damaged("it is another program's database".to_owned()));
    }
    txn.open_table(META)?.insert("format", FORMAT)?;
    txn.open_table(STORE)?.insert((), u128::from_be_bytes(random_bytes()))?;
    txn.open_table(PEERS)?;
    txn.open_table(JOURNALS)?;
    txn.open_table(MESSAGES)?;
    txn.open_table(MARKS)?;
    txn.commit()?;
    Ok(())
}

/// Reads all but the messages.
pub(super) fn load(txn: &ReadTransaction, opening: u64) -> Result<Loaded, Failure> {
    let store = txn.open_table(STORE)?.get(())?.map(|store| store.value());
    let store = store.ok_or_else(|| Failure::Damaged("its id is missing".to_owned()))?;
    let mut loaded =
        Loaded { store, opening, peers: Vec::new(), journals: Vec::new(), marks: BTreeMap::new() };
    for row in txn.open_table(PEERS)?.range::<&str>(..)? {
        let (key, value) = row?;
        let (target, id) = value.value();
        let id = id.map(EndpointId::from_bytes);
        loaded.peers.push((key.value().to_owned(), target.map(str::to_owned), id));
    }
    let messages = txn.open_table(MESSAGES)?;
    for row in txn.open_table(JOURNALS)?.range::<u64>(..)? {
        let (number, row) = row?;
        let number = number.value();
        let (peer, label, id, end) = row.value();
        let mut found = Vec::new();
        let mut next = None;
        for message in messages.range((number, 0)..=(number, u64::MAX))? {
            let (key, data) = message?;
            let at = key.value().1;
            if next.is_some_and(|next| next != at) {
                return Err(Failure::Damaged(format!("a message before {at} of {label:?} is missing")));
            }
            next = Some(at + 1);
            let data = data.value();
            let stamp = stamp_of(data);
            let stamp =
                stamp.ok_or_else(|| Failure::Damaged(format!("message {at} of {label:?} is cut off")))?;
            found.push((data.len(), stamp));
        }
        if next.is_some_and(|next| next != end + 1) {
            return Err(Failure::Damaged(format!("the last messages of {label:?} are missing")));
        }
        let (peer, label) = (peer.to_owned(), label.to_owned());
        loaded.journals.push(LoadedJournal { number, peer, label, id, end, messages: found });
    }
    for row in txn.open_table(MARKS)?.range::<MarkName<'_>>(..)? {
        let (name, row) = row?;
        let (peer, label, journal) = name.value();
        let key = InboxKey { peer: EndpointId::from_bytes(peer), label: label.to_owned(), journal };
        loaded.marks.insert(key, mark(row.value()));
    }
    Ok(loaded)
}

fn mark((low, _, stamp, beyond): MarkRow) -> Mark {
    let beyond = order::map(beyond.into_iter().map(|(number, stamp)| (number, Stamp(stamp))));
    Mark { low, stamp: stamp.map(Stamp), beyond }
}

/// Messages of a journal from a number on: so many, of so many bytes together, but one in any case.
pub(in crate::durable) fn read(
    txn: &ReadTransaction,
    journal: u64,
    from: u64,
    messages: u64,
    bytes: u64,
) -> Result<Vec<(u64, Vec<u8>)>, Failure> {
    let (mut found, mut total) = (Vec::new(), 0);
    let table = txn.open_table(MESSAGES)?;
    for row in table.range((journal, from)..(journal, from.saturating_add(messages)))? {
        let (key, data) = row?;
        let data = data.value();
        total += data.len() as u64;
        if total > bytes && !found.is_empty() {
            break;
        }
        found.push((key.value().1, data.to_vec()));
    }
    Ok(found)
}

/// Makes all changes, in this order, or none. If they shall be durable they are on the disk when it returns;
/// otherwise they will be with the next durable ones.
pub(in crate::durable) fn commit(
    database: &Database,
    changes: &[&Change],
    durable: bool,
) -> Result<Vec<Done>, Failure> {
    let mut txn = database.begin_write()?;
    let durability = if durable { Durability::Immediate } else { Durability::None };
    txn.set_durability(durability).map_err(|error| Failure::Io(error.to_string()))?;
    let done = {
        let mut writing = Writing::open(&txn)?;
        let done = changes.iter().map(|change| writing.apply(change)).collect::<Result<_, _>>()?;
        writing.finish()?;
        done
    };
    txn.commit()?;
    Ok(done)
}

/// The tables, open for changes. Rows that change with every message are written once.
struct Writing<'txn> {
    meta: Table<'txn, &'static str, u64>,
    peers: Table<'txn, &'static str, (Option<&'static str>, Option<&'static [u8; 32]>)>,
    journals: Table<'txn, u64, (&'static str, &'static str, u128, u64)>,
    messages: Table<'txn, (u64, u64), &'static [u8]>,
    marks: Table<'txn, MarkName<'static>, MarkRow>,
    /// Last messages of journals that were written to.
    ends: BTreeMap<u64, u64>,
    /// Marks that were changed, with their turns.
    marked: BTreeMap<InboxKey, (Mark, u64)>,
}

impl<'txn> Writing<'txn> {
    fn open(txn: &'txn WriteTransaction) -> Result<Self, Failure> {
        Ok(Self {
            meta: txn.open_table(META)?,
            peers: txn.open_table(PEERS)?,
            journals: txn.open_table(JOURNALS)?,
            messages: txn.open_table(MESSAGES)?,
            marks: txn.open_table(MARKS)?,
            ends: BTreeMap::new(),
            marked: BTreeMap::new(),
        })
    }

    fn apply(&mut self, change: &Change) -> Result<Done, Failure> {
        match change {
            Change::Append { journal, data } => self.append(*journal, data),
            Change::Trim { journal, acked } => {
                self.messages.retain_in((*journal, 0)..=(*journal, *acked), |_, _| false)?;
                Ok(Done::Made)
            }
            Change::Ack { key, low, number, stamp } => self.ack(key, *low, *number, *stamp),
            Change::Peer { key, target, id } => {
                let id = id.as_ref().map(EndpointId::as_bytes);
                self.peers.insert(key.as_str(), (target.as_deref(), id))?;
                Ok(Done::Made)
            }
            Change::Journal { peer, label, id } => {
                if self.peers.get(peer.as_str())?.is_none() {
                    return Ok(Done::Gone);
                }
                // Never used twice: changes of a journal that was forgotten may be under way.
                let number = self.meta.get("journals")?.map_or(0, |count| count.value()) + 1;
                self.meta.insert("journals", number)?;
                self.journals.insert(number, (peer.as_str(), label.as_str(), *id, 0))?;
                Ok(Done::Opened(number))
            }
            Change::Forget { peer } => self.forget(peer),
        }
    }

    fn append(&mut self, journal: u64, data: &[u8]) -> Result<Done, Failure> {
        let end = match self.ends.get(&journal) {
            Some(end) => *end,
            None => match self.journals.get(journal)? {
                Some(row) => row.value().3,
                None => return Ok(Done::Gone),
            },
        };
        self.messages.insert((journal, end + 1), data)?;
        self.ends.insert(journal, end + 1);
        Ok(Done::Appended(end + 1))
    }

    fn ack(&mut self, key: &InboxKey, low: u64, number: u64, stamp: Stamp) -> Result<Done, Failure> {
        let name = (key.peer.as_bytes(), key.label.as_str(), key.journal);
        let mut evicted = None;
        let (mut mark, turn) = match self.marked.remove(key) {
            Some(known) => known,
            None => {
                let known = self.marks.get(name)?.map(|row| mark(row.value()));
                if known.is_none() && self.marks.len()? + self.marked.len() as u64 >= MAX_MARKS {
                    return Ok(Done::NoRoom);
                }
                let turn = self.turn(key, known.is_some(), &mut evicted)?;
                (known.unwrap_or_default(), turn)
            }
        };
        mark.raise(low);
        mark.insert(number, stamp);
        self.marked.insert(key.clone(), (mark.clone(), turn));
        Ok(Done::Marked { mark, evicted })
    }

    /// The turn of the journal with this label that was acknowledged last. Makes room among them for a new
    /// one.
    fn turn(
        &mut self,
        key: &InboxKey,
        is_known: bool,
        evicted: &mut Option<InboxKey>,
    ) -> Result<u64, Failure> {
        let (peer, label) = (key.peer.as_bytes(), key.label.as_str());
        let mut turns = Vec::new();
        for row in self.marks.range((peer, label, 0)..=(peer, label, u128::MAX))? {
            let (name, row) = row?;
            turns.push((row.value().1, name.value().2));
        }
        order::by(&mut turns, Ord::cmp);
        if !is_known && turns.len() >= MARKS_PER_LABEL {
            let journal = turns[0].1;
            self.marks.remove((peer, label, journal))?;
            let oldest = InboxKey { journal, ..key.clone() };
            self.marked.remove(&oldest);
            *evicted = Some(oldest);
        }
        Ok(turns.last().map_or(0, |(turn, _)| *turn) + 1)
    }

    fn forget(&mut self, peer: &str) -> Result<Done, Failure> {
        self.peers.remove(peer)?;
        let mut gone = Vec::new();
        for row in self.journals.range::<u64>(..)? {
            let (number, row) = row?;
            if row.value().0 == peer {
                gone.push(number.value());
            }
        }
        for journal in gone {
            self.journals.remove(journal)?;
            self.ends.remove(&journal);
            self.messages.retain_in((journal, 0)..=(journal, u64::MAX), |_, _| false)?;
        }
        Ok(Done::Made)
    }

    fn finish(mut self) -> Result<(), Failure> {
        for (number, end) in self.ends {
            let row = self.journals.get(number)?.map(|row| {
                let (peer, label, id, _) = row.value();
                (peer.to_owned(), label.to_owned(), id)
            });
            if let Some((peer, label, id)) = row {
                self.journals.insert(number, (peer.as_str(), label.as_str(), id, end))?;
            }
        }
        for (key, (mark, turn)) in self.marked {
            let name = (key.peer.as_bytes(), key.label.as_str(), key.journal);
            let beyond: Vec<_> =
                mark.beyond.into_iter().map(|(number, Stamp(stamp))| (number, stamp)).collect();
            let stamp = mark.stamp.map(|Stamp(stamp)| stamp);
            self.marks.insert(name, (mark.low, turn, stamp, beyond))?;
        }
        Ok(())
    }
}
