//! What is said about journals on one connection. Without I/O: [`step`](Session::step) says what to do next.

use std::collections::BTreeMap;

use whimbrel_base::EndpointId;

use super::change::InboxKey;
use super::ledger::Ledger;
use super::outgoing::{Outgoing, Room};
use super::wire::{Answer, MAX_INDEX, Note, Violation};

/// What a connection's task does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Says this as a writer.
    Note(Vec<u8>),
    /// Says this as a reader.
    Answer(Vec<u8>),
    /// Reads messages of a journal from the store, for [`read`](Session::read).
    Read { index: u8, journal: u64, room: Room },
    /// Waits to be woken.
    Wait,
    /// Closes the connection: the peer's process that had it has died.
    Leave,
}

/// One of the peer's journals on this connection.
#[derive(Debug)]
struct Incoming {
    key: InboxKey,
    /// The writer has to be told where to start.
    start: bool,
    /// The writer knows that all up to this are acknowledged.
    told: u64,
}

/// See the [module's documentation](self).
#[derive(Debug)]
pub(super) struct Session {
    link: u64,
    peer: EndpointId,
    greeted: bool,
    /// The peer has greeted.
    heard: bool,
    /// By index.
    sending: Vec<Outgoing>,
    receiving: BTreeMap<u8, Incoming>,
    /// Whose turn it is among those that send.
    turn: usize,
}

impl Session {
    pub(super) fn new(link: u64, peer: EndpointId) -> Self {
        Self {
            link,
            peer,
            greeted: false,
            heard: false,
            sending: Vec::new(),
            receiving: BTreeMap::new(),
            turn: 0,
        }
    }

    /// Takes what the peer says as a writer.
    pub(super) fn hear_note(&mut self, ledger: &mut Ledger, note: &[u8]) -> Result<(), Violation> {
        match Note::decode(note)? {
            Note::Hello { store, opening } => {
                self.receiving.clear();
                // It has begun anew, and knows nothing of what it was offered before.
                if std::mem::replace(&mut self.heard, true) {
                    self.sending.iter_mut().for_each(Outgoing::begin_again);
                }
                ledger.greeted(self.link, store, opening);
            }
            Note::Offer { index, journal, first, label } => {
                let key = InboxKey { peer: self.peer, label: label.to_owned(), journal };
                ledger.offered(&key, first)?;
                self.receiving.insert(index, Incoming { key, start: true, told: 0 });
            }
            Note::Data { index, number, data } => {
                // What was sent before the peer, or this side, began anew.
                let Some(incoming) = self.receiving.get_mut(&index) else { return Ok(()) };
                incoming.start |= ledger.arrive(&incoming.key, number, data)?;
            }
        }
        Ok(())
    }

    /// Takes what the peer says as a reader.
    pub(super) fn hear_answer(&mut self, ledger: &mut Ledger, answer: &[u8]) -> Result<(), Violation> {
        let (id, low, stamp, starts) = match Answer::decode(answer)? {
            Answer::Start { journal, low, stamp } => (journal, low, stamp, true),
            Answer::Ack { journal, low, stamp } => (journal, low, stamp, false),
        };
        let is_it = |outgoing: &&mut Outgoing| {
            outgoing.offered && ledger.contents(outgoing.journal).is_some_and(|(known, ..)| known == id)
        };
        let Some(outgoing) = self.sending.iter_mut().find(is_it) else { return Ok(()) };
        ledger.acknowledged(outgoing.journal, low, stamp);
        if let Some((_, _, first, _)) = ledger.contents(outgoing.journal) {
            // What was acknowledged once does not come back, though the reader may have lost its mark.
            let low = low.max(first - 1);
            if starts { outgoing.start(low) } else { outgoing.acked(low) }
        }
        Ok(())
    }

    /// What to do next.
    pub(super) fn step(&mut self, ledger: &Ledger) -> Step {
        if ledger.is_superseded(self.link) {
            return Step::Leave;
        }
        if !std::mem::replace(&mut self.greeted, true) {
            return Step::Note(Note::Hello { store: ledger.store, opening: ledger.opening }.encode());
        }
        if let Some(answer) = self.answer(ledger) {
            return Step::Answer(answer);
        }
        if !ledger.carries(self.link, self.peer) {
            return Step::Wait;
        }
        self.offer(ledger).or_else(|| self.send(ledger)).unwrap_or(Step::Wait)
    }

    fn answer(&mut self, ledger: &Ledger) -> Option<Vec<u8>> {
        for incoming in self.receiving.values_mut() {
            let journal = incoming.key.journal;
            let Some((low, stamp)) = ledger.low(&incoming.key) else { continue };
            if std::mem::take(&mut incoming.start) {
                incoming.told = low;
                return Some(Answer::Start { journal, low, stamp }.encode());
            }
            if low > incoming.told {
                incoming.told = low;
                return Some(Answer::Ack { journal, low, stamp }.encode());
            }
        }
        None
    }

    fn offer(&mut self, ledger: &Ledger) -> Option<Step> {
        for journal in ledger.journals_for(self.peer) {
            let known = self.sending.iter().any(|outgoing| outgoing.journal == journal);
            if !known && self.sending.len() < usize::from(MAX_INDEX) {
                self.sending.push(Outgoing::new(journal));
            }
        }
        for (index, outgoing) in self.sending.iter_mut().enumerate() {
            // A journal without messages has nothing to be told of.
            let contents = ledger.contents(outgoing.journal).filter(|(_, _, _, end)| *end > 0);
            if let Some((id, label, first, _)) = contents.filter(|_| !outgoing.offered) {
                outgoing.offered = true;
                let index = index as u8;
                return Some(Step::Note(Note::Offer { index, journal: id, first, label }.encode()));
            }
        }
        None
    }

    fn send(&mut self, ledger: &Ledger) -> Option<Step> {
        let count = self.sending.len();
        for at in (0..count).map(|ahead| (self.turn + ahead) % count) {
            let outgoing = &mut self.sending[at];
            let Some((_, _, first, end)) = ledger.contents(outgoing.journal) else { continue };
            // The peer may have said so on another connection.
            outgoing.acked(first - 1);
            let Some(room) = outgoing.room(end) else { continue };
            self.turn = at + 1;
            return Some(Step::Read { index: at as u8, journal: outgoing.journal, room });
        }
        None
    }

    /// Takes what was read from the store, and returns the notes to send.
    pub(super) fn read(&mut self, index: u8, messages: &[(u64, Vec<u8>)]) -> Vec<Vec<u8>> {
        let Some(outgoing) = self.sending.get_mut(usize::from(index)) else { return Vec::new() };
        let mut notes = Vec::with_capacity(messages.len());
        for (number, data) in messages {
            if outgoing.send(*number, data.len()) {
                notes.push(Note::Data { index, number: *number, data }.encode());
            }
        }
        notes
    }
}
