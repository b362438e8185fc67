//! A user's mailbox at a service that cannot read it: by way of it devices that are never up at once come to
//! have the same.
//!
//! ```text
//! sealed   what a device says to the others, for their eyes only
//! pieces   the same in the sizes that a service keeps
//! ```
//!
//! What a letter says needs no more trust than what a device says: entries are signed by their authors, and
//! the same ones again change nothing. A service that drops, reorders or repeats letters delays what is in
//! them. A device leaves what the mailbox lacks of its own list: it takes what it finds there into a second
//! log, and so knows. Only letters count there that all present devices can read, and that one of them wrote.

mod pieces;
mod sealed;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use whimbrel_base::{EndpointId, SecretKey, UnixTime, order};

use self::pieces::Pieces;
use self::sealed::Letter;
use crate::log::{Log, Refusal, Report};
use crate::vector::Reach;

/// Bytes of entries in a letter, before they are packed.
const LETTER: usize = 128 * 1024;
/// The most pieces that a device has there when it leaves another one: then it leaves everything anew, in
/// few. Less than what a service keeps of one.
const MOST_OWN: usize = 24;
/// A letter that is kept for less than that does not count: what is in it is left anew before it is gone.
const LASTING: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// The most bytes of letters that wait for others.
const MAX_WAITING: usize = 1024 * 1024;

/// What a service said that somebody left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its number: higher than that of those before.
    pub number: u64,
    /// This device left it.
    pub is_own: bool,
    /// For how long it is kept.
    pub left: Duration,
    /// What was left.
    pub bytes: Vec<u8>,
}

/// A letter that is whole, and not quite taken.
#[derive(Debug)]
struct Waiting {
    letter: Vec<u8>,
    /// It is kept long enough to count.
    is_lasting: bool,
}

/// What a device knows of its user's mailbox. Pure: it asks for no clock, and reads and sends nothing. One
/// that is made anew finds out by what is there, and leaves what is not.
#[derive(Debug)]
pub struct Mailbox {
    user: EndpointId,
    after: u64,
    /// What all present devices can read there.
    there: Log,
    /// The devices that can read all of that; all of them as long as there is nothing.
    readers: Option<BTreeSet<EndpointId>>,
    pieces: Pieces,
    waiting: Vec<Waiting>,
    /// Whether one of them came, and was not tried.
    has_news: bool,
    /// Pieces of this device.
    own: usize,
    /// What is there is all that can be.
    is_full: bool,
}

impl Mailbox {
    /// A mailbox of which nothing is known.
    pub fn new(user: EndpointId) -> Self {
        Self {
            user,
            after: 0,
            there: Log::new(user),
            readers: None,
            pieces: Pieces::default(),
            waiting: Vec::new(),
            has_news: false,
            own: 0,
            is_full: false,
        }
    }

    /// The number of the last piece that was heard of.
    pub fn after(&self) -> u64 {
        self.after
    }

    /// Whether there is something to [settle](Self::settle).
    pub fn has_news(&self) -> bool {
        self.has_news
    }

    /// Takes what the service handed out.
    pub fn hear(&mut self, piece: &Piece) {
        self.after = self.after.max(piece.number);
        self.own += usize::from(piece.is_own);
        let whole = self.pieces.join(&piece.bytes);
        // One without a sender is none: it would wait for ever, and take no bytes.
        let Some(letter) = whole.filter(|letter| sealed::sender(letter).is_some()) else { return };
        self.waiting.push(Waiting { letter, is_lasting: piece.left >= LASTING });
        self.has_news = true;
        let mut bytes: usize = self.waiting.iter().map(|waiting| waiting.letter.len()).sum();
        // Only a service that invents letters, or devices with many keys, come so far.
        self.waiting.retain(|waiting| {
            let stays = bytes <= MAX_WAITING;
            bytes -= if stays { 0 } else { waiting.letter.len() };
            stays
        });
    }

    /// Lets a device's list take what is in the letters, whatever order they came in. Returns how many
    /// entries were new.
    pub fn settle(&mut self, log: &mut Log, key: &SecretKey, now: UnixTime) -> usize {
        self.has_news = false;
        let mut entries = 0;
        loop {
            let mut is_change = false;
            for waiting in std::mem::take(&mut self.waiting) {
                let is_known = sealed::sender(&waiting.letter).is_some_and(|by| log.group().is_member(by));
                // One that knows nothing yet hears everybody: what is said is signed.
                if !is_known && !log.is_empty() {
                    self.waiting.push(waiting);
                    continue;
                }
                let Some(letter) = Letter::open(&waiting.letter, key, self.user) else { continue };
                let report = log.take(letter.update.clone(), now);
                entries += report.entries;
                is_change |= report.is_change();
                let mut waits = is_early(&report);
                if is_known && waiting.is_lasting && is_for_all(log, &letter.readers) {
                    let report = self.count(letter, now);
                    is_change |= report.is_change();
                    waits |= is_early(&report);
                } else if !is_known {
                    // It may count once it is known whose it is.
                    waits = true;
                }
                if waits {
                    self.waiting.push(waiting);
                }
            }
            if !is_change {
                return entries;
            }
        }
    }

