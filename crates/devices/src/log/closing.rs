//! Checkpoints of a log: making, signing, taking and closing them.

use std::collections::BTreeSet;
use std::time::Duration;

use whimbrel_base::{EndpointId, SecretKey, UnixTime, order};

use super::{Log, Refusal, Report, WriteError};
use crate::chain::{Chain, MAX_UNTRUSTED};
use crate::checkpoint::{Base, Checkpoint, Checkpoints, Closed, Stated, removed};
use crate::group::Stamp;
use crate::op::Op;
use crate::run::{Hash, Head};
use crate::time::Hybrid;
use crate::wire::{MAX_MESSAGE, pack};

/// What is left of a message for the signatures of devices, beside a base.
const FOR_SIGNATURES: usize = 256 * 1024;

/// So many entries make a checkpoint worth while.
pub const MANY: usize = 1024;
/// So long after it was stated a checkpoint is signed. Until then a removal reaches behind it: else a thief,
/// who can write as many entries as make a checkpoint, would have them count for good in a minute.
pub(crate) const SETTLING: Duration = Duration::from_secs(30 * 24 * 60 * 60);

impl Log {
    /// Whether the user's key should state a checkpoint: many entries are behind the last one, or that can't
    /// be closed as it is, or was not for long and many are behind it, too.
    pub(crate) fn is_checkpoint_due(&self, now: UnixTime) -> bool {
        let Some(open) = self.checkpoints.open.as_ref().map(|open| &open.checkpoint) else {
            return self.chains.values().map(Chain::len).sum::<usize>() >= MANY;
        };
        let is_about_rights =
            |op: &Op| matches!(op, Op::AddDevice { .. } | Op::RemoveDevice { .. } | Op::Distrust { .. });
        let behind = self.chains.iter().flat_map(|(author, chain)| {
            chain
                .entries()
                .filter(|(sequence, _)| !open.covers(*author, *sequence))
                .map(|(_, entry)| &entry.op)
        });
        let is_old = open.stated.wall().saturating_add(4 * SETTLING) <= now;
        // Only such a one may change what is covered, or who must sign.
        let is_other = behind.clone().any(is_about_rights) && !self.changes_nothing(open);
        is_other || open.before != self.closed_hash() || is_old && behind.count() >= MANY
    }

    /// States as the user what the entries come to that are here. Once the user's key and all devices in the
    /// list have come to the same and signed it, 30 days later, those entries are let go. Says whether there
    /// is something new to state.
    ///
    /// # Errors
    /// [`WriteError`]; then nothing was stated.
    pub fn compact(&mut self, user: &SecretKey, now: UnixTime) -> Result<bool, WriteError> {
        if user.id() != self.user {
            return Err(WriteError::NotUser);
        }
        if self.chains.get(&self.user).is_some_and(|chain| chain.split().is_some()) {
            return Err(WriteError::Forked);
        }
        if !self.lost.is_empty() {
            return Err(WriteError::Lost);
        }
        if let Some((forked, _)) = self.group.devices().find(|(_, device)| device.is_forked()) {
            return Err(WriteError::ForkedDevice(forked));
        }
        let Some((checkpoint, base)) = self.next_checkpoint(now)? else { return Ok(false) };
        let closed = Closed { stated: Stated::new(checkpoint, user), base };
        if pack(&closed).map_or(usize::MAX, |packed| packed.len()) > MAX_MESSAGE - FOR_SIGNATURES {
            return Err(WriteError::TooLarge);
        }
        self.checkpoints.open = Some(Box::new(closed.stated));
        Ok(true)
    }

    /// The devices, and the user's key, that have not signed the last checkpoint yet. Nothing if there is
    /// none, or all have.
    pub fn waited_for(&self) -> BTreeSet<EndpointId> {
        let Some(open) = &self.checkpoints.open else { return BTreeSet::new() };
        let signers = self.group.devices().map(|(id, _)| id).chain([self.user]);
        order::set(signers.filter(|id| !open.by.contains_key(id)))
    }

    /// Signs the checkpoint that the user stated 30 days ago or earlier, as a device or with the user's key,
    /// if this log has all that it covers, comes to the same, and nothing that is here would be void or count
    /// by it. Says whether it did.
    pub fn acknowledge(&mut self, key: &SecretKey, now: UnixTime) -> bool {
        let id = key.id();
        let open = self.checkpoints.open.as_ref().filter(|open| !open.by.contains_key(&id));
        let is_settled = |open: &Stated| open.checkpoint.stated.wall().saturating_add(SETTLING) <= now;
        let Some(open) = open.filter(|open| self.may_sign(id) && is_settled(open)) else { return false };
        let Some(base) = self.agreed(&open.checkpoint) else { return false };
        if !base.signers(self.user).contains(&id) || !self.changes_nothing(&open.checkpoint) {
            return false;
        }
        let user = self.user;
        if let Some(open) = &mut self.checkpoints.open {
            open.sign(user, key);
        }
        self.try_close();
        true
    }

