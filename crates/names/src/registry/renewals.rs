//! Delegations that are renewed: more time for a key that has a name already, never a name for another key.
//!
//! A delegation that a user makes by hand gives a name to a key, whatever was before. A renewal is made by a
//! program, perhaps on a machine that has not heard that the name was revoked since. So it is refused for a
//! name that is another key's now; and what was kept before the name was revoked is not handed out
//! afterwards.

use whimbrel_base::{Delegation, EndpointId, Name, RecordError, UnixTime};

use super::Registry;
use super::ownership::CLOCK_SKEW;
use crate::error::NamesError;
use crate::store::MAX_RENEWALS;

impl Registry {
    /// Keeps a delegation for the key that has its name, which asks for it ([`renewal`](Self::renewal)).
    /// `peer` must be the key that made it: the user's, or that of a device which the user appointed. Says
    /// until when it counts, or the one that is kept already if an appointed device gives no more time.
    ///
    /// # Errors
    /// [`NamesError::Revoked`] and [`NamesError::DelegationSuperseded`] when the name is no longer that
    /// key's; [`NamesError::NotAppointed`] when the appointed device is none of the user's any more;
    /// [`NamesError::NotTheUsers`], [`NamesError::Forged`], [`NamesError::TooManyNames`] and those of
    /// delegations.
    pub async fn renew(
        &self,
        peer: EndpointId,
        delegation: &[u8],
        now: UnixTime,
    ) -> Result<UnixTime, NamesError> {
        let delegation = Delegation::decode(delegation)?;
        let name = delegation.name();
        if delegation.signer() != peer || self.user_key(name, now).await? != Some(delegation.issuer()) {
            return Err(NamesError::NotTheUsers { name: name.clone(), user: name.user() });
        }
        if delegation.is_expired(now) {
            return Err(NamesError::DelegationExpired { name: name.clone(), ended: delegation.expires() });
        }
        if delegation.issued() > now.saturating_add(CLOCK_SKEW) {
            return Err(NamesError::DelegationTooEarly(name.clone()));
        }
        delegation.verify().map_err(|_| NamesError::Forged(RecordError::ForgedDelegation))?;
        self.check_renewable(&delegation, now).await?;
        self.check_appointed(&delegation, now).await?;
        if let Some(kept) = self.kept_longer(&delegation).await? {
            return Ok(kept);
        }
        let expires = delegation.expires();
        if self.store.renew(delegation, now).await? {
            Ok(expires)
        } else {
            Err(NamesError::TooManyNames(MAX_RENEWALS as u64))
        }
    }

    /// The newest renewed delegation of a name for `peer`.
    ///
    /// # Errors
    /// [`NamesError::NotFound`] when none was renewed for this key; [`NamesError::Revoked`] and
    /// [`NamesError::DelegationSuperseded`] when the name is no longer its own.
    pub async fn renewal(
        &self,
        name: &Name,
        peer: EndpointId,
        now: UnixTime,
    ) -> Result<Delegation, NamesError> {
        let none = || NamesError::NotFound(name.clone());
        let user = self.user_key(name, now).await?.ok_or_else(none)?;
        let known = self.store.renewed(&user, name).await?;
        let known = known.filter(|known| known.id() == peer && !known.is_expired(now)).ok_or_else(none)?;
        self.check_renewable(&known, now).await?;
        Ok(known)
    }

    /// The key of the user of a device or service, while the user's name is held.
    pub(super) async fn user_key(
        &self,
        name: &Name,
        now: UnixTime,
    ) -> Result<Option<EndpointId>, NamesError> {
        let user = self.user_of(name).await?;
        Ok(user.filter(|user| user.entry.held_until > now).map(|user| user.entry.owner()))
    }

    /// Refuses what the user took back, or gave to another key. A device need not have been here before.
    pub(super) async fn check_renewable(
        &self,
        delegation: &Delegation,
        now: UnixTime,
    ) -> Result<(), NamesError> {
        let name = delegation.name();
        let is_renewed = delegation.appointment().is_some();
        for name in [Some(name.clone()), name.device().filter(|device| device != name)].into_iter().flatten()
        {
            let Some(found) = self.store.get(&name).await? else { continue };
            let entry = found.entry;
            if entry.held_until <= now {
                continue;
            }
            if entry.owner() == delegation.id() {
                // The user took the name back since, and gave it to the same key anew; or renewed it.
                if is_renewed && name == *delegation.name() && entry.granted > delegation.granted() {
                    return Err(NamesError::DelegationSuperseded(name));
                }
                continue;
            }
            if entry.owner() == delegation.issuer() && entry.record.record().revoked {
                return Err(NamesError::Revoked(name));
            }
            if name == *delegation.name() {
                return Err(NamesError::DelegationSuperseded(name));
            }
        }
        Ok(())
    }
}