    /// Takes a letter for one that all present devices can read.
    fn count(&mut self, letter: Letter, now: UnixTime) -> Report {
        let readers = order::set(letter.readers);
        self.readers = Some(match self.readers.take() {
            Some(all) => order::set(all.intersection(&readers).copied()),
            None => readers,
        });
        self.there.take(letter.update, now)
    }

    /// Whether a device came that cannot read all that counts here: then the mailbox must be looked at anew.
    pub fn is_outdated(&self, log: &Log) -> bool {
        let is_reader = |id: &EndpointId| self.readers.as_ref().is_none_or(|readers| readers.contains(id));
        !members(log).iter().all(is_reader)
    }

    /// What is to be left, one after the other, so that the others can read there what this device has. If
    /// that fails, the mailbox must be looked at anew: it counts as left.
    pub fn due(&mut self, log: &Log, key: &SecretKey, now: UnixTime) -> Vec<Vec<u8>> {
        if self.is_full || !log.group().is_member(key.id()) {
            return Vec::new();
        }
        let found = self.there.vector();
        let due = self.write(log, key, now);
        if !self.is_full && (due.is_empty() || self.own + due.len() <= MOST_OWN) {
            return due;
        }
        // All of it anew, in as few as can be, in place of the many that the service lets go of then.
        (self.there, self.readers, self.own, self.is_full) = (Log::new(self.user), None, 0, false);
        let due = self.write(log, key, now);
        // As much as fits may be there: then it would be left again by each mailbox that is made anew.
        let is_there = |(author, reach): (&EndpointId, &Reach)| {
            found.reach.get(author).is_some_and(|found| found.sequence >= reach.sequence)
        };
        if self.is_full && self.there.vector().reach.iter().all(is_there) { Vec::new() } else { due }
    }

    /// The pieces of letters that say what the mailbox lacks.
    fn write(&mut self, log: &Log, key: &SecretKey, now: UnixTime) -> Vec<Vec<u8>> {
        let (readers, mut pieces) = (members(log), Vec::new());
        loop {
            let before = self.there.vector();
            let update = log.missing_within(&before, LETTER);
            if update.is_empty() {
                return pieces;
            }
            let letter = Letter { readers: readers.clone(), update };
            let sealed = letter.is_read().then(|| letter.seal(key, self.user).ok());
            let cut = sealed.flatten().and_then(|sealed| pieces::cut(&sealed));
            let cut = cut.filter(|cut| pieces.len() + cut.len() <= MOST_OWN);
            let is_left = cut.is_some_and(|cut| {
                self.count(letter, now);
                let is_taken = self.there.vector() != before;
                pieces.extend(if is_taken { cut } else { Vec::new() });
                is_taken
            });
            // What does not fit, or is not taken, would be left again and again.
            if !is_left {
                self.is_full = true;
                return pieces;
            }
        }
    }
}

/// Whether a part of an update can be taken once another one has come.
fn is_early(report: &Report) -> bool {
    report.refused.iter().any(|(_, refusal)| matches!(refusal, Refusal::Gap | Refusal::Stranger))
}

/// Whether all present devices can read what these can.
fn is_for_all(log: &Log, readers: &[EndpointId]) -> bool {
    members(log).iter().all(|member| readers.contains(member))
}

/// Whom a letter is for.
fn members(log: &Log) -> Vec<EndpointId> {
    let (group, user) = (log.group(), log.user());
    let devices = group.devices().map(|(id, _)| id).filter(|id| *id != user && group.is_member(*id));
    std::iter::once(user).chain(devices).collect()
}

/// Takes whatever comes for pieces of letters, and lets a list take what is in them. For fuzzers.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn hear_anything(bytes: &[u8]) {
    let key = SecretKey::from_bytes(&[1; 32]);
    let (mut mailbox, mut log) = (Mailbox::new(key.id()), Log::new(key.id()));
    let whole = pieces::cut(bytes).unwrap_or_default();
    for bytes in whole.into_iter().chain([bytes.to_vec()]) {
        mailbox.hear(&Piece { number: 1, is_own: false, left: LASTING, bytes });
    }
    mailbox.settle(&mut log, &key, UnixTime::from_secs(2_000_000_000));
    assert!(log.is_empty(), "nobody signed anything");
}
