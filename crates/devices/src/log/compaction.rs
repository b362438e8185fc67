//! Compaction: a snapshot takes the place of what all devices have acknowledged.
//!
//! A device acknowledges by writing: its log's times grow, so what it may still write is later than its last
//! entry that is here. So all entries up to the earliest of the devices' last ones are known, and none can
//! come in between. The user's key, if it is no device, is not waited for: what it writes later is applied on
//! top.
//!
//! A removal that reaches behind a snapshot would come too late. So none is made that ends between the last
//! entry that counts and the removal. One that another device made without knowing of the removal is given up
//! again: what the last snapshot stands for is kept until the next one.

use std::collections::BTreeMap;

use whimbrel_base::{EndpointId, SecretKey, UnixTime};

use super::Log;
use super::exchange::{Refusal, Report};
use crate::chain::Chain;
use crate::group::Stamp;
use crate::op::Op;
use crate::run::Head;
use crate::snapshot::{Closed, Content, Snapshot};
use crate::time::Hybrid;

/// A removal: who, and the number of the last entry that counts.
struct Cut {
    at: Stamp,
    device: EndpointId,
    last: u64,
}

/// Whether a snapshot follows from the log.
enum Follows {
    Yes,
    No,
    /// Entries that it stands for are not here.
    Unknown,
}

impl Log {
    /// Puts a snapshot in the place of what all devices have acknowledged, if that is at least so many
    /// entries. Says whether it did. Only a device that may act for the user can. What is later than `up_to`
    /// stays: a removal cannot reach behind a snapshot, so that the user needs time to notice a theft.
    pub fn compact(&mut self, key: &SecretKey, least: usize, up_to: Hybrid) -> bool {
        if !self.group.is_trusted(key.id()) {
            return false;
        }
        let Some(content) = self.compacted(least, up_to) else { return false };
        self.adopt(Snapshot::new(content, key));
        true
    }

    /// Signs the snapshot that is here, so that devices that were away have somebody's word whom they know.
    pub fn endorse(&mut self, key: &SecretKey) -> bool {
        let may = self.group.is_trusted(key.id());
        may && self.snapshot.as_mut().is_some_and(|snapshot| snapshot.endorse(key))
    }

    /// Whether an entry of this device would let more be compacted.
    pub fn wants_acknowledgement(&self, device: EndpointId, least: usize) -> bool {
        let mine = self.chains.get(&device).map(|chain| chain.head().time).unwrap_or_default();
        let later = |chain: &Chain| chain.entries().filter(|(_, entry)| entry.time > mine).count();
        self.group.devices.contains_key(&device) && self.chains.values().map(later).sum::<usize>() >= least
    }

    fn compacted(&self, least: usize, up_to: Hybrid) -> Option<Content> {
        let until = self.settled()?.min(up_to);
        if until <= self.stage().until {
            return None;
        }
        let ends: BTreeMap<EndpointId, Head> =
            self.chains.iter().map(|(author, chain)| (*author, chain.head_until(until))).collect();
        let gone = ends.iter().map(|(author, end)| {
            let base = self.chains.get(author).map_or(0, |chain| chain.base().sequence);
            usize::try_from(end.sequence - base).unwrap_or(usize::MAX)
        });
        if gone.sum::<usize>() < least.max(1) {
            return None;
        }
        Some(self.content(until, &ends))
    }

    fn content(&self, until: Hybrid, ends: &BTreeMap<EndpointId, Head>) -> Content {
        let end = |author| ends.get(&author).map_or(0, |head| head.sequence);
        let group = self.follow(&self.sorted(end));
        let kept = |author: &EndpointId| group.is_member(*author) || group.is_removed(*author);
        let closed = ends.iter().filter(|(author, _)| kept(author)).map(|(author, head)| {
            let split = self.chains.get(author).and_then(Chain::split);
            let is_split = split.is_some_and(|split| split.at == head.sequence + 1);
            (*author, Closed { head: *head, is_split })
        });
        Content { until, parent: self.stage().hash, closed: closed.collect(), group }
    }

