//! What another one lacks, and taking what it sends.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use whimbrel_base::{EndpointId, UnixTime};

use super::{Log, MAX_AUTHORS};
use crate::chain::{Chain, MAX_LOG, MAX_UNTRUSTED, Taken};
use crate::checkpoint::Checkpoints;
use crate::run::{BadRun, Fork, Run};
use crate::time::Hybrid;
use crate::vector::{Reach, Vector, beginning};
use whimbrel_base::order;

/// The most bytes that are sent at once, before they are packed: half of what a message may have.
const MAX_BYTES: usize = 2 * 1024 * 1024;
/// The most entries of one author that are sent at once, so that one long log does not keep the others from
/// being sent.
const MAX_SHARE: usize = 4096;

/// When a file is read, nothing in it is ahead of time: it was taken before.
const FILE_TIME: UnixTime = UnixTime::from_millis(u64::MAX);

/// What one has and another lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    pub(crate) runs: Vec<Run>,
    pub(crate) forks: Vec<Fork>,
    /// Travels beside it, and only if there is one.
    #[serde(skip)]
    pub(crate) checkpoints: Checkpoints,
}

impl Update {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.forks.is_empty() && self.checkpoints.is_empty()
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
    /// There is no room.
    #[error(
        "there is no room for it: a device's log has at most {MAX_LOG} entries, that of one that never acted \
         for the user {MAX_UNTRUSTED}, and there are 1024 logs; remove the device that wrote so much"
    )]
    Full,
    /// All devices agreed to a checkpoint, and this is something else than what it covers.
    #[error(
        "it is not what all devices agreed to in a checkpoint: a second history, or the log of a device that \
         was removed before; it changes nothing any more"
    )]
    Closed,
    /// A checkpoint is not what its user's devices came to.
    #[error(
        "the checkpoint is not what the entries here come to, or not signed by the user and all devices: it \
         was forged, or the user's key is in other hands"
    )]
    Checkpoint,
    /// The proof of two histories proves nothing.
    #[error("the proof that a device wrote two histories proves nothing")]
    NoProof,
}

/// What became of an update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many entries were new.
    pub entries: usize,
    /// The authors that turned out to have written two histories.
    pub forked: Vec<EndpointId>,
    /// Whether something new is known of checkpoints.
    pub checkpoint: bool,
    /// What was not taken, and whose it was.
    pub refused: Vec<(EndpointId, Refusal)>,
}

impl Report {
    /// Whether anything is different now.
    pub fn is_change(&self) -> bool {
        self.entries > 0 || !self.forked.is_empty() || self.checkpoint
    }
}

/// What is taken of others.
struct Limits {
    now: UnixTime,
    /// For those that may write more than [`MAX_UNTRUSTED`]: how much. None if all may.
    rooms: Option<BTreeMap<EndpointId, usize>>,
}

impl Limits {
    fn room(&self, author: EndpointId) -> usize {
        match &self.rooms {
            Some(rooms) => rooms.get(&author).copied().unwrap_or(MAX_UNTRUSTED),
            None => MAX_LOG,
        }
    }
}

/// An update that has at most so many bytes, but at least one part.
struct Budget {
    update: Update,
    bytes: usize,
    most: usize,
}

impl Budget {
    fn has_room(&mut self, part: &impl Serialize) -> bool {
        // What cannot be written cannot be sent.
        let bytes = postcard::to_stdvec(part).map_or(usize::MAX, |bytes| bytes.len());
        let sum = self.bytes.saturating_add(bytes);
        let is_first = self.update.runs.is_empty() && self.update.forks.is_empty();
        let has_room = is_first || sum <= self.most;
        if has_room {
            self.bytes = sum;
        }
        has_room
    }
}

impl Log {
    /// What somebody with this vector lacks, as much as is sent at once: the user's log first, then the
    /// others in the order in which they became known.
    pub fn missing(&self, theirs: &Vector) -> Update {
        self.missing_within(theirs, MAX_BYTES)
    }

    /// The same, at most so many bytes of it before they are packed, but one part at least.
    pub(crate) fn missing_within(&self, theirs: &Vector, most: usize) -> Update {
        let mut budget = Budget { update: Update::default(), bytes: 0, most };
        let Some(checkpoints) = self.checkpoints.missing(self.user, &theirs.mark) else {
            return budget.update;
        };
        let is_later = checkpoints.closed.is_some();
        if !is_later && !checkpoints.is_empty() {
            budget.bytes = postcard::to_stdvec(&checkpoints).map_or(0, |bytes| bytes.len());
        }
        budget.update.checkpoints = checkpoints;
        // What comes behind a checkpoint follows once that is there.
        if is_later {
            return budget.update;
        }
        for author in self.known() {
            let Some(chain) = self.chains.get(&author) else { continue };
            if !missing_of(chain, theirs.reach.get(&author).copied(), &mut budget) {
                break;
            }
        }
        budget.update
    }

    /// The proof that an author wrote two histories, if there is one.
    pub(crate) fn proof_against(&self, author: EndpointId) -> Update {
        let split = self.chains.get(&author).and_then(Chain::split);
        let forks = split.map(|split| split.proof.as_ref().clone()).into_iter().collect();
        Update { forks, ..Update::default() }
    }

    /// Takes what another one sent: all that is right, whatever else is in it.
    pub fn take(&mut self, update: Update, now: UnixTime) -> Report {
        let Update { runs, forks, checkpoints } = update;
        let (of_user, runs) = runs.into_iter().partition(|run| run.author == self.user());
        // The user's word first: it says who may write how much.
        let mut report = Report::default();
        self.take_runs(of_user, &Limits { now, rooms: None }, &mut report);
        if report.is_change() {
            self.refresh();
        }
        let limits = Limits { now, rooms: Some(self.rooms()) };
        let update = Update { runs, forks, checkpoints: Checkpoints::default() };
        let mut report = self.take_within(update, &limits, report);
        self.take_checkpoints(checkpoints, now, &mut report);
        report
    }

