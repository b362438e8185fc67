//! Where the registry keeps its entries.
//!
//! A [`Store`] keeps one [`Entry`] a name, and replaces it only if nobody else did meanwhile (compare and
//! set). It is the only thing that several name servers share: nothing above it may assume that this process
//! is alone. So a store also has a feed of changes, by which a server learns of what the others took in.
//!
//! [`MemoryStore`] forgets everything at its end. [`RedbStore`] is a file.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;

use whimbrel_base::{Appointment, Delegation, EndpointId, Name, SignedRecord, UnixTime};

use crate::admission::{CodeHash, Domain, Invitation};
use crate::proposal::ProposalId;
use crate::readers::Readers;

pub mod batches;
mod memory;
pub mod proposals;
pub mod redb;
#[cfg(test)]
mod tests;

pub use self::batches::{Batch, NewBatch};
pub use self::memory::MemoryStore;
pub use self::proposals::{Decided, Kept, Proposing};
pub use self::redb::RedbStore;

/// What a name's owner last published, and until when that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The newest record. Its name is the entry's key, its id the owner of the name.
    pub record: SignedRecord,
    /// When the user last gave this device's or service's name to a key; older delegations don't move it any
    /// more. Zero for a user name.
    pub granted: UnixTime,
    /// From then on the record is not served.
    pub expires: UnixTime,
    /// From then on anybody may register the name. Never before `expires`.
    pub held_until: UnixTime,
    /// Who may look the record up.
    pub readers: Readers,
}

impl Entry {
    /// The key of the entry.
    pub fn name(&self) -> &Name {
        &self.record.record().name
    }

    /// The record's sequence number.
    pub fn sequence(&self) -> u64 {
        self.record.record().sequence
    }

    /// The key that owns the name.
    pub fn owner(&self) -> EndpointId {
        self.record.record().id
    }
}

/// Tells one state of an entry from every other state it has had. Only a store makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// A place in a store's feed of changes. Later changes have greater cursors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor(pub u64);

/// An entry as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// To be named when the entry is replaced.
    pub version: Version,
    /// The entry.
    pub entry: Entry,
}

/// What [`Store::place`] answers.
pub struct Placed {
    /// The entry's version.
    pub version: Version,
    /// Answers when the entry is stored, or won't be: [`StoreError::Conflict`] if it was placed on one that
    /// could not be stored. Dropping it changes nothing.
    pub durable: Answer<'static, ()>,
}

impl Placed {
    /// An entry that is already as durable as the store makes it.
    pub fn durable(version: Version) -> Self {
        Self { version, durable: Box::pin(std::future::ready(Ok(()))) }
    }
}

impl fmt::Debug for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placed").field("version", &self.version).finish_non_exhaustive()
    }
}

/// Part of a store's feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The names that were put, oldest change first. Each at least once; removed names need not appear.
    pub names: Vec<Name>,
    /// Where the next part begins.
    pub cursor: Cursor,
}

