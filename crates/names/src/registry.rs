//! The rules of the name service.
//!
//! | operation | refused when |
//! | --- | --- |
//! | [`publish`](Registry::publish) | the key may not register user names here; the record is malformed, too large or forged; sent by another endpoint than it is about; not newer; the name is another key's; a device or service lacks its user's signature; a bound is reached |
//! | [`lookup`](Registry::lookup) | there is none, or it has expired |
//! | [`watch`](Registry::watch) | too many watch |
//! | [`heartbeat`](Registry::heartbeat) | sent by another than the owner, or too late |
//! | [`revoke`](Registry::revoke) | as publish |
//!
//! **Ownership.** A user name belongs to the first key that registers it. A device or service name belongs to
//! its user, who gives it to a key ([`whimbrel_base::delegation`]); the last one given it has it. A name
//! stays its owner's for a grace period after its record expired or was revoked, so that nobody snatches the
//! name of somebody on holiday. A sign of life of any of a user's devices renews the *lease* of the user's
//! name: it stays its owner's for a year more, though its record is not served any more.
//!
//! **Ends.** A record says when it ends, and nobody serves it longer, whatever signs of life there are.
//!
//! **Readers.** An owner may say who reads a record. To everybody else the name looks like one that is not
//! registered.
//!
//! **Replay.** A record is taken only from the endpoint that it is about, and only with a higher sequence
//! number. So nobody brings an old record back, not even after the name lapsed. Sequence numbers are bounded
//! by the clock, so that nobody who held a name for a moment can lock it for ever with the highest number.
//!
//! **Push first.** A record counts from when the store gave it its turn ([`Store::place`]): lookups find it
//! and watchers hear of it, while it is being stored. Only the publisher's acknowledgement waits until it is
//! durable. If it cannot be stored, or the service dies before it is, the publisher was not acknowledged and
//! says it again; meanwhile watchers know a newer record than the store, and are told of nothing older.
//!
//! Every decision is made on one state of an entry and holds only if the entry is still in that state when it
//! is replaced ([`Store::place`]); otherwise it is made anew.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use whimbrel_base::{EndpointId, Name, SignedRecord, UnixTime};

use self::followers::Followers;
use self::watchers::Watchers;
use crate::admission::{Admission, Domain, Terms};
use crate::error::NamesError;
use crate::invitations;
use crate::store::{Cursor, Entry, Store, StoreError, Stored};

mod access;
mod appointed;
mod appointments;
mod batches;
mod devices;
mod followers;
mod mail;
mod ownership;
mod proposals;
mod publish;
mod renewals;
mod standing;
mod subscriptions;
#[cfg(test)]
mod tests;
mod users;
mod watchers;

pub use self::followers::Follower;
pub use self::publish::{Accepted, Publication};
pub use self::users::Devices;
pub use self::watchers::Watcher;

/// How often a decision is made anew when others change the same entry.
const ATTEMPTS: usize = 16;

/// How many names are handled in one go when sweeping, or following other servers.
const BATCH: usize = 256;

/// What the service lets people use, so that nobody uses it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Names that one key may own. A few more may slip through when one key registers several at the same
    /// instant.
    pub names_per_key: u64,
    /// Names altogether. A few more may slip through, as above.
    pub names: u64,
    /// Watches of one name, on this server.
    pub watchers_per_name: usize,
    /// Watches of one peer, on this server.
    pub watchers_per_peer: usize,
    /// Watches altogether, on this server.
    pub watchers: usize,
    /// How long a device's or service's name stays its owner's after its record expired.
    pub grace: Duration,
    /// How long a user name stays its owner's after the last sign of life of any of the user's devices.
    pub user_grace: Duration,
    /// New names that one IP address (or /64 of IPv6) may register in an hour, on this server.
    pub new_names_per_hour: u32,
    /// Requests of one key in a second, on this server: ten times as many at once. Further ones wait.
    pub requests_per_second: u32,
    /// Requests that come from one IP address (or /64 of IPv6) in a second, on this server, whatever keys
    /// they are made with: ten times as many at once. Further ones wait.
    pub requests_per_address: u32,
    /// What peers may use of the meeting slots.
    pub meetings: MeetingLimits,
    /// How often peers may do what is rare.
    pub turns: TurnLimits,
}

