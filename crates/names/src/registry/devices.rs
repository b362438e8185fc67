//! A delegation for a device covers its services, and so does its end.

use whimbrel_base::SignedRecord;

use super::Registry;
use crate::error::NamesError;
use crate::store::Store;

impl Registry {
    /// Refuses a service's record whose delegation is for its device, when the user has given the device's
    /// name to another key since, or withdrawn it: a lost laptop loses its services with its name.
    pub(super) async fn check_device(&self, record: &SignedRecord) -> Result<(), NamesError> {
        if is_superseded(&*self.store, record).await? {
            return Err(NamesError::DelegationSuperseded(record.record().name.clone()));
        }
        Ok(())
    }
}

/// Whether a service's record rests on a delegation for its device that the user took back.
pub(super) async fn is_superseded(store: &dyn Store, record: &SignedRecord) -> Result<bool, NamesError> {
    let Some(delegation) = record.delegation() else { return Ok(false) };
    if *delegation.name() == record.record().name {
        // The entry of the name itself says so.
        return Ok(false);
    }
    let device = store.get(delegation.name()).await?;
    Ok(device.is_some_and(|device| {
        device.entry.owner() != delegation.id() && device.entry.granted > delegation.granted()
    }))
}
