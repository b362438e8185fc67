//! What another one lacks, and taking what it sends.

use serde::{Deserialize, Serialize};
use whimbrel_base::{EndpointId, UnixTime};

use super::{Log, MAX_AUTHORS};
use crate::chain::{Chain, Taken};
use crate::run::{BadRun, Fork, Head, Run};
use crate::snapshot::Snapshot;
use crate::time::Hybrid;
use crate::vector::{Reach, Vector, beginning};

/// The most entries that are sent at once.
const MAX_ENTRIES: usize = 16_384;

/// What one has and another lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    pub(crate) snapshot: Option<Box<Snapshot>>,
    pub(crate) runs: Vec<Run>,
    pub(crate) forks: Vec<Fork>,
}

impl Update {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.snapshot.is_none() && self.runs.is_empty() && self.forks.is_empty()
    }

    /// How many entries are in it.
    pub fn entries(&self) -> usize {
        self.runs.iter().map(|run| run.entries.len()).sum()
    }
}

/// Why a part of an update was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It is no log.
    #[error(transparent)]
    Bad(#[from] BadRun),
    /// The author is none of the group's devices, as far as is known.
    #[error("it is the log of a key that nobody called one of the user's devices")]
    Stranger,
    /// Entries before it are missing.
    #[error("entries before it are missing; they come with the next exchange")]
    Gap,
    /// Its time is too far ahead.
    #[error("it is dated more than three days ahead of this device's clock; check the clocks of both")]
    Ahead,
    /// Its time runs backwards.
    #[error("it is dated before what the same device wrote earlier")]
    Backwards,
    /// It contradicts what was compacted.
    #[error("it contradicts what all devices acknowledged long ago")]
    Compacted,
    /// There is no room.
    #[error("the log has no room for it; have all devices meet, so that it can be compacted")]
    Full,
    /// The proof of two histories proves nothing.
    #[error("the proof that a device wrote two histories proves nothing")]
    NoProof,
    /// A snapshot that nobody signed who may.
    #[error("no device that may act for the user signed the snapshot")]
    SnapshotUnsigned,
    /// A snapshot counts what a removal made void.
    #[error("the snapshot counts entries of a device that was removed; a later one will replace it")]
    SnapshotCut,
    /// A snapshot that says something else than the log.
    #[error("the snapshot is not what follows from the log; a device that signed it is broken or lies")]
    SnapshotWrong,
}

/// What became of an update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many entries were new.
    pub entries: usize,
    /// Whether a snapshot was new.
    pub snapshot: bool,
    /// Who turned out to have written two histories.
    pub forked: Vec<EndpointId>,
    /// What was not taken, and whose it was.
    pub refused: Vec<(EndpointId, Refusal)>,
}

impl Report {
    /// Whether anything is different now.
    pub fn is_change(&self) -> bool {
        self.entries > 0 || self.snapshot || !self.forked.is_empty()
    }
}

impl Log {
    /// What somebody with this vector lacks, as much as is sent at once.
    pub fn missing(&self, theirs: &Vector) -> Update {
        let mut update = Update::default();
        if self.stage() > theirs.stage {
            update.snapshot = self.snapshot.clone().map(Box::new);
        }
        for (author, chain) in &self.chains {
            let has = theirs.reach.get(author).copied();
            // Above a snapshot that they get with it.
            let has = has.filter(|has| update.snapshot.is_none() || has.sequence >= chain.base().sequence);
            self.missing_of(chain, has, &mut update);
            if update.entries() >= MAX_ENTRIES {
                break;
            }
        }
        // The earlier first: they say who the authors of the later ones are.
        update.runs.sort_by_key(|run| run.entries.first().map(|(time, _)| *time));
        update
    }