/// What a store answers: later, and perhaps with an error. Boxed, so that the registry need not know its
/// store.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Keeps entries. See the [module's documentation](self).
///
/// - A `put` or `remove` that answered `Ok` survives whatever the store promises to survive, and every later
///   `get`, of every process, sees it.
/// - A `place` that answered `Ok` has its turn: every later `get` sees it, nobody who decided on what was
///   there before can replace it, and it is stored before whatever is placed on it. It survives only when
///   [`Placed::durable`] says so; if that fails, what was there before is there again.
/// - One that answered an error other than [`StoreError::Conflict`] may or may not have happened.
/// - Dropping an answer does not undo what was asked for.
pub trait Store: Send + Sync + 'static {
    /// The entry of a name.
    fn get<'a>(&'a self, name: &'a Name) -> Answer<'a, Option<Stored>>;

    /// Puts an entry in the place of the one with version `expected`; in an empty place if that is `None`.
    /// Answers as soon as the order is certain: before the entry is durable, if the store can. A store that
    /// other processes change too answers when it is durable.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the place holds something else.
    fn place(&self, expected: Option<Version>, entry: Entry) -> Answer<'_, Placed>;

    /// As [`place`](Self::place), and waits until the entry is durable.
    ///
    /// # Errors
    /// As [`place`](Self::place), and what [`Placed::durable`] says.
    fn put(&self, expected: Option<Version>, entry: Entry) -> Answer<'_, Version> {
        let placed = self.place(expected, entry);
        Box::pin(async move {
            let Placed { version, durable } = placed.await?;
            durable.await?;
            Ok(version)
        })
    }

    /// Removes the entry with this version.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] when the place holds something else.
    fn remove<'a>(&'a self, name: &'a Name, expected: Version) -> Answer<'a, ()>;

    /// How many names a key owns. May count late, by as much as is being put at the moment.
    fn owned_by<'a>(&'a self, owner: &'a EndpointId) -> Answer<'a, u64>;

    /// The names that a key owns. May be late, as [`owned_by`](Self::owned_by). A store that does not know
    /// says none: then a user's devices are not known as readers.
    fn names_of<'a>(&'a self, owner: &'a EndpointId) -> Answer<'a, Vec<Name>> {
        let _ = owner;
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// At most `limit` names of a user, the user's own among them, in their order and after `after`. A store
    /// that does not know says none.
    fn names_under<'a>(
        &'a self,
        user: &'a Name,
        after: Option<&'a Name>,
        limit: usize,
    ) -> Answer<'a, Vec<Name>> {
        let _ = (user, after, limit);
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// How many names there are. May count late, by as much as is being put at the moment.
    fn count(&self) -> Answer<'_, u64>;

    /// At most `limit` names whose [`held_until`](Entry::held_until) is not after `now`, the longest due
    /// first.
    fn due(&self, now: UnixTime, limit: usize) -> Answer<'_, Vec<Name>>;

    /// The end of the feed of changes.
    fn head(&self) -> Answer<'_, Cursor>;

    /// The changes after `cursor`, at most `limit` of them, whoever made them.
    fn changes_since(&self, cursor: Cursor, limit: usize) -> Answer<'_, Changes>;

    /// Waits until there are changes after `cursor`. May answer too early.
    fn changed_since(&self, cursor: Cursor) -> Answer<'_, ()>;

    /// Keeps an invitation, durably, and forgets those that have expired at `now`.
    ///
    /// # Errors
    /// [`StoreError::NoInvitations`] by a store that keeps none; [`StoreError::TooManyInvitations`] when it
    /// has [`MAX_INVITATIONS`].
    fn invite(&self, code: CodeHash, invitation: Invitation, now: UnixTime) -> Answer<'_, ()> {
        let _ = (code, invitation, now);
        Box::pin(std::future::ready(Err(StoreError::NoInvitations)))
    }

    /// [Redeems](Invitation::redeem) an invitation and admits the key, both or neither, durably. `None` if
    /// there is none that counts.
    fn redeem(&self, code: CodeHash, key: EndpointId, now: UnixTime) -> Answer<'_, Option<Admitted>> {
        let _ = (code, key, now);
        Box::pin(std::future::ready(Ok(None)))
    }

    /// What a key was admitted to by invitations.
    fn admissions<'a>(&'a self, key: &'a EndpointId) -> Answer<'a, Vec<Admitted>> {
        let _ = key;
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Keeps a renewed delegation in place of its issuer's last one of that name, durably, and forgets those
    /// of the issuer that have ended at `now`. False if it has [`MAX_RENEWALS`] others of this issuer, or
    /// keeps none at all.
    fn renew(&self, delegation: Delegation, now: UnixTime) -> Answer<'_, bool> {
        let _ = (delegation, now);
        Box::pin(std::future::ready(Ok(false)))
    }

    /// The renewed delegation of a name by this issuer.
    fn renewed<'a>(&'a self, issuer: &'a EndpointId, name: &'a Name) -> Answer<'a, Option<Delegation>> {
        let _ = (issuer, name);
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Forgets all renewed delegations that have ended at `now`.
    fn forget_renewals(&self, now: UnixTime) -> Answer<'_, ()> {
        let _ = now;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Keeps an appointment in place of its issuer's last one of that device, durably, and forgets those of
    /// the issuer that have ended at `now`. False if it has [`MAX_APPOINTMENTS`] others of this issuer, or
    /// keeps none at all.
    fn appoint(&self, appointment: Appointment, now: UnixTime) -> Answer<'_, bool> {
        let _ = (appointment, now);
        Box::pin(std::future::ready(Ok(false)))
    }

    /// The appointment of a device by this issuer.
    fn appointment<'a>(
        &'a self,
        issuer: &'a EndpointId,
        device: &'a Name,
    ) -> Answer<'a, Option<Appointment>> {
        let _ = (issuer, device);
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Forgets the appointment of a device by this issuer, durably.
    fn dismiss<'a>(&'a self, issuer: &'a EndpointId, device: &'a Name) -> Answer<'a, ()> {
        let _ = (issuer, device);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Forgets all appointments that have ended at `now`.
    fn forget_appointments(&self, now: UnixTime) -> Answer<'_, ()> {
        let _ = now;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Keeps a proposal, durably, if there is room beside all others of the two users. Two at the same
    /// instant do not both take the last place. A store that keeps none has no room.
    fn propose(&self, proposal: Kept, now: UnixTime) -> Answer<'_, Proposing> {
        let _ = (proposal, now);
        Box::pin(std::future::ready(Ok(Proposing::Full)))
    }

    /// All that a user made and is asked, by their ids; what has ended may be among them.
    fn proposals<'a>(&'a self, user: &'a EndpointId) -> Answer<'a, Vec<Kept>> {
        let _ = user;
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Keeps the decision of the user who is asked, durably. Of two at the same instant one is kept. False if
    /// there is nothing to decide.
    fn decide<'a>(
        &'a self,
        user: &'a EndpointId,
        id: ProposalId,
        decided: Decided,
        now: UnixTime,
    ) -> Answer<'a, bool> {
        let _ = (user, id, decided, now);
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Withdraws a proposal of this user, durably. False if there is none.
    fn withdraw<'a>(&'a self, user: &'a EndpointId, id: ProposalId) -> Answer<'a, bool> {
        let _ = (user, id);
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Forgets all proposals that have ended at `now`.
    fn forget_proposals(&self, now: UnixTime) -> Answer<'_, ()> {
        let _ = now;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Keeps a batch for the devices of a user, durably, in place of what has ended or [makes room](batches).
    /// Says until when; `None` if there is no room, or the store keeps none at all.
    fn leave_batch(&self, new: NewBatch, now: UnixTime) -> Answer<'_, Option<UnixTime>> {
        let _ = (new, now);
        Box::pin(std::future::ready(Ok(None)))
    }

    /// The batches of a user behind this number that have not ended at `now`, in order, until they have more
    /// than [`batches::MAX_BATCH`] bytes together.
    fn batches<'a>(&'a self, user: &'a EndpointId, after: u64, now: UnixTime) -> Answer<'a, Vec<Batch>> {
        let _ = (user, after, now);
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Forgets all batches that have ended at `now`.
    fn forget_batches(&self, now: UnixTime) -> Answer<'_, ()> {
        let _ = now;
        Box::pin(std::future::ready(Ok(())))
    }
}

