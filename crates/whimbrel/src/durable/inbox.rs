//! A journal of a peer, as its reader sees it: what was delivered, and what was acknowledged.

use std::collections::BTreeMap;

use super::wire::Stamp;
use super::{WINDOW_BYTES, WINDOW_MESSAGES, cost};

/// Which messages the application has acknowledged: all up to `low`, and those of `beyond`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) low: u64,
    /// The stamp of that one, if it was acknowledged here.
    pub(super) stamp: Option<Stamp>,
    pub(super) beyond: BTreeMap<u64, Stamp>,
}

impl Mark {
    pub(super) fn contains(&self, number: u64) -> bool {
        number <= self.low || self.beyond.contains_key(&number)
    }

    pub(super) fn insert(&mut self, number: u64, stamp: Stamp) {
        if number > self.low {
            self.beyond.insert(number, stamp);
            self.close_ranks();
        }
    }

    /// The writer does not have any up to `low` any more.
    pub(super) fn raise(&mut self, low: u64) {
        if low > self.low {
            (self.low, self.stamp) = (low, self.beyond.get(&low).copied());
            self.beyond = self.beyond.split_off(&(low + 1));
            self.close_ranks();
        }
    }

    fn close_ranks(&mut self) {
        while let Some(stamp) = self.beyond.remove(&(self.low + 1)) {
            (self.low, self.stamp) = (self.low + 1, Some(stamp));
        }
    }
}

/// What is to be done with a message that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It is the application's.
    Deliver,
    /// The application has it, or has acknowledged it.
    Known,
    /// One before it is missing: the writer has to start again.
    Gap,
    /// The writer sends more than it may.
    TooMuch,
}

/// One of a peer's journals.
#[derive(Debug)]
pub(super) struct Inbox {
    mark: Mark,
    /// All up to this have come since the process began, or were acknowledged before.
    delivered: u64,
    /// The cost of each that the application has not acknowledged.
    held: BTreeMap<u64, u64>,
    bytes: u64,
    /// The writer was asked to start again.
    asked: bool,
}

impl Inbox {
    pub(super) fn new(mark: Mark) -> Self {
        Self { delivered: mark.low, mark, held: BTreeMap::new(), bytes: 0, asked: false }
    }

    /// The writer has messages from `first` on, and is about to start.
    pub(super) fn offered(&mut self, first: u64) {
        self.mark.raise(first - 1);
        self.delivered = self.delivered.max(self.mark.low);
        self.asked = false;
    }

    pub(super) fn arrive(&mut self, number: u64, size: usize) -> Arrival {
        if number <= self.delivered {
            return Arrival::Known;
        }
        if number > self.delivered + 1 {
            return Arrival::Gap;
        }
        let cost = cost(size);
        let is_full = !self.held.is_empty() && self.bytes + cost > WINDOW_BYTES;
        if is_full || number - self.mark.low > WINDOW_MESSAGES {
            return Arrival::TooMuch;
        }
        self.delivered = number;
        self.asked = false;
        if self.mark.contains(number) {
            return Arrival::Known;
        }
        self.held.insert(number, cost);
        self.bytes += cost;
        Arrival::Deliver
    }

    /// Whether the writer has to be asked to start again: once for each gap.
    pub(super) fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// The application has acknowledged a message, and the disk has that.
    pub(super) fn acked(&mut self, number: u64, stamp: Stamp) {
        self.mark.insert(number, stamp);
        // Those behind it may have been acknowledged before the process began.
        self.delivered = self.delivered.max(self.mark.low);
        if let Some(cost) = self.held.remove(&number) {
            self.bytes -= cost;
        }
    }

    /// All up to this are acknowledged.
    pub(super) fn low(&self) -> u64 {
        self.mark.low
    }

    /// The stamp of the last of these, if it was acknowledged here.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        self.mark.stamp
    }

    /// The application has nothing of it that it has not acknowledged.
    pub(super) fn is_idle(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp(1);

    #[test]
    fn each_message_is_delivered_once_and_in_order() {
        let mut inbox = Inbox::new(Mark::default());
        assert_eq!(inbox.arrive(2, 1), Arrival::Gap);
        assert!(inbox.ask() && !inbox.ask(), "asked once");
        assert_eq!(inbox.arrive(1, 1), Arrival::Deliver);
        assert_eq!(inbox.arrive(1, 1), Arrival::Known);
        assert_eq!(inbox.arrive(2, 1), Arrival::Deliver);
        assert_eq!(inbox.arrive(5, 1), Arrival::Gap);
        assert!(inbox.ask(), "another gap");
    }

    #[test]
    fn acknowledged_out_of_order_a_message_does_not_come_again_after_a_restart() {
        let mut inbox = Inbox::new(Mark::default());
        for number in 1..=4 {
            assert_eq!(inbox.arrive(number, 1), Arrival::Deliver);
        }
        inbox.acked(3, STAMP);
        inbox.acked(1, STAMP);
        assert_eq!(inbox.low(), 1);
        let mut restarted = Inbox::new(inbox.mark.clone());
        let again: Vec<u64> = (2..=4).filter(|n| restarted.arrive(*n, 1) == Arrival::Deliver).collect();
        assert_eq!(again, [2, 4]);
        restarted.acked(2, Stamp(2));
        assert_eq!((restarted.low(), restarted.stamp()), (3, Some(STAMP)));
    }

    #[test]
    fn what_was_acknowledged_before_a_restart_may_come_again_behind_what_is_acknowledged_now() {
        let beyond = BTreeMap::from([(2, STAMP), (3, STAMP)]);
        let mut inbox = Inbox::new(Mark { low: 0, stamp: None, beyond });
        assert_eq!(inbox.arrive(1, 1), Arrival::Deliver);
        inbox.acked(1, STAMP);
        assert_eq!(inbox.low(), 3);
        assert_eq!([2, 3].map(|number| inbox.arrive(number, 1)), [Arrival::Known; 2]);
        assert_eq!(inbox.arrive(4, 1), Arrival::Deliver);
    }

    #[test]
    fn what_the_writer_does_not_have_any_more_is_not_waited_for() {
        let mut inbox =
            Inbox::new(Mark { low: 1, stamp: None, beyond: BTreeMap::from([(4, STAMP), (6, STAMP)]) });
        inbox.offered(3);
        assert_eq!((inbox.low(), inbox.stamp()), (2, None));
        inbox.offered(4);
        assert_eq!((inbox.low(), inbox.stamp()), (4, Some(STAMP)));
        assert_eq!(inbox.arrive(5, 1), Arrival::Deliver);
        assert_eq!(inbox.arrive(6, 1), Arrival::Known);
        inbox.offered(2);
        assert_eq!(inbox.low(), 4, "it never goes back");
    }

    #[test]
    fn a_writer_that_sends_more_than_its_window_is_told_apart() {
        let mut inbox = Inbox::new(Mark::default());
        assert!((1..=WINDOW_MESSAGES).all(|number| inbox.arrive(number, 0) == Arrival::Deliver));
        assert_eq!(inbox.arrive(WINDOW_MESSAGES + 1, 0), Arrival::TooMuch);
        inbox.acked(1, STAMP);
        assert_eq!(inbox.arrive(WINDOW_MESSAGES + 1, 0), Arrival::Deliver);
        let mut inbox = Inbox::new(Mark::default());
        assert_eq!(inbox.arrive(1, WINDOW_BYTES as usize), Arrival::Deliver, "one of any size");
        assert_eq!(inbox.arrive(2, 0), Arrival::TooMuch);
    }
}