    /// Up to when everything is known, and will stay as it is.
    fn settled(&self) -> Option<Hybrid> {
        let cuts = self.cuts();
        let mut until = self.acknowledged()?;
        loop {
            let first_void = |cut: &Cut| Some(self.chains.get(&cut.device)?.entry(cut.last + 1)?.time);
            let open = cuts.iter().filter(|cut| cut.at.time > until);
            let Some(first) = open.filter_map(first_void).filter(|time| *time <= until).min() else {
                return Some(until);
            };
            until = first.before();
        }
    }

    /// Up to when all devices have acknowledged.
    fn acknowledged(&self) -> Option<Hybrid> {
        let devices = self.group.devices.iter().map(|(id, device)| {
            let chain = self.chains.get(id);
            // One that wrote two histories says nothing more.
            if chain.is_some_and(|chain| chain.split().is_some()) {
                return Hybrid::MAX;
            }
            chain.map(|chain| chain.head().time).unwrap_or_default().max(device.since.time)
        });
        devices.min().map(|time| time.min(self.latest()))
    }

    /// Takes a snapshot that another one made.
    pub(super) fn take_snapshot(&mut self, snapshot: Snapshot, now: UnixTime, report: &mut Report) {
        let content = &snapshot.content;
        if content.stage() <= self.stage() || content.group.user != self.user() {
            return;
        }
        let refused = match self.compare(content) {
            _ if content.until.is_too_far_ahead(now) => Some(Refusal::Ahead),
            _ if self.is_cut(content) => Some(Refusal::SnapshotCut),
            Follows::Yes => None,
            Follows::No => Some(Refusal::SnapshotWrong),
            Follows::Unknown => {
                let is_signed = snapshot.is_signed_by(|signer| self.group.is_trusted(signer));
                (!is_signed).then_some(Refusal::SnapshotUnsigned)
            }
        };
        if let Some(refusal) = refused {
            report.refused.push((self.user(), refusal));
            return;
        }
        self.adopt(snapshot);
        report.snapshot = true;
    }

    /// Whether a snapshot follows from what is here. Where it does, it matters little who signed it.
    fn compare(&self, content: &Content) -> Follows {
        let is_here = |(author, closed): (&EndpointId, &Closed)| match self.chains.get(author) {
            Some(chain) => chain.hash_at(closed.head.sequence) == Some(closed.head.hash),
            None => closed.head == Head::default() && !closed.is_split,
        };
        if content.parent != self.stage().hash || !content.closed.iter().all(is_here) {
            return Follows::Unknown;
        }
        let end = |author| content.closed.get(&author).map_or(0, |closed| closed.head.sequence);
        if self.follow(&self.sorted(end)) == content.group { Follows::Yes } else { Follows::No }
    }

    /// Whether a removal that is known here, and not in a snapshot, makes entries void that are in it.
    fn is_cut(&self, content: &Content) -> bool {
        let end = |author| content.closed.get(&author).map_or(0, |closed| closed.head.sequence);
        let cuts = self.cuts();
        cuts.iter().any(|cut| cut.at.sequence > end(cut.at.author) && cut.last < end(cut.device))
    }

    /// What removals that count say.
    fn cuts(&self) -> Vec<Cut> {
        let entries = self.sorted(|_| u64::MAX);
        let rights = self.rights(&entries);
        let cuts = entries.iter().filter_map(|(at, op)| match op {
            Op::RemoveDevice { device, last } | Op::Distrust { device, last } if rights.counts(*at, op) => {
                Some(Cut { at: *at, device: *device, last: last.sequence })
            }
            _ => None,
        });
        cuts.collect()
    }

    pub(super) fn adopt(&mut self, snapshot: Snapshot) {
        let before = Self { before: None, ..self.clone() };
        self.before = matches!(self.compare(&snapshot.content), Follows::Yes).then(|| Box::new(before));
        self.base = snapshot.content.group.clone();
        for (author, closed) in &snapshot.content.closed {
            let whose = self.whose(*author);
            let chain = self.chains.entry(*author).or_insert_with(|| Chain::new(whose, Head::default()));
            chain.compact(closed.head, closed.is_split);
        }
        self.snapshot = Some(snapshot);
        self.refresh();
    }

    /// Gives the snapshot up again if a removal turns up that makes entries void that are in it.
    pub(super) fn go_back(&mut self) {
        let is_cut = self.snapshot.as_ref().is_some_and(|snapshot| self.is_cut(&snapshot.content));
        if let Some(before) = self.before.take_if(|_| is_cut) {
            *self = *before;
        }
    }
}