/// The most renewed delegations that a store keeps for one user's key.
pub const MAX_RENEWALS: usize = 64;

/// The most appointments that a store keeps for one user's key.
pub const MAX_APPOINTMENTS: usize = 16;

/// The most invitations that a store keeps at once.
pub const MAX_INVITATIONS: usize = 10_000;

/// What an invitation admitted a key to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Admitted {
    /// User names of this domain; every one if `None`.
    pub domain: Option<Domain>,
}

impl Admitted {
    /// Whether the key may register this user name.
    pub fn covers(&self, user: &Name) -> bool {
        self.domain.as_ref().is_none_or(|domain| domain.covers(user))
    }
}

/// Why a store did not do as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Somebody else changed the entry meanwhile.
    #[error("somebody else changed this name's entry meanwhile; read it again and decide anew")]
    Conflict,
    /// Another process has the file open.
    #[error("{file} is in use by another process; stop that name service, or give this one another file")]
    Locked {
        /// The store's file.
        file: PathBuf,
    },
    /// The file is not a store, or is damaged.
    #[error(
        "{file} is damaged or is no name store ({detail}); move it aside and restore a backup, or start with a new file: then every endpoint must publish again, and names are free for the first to come"
    )]
    Corrupt {
        /// The store's file.
        file: PathBuf,
        /// What was found.
        detail: String,
    },
    /// The file was written by a program that is too new or too old.
    #[error(
        "{file} has the format {found}, and this program reads {expected}; use the program that wrote it, or update this one"
    )]
    Format {
        /// The store's file.
        file: PathBuf,
        /// The format of the file.
        found: u64,
        /// The format of this program.
        expected: u64,
    },
    /// The disk is full.
    #[error(
        "there is no space left for {file}: nothing that was acknowledged is lost, but nothing new is taken in; free some space"
    )]
    Full {
        /// The store's file.
        file: PathBuf,
    },
    /// The file can't be read or written.
    #[error("{file} can't be read or written ({detail}); check that it exists, its permissions and its disk")]
    Io {
        /// The store's file.
        file: PathBuf,
        /// What the system said.
        detail: String,
    },
    /// This kind of store keeps no invitations.
    #[error("this name service keeps no invitations; let keys or domains in instead")]
    NoInvitations,
    /// Too many invitations wait.
    #[error("too many invitations wait to be used; wait until some end")]
    TooManyInvitations,
    /// The store was closed, or its thread died.
    #[error("the store has stopped; restart the name service, and report what it logged")]
    Stopped,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