    /// Takes what another one has of checkpoints.
    pub(super) fn take_checkpoints(&mut self, theirs: Checkpoints, now: UnixTime, report: &mut Report) {
        let mark = self.checkpoints.mark(self.user);
        let Checkpoints { closed, open } = theirs;
        let taken = closed.map_or(Ok(()), |closed| self.take_closed(*closed, now));
        let taken = taken.and_then(|()| open.map_or(Ok(()), |open| self.take_open(*open)));
        report.refused.extend(taken.err().map(|refusal| (self.user, refusal)));
        self.try_close();
        report.checkpoint |= self.checkpoints.mark(self.user) != mark;
    }

    /// Takes again what was in the file.
    pub(super) fn take_checkpoints_again(&mut self, kept: Checkpoints) {
        if let Some(closed) = kept.closed {
            self.close(*closed);
        }
        self.checkpoints.open = kept.open;
    }

    /// Up to which entry of a device an author has agreed that all counts for good.
    pub(super) fn agreed_until(&self, author: EndpointId, device: EndpointId) -> u64 {
        let closed = self.chains.get(&device).map_or(0, |chain| chain.base().sequence);
        let open = self.checkpoints.open.as_ref().filter(|open| open.by.contains_key(&author));
        let cut = open.and_then(|open| open.checkpoint.cut.get(&device));
        closed.max(cut.map_or(0, |head| head.sequence))
    }

    /// Lets go of signatures of those that are no devices any more: no other device takes them.
    pub(super) fn forget_signers(&mut self) {
        if let Some(open) = &mut self.checkpoints.open {
            let (user, group) = (self.user, &self.group);
            open.by.retain(|id, _| *id == user || group.device(*id).is_some());
        }
    }

    fn may_sign(&self, id: EndpointId) -> bool {
        id == self.user || self.group.device(id).is_some()
    }

    fn take_open(&mut self, theirs: Stated) -> Result<(), Refusal> {
        if !theirs.verify(self.user) {
            return Err(Refusal::Checkpoint);
        }
        let (name, checkpoint) = (theirs.name(self.user), &theirs.checkpoint);
        let closed = self.closed().map(|closed| &closed.stated.checkpoint);
        if closed.is_some_and(|closed| checkpoint.number <= closed.number) {
            return Ok(());
        }
        if closed.is_some_and(|closed| !checkpoint.goes_on_from(closed)) {
            return Err(Refusal::Checkpoint);
        }
        let user = self.user;
        match &mut self.checkpoints.open {
            Some(open) if open.name(user) == name => open.by.extend(theirs.by),
            Some(open) if name < open.name(user) => {}
            Some(open) if !checkpoint.goes_on_from(&open.checkpoint) => return Err(Refusal::Checkpoint),
            open => *open = Some(Box::new(theirs)),
        }
        self.forget_signers();
        Ok(())
    }

    fn take_closed(&mut self, theirs: Closed, now: UnixTime) -> Result<(), Refusal> {
        let checkpoint = &theirs.stated.checkpoint;
        let closed = self.closed().map(|closed| &closed.stated);
        if closed.is_some_and(|closed| theirs.stated.name(self.user) <= closed.name(self.user)) {
            return Ok(());
        }
        let goes_on = closed.is_none_or(|closed| checkpoint.goes_on_from(&closed.checkpoint));
        if !goes_on || !theirs.verify(self.user) || !self.accepts(&theirs) {
            return Err(Refusal::Checkpoint);
        }
        if checkpoint.latest().is_some_and(|time| time.is_too_far_ahead(now)) {
            return Err(Refusal::Ahead);
        }
        self.close(theirs);
        Ok(())
    }

    /// Whether a checkpoint that is closed can be true, by what is here. If all that it covers is here, it is
    /// what that comes to, or all devices that this comes to signed something else. If not, no word of the
    /// user's key that it covers speaks against it.
    fn accepts(&self, theirs: &Closed) -> bool {
        let Stated { checkpoint, by, .. } = &theirs.stated;
        if let Some((base, _)) = self.at(checkpoint).map(|log| log.comes_to()) {
            return base == theirs.base || base.is_signed_by_all(self.user, by);
        }
        let said = self.chains.get(&self.user).into_iter().flat_map(|chain| chain.entries());
        let mut covered = said.filter(|(sequence, _)| checkpoint.covers(self.user, *sequence));
        covered.all(|(_, entry)| match &entry.op {
            Op::AddDevice { device, .. } => by.contains_key(device) || checkpoint.gone.contains(device),
            Op::RemoveDevice { device, .. } => *device == self.user || checkpoint.gone.contains(device),
            _ => true,
        })
    }

