//! Proposals, in the file. Each is there twice: for the user who made it, and for the one who is to decide.
//! Files from before have no such table.

use redb::{
    ReadTransaction, ReadableTable, ReadableTableMetadata as _, Table, TableDefinition, WriteTransaction,
};
use whimbrel_base::{EndpointId, UnixTime};

use super::failure::Failure;
use crate::proposal::ProposalId;
use crate::store::proposals::{Decided, Kept, MAX_PROPOSALS, Proposing, judge};

/// A user's key and the proposal's id in hexadecimal digits: the types of `renewals`, because each pair of
/// types costs the program 20 KB.
type Key = (&'static [u8; 32], &'static str);

/// Postcard of [`Kept`].
const PROPOSALS: TableDefinition<'_, Key, &[u8]> = TableDefinition::new("proposals");

/// Keeps a proposal, if there is room. Forgets those of both users that have ended.
pub(super) fn propose(txn: &WriteTransaction, new: &Kept, now: UnixTime) -> Result<Proposing, Failure> {
    let mut table = txn.open_table(PROPOSALS)?;
    let mut known = of_user(&table, &new.to)?;
    known.extend(of_user(&table, &new.from)?.into_iter().filter(|known| known.to != new.to));
    let (known, ended): (Vec<Kept>, Vec<Kept>) = known.into_iter().partition(|known| known.expires > now);
    for ended in &ended {
        let id = digits(ended.id);
        for user in [&ended.from, &ended.to] {
            table.remove((user.as_bytes(), id.as_str()))?;
        }
    }
    if let Some(said) = judge(&known, new) {
        return Ok(said);
    }
    if table.len()? >= 2 * MAX_PROPOSALS as u64 {
        return Ok(Proposing::Full);
    }
    put(&mut table, new)?;
    Ok(Proposing::Kept)
}

/// All that a user has made and is asked, by their ids.
pub(super) fn of(txn: &ReadTransaction, user: &EndpointId) -> Result<Vec<Kept>, Failure> {
    match txn.open_table(PROPOSALS) {
        Ok(table) => of_user(&table, user),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// Keeps a decision; false if there is nothing to decide.
pub(super) fn decide(
    txn: &WriteTransaction,
    (user, id): (&EndpointId, ProposalId),
    decided: Decided,
    now: UnixTime,
) -> Result<bool, Failure> {
    change(txn, user, id, |kept| kept.decide(user, decided, now))
}

/// Withdraws a proposal; false if there is none of this user.
pub(super) fn withdraw(txn: &WriteTransaction, user: &EndpointId, id: ProposalId) -> Result<bool, Failure> {
    change(txn, user, id, |kept| kept.withdraw(user))
}

/// Forgets all that have ended.
pub(super) fn forget_ended(txn: &WriteTransaction, now: UnixTime) -> Result<(), Failure> {
    let mut table = txn.open_table(PROPOSALS)?;
    // What cannot be read is of no use to anybody.
    table.retain(|_, row| decode(row).is_ok_and(|kept| kept.expires > now))?;
    Ok(())
}

fn change(
    txn: &WriteTransaction,
    user: &EndpointId,
    id: ProposalId,
    change: impl FnOnce(&mut Kept) -> bool,
) -> Result<bool, Failure> {
    let mut table = txn.open_table(PROPOSALS)?;
    let found = match table.get((user.as_bytes(), digits(id).as_str()))? {
        Some(row) => Some(decode(row.value())?),
        None => None,
    };
    let Some(mut kept) = found else { return Ok(false) };
    if !change(&mut kept) {
        return Ok(false);
    }
    put(&mut table, &kept)?;
    Ok(true)
}

fn put(table: &mut Table<'_, Key, &'static [u8]>, kept: &Kept) -> Result<(), Failure> {
    let row = postcard::to_stdvec(kept).map_err(|error| Failure::Io(error.to_string()))?;
    let id = digits(kept.id);
    for user in [&kept.from, &kept.to] {
        table.insert((user.as_bytes(), id.as_str()), row.as_slice())?;
    }
    Ok(())
}

fn of_user(table: &impl ReadableTable<Key, &'static [u8]>, user: &EndpointId) -> Result<Vec<Kept>, Failure> {
    let mut found = Vec::new();
    // No user has more than the bounds of all kinds together.
    for row in table.range((user.as_bytes(), "")..)? {
        let (key, row) = row?;
        if key.value().0 != user.as_bytes() {
            break;
        }
        found.push(decode(row.value())?);
    }
    Ok(found)
}

/// In the order of the ids.
fn digits(id: ProposalId) -> String {
    id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decode(row: &[u8]) -> Result<Kept, Failure> {
    postcard::from_bytes(row).map_err(|error| Failure::Corrupt(format!("a proposal: {error}")))
}
