//! What users' keys said for devices, in the file until it ends: renewed delegations, and appointments. Files
//! from before have no such tables.

use redb::{ReadTransaction, ReadableTable as _, TableDefinition, WriteTransaction};
use whimbrel_base::{Appointment, Delegation, EndpointId, Name, UnixTime};

use super::failure::Failure;
use crate::store::{MAX_APPOINTMENTS, MAX_RENEWALS};

/// An issuer's key, and the name that it is about.
type Key = (&'static [u8; 32], &'static str);

/// One kind of them: each issuer has one a name.
pub(super) struct Words {
    /// Encoded ones.
    table: TableDefinition<'static, Key, &'static [u8]>,
    /// The most that one issuer has.
    most: usize,
    /// When an encoded one ends.
    end: fn(&[u8]) -> Result<UnixTime, Failure>,
}

pub(super) const RENEWALS: Words =
    Words { table: TableDefinition::new("renewals"), most: MAX_RENEWALS, end: end_of_delegation };

pub(super) const APPOINTMENTS: Words =
    Words { table: TableDefinition::new("appointments"), most: MAX_APPOINTMENTS, end: end_of_appointment };

impl Words {
    /// Keeps one and forgets those of its issuer that have ended; false when there are too many others.
    fn keep(
        &self,
        txn: &WriteTransaction,
        (issuer, name): (&EndpointId, &Name),
        word: &[u8],
        now: UnixTime,
    ) -> Result<bool, Failure> {
        let mut table = txn.open_table(self.table)?;
        let (mut over, mut others) = (Vec::new(), 0);
        for row in table.range((issuer.as_bytes(), "")..)? {
            let (key, row) = row?;
            let (of, known) = key.value();
            if of != issuer.as_bytes() {
                break;
            }
            if (self.end)(row.value())? <= now {
                over.push(known.to_owned());
            } else if known != name.as_str() {
                others += 1;
            }
        }
        for known in over {
            table.remove((issuer.as_bytes(), known.as_str()))?;
        }
        if others >= self.most {
            return Ok(false);
        }
        table.insert((issuer.as_bytes(), name.as_str()), word)?;
        Ok(true)
    }

    fn find(
        &self,
        txn: &ReadTransaction,
        issuer: &EndpointId,
        name: &Name,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let table = match txn.open_table(self.table) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let found = table.get((issuer.as_bytes(), name.as_str()))?;
        Ok(found.map(|row| row.value().to_vec()))
    }

    /// Forgets one.
    pub(super) fn forget(
        &self,
        txn: &WriteTransaction,
        issuer: &EndpointId,
        name: &Name,
    ) -> Result<(), Failure> {
        let mut table = txn.open_table(self.table)?;
        table.remove((issuer.as_bytes(), name.as_str()))?;
        Ok(())
    }

    /// Forgets all that have ended.
    pub(super) fn forget_ended(&self, txn: &WriteTransaction, now: UnixTime) -> Result<(), Failure> {
        let mut table = txn.open_table(self.table)?;
        // What cannot be read is of no use to anybody.
        table.retain(|_, row| (self.end)(row).is_ok_and(|end| end > now))?;
        Ok(())
    }
}

pub(super) fn renew(txn: &WriteTransaction, delegation: &Delegation, now: UnixTime) -> Result<bool, Failure> {
    let place = (&delegation.issuer(), delegation.name());
    RENEWALS.keep(txn, place, &delegation.encode(), now)
}

pub(super) fn renewed(
    txn: &ReadTransaction,
    issuer: &EndpointId,
    name: &Name,
) -> Result<Option<Delegation>, Failure> {
    RENEWALS.find(txn, issuer, name)?.map(|row| delegation(&row)).transpose()
}

pub(super) fn appoint(
    txn: &WriteTransaction,
    appointment: &Appointment,
    now: UnixTime,
) -> Result<bool, Failure> {
    let place = (&appointment.issuer(), appointment.name());
    APPOINTMENTS.keep(txn, place, &appointment.encode(), now)
}

pub(super) fn appointment(
    txn: &ReadTransaction,
    issuer: &EndpointId,
    device: &Name,
) -> Result<Option<Appointment>, Failure> {
    APPOINTMENTS.find(txn, issuer, device)?.map(|row| appointed(&row)).transpose()
}

fn end_of_delegation(row: &[u8]) -> Result<UnixTime, Failure> {
    delegation(row).map(|delegation| delegation.expires())
}

fn end_of_appointment(row: &[u8]) -> Result<UnixTime, Failure> {
    appointed(row).map(|appointment| appointment.expires())
}

fn delegation(row: &[u8]) -> Result<Delegation, Failure> {
    Delegation::decode(row).map_err(|error| Failure::Corrupt(format!("a delegation: {error}")))
}

fn appointed(row: &[u8]) -> Result<Appointment, Failure> {
    Appointment::decode(row).map_err(|error| Failure::Corrupt(format!("an appointment: {error}")))
}
