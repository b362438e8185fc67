//! The log of a group: the logs of all its devices, and what follows from them.
//!
//! Merging is a union. The group is computed from what is there, so that it does not matter in which order it
//! came.

mod closing;
mod exchange;
mod restoring;
mod room;
mod writing;

use std::collections::{BTreeMap, BTreeSet};

use whimbrel_base::EndpointId;

use crate::chain::Chain;
use crate::checkpoint::{Checkpoints, Closed};
use crate::group::{Group, Stamp};
use crate::op::{Last, Op};
use crate::rights::Rights;
use crate::run::Whose;
use crate::time::Hybrid;
use crate::vector::{Reach, Vector, beginning};
use whimbrel_base::order;

pub use closing::MANY;
#[cfg(test)]
pub(crate) use closing::SETTLING;
pub use exchange::{Refusal, Report, Update};
pub use writing::WriteError;

/// The most keys whose logs are kept: devices, and those that were devices.
pub const MAX_AUTHORS: usize = 1024;

/// Everything that the devices of a user said. Pure: it asks for no clock, and reads and sends nothing.
#[derive(Clone, Debug)]
pub struct Log {
    user: EndpointId,
    chains: BTreeMap<EndpointId, Chain>,
    /// Authors whose logs were damaged in the file.
    lost: BTreeSet<EndpointId>,
    /// What the entries came to that are not here any more, and what they may come to next.
    checkpoints: Checkpoints,
    /// What follows from all.
    group: Group,
}

impl Log {
    /// The empty log of a user's group. Whoever has it can learn the rest from any device.
    pub fn new(user: EndpointId) -> Self {
        let (chains, lost, checkpoints) = (BTreeMap::new(), BTreeSet::new(), Checkpoints::default());
        Self { user, chains, lost, checkpoints, group: Group::new(user) }
    }

