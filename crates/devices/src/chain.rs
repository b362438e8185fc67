//! The log of one author: a hash chain with signatures in it.

use std::collections::BTreeMap;

use whimbrel_base::{EndpointId, SecretKey, UnixTime};

use crate::op::Op;
use crate::run::{Entry, Fork, Hash, Head, Link, MAX_RUN, Run, Signed, Whose};
use crate::time::Hybrid;

/// The most entries of one author.
pub const MAX_LOG: usize = 65_536;
/// The most entries of an author that may not act for the user.
pub const MAX_UNTRUSTED: usize = 1024;

/// Where an author's history split in two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// The number of the first entry that exists twice: it and all later ones are void.
    pub(crate) at: u64,
    pub(crate) proof: Box<Fork>,
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
    /// Its time is not later than that of the entry before it.
    Backwards,
    /// It differs from what a closed checkpoint covers.
    Closed,
    /// There is no room.
    Full,
}

#[derive(Clone, Debug)]
pub(crate) struct Chain {
    whose: Whose,
    /// The last entry that a closed checkpoint covers: those up to it are not here.
    base: Head,
    links: Vec<Link>,
    /// Signatures, by the number of the entry whose hash they are over.
    signatures: BTreeMap<u64, Signed>,
    split: Option<Split>,
}

impl Chain {
    /// A log that begins behind this entry; behind none, if it is the default.
    pub(crate) fn new(whose: Whose, base: Head) -> Self {
        Self { whose, base, links: Vec::new(), signatures: BTreeMap::new(), split: None }
    }

    pub(crate) fn head(&self) -> Head {
        let sequence = self.base.sequence + self.links.len() as u64;
        self.links.last().map_or(self.base, |link| Head { sequence, hash: link.hash, time: link.entry.time })
    }

    /// The last entry that a closed checkpoint covers.
    pub(crate) fn base(&self) -> Head {
        self.base
    }

    /// Whether this entry is here, and is this one.
    fn has(&self, head: Head) -> bool {
        self.hash_at(head.sequence) == Some(head.hash) && self.time_at(head.sequence) == Some(head.time)
    }

    /// The log up to an entry, if that is here; nobody can be given anything of it.
    pub(crate) fn until(&self, head: Head) -> Option<Self> {
        let links = self.links_between(self.base.sequence + 1, head.sequence).to_vec();
        self.has(head).then(|| Self { links, ..Self::new(self.whose, self.base) })
    }

    /// Lets go of what is covered up to an entry; of all, if this is another history.
    pub(crate) fn rebase(&mut self, base: Head) {
        if !self.has(base) {
            *self = Self::new(self.whose, base);
            return;
        }
        let covered = usize::try_from(base.sequence - self.base.sequence).unwrap_or(usize::MAX);
        self.links.drain(..covered.min(self.links.len()));
        self.links.shrink_to_fit();
        self.signatures = self.signatures.split_off(&(base.sequence + 1));
        self.base = base;
    }

    /// Where its author's history split, if it did.
    pub(crate) fn split(&self) -> Option<&Split> {
        self.split.as_ref()
    }

