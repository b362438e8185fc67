//! How many entries an author may have.
//!
//! A device that acts for the user may write far more than one that never did. What some devices took of such
//! a log all others must be able to take too, also those that hear first that its author lost the trust or was
//! removed: otherwise they never have the same. So room that was given stays, whatever becomes of who gave
//! it.

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
    /// could once, or could until their log split, and those of which a later entry was named when they were
    /// removed.
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
    /// user can have devices, those nearest to the user first: a thief of one of them could call any number of
    /// keys trusted.
    fn once_trusted(&self) -> BTreeSet<EndpointId> {
        let (mut order, mut trusted) = (vec![self.user], BTreeSet::from([self.user]));
        let mut next = 0;
        while let Some(author) = order.get(next) {
            next += 1;
            let Some(chain) = self.chains.get(author) else { continue };
            for (_, entry) in chain.entries() {
                if let Op::AddDevice { device, trusted: true, .. } | Op::Trust { device } = &entry.op
                    && trusted.len() <= MAX_DEVICES
                    && trusted.insert(*device)
                {
                    order.push(*device);
                }
            }
        }
        trusted
    }
}
