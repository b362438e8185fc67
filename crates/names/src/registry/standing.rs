//! Whether a key has a name of a domain, without a word of which.

use whimbrel_base::{EndpointId, NameKind, UnixTime};

use super::{Registry, devices};
use crate::admission::Domain;
use crate::error::NamesError;

impl Registry {
    /// Whether `peer` has a name of `domain` at the time `now`: one whose record counts, or a user's name
    /// that is held for it, and that was not revoked.
    ///
    /// # Errors
    /// [`NamesError::Unavailable`].
    pub async fn has_name_of(
        &self,
        peer: EndpointId,
        domain: &Domain,
        now: UnixTime,
    ) -> Result<bool, NamesError> {
        // No more than a key may register.
        for name in self.store.names_of(&peer).await? {
            if !domain.covers(&name) {
                continue;
            }
            let Some(stored) = self.store.get(&name).await? else { continue };
            let entry = stored.entry;
            let is_held = name.kind() == NameKind::User && entry.held_until > now;
            let is_its_own = entry.owner() == peer && !entry.record.record().revoked;
            if !is_its_own || !(is_held || entry.expires > now) {
                continue;
            }
            if !devices::is_superseded(&*self.store, &entry.record).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
