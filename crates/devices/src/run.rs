//! Entries, the hash chain that they form, and runs of them as they travel.
//!
//! The hash of an entry covers the group, the author, its number, the hash before it and what it says. A
//! signature is over the hash of one entry, and so over the whole log up to it: a run of any length needs one
//! signature.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use whimbrel_base::{EndpointId, SecretKey, Signature};

use crate::op::{Last, Op};
use crate::time::Hybrid;

const ENTRY: &[u8] = b"whimbrel devices entry v1\0";
const LOG: &[u8] = b"whimbrel devices log v1\0";

/// The most entries of a run.
pub const MAX_RUN: usize = 4096;

/// The hash of an entry, with all before it.
pub(crate) type Hash = [u8; 32];

/// One entry of a device's log. Its author, number and hash follow from its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) time: Hybrid,
    pub(crate) op: Op,
}

/// An entry in its chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) entry: Entry,
    pub(crate) hash: Hash,
}

/// Where a chain stands: its last entry's number, hash and time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) sequence: u64,
    pub(crate) hash: Hash,
    pub(crate) time: Hybrid,
}

impl Head {
    pub(crate) fn last(&self) -> Last {
        Last { sequence: self.sequence, hash: self.hash }
    }
}

/// Whose log it is, and in which group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whose {
    pub(crate) group: EndpointId,
    pub(crate) author: EndpointId,
}

impl Whose {
    pub(crate) fn link(&self, sequence: u64, before: &Hash, entry: Entry) -> Link {
        let mut hasher = Sha256::new();
        hasher.update(ENTRY);
        hasher.update(self.group.as_bytes());
        hasher.update(self.author.as_bytes());
        hasher.update(sequence.to_be_bytes());
        hasher.update(before);
        // Vectors of bytes never fail to be written; an empty one would only make the hash another.
        hasher.update(postcard::to_stdvec(&entry).unwrap_or_default());
        Link { entry, hash: hasher.finalize().into() }
    }

    fn message(&self, sequence: u64, hash: &Hash) -> Vec<u8> {
        [LOG, self.group.as_bytes(), self.author.as_bytes(), &sequence.to_be_bytes(), hash].concat()
    }

    pub(crate) fn sign(&self, key: &SecretKey, sequence: u64, hash: &Hash) -> Signed {
        key.sign(&self.message(sequence, hash)).into()
    }

    pub(crate) fn verify(&self, sequence: u64, hash: &Hash, signed: &Signed) -> bool {
        self.author.verify(&self.message(sequence, hash), &(*signed).into()).is_ok()
    }
}

/// A signature in a form that is written as 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Signed([u8; 32], [u8; 32]);

impl From<Signature> for Signed {
    fn from(signature: Signature) -> Self {
        let (mut one, mut other) = ([0; 32], [0; 32]);
        let bytes = signature.to_bytes();
        one.copy_from_slice(&bytes[..32]);
        other.copy_from_slice(&bytes[32..]);
        Self(one, other)
    }
}

impl From<Signed> for Signature {
    fn from(Signed(one, other): Signed) -> Self {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&one);
        bytes[32..].copy_from_slice(&other);
        Self::from_bytes(&bytes)
    }
}

/// Entries of one author, one after the other, with a signature over the last one's hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) author: EndpointId,
    /// The first entry's number.
    pub(crate) first: u64,
    /// The hash before it.
    pub(crate) before: Hash,
    /// For each: the step from the time of the one before (of the first: from zero), and what it says.
    pub(crate) entries: Vec<(u64, Op)>,
    pub(crate) signed: Signed,
}

/// Why a run is of no use, whoever sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadRun {
    /// No entries, more than there may be, or times that don't grow.
    #[error("a device's log has no entries, too many at once, or times that run backwards; it is not taken")]
    Malformed,
    /// The author did not sign it.
    #[error("the signature under a device's log is not the device's: it was forged or changed on the way")]
    Signature,
}

impl Run {
    pub(crate) fn new(author: EndpointId, first: u64, before: Hash, links: &[Link], signed: Signed) -> Self {
        let mut last = Hybrid::default();
        let entries = links.iter().map(|link| {
            let step = link.entry.time.step_from(last).unwrap_or_default();
            last = link.entry.time;
            (step, link.entry.op.clone())
        });
        Self { author, first, before, entries: entries.collect(), signed }
    }

    /// The time of the first entry.
    pub(crate) fn begins(&self) -> Option<Hybrid> {
        self.entries.first().and_then(|(step, _)| Hybrid::default().step(*step))
    }

    /// The time of the last entry.
    pub(crate) fn ends(&self) -> Option<Hybrid> {
        self.entries.iter().try_fold(Hybrid::default(), |time, (step, _)| time.step(*step))
    }

    /// The entries with their hashes, if the author signed them.
    pub(crate) fn open(&self, group: EndpointId) -> Result<Vec<Link>, BadRun> {
        if self.entries.is_empty() || self.entries.len() > MAX_RUN || self.first == 0 {
            return Err(BadRun::Malformed);
        }
        let end = self.first.checked_add(self.entries.len() as u64).ok_or(BadRun::Malformed)?;
        let whose = Whose { group, author: self.author };
        let (mut time, mut before) = (Hybrid::default(), self.before);
        let mut links = Vec::with_capacity(self.entries.len());
        for (sequence, (step, op)) in (self.first..end).zip(&self.entries) {
            time = time.step(*step).ok_or(BadRun::Malformed)?;
            let link = whose.link(sequence, &before, Entry { time, op: op.clone() });
            before = link.hash;
            links.push(link);
        }
        if !whose.verify(end - 1, &before, &self.signed) {
            return Err(BadRun::Signature);
        }
        Ok(links)
    }
}

/// Two runs of one author that begin with different entries of the same number, behind the same entry: the
/// proof that the author, or a thief of its key, wrote two histories.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fork {
    pub(crate) one: Run,
    pub(crate) other: Run,
}

impl Fork {
    /// Whether it proves what it says.
    pub(crate) fn verify(&self, group: EndpointId) -> bool {
        let (one, other) = (&self.one, &self.other);
        let same = one.author == other.author && one.first == other.first && one.before == other.before;
        let first = |run: &Run| run.open(group).ok().and_then(|links| links.first().map(|link| link.hash));
        same && matches!((first(one), first(other)), (Some(a), Some(b)) if a != b)
    }
}
