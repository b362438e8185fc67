//! Batches that devices leave for each other, in the file. Files from before have no such table.

use redb::{ReadTransaction, ReadableTable, ReadableTableMetadata as _, TableDefinition, WriteTransaction};
use whimbrel_base::{EndpointId, UnixTime};

use super::failure::Failure;
use crate::store::batches::{Batch, MAX_BATCH, MAX_BATCHES, NewBatch, Placing, place};

/// A user's key and the batch's number in 16 hexadecimal digits: the types of `renewals`, because each pair
/// of types costs the program 20 KB.
type Key = (&'static [u8; 32], &'static str);

/// By whom (32 bytes), until when (8, milliseconds, big-endian), and what was left.
const BATCHES: TableDefinition<'_, Key, &[u8]> = TableDefinition::new("batches");

/// Keeps a batch in place of what has ended or makes room. Says until when; `None` if there is no room.
pub(super) fn leave(
    txn: &WriteTransaction,
    new: &NewBatch,
    now: UnixTime,
) -> Result<Option<UnixTime>, Failure> {
    let mut table = txn.open_table(BATCHES)?;
    let known = of_user(&table, &new.user, 0, (UnixTime::default(), usize::MAX))?;
    let (number, forgotten) = match place(&known, new, now) {
        Placing::Known(until) => return Ok(Some(until)),
        Placing::New { number, forgotten } => (number, forgotten),
    };
    for number in forgotten {
        table.remove((new.user.as_bytes(), digits(number).as_str()))?;
    }
    if table.len()? >= MAX_BATCHES as u64 {
        return Ok(None);
    }
    let until = new.expires.as_millis().to_be_bytes();
    let row = [&new.by.as_bytes()[..], &until[..], new.bytes.as_slice()].concat();
    table.insert((new.user.as_bytes(), digits(number).as_str()), row.as_slice())?;
    Ok(Some(new.expires))
}

/// Those behind a number that have not ended, until they have more bytes together than one may have.
pub(super) fn behind(
    txn: &ReadTransaction,
    user: &EndpointId,
    after: u64,
    now: UnixTime,
) -> Result<Vec<Batch>, Failure> {
    match txn.open_table(BATCHES) {
        Ok(table) => of_user(&table, user, after.saturating_add(1), (now, MAX_BATCH)),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// Forgets all that have ended.
pub(super) fn forget_ended(txn: &WriteTransaction, now: UnixTime) -> Result<(), Failure> {
    let mut table = txn.open_table(BATCHES)?;
    // What cannot be read is of no use to anybody.
    table.retain(|_, row| decode(0, row).is_ok_and(|batch| batch.expires > now))?;
    Ok(())
}

/// Those of a user from a number on that end later than some time, until they have more than so many bytes.
fn of_user(
    table: &impl ReadableTable<Key, &'static [u8]>,
    user: &EndpointId,
    from: u64,
    (later_than, most): (UnixTime, usize),
) -> Result<Vec<Batch>, Failure> {
    let (first, mut found, mut bytes) = (digits(from), Vec::new(), 0_usize);
    for row in table.range((user.as_bytes(), first.as_str())..)? {
        let (key, row) = row?;
        let (of, number) = key.value();
        if of != user.as_bytes() || bytes > most {
            break;
        }
        let number = u64::from_str_radix(number, 16).map_err(|_| corrupt())?;
        let batch = decode(number, row.value())?;
        if batch.expires > later_than {
            bytes = bytes.saturating_add(batch.bytes.len());
            found.push(batch);
        }
    }
    Ok(found)
}

fn digits(number: u64) -> String {
    format!("{number:016x}")
}

fn decode(number: u64, row: &[u8]) -> Result<Batch, Failure> {
    let (by, row) = row.split_first_chunk::<32>().ok_or_else(corrupt)?;
    let (expires, bytes) = row.split_first_chunk::<8>().ok_or_else(corrupt)?;
    let expires = UnixTime::from_millis(u64::from_be_bytes(*expires));
    Ok(Batch { number, by: EndpointId::from_bytes(by), expires, bytes: bytes.to_vec() })
}

fn corrupt() -> Failure {
    Failure::Corrupt("a batch that a device left".to_owned())
}
