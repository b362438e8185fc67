//! Credit for messages, apart from that of streams: neither holds the other up.
//!
//! A message costs its size and [`MESSAGE_COST`](super::MESSAGE_COST) as soon as a piece of it was sent, and
//! gives that back when the application takes it, or when it is settled otherwise.

use super::{MAX_MESSAGE, MESSAGE_COST};
use crate::error::{DecodeError, ProtocolError};
use crate::params::MAX_MESSAGES_GRANT;
use crate::snapshot;
use crate::varint::Reader;

/// Larger messages leave a part of the window to smaller ones.
const LARGE: u64 = 64 * 1024;
/// That part.
const RESERVE: u64 = 4;
/// The peer is told in steps of this part of the window.
const STEP: u64 = 8;

/// What this side may send.
#[derive(Debug)]
pub(crate) struct SendCredit {
    sent: u64,
    allowed: u64,
    /// What the peer allowed at first.
    window: u64,
}

impl SendCredit {
    /// The peer's window is not known yet, or it takes no messages.
    pub(crate) fn none() -> Self {
        Self { sent: 0, allowed: 0, window: 0 }
    }

    /// The peer has stated its window; 0 if it takes no messages.
    pub(crate) fn open(&mut self, window: u64) {
        self.window = window;
        self.allowed = self.allowed.max(window);
    }

    /// The peer takes messages.
    pub(crate) fn is_open(&self) -> bool {
        self.window > 0
    }

    /// Returns the size of the largest message that the peer takes.
    pub(crate) fn largest(&self) -> u64 {
        (self.window / 2).saturating_sub(MESSAGE_COST).min(MAX_MESSAGE)
    }

    /// Takes in how much the peer allows. Limits never shrink. True if it grew.
    pub(crate) fn allow(&mut self, limit: u64) -> bool {
        let grows = limit > self.allowed;
        self.allowed = self.allowed.max(limit);
        grows
    }

    /// A message may be begun.
    pub(crate) fn affords(&self, cost: u64) -> bool {
        let reserve = if cost > LARGE { self.window / RESERVE } else { 0 };
        self.allowed.saturating_sub(self.sent) >= cost.saturating_add(reserve)
    }

    /// Pays for a message. False, and nothing is paid, if there is too little.
    pub(crate) fn pay(&mut self, cost: u64) -> bool {
        let may = self.affords(cost);
        self.sent += if may { cost } else { 0 };
        may
    }

    /// What all messages so far have cost.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn spent(&self) -> u64 {
        self.sent
    }

    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        snapshot::numbers(out, [self.sent, self.allowed, self.window]);
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let [sent, allowed, window] = snapshot::read_numbers(reader)?;
        let sane = sent <= allowed && window <= allowed;
        if sane { Ok(Self { sent, allowed, window }) } else { Err(DecodeError::Invalid("message credit")) }
    }
}

/// What the peer may send.
#[derive(Debug)]
pub(crate) struct RecvCredit {
    received: u64,
    consumed: u64,
    granted: u64,
    window: u64,
}

impl RecvCredit {
    /// The peer may have messages of so many bytes under way or unread.
    pub(crate) fn new(window: u64) -> Self {
        Self { received: 0, consumed: 0, granted: window, window }
    }

    /// A message begins to arrive.
    ///
    /// # Errors
    /// [`ProtocolError::FlowControl`] if the peer was not allowed as much.
    pub(crate) fn receive(&mut self, cost: u64) -> Result<(), ProtocolError> {
        self.received = self.received.saturating_add(cost);
        if self.received > self.granted { Err(ProtocolError::FlowControl) } else { Ok(()) }
    }

    /// A message was taken or dropped. True if the peer should be told a new limit.
    pub(crate) fn consume(&mut self, cost: u64) -> bool {
        self.consumed += cost;
        let limit = self.consumed + self.window;
        let worthwhile = limit - self.granted >= self.step();
        if worthwhile {
            self.granted = limit;
        }
        worthwhile
    }

    /// The peer is told of so much at once, at least.
    pub(crate) fn step(&self) -> u64 {
        self.window / STEP
    }

    /// Returns how much the peer may send in all.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    /// Returns what was given back.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn returned(&self) -> u64 {
        self.consumed
    }

    /// Returns what arrived, in part or whole, and was not taken.
    pub(crate) fn unread(&self) -> u64 {
        self.received - self.consumed
    }

    /// Writes it down as if what cost `taken` more had been taken, too.
    pub(crate) fn write_down(&self, out: &mut Vec<u8>, taken: u64) {
        snapshot::numbers(out, [self.received, self.consumed + taken, self.granted, self.window]);
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let [received, consumed, granted, window] = snapshot::read_numbers(reader)?;
        let within = consumed <= received && received <= granted;
        let sane = consumed <= snapshot::MOST_COUNTED && window <= MAX_MESSAGES_GRANT;
        if !within || !sane || granted > consumed.saturating_add(window) {
            return Err(DecodeError::Invalid("message credit"));
        }
        Ok(Self { received, consumed, granted, window })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{MESSAGE_WINDOW, cost};
    use super::*;

    #[test]
    fn what_was_written_down_is_read_back_if_it_can_be_true() {
        let read = |numbers: [u64; 4]| {
            let mut bytes = Vec::new();
            snapshot::numbers(&mut bytes, numbers);
            RecvCredit::read_back(&mut Reader::new(&bytes)).map(drop)
        };
        // Received, consumed, granted, window.
        assert_eq!(read([700, 600, 1600, 1000]), Ok(()));
        let far = snapshot::MOST_COUNTED + 1;
        for wrong in [
            [600, 700, 1600, 1000],
            [1700, 600, 1600, 1000],
            [700, 600, 1601, 1000],
            [700, 600, 1600, MAX_MESSAGES_GRANT + 1],
            [far, far, far, 1000],
        ] {
            assert_eq!(read(wrong), Err(DecodeError::Invalid("message credit")), "{wrong:?}");
        }
    }

    #[test]
    fn the_largest_message_leaves_room_for_small_ones() {
        let mut credit = SendCredit::none();
        assert!(!credit.is_open() && !credit.pay(cost(1)));
        credit.open(MESSAGE_WINDOW);
        assert_eq!(credit.largest(), MAX_MESSAGE);
        assert!(credit.pay(cost(MAX_MESSAGE)) && !credit.pay(cost(MAX_MESSAGE)));
        assert!(credit.pay(cost(LARGE / 2)));
    }

    #[test]
    fn a_message_of_the_largest_size_is_never_starved_by_the_steps() {
        let mut peer = RecvCredit::new(MESSAGE_WINDOW);
        let mut credit = SendCredit::none();
        credit.open(MESSAGE_WINDOW);
        for size in [1, 4096, 100_000, MAX_MESSAGE, MAX_MESSAGE, 7, MAX_MESSAGE] {
            assert!(credit.pay(cost(size)), "{size}");
            peer.receive(cost(size)).unwrap();
            if peer.consume(cost(size)) {
                credit.allow(peer.granted());
            }
        }
        assert_eq!(peer.unread(), 0);
    }

    #[test]
    fn a_peer_that_sends_more_than_it_may_is_told() {
        let mut credit = RecvCredit::new(1000);
        credit.receive(1000).unwrap();
        assert_eq!(credit.receive(1), Err(ProtocolError::FlowControl));
    }
}
