//! Version vectors: how much of each device's log somebody has.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use whimbrel_base::EndpointId;

/// How much of one device's log somebody has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reach {
    pub(crate) sequence: u64,
    /// The beginning of the last entry's hash. 128 bits: nobody finds two histories with the same.
    pub(crate) hash: [u8; 16],
    /// Whether its author is known to have written two histories.
    pub(crate) is_split: bool,
}

/// How much of each device's log somebody has. Unlike a time, it tells what two
/// devices wrote without knowing of each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vector {
    pub(crate) reach: BTreeMap<EndpointId, Reach>,
    /// Travels beside it, and only if there is one.
    #[serde(skip)]
    pub(crate) mark: Mark,
}

/// Which checkpoints somebody has: numbers, and the beginnings of their hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) closed: Option<(u64, [u8; 16])>,
    pub(crate) open: Option<(u64, [u8; 16])>,
    /// Whose signatures the open one has.
    pub(crate) signers: BTreeSet<EndpointId>,
}

impl Mark {
    pub(crate) fn is_empty(&self) -> bool {
        self.closed.is_none() && self.open.is_none()
    }
}

/// A vector in sixteen bytes: two devices with the same one have the same group. It is all that a heartbeat
/// carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Digest([u8; 16]);

impl Vector {
    /// The vector's digest.
    pub fn digest(&self) -> Digest {
        let mut hasher = Sha256::new();
        hasher.update(b"whimbrel devices vector v1\0");
        hasher.update(postcard::to_stdvec(self).unwrap_or_default());
        if !self.mark.is_empty() {
            hasher.update(postcard::to_stdvec(&self.mark).unwrap_or_default());
        }
        Digest(beginning(&hasher.finalize()))
    }

    /// How many entries there are.
    pub fn entries(&self) -> u64 {
        self.reach.values().map(|reach| reach.sequence).fold(0, u64::saturating_add)
    }
}

impl Digest {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// The first half of a hash.
pub(crate) fn beginning(hash: &[u8]) -> [u8; 16] {
    let mut half = [0; 16];
    half.iter_mut().zip(hash).for_each(|(to, from)| *to = *from);
    half
}