    /// The user's key.
    pub fn user(&self) -> EndpointId {
        self.user
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// How much of each device's log is here.
    pub fn vector(&self) -> Vector {
        let reach =
            self.chains.iter().filter(|(_, chain)| chain.head().sequence > 0 || chain.split().is_some());
        let reach = reach.map(|(author, chain)| {
            let head = chain.head();
            let (sequence, hash, is_split) = (head.sequence, beginning(&head.hash), chain.split().is_some());
            (*author, Reach { sequence, hash, is_split })
        });
        Vector { reach: order::map(reach), mark: self.checkpoints.mark(self.user) }
    }

    /// How many entries are here.
    pub fn len(&self) -> usize {
        self.chains.values().map(Chain::len).sum::<usize>() + self.base().len()
    }

    /// Whether nothing was said.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those who wrote two histories: somebody else has their keys, or they were restored from a backup. What
    /// they said from there on is void; the user should remove them.
    pub fn forked(&self) -> impl Iterator<Item = EndpointId> {
        self.chains.iter().filter(|(_, chain)| chain.split().is_some()).map(|(author, _)| *author)
    }

    /// The time of the latest entry, of whomever.
    pub fn latest(&self) -> Hybrid {
        let heads = self.chains.values().map(|chain| chain.head().time);
        let closed = self.closed().and_then(|closed| closed.stated.checkpoint.latest());
        heads.chain(closed).max().unwrap_or_default()
    }

    fn closed(&self) -> Option<&Closed> {
        self.checkpoints.closed.as_deref()
    }

    /// What is left of the entries that the closed checkpoint covers.
    fn base(&self) -> &[(Stamp, Op)] {
        self.closed().map_or(&[], |closed| &closed.base.entries)
    }

    /// Whether a device was removed before the closed checkpoint.
    fn is_gone(&self, author: EndpointId) -> bool {
        self.closed().is_some_and(|closed| closed.stated.checkpoint.gone.contains(&author))
    }

    /// Whether the closed checkpoint covers an entry: what is here of such ones counts.
    fn is_closed(&self, at: Stamp) -> bool {
        self.closed().is_some_and(|closed| closed.stated.checkpoint.ends(at))
    }

    /// The log of an author of which nothing is here, but what the closed checkpoint covers.
    fn new_chain(&self, author: EndpointId) -> Chain {
        let head = self.closed().and_then(|closed| closed.stated.checkpoint.cut.get(&author));
        Chain::new(self.whose(author), head.copied().unwrap_or_default())
    }

    pub(crate) fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    pub(crate) fn chains(&self) -> &BTreeMap<EndpointId, Chain> {
        &self.chains
    }

    fn whose(&self, author: EndpointId) -> Whose {
        Whose { group: self.user(), author }
    }

    /// The last entry of a device that is here.
    pub(crate) fn last_of(&self, device: EndpointId) -> Last {
        self.chains.get(&device).map(|chain| chain.head().last()).unwrap_or_default()
    }

    /// All entries, in their order.
    fn sorted(&self) -> Vec<(Stamp, &Op)> {
        let mut entries = Vec::with_capacity(self.len());
        entries.extend(self.base().iter().map(|(at, op)| (*at, op)));
        for (author, chain) in &self.chains {
            entries.extend(
                chain.entries().map(|(sequence, entry)| {
                    (Stamp { time: entry.time, author: *author, sequence }, &entry.op)
                }),
            );
        }
        order::by_key(&mut entries, |(at, _)| *at);
        entries
    }

    /// Whose entries count.
    fn rights(&self, entries: &[(Stamp, &Op)]) -> Rights {
        let last = |device: EndpointId, named: &Last| {
            let here = self.chains.get(&device).and_then(|chain| chain.hash_at(named.sequence));
            // What is here is not the history that was meant: its end is no part of it.
            let differs = here.is_some_and(|hash| hash != named.hash);
            named.sequence.saturating_sub(u64::from(differs))
        };
        Rights::decide(self.user, entries.iter().copied(), |at| self.is_closed(at), last)
    }

    /// The entries that count, of all that are here, in their order.
    fn counted(&self) -> (Vec<(Stamp, &Op)>, Rights) {
        let mut entries = self.sorted();
        let rights = self.rights(&entries);
        entries.retain(|(at, op)| self.is_closed(*at) || rights.counts(*at, op));
        (entries, rights)
    }

    /// The group that follows from all entries.
    fn follow(&self) -> Group {
        let (entries, rights) = self.counted();
        let mut group = Group::new(self.user);
        entries.iter().for_each(|(at, op)| group.apply(op, *at));
        for (id, device) in &mut group.devices {
            let chain = self.chains.get(id);
            device.forked = chain.is_some_and(|chain| chain.split().is_some());
            device.trusted = !device.forked && rights.is_trusted(*id);
        }
        group
    }

    /// Computes the group anew, after anything changed.
    fn refresh(&mut self) {
        self.prune();
        self.group = self.follow();
        self.forget_signers();
    }

    /// Lets go of the logs of keys that nobody said were devices: no other device would have them.
    fn prune(&mut self) {
        let known = order::set(self.known());
        self.chains.retain(|author, _| known.contains(author));
    }

    /// The keys whose logs are kept: the user's, and whatever key one of these called a device, whether it
    /// was right to or not; in the order in which they became known, the user's first.
    fn known(&self) -> Vec<EndpointId> {
        let (mut order, mut known) = (vec![self.user], BTreeSet::from([self.user]));
        let closed = self.closed().into_iter().flat_map(|closed| closed.stated.checkpoint.cut.keys());
        order.extend(closed.copied().filter(|author| !self.is_gone(*author) && known.insert(*author)));
        let mut next = 0;
        while let Some(author) = order.get(next) {
            next += 1;
            let Some(chain) = self.chains.get(author) else { continue };
            for (_, entry) in chain.entries() {
                if let Op::AddDevice { device, .. } = &entry.op
                    && !self.is_gone(*device)
                    && known.insert(*device)
                {
                    order.push(*device);
                }
            }
        }
        order
    }
}
