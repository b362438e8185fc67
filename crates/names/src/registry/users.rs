//! What a user has: devices and services, in one look-up.

use whimbrel_base::{EndpointId, Name, UnixTime};

use super::{Found, Registry};
use crate::error::NamesError;

/// Names that are looked at for one answer.
const NAMES: usize = 64;
/// Bytes of records in one answer: far below what a message may have.
const BYTES: usize = 12 * 1024;
/// Records in one answer.
const RECORDS: usize = 32;

/// Part of what a user has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    /// By name.
    pub found: Vec<Found>,
    /// The last name that was looked at, if there may be more behind it.
    pub more: Option<Name>,
}

impl Registry {
    /// The newest records of a user's devices and services, and of the user, as far as `peer` may read them
    /// at `now`: neither revoked nor expired ones, in the order of their names, after `after`. One that
    /// `peer` may not read looks like one that is not registered.
    ///
    /// # Errors
    /// [`NamesError::Unavailable`].
    pub async fn devices(
        &self,
        user: &Name,
        after: Option<&Name>,
        peer: EndpointId,
        now: UnixTime,
    ) -> Result<Devices, NamesError> {
        let user = user.user();
        let names = self.store.names_under(&user, after, NAMES).await?;
        let is_last = names.len() < NAMES;
        let (mut found, mut bytes, mut last) = (Vec::new(), 0, None);
        for name in names {
            match self.lookup(&name, peer, now).await {
                Ok(record) if record.record.record().revoked => {}
                Ok(record) => {
                    bytes += record.record.encode().len();
                    if !found.is_empty() && (bytes > BYTES || found.len() == RECORDS) {
                        return Ok(Devices { found, more: last });
                    }
                    found.push(record);
                }
                Err(error @ NamesError::Unavailable(_)) => return Err(error),
                Err(_) => {}
            }
            last = Some(name);
        }
        Ok(Devices { found, more: last.filter(|_| !is_last) })
    }
}
