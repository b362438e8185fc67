//! Proposals as a store keeps them, and how many it keeps.

use serde::{Deserialize, Serialize};
use whimbrel_base::{EndpointId, UnixTime};

use crate::proposal::ProposalId;

/// The most proposals between users that wait for one user. As many again may be decided.
pub const MAX_ASKED: usize = 32;
/// The most proposals that wait of machines that want to be a user's devices. As many again may be decided.
pub const MAX_NEW_DEVICES: usize = 8;
/// The most proposals that a user has made.
pub const MAX_MADE: usize = 32;
/// The most proposals that a store keeps.
pub const MAX_PROPOSALS: usize = 100_000;

/// A proposal, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Which.
    pub id: ProposalId,
    /// The key on whose behalf it was made.
    pub from: EndpointId,
    /// The user's key that is to decide.
    pub to: EndpointId,
    /// Whether a machine wants to be a device.
    pub is_of_device: bool,
    /// From then on it is of no use.
    pub expires: UnixTime,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What was decided.
    pub decided: Option<Decided>,
    /// Whether its maker wants or needs it no more.
    pub withdrawn: bool,
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// Whether the user wants it.
    pub accepted: bool,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// What a store says to a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Proposing {
    /// It is kept, or was before.
    Kept,
    /// The same user was asked for the same, and has not decided, or does not want it.
    AskedAlready,
    /// Too many wait for the user, or are the maker's, or there are too many.
    Full,
}

impl Kept {
    /// Whether this user made it or is asked.
    pub(super) fn is_of(&self, user: &EndpointId) -> bool {
        self.from == *user || self.to == *user
    }

    /// Whether this user sees it.
    pub fn is_seen_by(&self, user: &EndpointId) -> bool {
        // Those who were asked see what they decided also when its maker knows it.
        let asked = self.to == *user && (!self.withdrawn || self.decided.is_some());
        asked || (self.from == *user && !self.withdrawn)
    }

    /// Whether nobody needs to be asked for the same again: the user has not decided, or does not want it.
    fn blocks(&self, new: &Self) -> bool {
        let is_accepted = self.decided.as_ref().is_some_and(|decided| decided.accepted);
        let is_same = self.from == new.from && self.to == new.to && self.is_of_device == new.is_of_device;
        is_same && !is_accepted
    }

    /// Decides, unless it was decided or withdrawn, or has ended.
    pub(super) fn decide(&mut self, user: &EndpointId, decided: Decided, now: UnixTime) -> bool {
        let waits = self.to == *user && self.decided.is_none() && !self.withdrawn && self.expires > now;
        if waits {
            self.decided = Some(decided);
        }
        waits
    }

    /// Withdraws it, if it is this user's.
    pub(super) fn withdraw(&mut self, user: &EndpointId) -> bool {
        self.withdrawn |= self.from == *user;
        self.from == *user
    }
}

/// What is said to a new one, beside all that its maker and the user who is asked have and that has not
/// ended. `None` if it may be kept.
pub(super) fn judge(known: &[Kept], new: &Kept) -> Option<Proposing> {
    if known.iter().any(|known| known.id == new.id) {
        return Some(Proposing::Kept);
    }
    if known.iter().any(|known| known.blocks(new)) {
        return Some(Proposing::AskedAlready);
    }
    let most = if new.is_of_device { MAX_NEW_DEVICES } else { MAX_ASKED };
    let (mut asked, mut waiting, mut made) = (0, 0, 0);
    for known in known {
        if known.to == new.to && known.is_of_device == new.is_of_device {
            asked += 1;
            waiting += usize::from(known.decided.is_none());
        }
        made += usize::from(known.from == new.from);
    }
    // A user who has refused what strangers asked can be asked by others.
    let is_full = waiting >= most || asked >= 2 * most || made >= MAX_MADE;
    is_full.then_some(Proposing::Full)
}
