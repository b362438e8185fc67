//! Writing entries of one's own.

use whimbrel_base::{EndpointId, Name, SecretKey, UnixTime};

use super::Log;
use crate::chain::{Chain, MAX_LOG, MAX_UNTRUSTED};
use crate::group::{MAX_DEVICES, MAX_FRIENDS};
use crate::op::{Op, Subject};
use crate::run::MAX_RUN;
use crate::time::Hybrid;

/// Why an entry is not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The key belongs to nobody in the group.
    #[error(
        "this device is not one of the user's, or no longer; have it invited (`whimbrel invite --device`)"
    )]
    NotMember,
    /// The device may only speak of itself.
    #[error("this device may not act for the user; have a trusted one do this, or trust this one first")]
    NotTrusted,
    /// There is no such device or friend.
    #[error("no such device or friend is in the group; see `whimbrel devices list` and `friends list`")]
    Unknown,
    /// Nobody removes or trusts itself, and nobody the user's key.
    #[error("a device neither removes nor trusts itself, and the user's own key stays; use another one")]
    Itself,
    /// The key was removed.
    #[error("this key was removed from the user's devices for good; let the machine make a new one")]
    Removed,
    /// Too many of something.
    #[error("the group has no room for more of these; remove some")]
    Full,
    /// The device's own log has as many entries as it may.
    #[error(
        "this device wrote as much as it may: {MAX_LOG} entries, or {MAX_UNTRUSTED} if it never acted for \
         the user; say it on another device of the user, or remove this one and let it make a new key"
    )]
    LogFull,
    /// Two histories are signed with this device's key.
    #[error(
        "this device's log was written twice, by a copy of its key or after a backup: remove the device, and \
         let it make a new key"
    )]
    Forked,
    /// This device's own log is damaged in the file.
    #[error(
        "what this device wrote is damaged in its file; bring it up to date first (`whimbrel devices sync`), \
         so that it does not write another history"
    )]
    Lost,
    /// A removal names an entry before a checkpoint that is closed, or that this device signed.
    #[error(
        "this device agreed to a checkpoint behind that entry, and what it covers counts for good; name the \
         last entry before the checkpoint, or a later one"
    )]
    Closed,
    /// Only the user's key makes checkpoints.
    #[error("only the user's own key makes a checkpoint; run this on the machine that has it")]
    NotUser,
    /// A device is listed that wrote two histories.
    #[error("two histories are signed with the key of {0}; remove that device first")]
    ForkedDevice(EndpointId),
    /// A checkpoint would be too large.
    #[error("what the entries come to is too large for a checkpoint; remove some devices of friends")]
    TooLarge,
    /// A whole batch is at most so large.
    #[error("at most {MAX_RUN} entries are written at once; write fewer")]
    TooMany,
}

impl Log {
    /// Writes entries, signed together.
    ///
    /// # Errors
    /// [`WriteError`]; then nothing was written.
    pub fn write(&mut self, key: &SecretKey, ops: Vec<Op>, now: UnixTime) -> Result<(), WriteError> {
        let author = key.id();
        let known = self.chains.get(&author);
        if known.is_some_and(|chain| chain.split().is_some()) {
            return Err(WriteError::Forked);
        }
        // What it wrote before is elsewhere: another history would begin.
        if self.lost.contains(&author) {
            return Err(WriteError::Lost);
        }
        if !self.group.is_member(author) {
            return Err(WriteError::NotMember);
        }
        for op in &ops {
            self.check(author, op)?;
        }
        if ops.len() > MAX_RUN {
            return Err(WriteError::TooMany);
        }
        if known.map_or(0, Chain::len) + ops.len() > self.room(author) {
            return Err(WriteError::LogFull);
        }
        if !ops.is_empty() {
            self.append(key, ops, now);
        }
        Ok(())
    }

    /// Adds entries without asking whether they will count.
    pub(crate) fn append(&mut self, key: &SecretKey, ops: Vec<Op>, now: UnixTime) {
        let (time, new) = (Hybrid::after(self.latest(), now), self.new_chain(key.id()));
        self.chains.entry(key.id()).or_insert(new).append(key, time, ops);
        self.refresh();
    }

    fn check(&self, author: EndpointId, op: &Op) -> Result<(), WriteError> {
        if let Op::RemoveDevice { device, last } | Op::Distrust { device, last } = op
            && last.sequence < self.agreed_until(author, *device)
        {
            return Err(WriteError::Closed);
        }
        if op.needs_trust(author) && !self.group.is_trusted(author) {
            return Err(WriteError::NotTrusted);
        }
        let group = &self.group;
        let known = match op {
            Op::Seen => true,
            Op::AddDevice { device, .. } => {
                if group.is_removed(*device) {
                    return Err(WriteError::Removed);
                }
                if group.devices.len() >= MAX_DEVICES && group.device(*device).is_none() {
                    return Err(WriteError::Full);
                }
                true
            }
            Op::RemoveDevice { device, .. } | Op::Trust { device } | Op::Distrust { device, .. } => {
                if *device == author || *device == group.user {
                    return Err(WriteError::Itself);
                }
                group.device(*device).is_some()
            }
            Op::Show { device, .. } => group.device(*device).is_some(),
            Op::AddFriend { friend, .. } => {
                if group.friends.len() >= MAX_FRIENDS && group.friend(*friend).is_none() {
                    return Err(WriteError::Full);
                }
                true
            }
            Op::RemoveFriend { friend } | Op::Allow { friend, .. } | Op::AddFriendDevice { friend, .. } => {
                group.friend(*friend).is_some()
            }
            Op::RemoveFriendDevice { friend, device } => self.has(Subject::FriendDevice(*friend, *device)),
            Op::Call { whom, .. } => self.has(*whom),
        };
        if known { Ok(()) } else { Err(WriteError::Unknown) }
    }

    fn has(&self, whom: Subject) -> bool {
        match whom {
            Subject::Device(id) => self.group.device(id).is_some(),
            Subject::Friend(id) => self.group.friend(id).is_some(),
            Subject::FriendDevice(friend, id) => {
                self.group.friend(friend).is_some_and(|friend| friend.devices.contains_key(&id))
            }
        }
    }

    /// Adds a device, or says more of one.
    ///
    /// # Errors
    /// [`WriteError`]
    pub fn add_device(
        &mut self,
        key: &SecretKey,
        device: EndpointId,
        name: Name,
        trusted: bool,
        now: UnixTime,
    ) -> Result<(), WriteError> {
        self.write(key, vec![Op::AddDevice { device, name, trusted }], now)
    }

    /// Removes a device for good. What it said beyond what is here never counts.
    ///
    /// # Errors
    /// [`WriteError`]
    pub fn remove_device(
        &mut self,
        key: &SecretKey,
        device: EndpointId,
        now: UnixTime,
    ) -> Result<(), WriteError> {
        let last = self.last_of(device);
        self.write(key, vec![Op::RemoveDevice { device, last }], now)
    }

    /// Lets a device act for the user, or not any more. What it said beyond what is here then no longer
    /// counts as the user's word.
    ///
    /// # Errors
    /// [`WriteError`]
    pub fn trust(
        &mut self,
        key: &SecretKey,
        device: EndpointId,
        trusted: bool,
        now: UnixTime,
    ) -> Result<(), WriteError> {
        let op = match trusted {
            true => Op::Trust { device },
            false => Op::Distrust { device, last: self.last_of(device) },
        };
        self.write(key, vec![op], now)
    }
}
