//! A delegation for a device covers its services, and so does its end.

use whimbrel_base::SignedRecord;

use super::Registry;
use crate::error::NamesError;

impl Registry {
    /// Refuses a service's record whose delegation is for its device, when the user has given the device's name
    /// to another key since, or withdrawn it: a lost laptop loses its services with its name.
    pub(super) async fn check_device(&self, record: &SignedRecord) -> Result<(), NamesError> {
        let Some(delegation) = record.delegation() else { return Ok(()) };
        let name = &record.record().name;
        if delegation.name() == name {
            // The entry of the name itself says so.
            return Ok(());
        }
        let device = self.store.get(delegation.name()).await?;
        let is_superseded = device.is_some_and(|device| {
            device.entry.owner() != delegation.id() && device.entry.granted > delegation.issued()
        });
        if is_superseded { Err(NamesError::DelegationSuperseded(name.clone())) } else { Ok(()) }
    }
}
