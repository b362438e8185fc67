//! The log of one author: a hash chain with signatures in it, above what was compacted.

use std::collections::BTreeMap;

use whimbrel_base::{EndpointId, SecretKey, UnixTime};

use crate::op::Op;
use crate::run::{Entry, Fork, Hash, Head, Link, MAX_RUN, Run, Signed, Whose};
use crate::time::Hybrid;

/// The most entries of one author that are kept besides what was compacted.
pub const MAX_TAIL: usize = 65_536;

/// Where an author's history split in two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// The number of the first entry that exists twice: it and all later ones are void.
    pub(crate) at: u64,
    /// None if only a snapshot says so.
    pub(crate) proof: Option<Box<Fork>>,
}

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// So many entries were new.
    New(usize),
    /// The author wrote two histories.
    Forked,
    /// Entries before it are missing.
    Gap,
    /// It contradicts what was compacted.
    Compacted,
    /// Its time is not later than that of the entry before it.
    Backwards,
    /// There is no room.
    Full,
}

#[derive(Clone, Debug)]
pub(crate) struct Chain {
    whose: Whose,
    base: Head,
    links: Vec<Link>,
    /// Signatures, by the number of the entry whose hash they are over.
    signatures: BTreeMap<u64, Signed>,
    split: Option<Split>,
}

impl Chain {
    pub(crate) fn new(whose: Whose, base: Head) -> Self {
        Self { whose, base, links: Vec::new(), signatures: BTreeMap::new(), split: None }
    }

    pub(crate) fn base(&self) -> Head {
        self.base
    }

    pub(crate) fn head(&self) -> Head {
        match self.links.last() {
            Some(link) => Head {
                sequence: self.base.sequence + self.links.len() as u64,
                hash: link.hash,
                time: link.entry.time,
            },
            None => self.base,
        }
    }

    /// Where the chain stood at a time, but not before what was compacted.
    pub(crate) fn head_until(&self, time: Hybrid) -> Head {
        let count = self.links.partition_point(|link| link.entry.time <= time);
        match count.checked_sub(1).map(|index| &self.links[index]) {
            Some(link) => {
                Head { sequence: self.base.sequence + count as u64, hash: link.hash, time: link.entry.time }
            }
            None => self.base,
        }
    }

    /// Where its author's history split, if it did.
    pub(crate) fn split(&self) -> Option<&Split> {
        self.split.as_ref()
    }