/// What the service lets peers use of its meeting slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MeetingLimits {
    /// How long a meeting lasts at most: whole seconds.
    pub lifetime: Duration,
    /// Open slots, at most [`MEETING_SLOTS`](crate::protocol::MEETING_SLOTS).
    pub slots: usize,
    /// Open slots of one peer.
    pub per_peer: usize,
    /// Slots that one peer may try to join in a minute.
    pub joins_per_minute: u32,
    /// The same for one IP address (or /64 of IPv6), whatever keys it uses.
    pub joins_per_address: u32,
}

/// How often peers may do what is rare, on this server: further ones are refused. An address is an IP address
/// (or /64 of IPv6), whatever keys it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TurnLimits {
    /// Tries to redeem an invitation, by one key in a minute. Codes have 80 random bits.
    pub redeems_per_minute: u32,
    /// The same from one address.
    pub redeems_per_address: u32,
    /// Requests between users that a key may make in an hour.
    pub proposals_per_hour: u32,
    /// The same from one address.
    pub proposals_per_address: u32,
    /// Batches that a key may leave for its user's devices in an hour.
    pub batches_per_hour: u32,
    /// The same from one address.
    pub batches_per_address: u32,
    /// Mails that a key has sent in an hour, to whatever address.
    pub mails_per_hour: u32,
    /// The same from one address.
    pub mails_per_address: u32,
    /// Mails to one mail address in an hour, whoever asks.
    pub mails_to_one: u32,
}

impl Default for TurnLimits {
    fn default() -> Self {
        Self {
            redeems_per_minute: 10,
            redeems_per_address: 60,
            proposals_per_hour: 20,
            proposals_per_address: 60,
            batches_per_hour: 60,
            batches_per_address: 240,
            mails_per_hour: 5,
            mails_per_address: 20,
            mails_to_one: 3,
        }
    }
}

impl Default for MeetingLimits {
    fn default() -> Self {
        Self {
            lifetime: Duration::from_secs(600),
            slots: 2048,
            per_peer: 4,
            joins_per_minute: 10,
            joins_per_address: 60,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            names_per_key: 64,
            names: 1_000_000,
            watchers_per_name: 10_000,
            watchers_per_peer: 256,
            watchers: 100_000,
            grace: Duration::from_secs(30 * 24 * 60 * 60),
            user_grace: Duration::from_secs(365 * 24 * 60 * 60),
            new_names_per_hour: 100,
            requests_per_second: 100,
            requests_per_address: 500,
            meetings: MeetingLimits::default(),
            turns: TurnLimits::default(),
        }
    }
}

/// What a lookup finds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// The newest record. It may be a revocation: look at `revoked`.
    pub record: SignedRecord,
    /// Until when it counts, unless its endpoint gives a sign of life.
    pub expires: UnixTime,
}

/// The name service without its network. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Registry {
    store: Arc<dyn Store>,
    watchers: Watchers,
    followers: Followers,
    /// Replaced as a whole when the rules change.
    admission: Arc<RwLock<Arc<Admission>>>,
    mail: Arc<mail::Mail>,
    limits: Limits,
}

impl Registry {
    /// A registry over a store, which lets those register new user names whom `admission` names.
    pub fn new(store: impl Store, admission: Admission, limits: Limits) -> Self {
        Self::with_store(Arc::new(store), admission, limits)
    }

    /// A registry over a store that others use too.
    pub fn with_store(store: Arc<dyn Store>, admission: Admission, limits: Limits) -> Self {
        let admission = Arc::new(RwLock::new(Arc::new(admission)));
        let (watchers, followers) = (Watchers::new(limits), Followers::new(limits));
        Self { store, watchers, followers, admission, mail: Arc::default(), limits }
    }

