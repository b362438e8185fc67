//! What is left of the entries that a checkpoint covers: those that count and have an effect, or can take one
//! from an entry that comes later and is dated back.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use whimbrel_base::{EndpointId, order};

use super::Checkpoint;
use crate::group::{Group, Stamp};
use crate::op::{Op, Subject};
use crate::run::{Hash, Signed};

const BASE: &[u8] = b"whimbrel devices base v1\0";
/// More entries than anybody writes, and few enough to count on from.
const LONGEST: u64 = u32::MAX as u64;

/// What the covered entries came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Base {
    /// Entries that count for good, in their order.
    pub(crate) entries: Vec<(Stamp, Op)>,
    /// The devices that may write more than one that never acted for the user.
    pub(crate) wide: BTreeSet<EndpointId>,
}

impl Base {
    /// Makes the base from all covered entries that count, in their order.
    pub(crate) fn of(counted: &[(Stamp, &Op)], wide: BTreeSet<EndpointId>) -> Self {
        let gone = removed(counted);
        let first_removals =
            order::map(counted.iter().rev().filter_map(|(at, op)| removes(op).map(|device| (device, *at))));
        let mut later = Later::default();
        let mut entries = Vec::new();
        for (at, op) in counted.iter().rev() {
            let about = about_device(op).filter(|device| gone.contains(device));
            let keeps = match (about, removes(op)) {
                // Of a removed device it is kept that it was removed.
                (Some(device), Some(_)) => first_removals.get(&device) == Some(at),
                (Some(_), None) => false,
                _ => later.leaves(op),
            };
            if keeps {
                entries.push((*at, (*op).clone()));
            }
        }
        entries.reverse();
        Self { entries, wide: wide.difference(&gone).copied().collect() }
    }

    pub(crate) fn hash(&self) -> Hash {
        let mut hasher = Sha256::new();
        hasher.update(BASE);
        hasher.update(postcard::to_stdvec(self).unwrap_or_default());
        hasher.finalize().into()
    }

    /// The keys that must have agreed to the checkpoint: those of the devices in it, and the user's.
    pub(crate) fn signers(&self, user: EndpointId) -> BTreeSet<EndpointId> {
        let mut group = Group::new(user);
        self.entries.iter().for_each(|(at, op)| group.apply(op, *at));
        order::set(group.devices().map(|(id, _)| id).chain([user]))
    }

    pub(crate) fn is_signed_by_all(&self, user: EndpointId, by: &BTreeMap<EndpointId, Signed>) -> bool {
        self.signers(user).iter().all(|signer| by.contains_key(signer))
    }

    /// Whether its entries are in order, none is behind what the checkpoint covers, they remove those that
    /// are said to be gone, and no log is longer than can be.
    pub(crate) fn fits(&self, user: EndpointId, checkpoint: &Checkpoint) -> bool {
        let sorted = self.entries.is_sorted_by(|(one, _), (other, _)| one < other);
        let mut gone = order::set(self.entries.iter().filter_map(|(_, op)| removes(op)));
        gone.remove(&user);
        sorted
            && gone == checkpoint.gone
            && self.entries.iter().all(|(at, _)| checkpoint.ends(*at))
            && checkpoint.cut.values().all(|head| head.sequence <= LONGEST)
    }
}

/// The devices that entries which count remove.
pub(crate) fn removed(counted: &[(Stamp, &Op)]) -> BTreeSet<EndpointId> {
    order::set(counted.iter().filter_map(|(_, op)| removes(op)))
}

fn removes(op: &Op) -> Option<EndpointId> {
    match op {
        Op::RemoveDevice { device, .. } => Some(*device),
        _ => None,
    }
}

fn about_device(op: &Op) -> Option<EndpointId> {
    match op {
        Op::AddDevice { device, .. }
        | Op::RemoveDevice { device, .. }
        | Op::Trust { device }
        | Op::Distrust { device, .. }
        | Op::Show { device, .. }
        | Op::Call { whom: Subject::Device(device), .. } => Some(*device),
        _ => None,
    }
}

/// What later entries say, while one goes back from the last one.
#[derive(Default)]
struct Later {
    shown: BTreeSet<EndpointId>,
    allowed: BTreeSet<EndpointId>,
    called: BTreeSet<Subject>,
    /// Friends and friends' devices that are removed.
    removed: BTreeSet<Subject>,
}

impl Later {
    /// Whether an entry can have an effect in spite of all that comes later; notes what it says. What adds
    /// something stays, also if it was there: an entry that comes dated back may remove it in between.
    fn leaves(&mut self, op: &Op) -> bool {
        match op {
            Op::Seen => false,
            Op::AddDevice { .. } | Op::RemoveDevice { .. } | Op::Trust { .. } | Op::Distrust { .. } => true,
            Op::Show { device, .. } => self.shown.insert(*device),
            Op::AddFriend { friend, .. } => !self.has_lost(Subject::Friend(*friend)),
            Op::RemoveFriend { friend } => self.removed.insert(Subject::Friend(*friend)),
            Op::Allow { friend, .. } => {
                !self.has_lost(Subject::Friend(*friend)) && self.allowed.insert(*friend)
            }
            Op::AddFriendDevice { friend, device, .. } => {
                !self.has_lost(Subject::FriendDevice(*friend, *device))
            }
            Op::RemoveFriendDevice { friend, device } => {
                let whom = Subject::FriendDevice(*friend, *device);
                !self.has_lost(whom) && self.removed.insert(whom)
            }
            Op::Call { whom, .. } => !self.has_lost(*whom) && self.called.insert(*whom),
        }
    }

    fn has_lost(&self, whom: Subject) -> bool {
        let with_friend = match whom {
            Subject::FriendDevice(friend, _) => self.removed.contains(&Subject::Friend(friend)),
            _ => false,
        };
        with_friend || self.removed.contains(&whom)
    }
}
