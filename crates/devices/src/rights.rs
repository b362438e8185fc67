//! Whose entries count.
//!
//! The user's key may say everything. A device's entry counts if an entry that counts made the device one of
//! the user's before it, and no entry that counts removed it with an earlier last entry. What is more than a
//! device may say of itself also needs the user's trust: given before, and not taken back since with an
//! earlier last entry.
//!
//! So removals reach back: one names the last entry that counts, and later ones are void, even if a clock
//! that was set back makes them look old, and even if they arrive first. Then two devices can remove each
//! other. What neither needs the other for is decided first; for the rest, the device that was added first is
//! right, and the user's key always.

use std::collections::BTreeMap;

use whimbrel_base::EndpointId;

use crate::group::Stamp;
use crate::op::{Last, Op};
use crate::time::Hybrid;

/// What is known of an entry or a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Counts,
    Void,
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Add { trusted: bool },
    Trust,
    Distrust { last: u64 },
    Remove { last: u64 },
}

/// An entry that says something of a device's rights.
#[derive(Clone, Copy, Debug)]
struct Claim {
    at: Stamp,
    target: EndpointId,
    kind: Kind,
    verdict: Verdict,
}

impl Claim {
    /// Whether it would make an entry void.
    fn attacks(&self, entry: Stamp) -> bool {
        match self.kind {
            Kind::Remove { last } | Kind::Distrust { last } => {
                self.target == entry.author && entry.sequence > last
            }
            _ => false,
        }
    }

    /// Whether an entry could rest on it.
    fn supports(&self, entry: Stamp) -> bool {
        matches!(self.kind, Kind::Add { .. } | Kind::Trust) && self.target == entry.author && self.at < entry
    }
}

/// Which author may say what.
pub(crate) struct Rights {
    user: EndpointId,
    claims: Vec<Claim>,
    /// Claims about a key, by their place, the latest first.
    about: BTreeMap<EndpointId, Vec<usize>>,
}

impl Rights {
    /// Decides about all claims in entries that are sorted. Those that are `closed` count whatever else is
    /// said. `last` gives the number of the last entry that counts, for what a removal names.
    pub(crate) fn decide<'b>(
        user: EndpointId,
        entries: impl Iterator<Item = (Stamp, &'b Op)>,
        closed: impl Fn(Stamp) -> bool,
        last: impl Fn(EndpointId, &Last) -> u64,
    ) -> Self {
        let claims = entries.filter_map(|(at, op)| {
            let (target, kind) = match op {
                Op::AddDevice { device, trusted, .. } => (*device, Kind::Add { trusted: *trusted }),
                Op::Trust { device } => (*device, Kind::Trust),
                Op::Distrust { device, last: named } => {
                    (*device, Kind::Distrust { last: last(*device, named) })
                }
                Op::RemoveDevice { device, last: named } => {
                    (*device, Kind::Remove { last: last(*device, named) })
                }
                _ => return None,
            };
            let verdict = if closed(at) { Verdict::Counts } else { Verdict::Open };
            Some(Claim { at, target, kind, verdict })
        });
        let claims: Vec<Claim> = claims.collect();
        let mut about: BTreeMap<EndpointId, Vec<usize>> = BTreeMap::new();
        for (index, claim) in claims.iter().enumerate().rev() {
            about.entry(claim.target).or_default().push(index);
        }
        let mut rights = Self { user, claims, about };
        rights.settle();
        rights
    }

    /// Whether an entry counts.
    pub(crate) fn counts(&self, at: Stamp, op: &Op) -> bool {
        let verdict = match self.claims.binary_search_by_key(&at, |claim| claim.at) {
            Ok(index) => self.claims[index].verdict,
            Err(_) => self.verdict(at, op.needs_trust(at.author)),
        };
        verdict == Verdict::Counts
    }

    /// Whether a device may act for the user, after all that was said.
    pub(crate) fn is_trusted(&self, device: EndpointId) -> bool {
        let end = Stamp { time: Hybrid::MAX, author: device, sequence: u64::MAX };
        self.trust(end) == Verdict::Counts
    }

    /// Decides about all claims. Nobody removes or trusts itself, and nobody the user's key.
    fn settle(&mut self) {
        for index in 0..self.claims.len() {
            let Claim { at, target, kind, verdict } = self.claims[index];
            let is_add = matches!(kind, Kind::Add { .. });
            if verdict == Verdict::Open && !is_add && (target == at.author || target == self.user) {
                self.claims[index].verdict = Verdict::Void;
            }
        }
        loop {
            while self.step() {}
            let Some(first) = self.first_open() else { return };
            self.prefer(first);
        }
    }