    fn missing_of(&self, chain: &Chain, has: Option<Reach>, update: &mut Update) {
        let (base, head) = (chain.base().sequence, chain.head().sequence);
        let has_sequence = has.map_or(base, |has| has.sequence);
        let is_same = |has: Reach| chain.hash_at(has.sequence).map(|hash| beginning(&hash)) == Some(has.hash);
        let differs = has.is_some_and(|has| (base..=head).contains(&has.sequence) && !is_same(has));
        let mut next = match differs {
            // All of it, so that they find where the histories part.
            true => base + 1,
            false => has_sequence.max(base) + 1,
        };
        while next <= head && update.entries() < MAX_ENTRIES {
            let Some(run) = chain.run(next) else { break };
            next += run.entries.len() as u64;
            update.runs.push(run);
        }
        let knows = has.is_some_and(|has| has.is_split && has.sequence <= head && !differs);
        if let Some(proof) = chain.split().and_then(|split| split.proof.as_ref())
            && !knows
        {
            update.forks.push(proof.as_ref().clone());
        }
    }

    /// Takes what another one sent: all that is right, whatever else is in it.
    pub fn take(&mut self, update: Update, now: UnixTime) -> Report {
        if let Some(before) = &mut self.before {
            let (runs, forks) = (update.runs.clone(), update.forks.clone());
            before.take(Update { snapshot: None, runs, forks }, now);
        }
        let mut report = Report::default();
        let Update { snapshot, runs, forks } = update;
        if let Some(snapshot) = snapshot {
            self.take_snapshot(*snapshot, now, &mut report);
        }
        self.take_runs(runs, now, &mut report);
        for fork in forks {
            self.take_fork(fork, &mut report);
        }
        if report.is_change() {
            self.refresh();
            self.go_back();
        }
        report
    }

    fn take_fork(&mut self, fork: Fork, report: &mut Report) {
        let author = fork.one.author;
        if !fork.verify(self.user()) {
            report.refused.push((author, Refusal::NoProof));
            return;
        }
        match self.chain_mut(author) {
            Err(refusal) => report.refused.push((author, refusal)),
            Ok(chain) => {
                if chain.take_fork(fork) {
                    report.forked.push(author);
                }
            }
        }
    }

    /// The log of an author, if it is to be kept.
    fn chain_mut(&mut self, author: EndpointId) -> Result<&mut Chain, Refusal> {
        if !self.known().contains(&author) {
            return Err(Refusal::Stranger);
        }
        if self.chains.len() >= MAX_AUTHORS && !self.chains.contains_key(&author) {
            return Err(Refusal::Full);
        }
        let whose = self.whose(author);
        Ok(self.chains.entry(author).or_insert_with(|| Chain::new(whose, Head::default())))
    }

    /// Takes the runs of authors that are known, until no more become known by it.
    fn take_runs(&mut self, mut runs: Vec<Run>, now: UnixTime, report: &mut Report) {
        while !runs.is_empty() {
            let known = self.known();
            let (now_known, strangers): (Vec<_>, Vec<_>) =
                runs.into_iter().partition(|run| known.contains(&run.author));
            if now_known.is_empty() {
                let strangers = strangers.iter().map(|run| (run.author, Refusal::Stranger));
                report.refused.extend(strangers);
                return;
            }
            for run in now_known {
                self.take_run(&run, now, report);
            }
            runs = strangers;
        }
    }

    fn take_run(&mut self, run: &Run, now: UnixTime, report: &mut Report) {
        let author = run.author;
        match self.try_run(run, now) {
            Ok(Taken::New(count)) => report.entries += count,
            Ok(Taken::Forked) => report.forked.push(author),
            Ok(Taken::Gap) => report.refused.push((author, Refusal::Gap)),
            Ok(Taken::Compacted) => report.refused.push((author, Refusal::Compacted)),
            Ok(Taken::Backwards) => report.refused.push((author, Refusal::Backwards)),
            Ok(Taken::Full) => report.refused.push((author, Refusal::Full)),
            Err(refusal) => report.refused.push((author, refusal)),
        }
    }

    fn try_run(&mut self, run: &Run, now: UnixTime) -> Result<Taken, Refusal> {
        let links = run.open(self.user())?;
        let last = links.last().map_or(Hybrid::MAX, |link| link.entry.time);
        if last.is_too_far_ahead(now) {
            return Err(Refusal::Ahead);
        }
        Ok(self.chain_mut(run.author)?.take(run, &links))
    }
}
