//! The log of a group: the logs of all its devices, and what follows from them.
//!
//! Merging is a union. The group is computed from what is there, so that it does not matter in which order it
//! came.

mod compaction;
mod exchange;
mod restoring;
mod writing;

use std::collections::{BTreeMap, BTreeSet};

use whimbrel_base::EndpointId;

use crate::chain::Chain;
use crate::group::{Group, Stamp};
use crate::op::{Last, Op};
use crate::rights::Rights;
use crate::run::Whose;
use crate::snapshot::Snapshot;
use crate::time::Hybrid;
use crate::vector::{Reach, Stage, Vector, beginning};

pub use exchange::{Refusal, Report, Update};
pub use writing::WriteError;

/// The most keys whose logs are kept: devices, and those that were devices.
pub const MAX_AUTHORS: usize = 1024;

/// Everything that the devices of a user said. Pure: it asks for no clock, and reads and sends nothing.
#[derive(Clone, Debug)]
pub struct Log {
    /// What was compacted.
    base: Group,
    snapshot: Option<Snapshot>,
    chains: BTreeMap<EndpointId, Chain>,
    /// The same without the last snapshot, in case that this is given up.
    before: Option<Box<Log>>,
    /// What follows from all.
    group: Group,
}

impl Log {
    /// The empty log of a user's group. Whoever has it can learn the rest from any device.
    pub fn new(user: EndpointId) -> Self {
        let (base, group) = (Group::new(user), Group::new(user));
        Self { base, snapshot: None, chains: BTreeMap::new(), before: None, group }
    }

    /// The user's key.
    pub fn user(&self) -> EndpointId {
        self.base.user
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
        Vector { stage: self.stage(), reach: reach.collect() }
    }

    /// How many entries are kept besides what was compacted.
    pub fn len(&self) -> usize {
        self.chains.values().map(Chain::len).sum()
    }

    /// Whether nothing was said, or all is compacted.
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
        heads.max().unwrap_or_default().max(self.stage().until)
    }

    pub(crate) fn stage(&self) -> Stage {
        self.snapshot.as_ref().map(|snapshot| snapshot.content.stage()).unwrap_or_default()
    }

    pub(crate) fn snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref()
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

    /// Entries in their order, as far as they are in the first of each log.
    fn sorted(&self, end: impl Fn(EndpointId) -> u64) -> Vec<(Stamp, &Op)> {
        let mut entries = Vec::with_capacity(self.len());
        for (author, chain) in &self.chains {
            let end = end(*author);
            let within = chain.entries().take_while(|(sequence, _)| *sequence <= end);
            entries.extend(
                within.map(|(sequence, entry)| {
                    (Stamp { time: entry.time, author: *author, sequence }, &entry.op)
                }),
            );
        }
        entries.sort_unstable_by_key(|(at, _)| *at);
        entries
    }

    /// Whose entries count, of some.
    fn rights(&self, entries: &[(Stamp, &Op)]) -> Rights<'_> {
        let last = |device: EndpointId, named: &Last| {
            let here = self.chains.get(&device).and_then(|chain| chain.hash_at(named.sequence));
            // What is here is not the history that was meant: its end is no part of it.
            let differs = here.is_some_and(|hash| hash != named.hash);
            named.sequence.saturating_sub(u64::from(differs))
        };
        Rights::decide(&self.base, entries.iter().copied(), last)
    }

    /// The group that follows from the base and some entries.
    fn follow(&self, entries: &[(Stamp, &Op)]) -> Group {
        let rights = self.rights(entries);
        let mut group = self.base.clone();
        for (at, op) in entries {
            if rights.counts(*at, op) {
                group.apply(op, *at);
            }
        }
        for (id, device) in &mut group.devices {
            device.trusted = rights.is_trusted(*id);
        }
        group
    }

    /// Computes the group anew, after anything changed.
    fn refresh(&mut self) {
        self.prune();
        self.group = self.follow(&self.sorted(|_| u64::MAX));
    }

    /// Lets go of the logs of keys that nobody said were devices: no other device would have them.
    fn prune(&mut self) {
        let known = self.known();
        self.chains.retain(|author, _| known.contains(author));
    }

    /// The keys whose logs are kept: the user's, the devices', and whatever key one of these called a device.
    /// Whether it was right to is another question.
    fn known(&self) -> BTreeSet<EndpointId> {
        let base = self.base.devices.keys().chain(&self.base.removed).copied();
        let mut known: BTreeSet<EndpointId> = base.chain([self.user()]).collect();
        let mut left: Vec<EndpointId> = known.iter().copied().collect();
        while let Some(author) = left.pop() {
            let Some(chain) = self.chains.get(&author) else { continue };
            for (_, entry) in chain.entries() {
                if let Op::AddDevice { device, .. } = &entry.op
                    && known.insert(*device)
                {
                    left.push(*device);
                }
            }
        }
        known
    }
}