    /// Decides what can be decided. Says whether there was something.
    fn step(&mut self) -> bool {
        let mut is_new = false;
        for index in 0..self.claims.len() {
            if self.claims[index].verdict == Verdict::Open {
                self.claims[index].verdict = self.verdict(self.claims[index].at, true);
                is_new |= self.claims[index].verdict != Verdict::Open;
            }
        }
        is_new
    }

    /// Of the open claims whose grounds are decided, that of the author who was added first.
    fn first_open(&self) -> Option<usize> {
        let open = (0..self.claims.len()).filter(|index| self.claims[*index].verdict == Verdict::Open);
        let grounded = open.filter(|index| {
            let at = self.claims[*index].at;
            !self.about(at.author).any(|claim| claim.verdict == Verdict::Open && claim.supports(at))
        });
        grounded.min_by_key(|index| (self.added(self.claims[*index].at.author), self.claims[*index].at))
    }

    /// When a key was added; `None`, which is first, for the user's.
    fn added(&self, key: EndpointId) -> Option<Stamp> {
        let adds = self
            .about(key)
            .filter(|claim| matches!(claim.kind, Kind::Add { .. }) && claim.verdict != Verdict::Void);
        adds.map(|claim| claim.at).min()
    }

    /// Lets a claim count, and those that attack it not.
    fn prefer(&mut self, index: usize) {
        let at = self.claims[index].at;
        self.claims[index].verdict = Verdict::Counts;
        for claim in &mut self.claims {
            if claim.verdict == Verdict::Open && claim.attacks(at) {
                claim.verdict = Verdict::Void;
            }
        }
    }

    fn about(&self, key: EndpointId) -> impl Iterator<Item = &Claim> {
        self.about.get(&key).into_iter().flatten().map(|index| &self.claims[*index])
    }

    fn verdict(&self, entry: Stamp, needs_trust: bool) -> Verdict {
        if entry.author == self.user {
            return Verdict::Counts;
        }
        let member = self.membership(entry);
        let trust = if needs_trust { self.trust(entry) } else { Verdict::Counts };
        match (member, trust) {
            (Verdict::Void, _) | (_, Verdict::Void) => Verdict::Void,
            (Verdict::Counts, Verdict::Counts) => Verdict::Counts,
            _ => Verdict::Open,
        }
    }

    fn membership(&self, entry: Stamp) -> Verdict {
        let (mut added, mut removed) = (Verdict::Void, Verdict::Void);
        for claim in self.about(entry.author).filter(|claim| claim.verdict != Verdict::Void) {
            match claim.kind {
                Kind::Remove { .. } if claim.attacks(entry) => removed = stronger(removed, claim.verdict),
                Kind::Add { .. } if claim.supports(entry) => added = stronger(added, claim.verdict),
                _ => {}
            }
        }
        match (added, removed) {
            (Verdict::Void, _) | (_, Verdict::Counts) => Verdict::Void,
            (Verdict::Counts, Verdict::Void) => Verdict::Counts,
            _ => Verdict::Open,
        }
    }

    /// The latest that was said of the author's trust, of all that applies to the entry.
    fn trust(&self, entry: Stamp) -> Verdict {
        let (mut may, mut may_not) = (false, false);
        for claim in self.about(entry.author).filter(|claim| claim.verdict != Verdict::Void) {
            let says = match claim.kind {
                Kind::Distrust { .. } if claim.attacks(entry) => false,
                Kind::Add { trusted: true } | Kind::Trust if claim.supports(entry) => true,
                _ => continue,
            };
            may |= says;
            may_not |= !says;
            if claim.verdict == Verdict::Counts {
                return either(may, may_not);
            }
        }
        either(may, true)
    }
}

fn stronger(one: Verdict, other: Verdict) -> Verdict {
    match (one, other) {
        (Verdict::Counts, _) | (_, Verdict::Counts) => Verdict::Counts,
        (Verdict::Open, _) | (_, Verdict::Open) => Verdict::Open,
        _ => Verdict::Void,
    }
}

fn either(may: bool, may_not: bool) -> Verdict {
    match (may, may_not) {
        (true, false) => Verdict::Counts,
        (false, _) => Verdict::Void,
        (true, true) => Verdict::Open,
    }
}