    /// Takes what was taken before.
    pub(super) fn take_again(&mut self, update: Update) -> Report {
        self.take_within(update, &Limits { now: FILE_TIME, rooms: None }, Report::default())
    }

    fn take_within(&mut self, update: Update, limits: &Limits, mut report: Report) -> Report {
        self.take_runs(update.runs, limits, &mut report);
        for fork in update.forks {
            let author = fork.one.author;
            match self.try_fork(fork, limits) {
                Ok(true) => report.forked.push(author),
                Ok(false) => {}
                Err(refusal) => report.refused.push((author, refusal)),
            }
        }
        if report.is_change() {
            self.refresh();
        }
        report
    }

    fn try_fork(&mut self, fork: Fork, limits: &Limits) -> Result<bool, Refusal> {
        if !fork.verify(self.user()) {
            return Err(Refusal::NoProof);
        }
        let ends = [&fork.one, &fork.other].into_iter().map(|run| run.ends().unwrap_or(Hybrid::MAX));
        if ends.max().unwrap_or_default().is_too_far_ahead(limits.now) {
            return Err(Refusal::Ahead);
        }
        let chain = self.chain_mut(fork.one.author)?;
        if fork.one.first <= chain.base().sequence {
            return Err(Refusal::Closed);
        }
        if !chain.is_possible(&fork) {
            return Err(Refusal::NoProof);
        }
        Ok(chain.take_fork(fork))
    }

    /// The log of an author that is known. Those of members are kept whoever else there is.
    fn chain_mut(&mut self, author: EndpointId) -> Result<&mut Chain, Refusal> {
        let is_full = self.chains.len() >= MAX_AUTHORS && !self.group.is_member(author);
        let is_new = !self.chains.contains_key(&author);
        if self.is_gone(author) {
            return Err(Refusal::Closed);
        }
        if is_new && !self.known().contains(&author) {
            return Err(Refusal::Stranger);
        }
        if is_new && is_full {
            return Err(Refusal::Full);
        }
        let new = self.new_chain(author);
        Ok(self.chains.entry(author).or_insert(new))
    }

    /// Takes the runs of authors that are known, until no more become known by it.
    fn take_runs(&mut self, mut runs: Vec<Run>, limits: &Limits, report: &mut Report) {
        while !runs.is_empty() {
            let known = order::set(self.known());
            let (now_known, strangers): (Vec<_>, Vec<_>) =
                runs.into_iter().partition(|run| known.contains(&run.author));
            if now_known.is_empty() {
                let refusal = |author| if self.is_gone(author) { Refusal::Closed } else { Refusal::Stranger };
                report.refused.extend(strangers.iter().map(|run| (run.author, refusal(run.author))));
                return;
            }
            for run in now_known {
                self.take_run(&run, limits, report);
            }
            runs = strangers;
        }
    }

    fn take_run(&mut self, run: &Run, limits: &Limits, report: &mut Report) {
        let author = run.author;
        match self.try_run(run, limits) {
            Ok(Taken::New(count)) => {
                report.entries += count;
                self.lost.remove(&author);
            }
            Ok(Taken::Forked) => {
                report.forked.push(author);
                self.lost.remove(&author);
            }
            Ok(Taken::Gap) => report.refused.push((author, Refusal::Gap)),
            Ok(Taken::Backwards) => report.refused.push((author, Refusal::Backwards)),
            Ok(Taken::Closed) => report.refused.push((author, Refusal::Closed)),
            Ok(Taken::Full) => report.refused.push((author, Refusal::Full)),
            Err(refusal) => report.refused.push((author, refusal)),
        }
    }

    fn try_run(&mut self, run: &Run, limits: &Limits) -> Result<Taken, Refusal> {
        let links = run.open(self.user())?;
        let last = links.last().map_or(Hybrid::MAX, |link| link.entry.time);
        if last.is_too_far_ahead(limits.now) {
            return Err(Refusal::Ahead);
        }
        Ok(self.chain_mut(run.author)?.take(run, &links, limits.room(run.author)))
    }
}

/// Adds what somebody lacks of a log. False if there is no room for more.
fn missing_of(chain: &Chain, has: Option<Reach>, budget: &mut Budget) -> bool {
    let (head, base) = (chain.head().sequence, chain.base().sequence);
    // With the same checkpoint both have what it covers.
    let has = has.filter(|has| has.sequence >= base);
    let has_sequence = has.map_or(base, |has| has.sequence);
    let is_same = |has: Reach| chain.hash_at(has.sequence).map(|hash| beginning(&hash)) == Some(has.hash);
    let differs = has.is_some_and(|has| has.sequence <= head && !is_same(has));
    let knows = has.is_some_and(|has| has.is_split && has.sequence <= head && !differs);
    if let Some(split) = chain.split().filter(|_| !knows) {
        if !budget.has_room(&split.proof) {
            return false;
        }
        budget.update.forks.push(split.proof.as_ref().clone());
    }
    // All of it if it differs, so that they find where the histories part.
    let mut next = if differs { base + 1 } else { has_sequence.saturating_add(1) };
    let mut share = 0;
    while next <= head && share < MAX_SHARE {
        let Some(run) = chain.run(next) else { break };
        if !budget.has_room(&run) {
            return false;
        }
        next += run.entries.len() as u64;
        share += run.entries.len();
        budget.update.runs.push(run);
    }
    true
}