    /// The checkpoint of all that is here, with its base; `None` if there is nothing new in it.
    fn next_checkpoint(&self, now: UnixTime) -> Result<Option<(Checkpoint, Base)>, WriteError> {
        let (counted, _) = self.counted();
        let gone = self.gone_with(&counted);
        let mut cut = order::map(self.group.devices().map(|(device, _)| (device, Head::default())));
        let heads = self.chains.iter().filter(|(author, _)| {
            **author == self.user || self.group.device(**author).is_some() || gone.contains(author)
        });
        cut.extend(heads.map(|(author, chain)| (*author, chain.head())));
        let closed = self.closed().map(|closed| &closed.stated.checkpoint);
        if self.group.devices().any(|(device, _)| gone.contains(&device)) {
            return Err(WriteError::Full);
        }
        let is_same = closed
            .is_some_and(|closed| cut.iter().all(|(author, head)| closed.covers(*author, head.sequence)));
        if is_same {
            return Ok(None);
        }
        let open = self.checkpoints.open.as_ref().map(|open| &open.checkpoint);
        let last = open.or(closed).map_or(0, |last| last.number);
        let number = last.saturating_add(1);
        let (stated, before) = (Hybrid::of(now), self.closed_hash());
        let mut checkpoint = Checkpoint { number, stated, before, cut, gone, base: Hash::default() };
        let Some((base, _)) = self.at(&checkpoint).map(|log| log.comes_to()) else { return Ok(None) };
        checkpoint.base = base.hash();
        let is_known = open.is_some_and(|open| {
            Checkpoint { number: open.number, stated: open.stated, ..checkpoint.clone() } == *open
        });
        Ok((!is_known).then_some((checkpoint, base)))
    }

    /// All that a checkpoint covers, and nothing else, if it is here.
    fn at(&self, checkpoint: &Checkpoint) -> Option<Self> {
        let mut log = Self::new(self.user);
        log.checkpoints.closed.clone_from(&self.checkpoints.closed);
        for (author, head) in &checkpoint.cut {
            let chain = match self.chains.get(author) {
                Some(chain) => chain.until(*head)?,
                None if *head == Head::default() => continue,
                None => return None,
            };
            log.chains.insert(*author, chain);
        }
        log.group = log.follow();
        Some(log)
    }

    /// What all that is here comes to, and who was removed.
    fn comes_to(&self) -> (Base, BTreeSet<EndpointId>) {
        let (counted, _) = self.counted();
        let rooms = self.rooms();
        let wide = rooms.iter().filter(|(_, room)| **room > MAX_UNTRUSTED).map(|(author, _)| *author);
        (Base::of(&counted, order::set(wide)), self.gone_with(&counted))
    }

    fn gone_with(&self, counted: &[(Stamp, &Op)]) -> BTreeSet<EndpointId> {
        let mut gone = removed(counted);
        gone.remove(&self.user);
        gone
    }

    /// The base of a checkpoint that is not closed, if all it covers is here and comes to that.
    fn agreed(&self, checkpoint: &Checkpoint) -> Option<Base> {
        if checkpoint.before != self.closed_hash() {
            return None;
        }
        let (base, gone) = self.at(checkpoint)?.comes_to();
        (base.hash() == checkpoint.base && gone == checkpoint.gone).then_some(base)
    }

    /// Whether the same entries count that a checkpoint covers, with all that is here beside them, and none
    /// of those counts which it would end. A device that it does not know might not know what it covers,
    /// and one that was removed never signs: another checkpoint must wait for the one and not the other.
    fn changes_nothing(&self, checkpoint: &Checkpoint) -> bool {
        let Some(alone) = self.at(checkpoint) else { return false };
        if !self.group.devices().map(|(id, _)| id).eq(alone.group.devices().map(|(id, _)| id)) {
            return false;
        }
        let is_covered = |at: &Stamp| self.is_closed(*at) || checkpoint.covers(at.author, at.sequence);
        let (counted, _) = self.counted();
        let ends = |at: &Stamp| checkpoint.gone.contains(&at.author) && !is_covered(at);
        let (alone, _) = alone.counted();
        let covered = counted.iter().map(|(at, _)| at).filter(|at| is_covered(at));
        covered.eq(alone.iter().map(|(at, _)| at)) && !counted.iter().any(|(at, _)| ends(at))
    }

    fn closed_hash(&self) -> Hash {
        self.closed().map(|closed| closed.stated.checkpoint.hash(self.user)).unwrap_or_default()
    }

    /// Closes the checkpoint that all devices in its base signed, if this log comes to the same.
    fn try_close(&mut self) {
        let Some(open) = &self.checkpoints.open else { return };
        let Some(base) = self.agreed(&open.checkpoint) else { return };
        if !base.is_signed_by_all(self.user, &open.by) {
            return;
        }
        let stated = open.as_ref().clone();
        self.close(Closed { stated, base });
    }

    /// Lets go of the entries that a checkpoint covers.
    fn close(&mut self, closed: Closed) {
        let checkpoint = &closed.stated.checkpoint;
        for author in &checkpoint.gone {
            self.chains.remove(author);
            self.lost.remove(author);
        }
        let go_on = checkpoint.cut.iter().filter(|(author, _)| !checkpoint.gone.contains(author));
        for (author, head) in go_on {
            let new = self.new_chain(*author);
            self.chains.entry(*author).or_insert(new).rebase(*head);
        }
        // As for one that comes later.
        let goes_on = |open: &Checkpoint| open.number > checkpoint.number && open.goes_on_from(checkpoint);
        self.checkpoints.open.take_if(|open| !goes_on(&open.checkpoint));
        self.checkpoints.closed = Some(Box::new(closed));
        self.refresh();
    }
}