    /// The entries that are not compacted, with their numbers.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u64, &Entry)> {
        (self.base.sequence + 1..).zip(self.links.iter().map(|link| &link.entry))
    }

    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }

    pub(crate) fn entry(&self, sequence: u64) -> Option<&Entry> {
        self.link(sequence).map(|link| &link.entry)
    }

    fn link(&self, sequence: u64) -> Option<&Link> {
        let index = sequence.checked_sub(self.base.sequence + 1)?;
        self.links.get(usize::try_from(index).ok()?)
    }

    /// The hash of an entry; `None` if it is not here or was compacted.
    pub(crate) fn hash_at(&self, sequence: u64) -> Option<Hash> {
        if sequence == self.base.sequence {
            return Some(self.base.hash);
        }
        self.link(sequence).map(|link| link.hash)
    }

    /// Adds entries of one's own, of this time and right after it, and signs them together.
    pub(crate) fn append(&mut self, key: &SecretKey, mut time: Hybrid, ops: Vec<Op>) {
        // Behind the split nothing counts, whoever writes it.
        if self.split.is_some() {
            return;
        }
        for op in ops {
            let Head { sequence, hash, .. } = self.head();
            self.links.push(self.whose.link(sequence + 1, &hash, Entry { time, op }));
            time = Hybrid::after(time, UnixTime::default());
        }
        let head = self.head();
        self.signatures.insert(head.sequence, self.whose.sign(key, head.sequence, &head.hash));
    }

    /// Entries from a number on, as many as fit a run and a signature covers. For a history that split, this
    /// is one of both, up to the first signature behind the split.
    pub(crate) fn run(&self, first: u64) -> Option<Run> {
        let before = self.hash_at(first.checked_sub(1)?)?;
        let most = first.saturating_add(MAX_RUN as u64 - 1);
        let within = self.signatures.range(first..=most).next_back();
        if let Some((end, signed)) = within {
            let links = self.links_between(first, *end);
            return Some(Run::new(self.author(), first, before, links, *signed));
        }
        self.with_proof(first, before)
    }

    /// Entries up to where the history split, with those of the proof behind them, whose signature covers
    /// all.
    fn with_proof(&self, first: u64, before: Hash) -> Option<Run> {
        let proof = &self.split.as_ref()?.proof.as_ref()?.one;
        let head = self.head();
        if proof.first != head.sequence + 1 || proof.before != head.hash {
            return None;
        }
        let mut links = self.links_between(first, head.sequence).to_vec();
        links.extend(proof.open(self.whose.group).ok()?);
        (links.len() <= MAX_RUN).then(|| Run::new(self.author(), first, before, &links, proof.signed))
    }

    /// The entries with these numbers, both included, as far as they are here.
    fn links_between(&self, first: u64, last: u64) -> &[Link] {
        let index = |sequence: u64| usize::try_from(sequence.saturating_sub(self.base.sequence)).ok();
        let range = index(first).zip(index(last)).map(|(first, last)| first.saturating_sub(1)..last);
        range.and_then(|range| self.links.get(range)).unwrap_or_default()
    }

    fn author(&self) -> EndpointId {
        self.whose.author
    }

    /// Takes what a run that was opened adds.
    pub(crate) fn take(&mut self, run: &Run, links: &[Link]) -> Taken {
        if run.first > self.head().sequence + 1 {
            return Taken::Gap;
        }
        // What was compacted is compared at its end only.
        let skipped = (self.base.sequence + 1).saturating_sub(run.first);
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
        if skipped > links.len() {
            return Taken::New(0);
        }
        let before = if skipped == 0 { run.before } else { links[skipped - 1].hash };
        let first = run.first + skipped as u64;
        if self.hash_at(first - 1) != Some(before) {
            return if first - 1 == self.base.sequence { Taken::Compacted } else { Taken::Gap };
        }
        self.take_from(first, run, skipped, &links[skipped..])
    }

    fn take_from(&mut self, first: u64, run: &Run, skipped: usize, links: &[Link]) -> Taken {
        let limit = self.split.as_ref().map_or(u64::MAX, |split| split.at);
        let mut added = 0;
        for (sequence, link) in (first..limit).zip(links) {
            match self.hash_at(sequence) {
                Some(hash) if hash == link.hash => {}
                Some(_) => return self.take_split(sequence, run, &links[(sequence - first) as usize..]),
                None if self.links.len() >= MAX_TAIL => return self.took(added, Taken::Full),
                None if link.entry.time <= self.head().time => return self.took(added, Taken::Backwards),
                None => {
                    self.links.push(link.clone());
                    added += 1;
                }
            }
        }
        let end = run.first + (skipped + links.len()) as u64 - 1;
        if self.hash_at(end) == links.last().map(|link| link.hash) {
            self.signatures.insert(end, run.signed);
        }
        Taken::New(added)
    }

    /// What is not covered by a signature is taken out again: it could not be given to anybody.
    fn took(&mut self, added: usize, taken: Taken) -> Taken {
        self.links.truncate(self.links.len() - added);
        taken
    }

    fn take_split(&mut self, at: u64, run: &Run, theirs: &[Link]) -> Taken {
        let (Some(before), Some(ours)) = (self.hash_at(at - 1), self.first_run(at)) else {
            return Taken::Gap;
        };
        let other = Run::new(self.author(), at, before, theirs, run.signed);
        self.cut(Split { at, proof: Some(Box::new(Fork { one: ours, other })) });
        Taken::Forked
    }

    /// The shortest run from a number on.
    fn first_run(&self, first: u64) -> Option<Run> {
        let before = self.hash_at(first.checked_sub(1)?)?;
        match self.signatures.range(first..).next() {
            Some((end, signed)) => {
                Some(Run::new(self.author(), first, before, self.links_between(first, *end), *signed))
            }
            None => self.with_proof(first, before),
        }
    }

    /// Takes a proof of a split that was verified, if it is about an earlier one than what is known. Says
    /// whether it is.
    pub(crate) fn take_fork(&mut self, fork: Fork) -> bool {
        let at = fork.one.first.max(self.base.sequence + 1);
        let is_known = self.split.as_ref().is_some_and(|split| split.at <= at);
        // What came before the split must be here: otherwise the histories split even earlier.
        let links_up = fork.one.first != at || self.hash_at(at - 1) == Some(fork.one.before);
        if is_known || !links_up {
            return false;
        }
        self.cut(Split { at, proof: Some(Box::new(fork)) });
        true
    }

    fn cut(&mut self, split: Split) {
        let keep = usize::try_from(split.at - 1 - self.base.sequence).unwrap_or(usize::MAX);
        self.links.truncate(keep);
        let _ = self.signatures.split_off(&split.at);
        self.split = Some(split);
    }

    /// Lets a snapshot take the place of all up to a point.
    pub(crate) fn compact(&mut self, base: Head, is_split: bool) {
        if self.hash_at(base.sequence) == Some(base.hash) {
            let gone = usize::try_from(base.sequence - self.base.sequence).unwrap_or(usize::MAX);
            self.links.drain(..gone.min(self.links.len()));
        } else {
            self.links.clear();
        }
        self.base = base;
        let head = self.head().sequence;
        self.signatures.retain(|at, _| (base.sequence + 1..=head).contains(at));
        if let Some(split) = &mut self.split {
            split.at = split.at.max(base.sequence + 1);
        }
        if is_split {
            let proof = self.split.take().and_then(|split| split.proof);
            self.cut(Split { at: base.sequence + 1, proof });
        }
    }
}
