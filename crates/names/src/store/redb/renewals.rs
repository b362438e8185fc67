//! Renewed delegations, in the file. Files from before have no such table.

use redb::{ReadTransaction, ReadableTable as _, TableDefinition, WriteTransaction};
use whimbrel_base::{Delegation, EndpointId, Name, UnixTime};

use super::failure::Failure;
use crate::store::MAX_RENEWALS;

/// Encoded delegations, by their issuer and name.
const RENEWALS: TableDefinition<'_, (&[u8; 32], &str), &[u8]> = TableDefinition::new("renewals");

/// Keeps a delegation and forgets those of its issuer that have ended; false when there are too many others.
pub(super) fn keep(txn: &WriteTransaction, delegation: &Delegation, now: UnixTime) -> Result<bool, Failure> {
    let mut table = txn.open_table(RENEWALS)?;
    let (issuer, name) = (delegation.issuer(), delegation.name());
    let (mut over, mut others) = (Vec::new(), 0);
    for row in table.range((issuer.as_bytes(), "")..)? {
        let (key, row) = row?;
        let (of, known) = key.value();
        if of != issuer.as_bytes() {
            break;
        }
        if decode(row.value())?.is_expired(now) {
            over.push(known.to_owned());
        } else if known != name.as_str() {
            others += 1;
        }
    }
    for known in over {
        table.remove((issuer.as_bytes(), known.as_str()))?;
    }
    if others >= MAX_RENEWALS {
        return Ok(false);
    }
    table.insert((issuer.as_bytes(), name.as_str()), delegation.encode().as_slice())?;
    Ok(true)
}

pub(super) fn find(
    txn: &ReadTransaction,
    issuer: &EndpointId,
    name: &Name,
) -> Result<Option<Delegation>, Failure> {
    let table = match txn.open_table(RENEWALS) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match table.get((issuer.as_bytes(), name.as_str()))? {
        Some(row) => decode(row.value()).map(Some),
        None => Ok(None),
    }
}

/// Forgets all that have ended.
pub(super) fn forget_ended(txn: &WriteTransaction, now: UnixTime) -> Result<(), Failure> {
    let mut table = txn.open_table(RENEWALS)?;
    // What cannot be read is of no use to anybody.
    table.retain(|_, row| decode(row).is_ok_and(|known| !known.is_expired(now)))?;
    Ok(())
}

fn decode(row: &[u8]) -> Result<Delegation, Failure> {
    Delegation::decode(row).map_err(|error| Failure::Corrupt(format!("a delegation: {error}")))
}
