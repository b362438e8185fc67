//! How many entries an author may have.
//!
//! A device that acts for the user may write far more than one that never did. What some devices took of
//! such a log all others must be able to take too, also those that hear first that its author lost the trust
//! or was removed: otherwise they never have the same. So room that was given stays, whatever becomes of who
//! gave it.

use std::collections::{BTreeMap, BTreeSet};

use whimbrel_base::{EndpointId, order};

use super::Log;
use crate::chain::{MAX_LOG, MAX_UNTRUSTED};
use crate::group::{Device, MAX_DEVICES};
use crate::op::Op;

impl Log {
    /// How much an author may write here.
    pub(super) fn room(&self, author: EndpointId) -> usize {
        self.rooms().get(&author).copied().unwrap_or(MAX_UNTRUSTED)
    }

    /// The authors that may have more than [`MAX_UNTRUSTED`] entries: those that may act for the user, or
    /// could once, or could until their log split, and, however many there are, those of which a later entry
    /// is named by one that acts for the user.
    pub(super) fn rooms(&self) -> BTreeMap<EndpointId, usize> {
        let is_full = |author: &EndpointId| {
            self.group.is_trusted(*author) || self.group.device(*author).is_some_and(Device::is_forked)
        };
        let full = self.chains.keys().copied().chain(self.group.devices().map(|(id, _)| id)).filter(is_full);
        let mut rooms = order::map(full.chain(self.once_trusted()).map(|author| (author, MAX_LOG)));
        let trusted = self.chains.iter().filter(|(author, _)| self.group.is_trusted(**author));
        for (_, entry) in trusted.flat_map(|(_, chain)| chain.entries()) {
            if let Op::RemoveDevice { device, last } | Op::Distrust { device, last } = &entry.op {
                let room = rooms.entry(*device).or_insert(MAX_UNTRUSTED);
                let named = usize::try_from(last.sequence).unwrap_or(usize::MAX);
                *room = named.clamp(*room, MAX_LOG);
            }
        }
        rooms
    }

    /// The user's key, and the devices that it, or one of these, ever called trusted. Whether that counts is
    /// not asked: it can change with what comes later, and these can only become more. At most as many as a
    /// user can have devices, those nearest to the user first: a thief of one could name any number of keys.
    fn once_trusted(&self) -> BTreeSet<EndpointId> {
        let (mut order, mut once) = (vec![self.user], BTreeSet::from([self.user]));
        let closed = self.closed().into_iter().flat_map(|closed| &closed.base.wide);
        order.extend(closed.copied().filter(|author| once.insert(*author)));
        let mut next = 0;
        while let Some(author) = order.get(next) {
            next += 1;
            for device in self.said(*author, trusted) {
                if once.len() <= MAX_DEVICES && once.insert(device) {
                    order.push(device);
                }
            }
        }
        // What gave the trust may be gone with all that its author wrote behind a split: it may have been any
        // device's. What such a device says of others is not asked: it may never have acted for the user.
        if order.iter().any(|author| self.is_split(author)) {
            for device in order.iter().flat_map(|author| self.said(*author, named)) {
                if once.len() <= MAX_DEVICES {
                    once.insert(device);
                }
            }
        }
        once
    }

    fn is_split(&self, author: &EndpointId) -> bool {
        self.chains.get(author).is_some_and(|chain| chain.split().is_some())
    }

    /// The keys of which an author said what is asked for, in its order.
    fn said(
        &self,
        author: EndpointId,
        of: fn(&Op) -> Option<EndpointId>,
    ) -> impl Iterator<Item = EndpointId> {
        let entries = self.chains.get(&author).into_iter().flat_map(|chain| chain.entries());
        entries.filter_map(move |(_, entry)| of(&entry.op))
    }
}

/// The device that is called trusted, or of which so many entries are named that it must have been.
fn trusted(op: &Op) -> Option<EndpointId> {
    match op {
        Op::AddDevice { device, trusted: true, .. } | Op::Trust { device } => Some(*device),
        Op::RemoveDevice { device, last } | Op::Distrust { device, last } => {
            (last.sequence > MAX_UNTRUSTED as u64).then_some(*device)
        }
        _ => None,
    }
}

/// The device that is called one, trusted or not.
fn named(op: &Op) -> Option<EndpointId> {
    match op {
        Op::AddDevice { device, .. } | Op::Trust { device } => Some(*device),
        _ => None,
    }
}