    /// The entries with their numbers.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u64, &Entry)> + Clone {
        (self.base.sequence + 1..).zip(self.links.iter().map(|link| &link.entry))
    }

    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }

    fn link(&self, sequence: u64) -> Option<&Link> {
        let index = sequence.checked_sub(self.base.sequence + 1)?;
        self.links.get(usize::try_from(index).ok()?)
    }

    /// The hash of an entry, or before the first one; `None` if it is not here.
    pub(crate) fn hash_at(&self, sequence: u64) -> Option<Hash> {
        if sequence == self.base.sequence {
            return Some(self.base.hash);
        }
        self.link(sequence).map(|link| link.hash)
    }

    /// The time of an entry, or before the first one; `None` if it is not here.
    fn time_at(&self, sequence: u64) -> Option<Hybrid> {
        if sequence == self.base.sequence {
            return Some(self.base.time);
        }
        self.link(sequence).map(|link| link.entry.time)
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
        let proof = &self.split.as_ref()?.proof.one;
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
        let index = |sequence: u64| usize::try_from(sequence.checked_sub(self.base.sequence)?).ok();
        let range = index(first).zip(index(last)).map(|(first, last)| first.saturating_sub(1)..last);
        range.and_then(|range| self.links.get(range)).unwrap_or_default()
    }

    fn author(&self) -> EndpointId {
        self.whose.author
    }

    /// Takes what a run that was opened adds, as long as the chain has no more than so many entries then.
    pub(crate) fn take(&mut self, run: &Run, links: &[Link], room: usize) -> Taken {
        let Some((first, before, links)) = self.behind_base(run, links) else { return Taken::Closed };
        if links.is_empty() {
            return Taken::New(0);
        }
        if first > self.head().sequence + 1 || self.hash_at(first - 1) != Some(before) {
            return Taken::Gap;
        }
        // The times in a run grow; its first one must be later than what is before it.
        let before = self.time_at(first - 1).unwrap_or(Hybrid::MAX);
        if links.first().is_none_or(|link| link.entry.time <= before) {
            return Taken::Backwards;
        }
        let limit = self.split.as_ref().map_or(u64::MAX, |split| split.at);
        let mut added = 0;
        for (index, (sequence, link)) in (first..limit).zip(links).enumerate() {
            match self.hash_at(sequence) {
                Some(hash) if hash == link.hash => {}
                Some(_) => return self.take_split(sequence, run, &links[index..]),
                None if self.links.len() >= room => return self.took(added, Taken::Full),
                None => {
                    self.links.push(link.clone());
                    added += 1;
                }
            }
        }
        let end = first + links.len() as u64 - 1;
        if self.hash_at(end) == links.last().map(|link| link.hash) {
            self.signatures.insert(end, run.signed);
        }
        Taken::New(added)
    }

    /// What of a run no closed checkpoint covers: its first number, the hash before that, and the entries.
    /// `None` if it is another history than the covered one. What ends before the last covered entry can't be
    /// compared, and need not.
    fn behind_base<'a>(&self, run: &Run, links: &'a [Link]) -> Option<(u64, Hash, &'a [Link])> {
        let next = self.base.sequence + 1;
        let covered = usize::try_from(next.saturating_sub(run.first)).unwrap_or(usize::MAX);
        if covered == 0 {
            return Some((run.first, run.before, links));
        }
        let is_same = links.get(covered - 1).is_none_or(|link| link.hash == self.base.hash);
        is_same.then(|| (next, self.base.hash, links.get(covered..).unwrap_or_default()))
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
        self.cut(Split { at, proof: Box::new(Fork { one: ours, other }) });
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

    /// Whether a proof of a split can be true: its histories are later than the entry before them.
    pub(crate) fn is_possible(&self, fork: &Fork) -> bool {
        let before = self.time_at(fork.one.first.saturating_sub(1)).unwrap_or_default();
        [&fork.one, &fork.other].iter().all(|run| run.begins().is_some_and(|time| time > before))
    }

    /// Takes a proof of a split that was verified, if it is about an earlier one than what is known. Says
    /// whether it is.
    pub(crate) fn take_fork(&mut self, fork: Fork) -> bool {
        let at = fork.one.first;
        let is_known = self.split.as_ref().is_some_and(|split| split.at <= at);
        // What came before the split must be here: otherwise the histories split even earlier.
        if is_known || self.hash_at(at - 1) != Some(fork.one.before) {
            return false;
        }
        self.cut(Split { at, proof: Box::new(self.with_ours(fork)) });
        true
    }

    /// The proof with this chain's own history as one of both, if it is one: its signature also covers what
    /// comes before the split, and no more than a run may have.
    fn with_ours(&self, fork: Fork) -> Fork {
        let Some(hash) = self.hash_at(fork.one.first) else { return fork };
        let Some(one) = self.first_run(fork.one.first) else { return fork };
        let first = |run: &Run| run.open(self.whose.group).ok().and_then(|links| Some(links.first()?.hash));
        let other = if first(&fork.one) == Some(hash) { fork.other } else { fork.one };
        Fork { one, other }
    }

    fn cut(&mut self, split: Split) {
        let left = split.at.saturating_sub(self.base.sequence + 1);
        self.links.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        let _ = self.signatures.split_off(&split.at);
        self.split = Some(split);
    }
}