    /// Puts other rules in force about who may register new user names and who may invite, for all clones.
    /// Names that are registered stay with their owners.
    pub fn set_admission(&self, admission: Admission) {
        *self.admission.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(admission);
    }

    fn admission(&self) -> Arc<Admission> {
        self.admission.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The bounds.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The newest record of a name, for `peer` at the time `now`. A revoked name has one, which says so.
    ///
    /// # Errors
    /// [`NamesError::NotFound`], also if `peer` may not read it; [`NamesError::Expired`],
    /// [`NamesError::Unavailable`].
    pub async fn lookup(&self, name: &Name, peer: EndpointId, now: UnixTime) -> Result<Found, NamesError> {
        let found = match self.store.get(name).await? {
            Some(stored) if access::may_read(&*self.store, &peer, &stored.entry, now).await? => Some(stored),
            _ => None,
        };
        match found {
            None => Err(NamesError::NotFound(name.clone())),
            Some(Stored { entry, .. }) if entry.expires <= now => Err(NamesError::Expired(name.clone())),
            Some(Stored { entry, .. }) => match self.check_device(&entry.record).await {
                Ok(()) => Ok(Found { record: entry.record, expires: entry.expires }),
                Err(NamesError::DelegationSuperseded(name)) => Err(NamesError::Revoked(name)),
                Err(error) => Err(error),
            },
        }
    }

    /// The newest record of an endpoint that says where it is, under whatever name, for `peer` at the time
    /// `now`.
    ///
    /// # Errors
    /// [`NamesError::UnknownEndpoint`], also if `peer` may read none of its records;
    /// [`NamesError::Unavailable`].
    pub async fn find(&self, id: &EndpointId, peer: EndpointId, now: UnixTime) -> Result<Found, NamesError> {
        let mut newest: Option<Found> = None;
        // No more than a key may register.
        for name in self.store.names_of(id).await? {
            let found = match self.lookup(&name, peer, now).await {
                Ok(found) => found,
                Err(error @ NamesError::Unavailable(_)) => return Err(error),
                Err(_) => continue,
            };
            let record = found.record.record();
            let is_newer = |newest: &Found| newest.record.record().sequence < record.sequence;
            if record.id == *id
                && !record.revoked
                && !record.addrs.is_empty()
                && newest.as_ref().is_none_or(is_newer)
            {
                newest = Some(found);
            }
        }
        newest.ok_or(NamesError::UnknownEndpoint(*id))
    }

    /// Watches a name for `peer`, whether or not it is registered yet.
    ///
    /// The watcher gets the newest record, if it is newer than the sequence number `after` that the peer saw
    /// last, and then each newer one as it comes. When several come faster than they are taken, it gets the
    /// newest. A peer that may not read the name's records gets none.
    ///
    /// # Errors
    /// [`NamesError::TooManyWatchers`], [`NamesError::Unavailable`].
    pub async fn watch(
        &self,
        name: &Name,
        peer: EndpointId,
        after: Option<u64>,
        now: UnixTime,
    ) -> Result<Watcher, NamesError> {
        // First listen, then read: what is published in between is heard.
        let mut watcher = self.watchers.watch(self.store.clone(), name, peer, after)?;
        if let Some(Stored { entry, .. }) = self.store.get(name).await?
            && entry.expires > now
            && self.check_device(&entry.record).await.is_ok()
        {
            watcher.start_with(entry);
        }
        Ok(watcher)
    }

    /// Makes an invitation for `peer`, if it is an operator; returns its code.
    ///
    /// # Errors
    /// [`NamesError::NotOperator`], [`NamesError::BadTerms`], [`NamesError::Unavailable`].
    pub async fn invite(&self, peer: EndpointId, terms: Terms, now: UnixTime) -> Result<String, NamesError> {
        if !self.admission().is_operator(&peer) {
            return Err(NamesError::NotOperator);
        }
        invitations::invite(&*self.store, terms, now).await
    }

    /// Lets `peer` register new user names by the code of an invitation; says of which domain. The same code
    /// again does for the same key what it did before.
    ///
    /// # Errors
    /// [`NamesError::BadInvitation`], [`NamesError::Unavailable`].
    pub async fn redeem(
        &self,
        peer: EndpointId,
        code: &str,
        now: UnixTime,
    ) -> Result<Option<Domain>, NamesError> {
        let admitted = self.store.redeem(invitations::hash(code), peer, now).await?;
        admitted.map(|admitted| admitted.domain).ok_or(NamesError::BadInvitation)
    }

    /// Gives up the names whose grace has passed at the time `now`; says how many. To be called from time to
    /// time: once an hour is plenty, because lookups don't serve what has expired anyway.
    ///
    /// # Errors
    /// [`NamesError::Unavailable`].
    pub async fn sweep(&self, now: UnixTime) -> Result<usize, NamesError> {
        self.store.forget_renewals(now).await?;
        self.store.forget_appointments(now).await?;
        self.store.forget_proposals(now).await?;
        self.store.forget_batches(now).await?;
        let mut removed = 0;
        loop {
            let due = self.store.due(now, BATCH).await?;
            let mut progress = false;
            for name in &due {
                match self.store.get(name).await? {
                    Some(stored) if stored.entry.held_until <= now => {
                        match self.store.remove(name, stored.version).await {
                            Ok(()) => removed += 1,
                            // It was renewed, or another server swept it.
                            Err(StoreError::Conflict) => {}
                            Err(error) => return Err(error.into()),
                        }
                        progress = true;
                    }
                    _ => {}
                }
            }
            if due.len() < BATCH || !progress {
                return Ok(removed);
            }
        }
    }

    /// Tells the watchers on this server what other servers on the same store take in. Runs until the store
    /// fails; unneeded when there is one server.
    ///
    /// # Errors
    /// [`NamesError::Unavailable`]. When called again, it begins at the end of the feed: [`follow_from`] an
    /// earlier cursor misses nothing.
    ///
    /// [`follow_from`]: Self::follow_from
    pub async fn follow(&self) -> NamesError {
        match self.store.head().await {
            Ok(mut cursor) => self.follow_from(&mut cursor).await,
            Err(error) => error.into(),
        }
    }

    /// The end of the store's feed: where [`follow_from`](Self::follow_from) begins when all before is known.
    ///
    /// # Errors
    /// [`NamesError::Unavailable`].
    pub async fn head(&self) -> Result<Cursor, NamesError> {
        Ok(self.store.head().await?)
    }

    /// As [`follow`](Self::follow), from `cursor` on, which is moved ahead.
    pub async fn follow_from(&self, cursor: &mut Cursor) -> NamesError {
        loop {
            if let Err(error) = self.follow_once(cursor).await {
                return error;
            }
        }
    }

    async fn follow_once(&self, cursor: &mut Cursor) -> Result<(), NamesError> {
        self.store.changed_since(*cursor).await?;
        let changes = self.store.changes_since(*cursor, BATCH).await?;
        for name in &changes.names {
            if self.watchers.watched(name)
                && let Some(stored) = self.store.get(name).await?
            {
                self.watchers.tell(&stored.entry);
            }
        }
        *cursor = changes.cursor;
        Ok(())
    }

    /// Replaces an entry, tells the watchers, and waits until it is durable. `false` when somebody else was
    /// quicker, or when what the entry was placed on could not be stored.
    async fn replace(&self, old: Option<&Stored>, new: Entry) -> Result<bool, NamesError> {
        let told = new.clone();
        let stored = match self.store.place(old.map(|old| old.version), new).await {
            Ok(placed) => {
                self.watchers.tell(&told);
                placed.durable.await
            }
            Err(error) => Err(error),
        };
        match stored {
            Ok(()) => Ok(true),
            Err(StoreError::Conflict) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("limits", &self.limits).finish_non_exhaustive()
    }
}
