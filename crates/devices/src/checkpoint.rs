//! Checkpoints: what a group comes to, in place of the entries before it.
//!
//! The user's key states how far each log is covered and the hash of what follows from it, the base. Some
//! time later each device in the base that has all of it, and comes to the same, signs that statement too,
//! and so does the user's key once more. With the word of all of them the checkpoint is closed: nothing can
//! change what the entries before it came to, and they may go.

mod base;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use whimbrel_base::{EndpointId, SecretKey, order};

use crate::group::{MAX_DEVICES, Stamp};
use crate::run::{Hash, Head, Signed};
use crate::time::Hybrid;
use crate::vector::{Mark, beginning};

pub(crate) use base::{Base, removed};

const CHECKPOINT: &[u8] = b"whimbrel devices checkpoint v1\0";
const SIGNED: &[u8] = b"whimbrel devices checkpoint signed v1\0";
const AGREED: &[u8] = b"whimbrel devices checkpoint agreed v1\0";

/// What the user's key states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    /// Later ones have greater numbers.
    pub(crate) number: u64,
    /// When it was stated, by the clock of the machine with the user's key.
    pub(crate) stated: Hybrid,
    /// The hash of the checkpoint on whose base this one's was made; zeros if on none.
    pub(crate) before: Hash,
    /// The last entry of each log that is covered: of the user's, and of all devices, removed ones included.
    pub(crate) cut: BTreeMap<EndpointId, Head>,
    /// The devices that were removed: their logs end with this.
    pub(crate) gone: BTreeSet<EndpointId>,
    /// The hash of the base.
    pub(crate) base: Hash,
}

impl Checkpoint {
    pub(crate) fn hash(&self, group: EndpointId) -> Hash {
        let mut hasher = Sha256::new();
        hasher.update(CHECKPOINT);
        hasher.update(group.as_bytes());
        // Writing to a vector never fails; an empty one would only make the hash another.
        hasher.update(postcard::to_stdvec(self).unwrap_or_default());
        hasher.finalize().into()
    }

    /// The time of the latest entry that is covered.
    pub(crate) fn latest(&self) -> Option<Hybrid> {
        self.cut.values().map(|head| head.time).max()
    }

    /// Whether an entry is covered.
    pub(crate) fn covers(&self, author: EndpointId, sequence: u64) -> bool {
        self.cut.get(&author).is_some_and(|head| sequence <= head.sequence)
    }

    /// Whether an entry is covered, or of a device that was removed: that may have been before an earlier
    /// checkpoint, which covered its log.
    pub(crate) fn ends(&self, at: Stamp) -> bool {
        self.gone.contains(&at.author) || self.covers(at.author, at.sequence)
    }

    /// Whether this covers what an earlier one covered of all logs that go on.
    pub(crate) fn goes_on_from(&self, earlier: &Self) -> bool {
        earlier.cut.iter().all(|(author, head)| {
            let here = self.cut.get(author);
            self.gone.contains(author) || here.is_none_or(|here| here.sequence >= head.sequence)
        })
    }
}

/// A checkpoint with the user's signature and those of devices that came to the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stated {
    pub(crate) checkpoint: Checkpoint,
    signed: Signed,
    /// Signatures of those that came to the same later: of devices, and the user's key again.
    pub(crate) by: BTreeMap<EndpointId, Signed>,
}

fn message(hash: &Hash) -> Vec<u8> {
    [SIGNED, hash].concat()
}

fn agreed(hash: &Hash) -> Vec<u8> {
    [AGREED, hash].concat()
}

impl Stated {
    /// Signs as the user.
    pub(crate) fn new(checkpoint: Checkpoint, user: &SecretKey) -> Self {
        let signed = user.sign(&message(&checkpoint.hash(user.id()))).into();
        Self { checkpoint, signed, by: BTreeMap::new() }
    }

    /// Signs as one that came to the same.
    pub(crate) fn sign(&mut self, group: EndpointId, key: &SecretKey) {
        let signed = key.sign(&agreed(&self.checkpoint.hash(group)));
        self.by.insert(key.id(), signed.into());
    }

    /// Whether the user signed, and each of those that are named as signers.
    pub(crate) fn verify(&self, group: EndpointId) -> bool {
        let hash = self.checkpoint.hash(group);
        let agreed = agreed(&hash);
        // Checked one by one, which takes time.
        self.by.len() <= MAX_DEVICES + 1
            && group.verify(&message(&hash), &self.signed.into()).is_ok()
            && self.by.iter().all(|(who, signed)| who.verify(&agreed, &(*signed).into()).is_ok())
    }

    /// Which one this is, in few bytes.
    pub(crate) fn name(&self, group: EndpointId) -> (u64, [u8; 16]) {
        (self.checkpoint.number, beginning(&self.checkpoint.hash(group)))
    }
}

/// A checkpoint that the user's key and all devices in its base agreed to, with that base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Closed {
    pub(crate) stated: Stated,
    pub(crate) base: Base,
}

impl Closed {
    /// Whether all signatures are there and right, and the base is the one that was signed.
    pub(crate) fn verify(&self, group: EndpointId) -> bool {
        let checkpoint = &self.stated.checkpoint;
        let is_base = self.base.hash() == checkpoint.base && self.base.fits(group, checkpoint);
        is_base && self.base.is_signed_by_all(group, &self.stated.by) && self.stated.verify(group)
    }
}

/// What travels of checkpoints: the closed one, and the one that is not yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checkpoints {
    pub(crate) closed: Option<Box<Closed>>,
    pub(crate) open: Option<Box<Stated>>,
}

impl Checkpoints {
    pub(crate) fn is_empty(&self) -> bool {
        self.closed.is_none() && self.open.is_none()
    }

    /// Which ones these are.
    pub(crate) fn mark(&self, group: EndpointId) -> Mark {
        let closed = self.closed.as_ref().map(|closed| closed.stated.name(group));
        let open = self.open.as_ref();
        let signers = open.into_iter().flat_map(|open| open.by.keys().copied());
        Mark { closed, open: open.map(|open| open.name(group)), signers: order::set(signers) }
    }

    /// What somebody lacks who has these; `None` if it has a later one, and everything else must wait for
    /// that.
    pub(crate) fn missing(&self, group: EndpointId, theirs: &Mark) -> Option<Self> {
        let mark = self.mark(group);
        if theirs.closed > mark.closed {
            return None;
        }
        // Alone: it may be as large as a message.
        if theirs.closed < mark.closed {
            return Some(Self { closed: self.closed.clone(), open: None });
        }
        let open = self.open.clone().filter(|_| match mark.open == theirs.open {
            true => !mark.signers.is_subset(&theirs.signers),
            false => mark.open > theirs.open,
        });
        Some(Self { closed: None, open })
    }
}
