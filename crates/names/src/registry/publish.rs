//! The operations that change something: publish, revoke, heartbeat.

use whimbrel_base::{EndpointId, Name, NameKind, SignedRecord, UnixTime};

use super::ownership::{self, Right};
use super::{ATTEMPTS, Registry};
use crate::error::NamesError;
use crate::store::{Entry, Stored};

impl Registry {
    /// Takes in an encoded record from `peer`, the endpoint at the other end of the connection that it came
    /// over. Says until when the record counts. The same bytes again are a sign of life.
    ///
    /// # Errors
    /// See the table of the [module](super). Nothing has changed then, except that with
    /// [`NamesError::Unavailable`] it may have.
    pub async fn publish(
        &self,
        peer: EndpointId,
        record: &[u8],
        now: UnixTime,
    ) -> Result<UnixTime, NamesError> {
        self.publish_limited(peer, record, now, &|| true).await
    }

    /// As [`publish`](Self::publish), and takes a name that is new only if `may_be_new` says so.
    ///
    /// # Errors
    /// As [`publish`](Self::publish); [`NamesError::TooOften`] besides.
    pub async fn publish_limited(
        &self,
        peer: EndpointId,
        record: &[u8],
        now: UnixTime,
        may_be_new: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<UnixTime, NamesError> {
        let record = SignedRecord::decode(record)?;
        self.take_in(peer, record, now, may_be_new).await
    }

    /// Takes in a record that withdraws its name: watchers hear of it, and the name stays its owner's for the
    /// grace period. A user's key may so withdraw a device's or service's name from the key that had it.
    ///
    /// # Errors
    /// As [`publish`](Self::publish); [`NamesError::NotARevocation`] and [`NamesError::NotFound`] besides.
    pub async fn revoke(
        &self,
        peer: EndpointId,
        record: &[u8],
        now: UnixTime,
    ) -> Result<UnixTime, NamesError> {
        let record = SignedRecord::decode(record)?;
        if !record.record().revoked {
            let name = record.record().name.clone();
            return Err(NamesError::NotARevocation(name));
        }
        self.take_in(peer, record, now, &|| true).await
    }

    async fn take_in(
        &self,
        peer: EndpointId,
        record: SignedRecord,
        now: UnixTime,
        may_be_new: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<UnixTime, NamesError> {
        let mut is_counted = false;
        let name = &record.record().name;
        // The cheap checks first: a signature costs as much as a hundred of them.
        if record.record().id != peer {
            return Err(NamesError::NotYours(record.record().id));
        }
        ownership::check_sequence(&record, now)?;
        record.verify().map_err(NamesError::Forged)?;
        for _ in 0..ATTEMPTS {
            let user = self.user_of(name).await?;
            let right = ownership::right(&record, user.as_ref(), now)?;
            self.check_device(&record).await?;
            let old = self.store.get(name).await?;
            let is_owner = old.as_ref().is_some_and(|old| old.entry.owner() == peer);
            if right == Right::Own && !is_owner {
                // Before anything else: strangers are not told which names there are.
                self.check_admission(peer, name).await?;
            }
            let new = match &old {
                Some(old) if old.entry.record == record => renewed(&old.entry, right, self, now),
                Some(old) => {
                    ownership::may_replace(&record, right, &old.entry, now)?;
                    if old.entry.owner() != peer {
                        self.check_names_of(peer).await?;
                    }
                    let grace = self.limits.grace;
                    ownership::entry(record.clone(), right, Some(&old.entry), grace, now)
                }
                None => {
                    if record.record().revoked {
                        return Err(NamesError::NotFound(name.clone()));
                    }
                    self.check_names_of(peer).await?;
                    if self.store.count().await? >= self.limits.names {
                        return Err(NamesError::Full);
                    }
                    if !is_counted && !may_be_new() {
                        return Err(NamesError::TooOften);
                    }
                    is_counted = true;
                    ownership::entry(record.clone(), right, None, self.limits.grace, now)
                }
            };
            let expires = new.expires;
            if self.replace(old.as_ref(), new).await? {
                self.keep_user(user, now).await?;
                return Ok(expires);
            }
        }
        Err(NamesError::Busy(name.clone()))
    }

    /// Takes a sign of life from `peer`, an authenticated endpoint, for a name of its own: the record counts
    /// for its lifetime from `now`. Says until when.
    ///
    /// # Errors
    /// [`NamesError::NameTaken`] when the name is not the peer's; [`NamesError::NotFound`],
    /// [`NamesError::Expired`] or [`NamesError::Revoked`] when a record must be published again; the errors
    /// of delegations when the user's word no longer counts.
    pub async fn heartbeat(
        &self,
        name: &Name,
        peer: EndpointId,
        now: UnixTime,
    ) -> Result<UnixTime, NamesError> {
        for _ in 0..ATTEMPTS {
            let old = self.store.get(name).await?;
            let old = old.ok_or_else(|| NamesError::NotFound(name.clone()))?;
            ownership::check_owner(name, &old.entry, peer)?;
            if old.entry.record.record().revoked {
                return Err(NamesError::Revoked(name.clone()));
            }
            if old.entry.expires <= now {
                return Err(NamesError::Expired(name.clone()));
            }
            let user = self.user_of(name).await?;
            let right = ownership::right(&old.entry.record, user.as_ref(), now)?;
            self.check_device(&old.entry.record).await?;
            let new = renewed(&old.entry, right, self, now);
            // A write for each of many heartbeats is dear, and a heartbeat soon after another gains little.
            let lifetime = old.entry.record.record().lifetime;
            if new.expires.since(old.entry.expires) < lifetime / 8 {
                return Ok(old.entry.expires);
            }
            let expires = new.expires;
            if self.replace(Some(&old), new).await? {
                self.keep_user(user, now).await?;
                return Ok(expires);
            }
        }
        Err(NamesError::Busy(name.clone()))
    }

    /// The entry of the user of a device or service.
    async fn user_of(&self, name: &Name) -> Result<Option<Stored>, NamesError> {
        if name.kind() == NameKind::User {
            return Ok(None);
        }
        Ok(self.store.get(&name.user()).await?)
    }

    async fn check_admission(&self, peer: EndpointId, user: &Name) -> Result<(), NamesError> {
        if self.admission.admits(&peer, user) {
            return Ok(());
        }
        let admissions = self.store.admissions(&peer).await?;
        if admissions.iter().any(|admitted| admitted.covers(user)) {
            return Ok(());
        }
        Err(NamesError::NotAdmitted(user.clone()))
    }

    async fn check_names_of(&self, peer: EndpointId) -> Result<(), NamesError> {
        let limit = self.limits.names_per_key;
        if self.store.owned_by(&peer).await? >= limit {
            return Err(NamesError::TooManyNames(limit));
        }
        Ok(())
    }

    /// A device lives, so its user does: the user's name is kept as if its record expired now.
    async fn keep_user(&self, user: Option<Stored>, now: UnixTime) -> Result<(), NamesError> {
        let Some(user) = user else {
            return Ok(());
        };
        let held_until = now.saturating_add(self.limits.grace);
        // Half the grace is soon enough, and seldom.
        if user.entry.held_until.since(now) < self.limits.grace / 2 {
            let kept = Entry { held_until, ..user.entry.clone() };
            // If somebody else was quicker, there was a sign of life.
            self.replace(Some(&user), kept).await?;
        }
        Ok(())
    }
}

/// The entry after a sign of life.
fn renewed(old: &Entry, right: Right, registry: &Registry, now: UnixTime) -> Entry {
    let expires = ownership::expiry(&old.record, right, now);
    let held_until = expires.saturating_add(registry.limits.grace);
    Entry { expires, held_until: held_until.max(old.held_until), ..old.clone() }
}
