//! A journal of this side on one connection: what the reader has, and what may be sent to it.

use std::collections::VecDeque;

use super::{WINDOW_BYTES, WINDOW_MESSAGES, cost};

/// What may be sent now: messages from `from` on, so many, of so many bytes, or one that is larger than that
/// if none is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) from: u64,
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

/// How far a journal is on one connection.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// The journal's number in the store.
    pub(super) journal: u64,
    /// The reader was told of it.
    pub(super) offered: bool,
    /// The reader has acknowledged all up to this.
    low: u64,
    /// The next message to send, once the reader has said where to start.
    next: Option<u64>,
    /// The cost of each that is under way, from `low + 1` on.
    under_way: VecDeque<u64>,
    bytes: u64,
    /// The next message is larger than the room that is left.
    blocked: bool,
}

impl Outgoing {
    pub(super) fn new(journal: u64) -> Self {
        Self {
            journal,
            offered: false,
            low: 0,
            next: None,
            under_way: VecDeque::new(),
            bytes: 0,
            blocked: false,
        }
    }

    /// The reader has forgotten what it was told.
    pub(super) fn begin_again(&mut self) {
        *self = Self::new(self.journal);
    }

    /// The reader wants what comes after `low`.
    pub(super) fn start(&mut self, low: u64) {
        (self.low, self.next, self.bytes, self.blocked) = (low, Some(low + 1), 0, false);
        self.under_way.clear();
    }

    /// The reader has acknowledged all up to `low`.
    pub(super) fn acked(&mut self, low: u64) {
        let Some(next) = &mut self.next else { return };
        self.blocked &= self.low >= low;
        while self.low < low {
            self.low += 1;
            self.bytes -= self.under_way.pop_front().unwrap_or(0);
        }
        *next = (*next).max(self.low + 1);
    }

    /// What may be sent, of a journal that has messages up to `end`.
    pub(super) fn room(&self, end: u64) -> Option<Room> {
        let from = self.next.filter(|_| !self.blocked)?;
        let messages = (self.low + WINDOW_MESSAGES).min(end).checked_sub(from - 1).filter(|n| *n > 0)?;
        Some(Room { from, messages, bytes: WINDOW_BYTES.saturating_sub(self.bytes) })
    }

    /// Whether the next message may be sent and is this one; it counts as sent then.
    pub(super) fn send(&mut self, number: u64, size: usize) -> bool {
        let cost = cost(size);
        let fits = self.under_way.is_empty() || self.bytes + cost <= WINDOW_BYTES;
        let in_turn = self.next == Some(number) && number <= self.low + WINDOW_MESSAGES;
        self.blocked |= in_turn && !fits;
        if fits && in_turn {
            self.next = Some(number + 1);
            self.under_way.push_back(cost);
            self.bytes += cost;
        }
        fits && in_turn
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_sent_before_the_reader_says_where_to_start_and_no_more_than_the_window() {
        let mut outgoing = Outgoing::new(1);
        assert_eq!(outgoing.room(10), None);
        outgoing.start(4);
        assert_eq!(outgoing.room(4), None, "nothing is left");
        let room = outgoing.room(10).unwrap();
        assert_eq!((room.from, room.messages), (5, 6));
        assert!(!outgoing.send(6, 1) && outgoing.send(5, 1) && !outgoing.send(5, 1));
        let far = WINDOW_MESSAGES * 2;
        assert_eq!((6..far).filter(|number| outgoing.send(*number, 1)).count() as u64, WINDOW_MESSAGES - 1);
        assert_eq!(outgoing.room(far), None);
        outgoing.acked(5);
        assert_eq!(outgoing.room(far).unwrap().messages, 1);
    }

    #[test]
    fn a_message_larger_than_the_window_goes_alone() {
        let mut outgoing = Outgoing::new(1);
        outgoing.start(0);
        assert!(outgoing.send(1, WINDOW_BYTES as usize * 2) && !outgoing.send(2, 1));
        assert_eq!(outgoing.room(9), None);
        outgoing.acked(1);
        assert!(outgoing.send(2, WINDOW_BYTES as usize * 2));
    }

    #[test]
    fn what_is_acknowledged_beyond_what_was_sent_here_is_not_sent_any_more() {
        let mut outgoing = Outgoing::new(1);
        outgoing.start(0);
        assert!(outgoing.send(1, 1));
        outgoing.acked(3);
        assert_eq!(outgoing.room(9).unwrap().from, 4);
        assert!(outgoing.send(4, 1));
        outgoing.start(3);
        assert_eq!(outgoing.room(9).unwrap().from, 4, "asked to start again");
    }
}
