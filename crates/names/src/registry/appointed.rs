//! Delegations that a device renewed which the user appointed, and who that is now.
//!
//! The user's key may be away when a device renews, and a stolen device renews too. So a renewal is taken
//! only from a device whose own name counts here: from one that was revoked, that nobody renews, or that
//! never showed itself, no more are taken from that moment on. What was taken before counts until its end.

use whimbrel_base::{Appointment, Delegation, Name, SignedRecord, UnixTime};

use super::Registry;
use crate::error::NamesError;
use crate::store::{Entry, Stored};

impl Registry {
    /// Refuses a renewal by an appointed device whose name is not its own now, by a delegation that counts.
    pub(super) async fn check_appointed(
        &self,
        delegation: &Delegation,
        now: UnixTime,
    ) -> Result<(), NamesError> {
        let Some(appointment) = delegation.appointment() else { return Ok(()) };
        let name = appointment.name();
        if let Some(device) = self.store.get(name).await?.filter(|device| device.entry.held_until > now) {
            if device.entry.owner() != appointment.id() {
                return Err(refused(name));
            }
            if shows(&device.entry, appointment, now) {
                return Ok(());
            }
        }
        // It may have published services alone, or of late. What is revoked has an entry, which is the
        // user's.
        for own in self.store.names_of(&appointment.id()).await? {
            if own.device().as_ref() != Some(name) {
                continue;
            }
            if self.store.get(&own).await?.is_some_and(|own| shows(&own.entry, appointment, now)) {
                return Ok(());
            }
        }
        Err(refused(name))
    }

    /// As [`check_appointed`](Self::check_appointed), for a record that is to take the place of `old`: what
    /// was taken before is not asked for again.
    pub(super) async fn check_renewal(
        &self,
        record: &SignedRecord,
        old: Option<&Stored>,
        now: UnixTime,
    ) -> Result<(), NamesError> {
        let Some(delegation) = record.delegation() else { return Ok(()) };
        if old.is_some_and(|old| old.entry.record.delegation() == Some(delegation)) {
            return Ok(());
        }
        self.check_signer(delegation, now).await
    }

    /// As [`check_appointed`](Self::check_appointed), for a verified delegation that is shown: one that was
    /// taken before counts.
    pub(super) async fn check_signer(
        &self,
        delegation: &Delegation,
        now: UnixTime,
    ) -> Result<(), NamesError> {
        if delegation.appointment().is_none() {
            return Ok(());
        }
        let name = delegation.name();
        let kept = self.store.renewed(&delegation.issuer(), name).await?;
        if kept.as_ref() == Some(delegation) {
            return Ok(());
        }
        let shown = self.store.get(name).await?;
        if shown.is_some_and(|shown| shown.entry.record.delegation() == Some(delegation)) {
            return Ok(());
        }
        self.check_appointed(delegation, now).await
    }

    /// Until when the renewal counts that is kept for the same key, if an appointed device gives it no more
    /// time than that: an older one that comes again changes nothing.
    pub(super) async fn kept_longer(&self, delegation: &Delegation) -> Result<Option<UnixTime>, NamesError> {
        if delegation.appointment().is_none() {
            return Ok(None);
        }
        let kept = self.store.renewed(&delegation.issuer(), delegation.name()).await?;
        let kept = kept.filter(|kept| {
            let is_as_new = kept.granted() >= delegation.granted();
            kept.id() == delegation.id() && is_as_new && kept.expires() >= delegation.expires()
        });
        Ok(kept.map(|kept| kept.expires()))
    }
}

/// Whether an entry shows that an appointed device has its name, by a delegation that counts.
fn shows(entry: &Entry, appointment: &Appointment, now: UnixTime) -> bool {
    let is_own = entry.owner() == appointment.id() && entry.held_until > now;
    let word = entry.record.delegation().filter(|word| word.name() == appointment.name());
    is_own && word.is_some_and(|word| word.issuer() == appointment.issuer() && !word.is_expired(now))
}

fn refused(name: &Name) -> NamesError {
    NamesError::NotAppointed(name.clone())
}
