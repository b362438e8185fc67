//! Snapshots: the group as it follows from entries that all devices have acknowledged, in place of these.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use whimbrel_base::{EndpointId, SecretKey};

use crate::group::Group;
use crate::run::{Head, Signed};
use crate::time::Hybrid;
use crate::vector::{Stage, beginning};

/// The most signatures under a snapshot.
const MAX_SIGNATURES: usize = 16;

/// Where a snapshot ends a device's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Closed {
    pub(crate) head: Head,
    pub(crate) is_split: bool,
}

/// A group, and the entries that it stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Content {
    /// All entries up to this time are in it.
    pub(crate) until: Hybrid,
    /// The snapshot before it.
    pub(crate) parent: [u8; 16],
    pub(crate) closed: BTreeMap<EndpointId, Closed>,
    pub(crate) group: Group,
}

impl Content {
    pub(crate) fn stage(&self) -> Stage {
        let bytes = postcard::to_stdvec(self).unwrap_or_default();
        Stage { until: self.until, hash: beginning(&Sha256::digest(bytes)) }
    }

    fn message(&self) -> Vec<u8> {
        let bytes = postcard::to_stdvec(self).unwrap_or_default();
        [b"whimbrel devices snapshot v1\0".as_slice(), &Sha256::digest(bytes)].concat()
    }
}

/// A snapshot with the signatures of those who checked it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) content: Content,
    signatures: Vec<(EndpointId, Signed)>,
}

impl Snapshot {
    pub(crate) fn new(content: Content, key: &SecretKey) -> Self {
        let mut snapshot = Self { content, signatures: Vec::new() };
        snapshot.endorse(key);
        snapshot
    }

    /// Adds a signature, if there is room and it is not there yet. Says whether it was added.
    pub(crate) fn endorse(&mut self, key: &SecretKey) -> bool {
        let is_there = self.signatures.iter().any(|(signer, _)| *signer == key.id());
        if is_there || self.signatures.len() >= MAX_SIGNATURES {
            return false;
        }
        self.signatures.push((key.id(), key.sign(&self.content.message()).into()));
        true
    }

    /// Whether somebody signed it who may.
    pub(crate) fn is_signed_by(&self, may: impl Fn(EndpointId) -> bool) -> bool {
        let message = self.content.message();
        let signers = self.signatures.iter().take(MAX_SIGNATURES).filter(|(signer, _)| may(*signer));
        signers.into_iter().any(|(signer, signed)| signer.verify(&message, &(*signed).into()).is_ok())
    }
}
