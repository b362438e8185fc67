//! The operations that change something: publish, revoke, heartbeat.

use std::time::Duration;

use whimbrel_base::{EndpointId, Name, NameKind, SignedRecord, UnixTime};

use super::ownership::{self, Right};
use super::{ATTEMPTS, Registry, access};
use crate::error::NamesError;
use crate::readers::Readers;
use crate::store::{Entry, Stored};

/// How often the lease of a user's name is written anew.
const KEEP_EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// What was given at a time is taken back just after it.
const INSTANT: Duration = Duration::from_millis(1);

/// What is to be taken in.
pub struct Publication<'a> {
    /// The encoded record.
    pub record: &'a [u8],
    /// Who may look it up.
    pub readers: Readers,
    /// Asked once if the name is new: false refuses it.
    pub may_be_new: &'a (dyn Fn() -> bool + Send + Sync),
}

/// How long what was taken in counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accepted {
    /// Until when the record counts, unless its endpoint gives a sign of life.
    pub expires: UnixTime,
    /// Until when the user's name is held for its owner, unless one of the user's devices gives a sign of
    /// life: the end of the lease.
    pub held_until: UnixTime,
}

impl Registry {
    /// Takes in an encoded record from `peer`, the endpoint at the other end of the connection that it came
    /// over, for everybody to read. Says until when the record counts. The same bytes again are a sign of
    /// life.
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
        let publication = Publication { record, readers: Readers::Public, may_be_new: &|| true };
        self.register(peer, publication, now).await.map(|accepted| accepted.expires)
    }

    /// As [`publish`](Self::publish), with all that can be said about it.
    ///
    /// # Errors
    /// As [`publish`](Self::publish); [`NamesError::TooOften`] and [`NamesError::TooManyReaders`] besides.
    pub async fn register(
        &self,
        peer: EndpointId,
        publication: Publication<'_>,
        now: UnixTime,
    ) -> Result<Accepted, NamesError> {
        let Publication { record, readers, may_be_new } = publication;
        if !readers.is_bounded() {
            return Err(NamesError::TooManyReaders);
        }
        let record = SignedRecord::decode(record)?;
        self.take_in(peer, record, Some(readers), now, may_be_new).await
    }

    /// Takes in a record that withdraws its name: watchers hear of it, and the name stays its owner's for the
    /// grace period. A user's key may so withdraw a device's or service's name from the key that had it. Who
    /// could read the name reads that.
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
        self.take_in(peer, record, None, now, &|| true).await.map(|accepted| accepted.expires)
    }

    /// Without `readers` they stay who they were.
    async fn take_in(
        &self,
        peer: EndpointId,
        record: SignedRecord,
        readers: Option<Readers>,
        now: UnixTime,
        may_be_new: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<Accepted, NamesError> {
        let mut is_counted = false;
        let name = &record.record().name;
        // The cheap checks first: a signature costs as much as a hundred of them.
        if record.record().id != peer {
            return Err(NamesError::NotYours(record.record().id));
        }
        ownership::check_sequence(&record, now)?;
        ownership::check_end(&record, now)?;
        record.verify().map_err(NamesError::Forged)?;
        for _ in 0..ATTEMPTS {
            let user = self.user_of(name).await?;
            let right = match ownership::right(&record, user.as_ref(), now) {
                Ok(right) => right,
                Err(refusal) => return Err(self.told(refusal, peer, name).await?),
            };
            self.check_device(&record).await?;
            let old = self.store.get(name).await?;
            self.check_renewal(&record, old.as_ref(), now).await?;
            let is_owner = old.as_ref().is_some_and(|old| old.entry.owner() == peer);
            if right == Right::Own && !is_owner {
                // Before anything else: strangers are not told which names there are.
                self.check_admission(peer, name).await?;
                self.check_mail(peer, name, now)?;
            }
            let before = old.as_ref().map(|old| old.entry.readers.clone());
            let readers = readers.clone().or(before).unwrap_or_default();
            // What a user took back stays so for a year: machines that have not heard of it may renew it.
            let is_taken_back = right == Right::User && record.record().revoked;
            let grace = if is_taken_back { self.limits.user_grace } else { self.grace_of(name) };
            // What was renewed ahead of our clock is taken back with the rest.
            let renewed = match right {
                Right::User => self
                    .store
                    .renewed(&peer, name)
                    .await?
                    .map(|renewed| renewed.granted().saturating_add(INSTANT)),
                Right::Own | Right::Delegated { .. } => None,
            };
            let terms =
                ownership::Terms { grace, readers: readers.clone(), renewed: renewed.unwrap_or_default() };
            let new = match &old {
                Some(old) if old.entry.record == record => {
                    Entry { readers, ..self.renewed(&old.entry, right, now) }
                }
                Some(old) => {
                    ownership::may_replace(&record, right, &old.entry, now)?;
                    if old.entry.owner() != peer {
                        self.check_names_of(peer).await?;
                    }
                    ownership::entry(record.clone(), right, Some(&old.entry), terms, now)
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
                    ownership::entry(record.clone(), right, None, terms, now)
                }
            };
            let (expires, held_until) = (new.expires, new.held_until);
            if is_taken_back {
                // First, so that it is not handed out once the same key has the name again.
                self.store.dismiss(&peer, name).await?;
            }
            if self.replace(old.as_ref(), new).await? {
                let kept = self.keep_user(user, now).await?;
                return Ok(Accepted { expires, held_until: kept.unwrap_or(held_until) });
            }
        }
        Err(NamesError::Busy(name.clone()))
    }

    /// Takes a sign of life from `peer`, an authenticated endpoint, for a name of its own: the record counts
    /// for its lifetime from `now`, and no longer than to its own end. Says until when.
    ///
    /// # Errors
    /// [`NamesError::NameTaken`] when the name is not the peer's, [`NamesError::NotFound`] if the peer may
    /// not know of it; [`NamesError::NotFound`], [`NamesError::Expired`] or [`NamesError::Revoked`] when a
    /// record must be published again; the errors of delegations when the user's word no longer counts.
    pub async fn heartbeat(
        &self,
        name: &Name,
        peer: EndpointId,
        now: UnixTime,
    ) -> Result<UnixTime, NamesError> {
        for _ in 0..ATTEMPTS {
            let old = self.store.get(name).await?;
            let old = old.ok_or_else(|| NamesError::NotFound(name.clone()))?;
            if !access::may_read(&*self.store, &peer, &old.entry, now).await? {
                return Err(NamesError::NotFound(name.clone()));
            }
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
            let new = self.renewed(&old.entry, right, now);
            // A write for each of many heartbeats is expensive, and a heartbeat soon after another gains
            // little.
            let lifetime = old.entry.record.record().lifetime;
            let gained = new.expires.since(old.entry.expires);
            let expires = if gained < lifetime / 8 {
                old.entry.expires
            } else if self.replace(Some(&old), new.clone()).await? {
                new.expires
            } else {
                continue;
            };
            self.keep_user(user, now).await?;
            return Ok(expires);
        }
        Err(NamesError::Busy(name.clone()))
    }

    /// The entry of the user of a device or service.
    pub(super) async fn user_of(&self, name: &Name) -> Result<Option<Stored>, NamesError> {
        if name.kind() == NameKind::User {
            return Ok(None);
        }
        Ok(self.store.get(&name.user()).await?)
    }

    pub(super) async fn check_admission(&self, peer: EndpointId, user: &Name) -> Result<(), NamesError> {
        if self.admission().admits(&peer, user) {
            return Ok(());
        }
        let admissions = self.store.admissions(&peer).await?;
        if admissions.iter().any(|admitted| admitted.covers(user)) {
            return Ok(());
        }
        Err(NamesError::NotAdmitted(user.clone()))
    }

    /// A refusal as `peer` may hear it. That a user is not registered learns only who could register the
    /// name, and so find it out in any case; to others it looks like a user with another key.
    async fn told(
        &self,
        refusal: NamesError,
        peer: EndpointId,
        name: &Name,
    ) -> Result<NamesError, NamesError> {
        if !matches!(refusal, NamesError::UserUnknown(_) | NamesError::NotTheUsers { .. }) {
            return Ok(refusal);
        }
        // Asked in both cases, so that both take the same time.
        let user = name.user();
        match (self.check_admission(peer, &user).await, refusal) {
            (Err(NamesError::NotAdmitted(_)), _) => Ok(NamesError::NotTheUsers { name: name.clone(), user }),
            (Err(error), _) => Err(error),
            (Ok(()), refusal) => Ok(refusal),
        }
    }

    async fn check_names_of(&self, peer: EndpointId) -> Result<(), NamesError> {
        let limit = self.limits.names_per_key;
        if self.store.owned_by(&peer).await? >= limit {
            return Err(NamesError::TooManyNames(limit));
        }
        Ok(())
    }

    /// How long a name is held after its record expired.
    fn grace_of(&self, name: &Name) -> Duration {
        if name.kind() == NameKind::User { self.limits.user_grace } else { self.limits.grace }
    }

    /// A device lives, so its user does: the user's name is kept as if its record expired now. Returns until
    /// when, if there is a user.
    async fn keep_user(&self, user: Option<Stored>, now: UnixTime) -> Result<Option<UnixTime>, NamesError> {
        let Some(user) = user else {
            return Ok(None);
        };
        let grace = self.limits.user_grace;
        let held_until = now.saturating_add(grace);
        // Once a day is often enough.
        if user.entry.held_until.since(now) >= grace.saturating_sub(KEEP_EVERY) {
            return Ok(Some(user.entry.held_until));
        }
        let kept = Entry { held_until, ..user.entry.clone() };
        // If somebody else was quicker, there was a sign of life.
        self.replace(Some(&user), kept).await?;
        Ok(Some(held_until))
    }

    /// The entry after a sign of life.
    fn renewed(&self, old: &Entry, right: Right, now: UnixTime) -> Entry {
        let expires = ownership::expiry(&old.record, right, now);
        let held_until = expires.saturating_add(self.grace_of(old.name()));
        Entry { expires, held_until: held_until.max(old.held_until), ..old.clone() }
    }
}
