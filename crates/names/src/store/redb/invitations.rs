//! Invitations and those whom they admitted, in the file. Files from before have no such tables.

use redb::{
    ReadTransaction, ReadableTable as _, ReadableTableMetadata as _, TableDefinition, WriteTransaction,
};
use whimbrel_base::{EndpointId, UnixTime};

use super::failure::Failure;
use crate::admission::{CodeHash, Invitation};
use crate::store::{Admitted, MAX_INVITATIONS};

/// By the hash of their code.
const INVITATIONS: TableDefinition<'_, &[u8; 32], &[u8]> = TableDefinition::new("invitations");
/// Keys, each with a domain or with nothing for every domain.
const ADMISSIONS: TableDefinition<'_, (&[u8; 32], &str), ()> = TableDefinition::new("admissions");

/// Keeps an invitation and forgets those that have ended; false when there are too many.
pub(super) fn invite(
    txn: &WriteTransaction,
    code: &CodeHash,
    invitation: &Invitation,
    now: UnixTime,
) -> Result<bool, Failure> {
    let mut table = txn.open_table(INVITATIONS)?;
    let mut over = Vec::new();
    for row in table.iter()? {
        let (code, row) = row?;
        if decode(row.value())?.expires <= now {
            over.push(*code.value());
        }
    }
    for code in &over {
        table.remove(code)?;
    }
    if table.len()? >= MAX_INVITATIONS as u64 {
        return Ok(false);
    }
    table.insert(code, encode(invitation)?.as_slice())?;
    Ok(true)
}

pub(super) fn is_known(txn: &ReadTransaction, code: &CodeHash) -> Result<bool, Failure> {
    match txn.open_table(INVITATIONS) {
        Ok(table) => Ok(table.get(code)?.is_some()),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Redeems an invitation and admits the key; `None` if there is none that counts.
pub(super) fn redeem(
    txn: &WriteTransaction,
    code: &CodeHash,
    key: EndpointId,
    now: UnixTime,
) -> Result<Option<Admitted>, Failure> {
    let mut table = txn.open_table(INVITATIONS)?;
    let found = match table.get(code)? {
        Some(row) => Some(decode(row.value())?),
        None => None,
    };
    let Some(mut invitation) = found else {
        return Ok(None);
    };
    if !invitation.redeem(key, now) {
        return Ok(None);
    }
    table.insert(code, encode(&invitation)?.as_slice())?;
    let domain = invitation.domain;
    let text = domain.as_ref().map_or("", |domain| domain.as_str());
    txn.open_table(ADMISSIONS)?.insert((key.as_bytes(), text), ())?;
    Ok(Some(Admitted { domain }))
}

pub(super) fn admissions(txn: &ReadTransaction, key: &EndpointId) -> Result<Vec<Admitted>, Failure> {
    let table = match txn.open_table(ADMISSIONS) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut admissions = Vec::new();
    for row in table.range((key.as_bytes(), "")..)? {
        let row = row?.0;
        let (of, domain) = row.value();
        if of != key.as_bytes() {
            break;
        }
        let domain = match domain {
            "" => None,
            text => Some(text.parse().map_err(|error| damaged(&error))?),
        };
        admissions.push(Admitted { domain });
    }
    Ok(admissions)
}

fn encode(invitation: &Invitation) -> Result<Vec<u8>, Failure> {
    postcard::to_stdvec(invitation).map_err(|error| Failure::Io(error.to_string()))
}

fn decode(row: &[u8]) -> Result<Invitation, Failure> {
    postcard::from_bytes(row).map_err(|error| damaged(&error))
}

fn damaged(what: &dyn std::fmt::Display) -> Failure {
    Failure::Corrupt(format!("an invitation: {what}"))
}
