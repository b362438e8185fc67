//! The order in which sequenced messages are delivered: each flow's own, or that of a group of flows.
//!
//! A place is an epoch and an index. Each reliable message ends an epoch; unreliable ones stand before it, in
//! the order of their indices. So nobody waits for an unreliable message, and none that came too late is
//! delivered behind what was sent after it.

use std::collections::BTreeMap;

use super::NUMBER_WINDOW;
use super::seen::Seen;
use crate::varint;

/// What happens to a message that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict<T> {
    /// It is its turn.
    Deliver(T),
    /// A later one was delivered before: it comes too late.
    Stale(T),
    /// It waits for others.
    Waits,
}

/// An order of messages, some of which have arrived.
#[derive(Debug)]
pub(super) struct Order<T> {
    /// The epoch whose reliable message is due.
    epoch: u64,
    /// The lowest index in it that is not stale.
    index: u64,
    /// What has arrived before its turn. Reliable ones stand at the end of their epoch.
    waiting: BTreeMap<(u64, u64), T>,
    /// Epochs that are over, or whose reliable message will not come. A bit each: a peer may skip as many as it
    /// likes, and pays for none.
    over: Seen,
}

/// The place of a reliable message in its epoch: the highest that can be written down.
const END: u64 = varint::MAX;

impl<T> Default for Order<T> {
    fn default() -> Self {
        Self::at(0, 0)
    }
}

impl<T> Order<T> {
    /// At this place, and with nothing waiting.
    pub(super) fn at(epoch: u64, index: u64) -> Self {
        Self { epoch, index, waiting: BTreeMap::new(), over: Seen::below(epoch) }
    }

    /// Where it stands.
    pub(super) fn place(&self) -> (u64, u64) {
        (self.epoch, self.index)
    }

    /// What waits for others: epoch, index, content; without content, what will not come.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (u64, u64, Option<&T>)> {
        let here = self.waiting.iter().map(|((epoch, index), item)| (*epoch, *index, Some(item)));
        here.chain(self.over.beyond().map(|epoch| (epoch, END, None)))
    }

    /// How many messages wait for others.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Puts what has waited back.
    pub(super) fn wait(&mut self, epoch: u64, index: u64, item: Option<T>) {
        match item {
            Some(item) => drop(self.waiting.insert((epoch, index), item)),
            None => drop(self.over.insert(epoch)),
        }
    }

    /// Whether a place lies so close to what is due that it may be used.
    pub(super) fn admits(&self, epoch: u64) -> bool {
        epoch < self.epoch.saturating_add(NUMBER_WINDOW)
    }

    /// A message of an [admitted](Self::admits) epoch is there. [`next`](Self::next) has what follows.
    #[inline]
    pub(super) fn arrive(&mut self, reliable: bool, epoch: u64, index: u64, item: T) -> Verdict<T> {
        let index = if reliable { END } else { index.min(END - 1) };
        if (epoch, index) < (self.epoch, self.index) {
            return Verdict::Stale(item);
        }
        if epoch > self.epoch {
            return match self.waiting.insert((epoch, index), item) {
                // Two messages at one place: one of them is as good as lost.
                Some(other) => Verdict::Stale(other),
                None => Verdict::Waits,
            };
        }
        self.pass(index);
        Verdict::Deliver(item)
    }

    /// The reliable message of an [admitted](Self::admits) epoch will not come.
    pub(super) fn skip(&mut self, epoch: u64) {
        if epoch == self.epoch {
            self.pass(END);
        } else if epoch > self.epoch {
            self.over.insert(epoch);
        }
    }

    #[inline]
    fn pass(&mut self, index: u64) {
        if index < END {
            self.index = index + 1;
            return;
        }
        self.over.insert(self.epoch);
        (self.epoch, self.index) = (self.epoch + 1, 0);
    }

    /// Returns the next one that has waited and whose turn it is now.
    #[inline]
    pub(super) fn next(&mut self) -> Option<T> {
        loop {
            let first = self.waiting.first_entry().filter(|entry| entry.key().0 <= self.epoch);
            let Some(entry) = first else {
                if !self.over.contains(self.epoch) {
                    return None;
                }
                self.pass(END);
                continue;
            };
            let (place, item) = entry.remove_entry();
            if place >= (self.epoch, self.index) {
                self.pass(place.1);
            }
            return Some(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(order: &mut Order<u32>) -> Vec<u32> {
        std::iter::from_fn(|| order.next()).collect()
    }

    #[test]
    fn reliable_ones_are_waited_for_and_what_will_not_come_is_passed_over() {
        let mut order = Order::default();
        assert_eq!(order.arrive(true, 2, 0, 2), Verdict::Waits);
        assert_eq!(order.arrive(true, 0, 0, 0), Verdict::Deliver(0));
        assert_eq!(drain(&mut order), []);
        order.skip(3);
        order.skip(1);
        assert_eq!(drain(&mut order), [2]);
        assert_eq!(order.arrive(true, 4, 0, 4), Verdict::Deliver(4));
        assert_eq!(order.arrive(true, 1, 0, 1), Verdict::Stale(1));
    }

    #[test]
    fn unreliable_ones_are_delivered_only_if_newer_than_the_last() {
        let mut order = Order::default();
        assert_eq!(order.arrive(false, 0, 3, 3), Verdict::Deliver(3));
        assert_eq!(order.arrive(false, 0, 1, 1), Verdict::Stale(1));
        assert_eq!(order.arrive(false, 0, 4, 4), Verdict::Deliver(4));
    }

    #[test]
    fn what_will_not_come_costs_a_bit_each() {
        let mut order = Order::<u32>::default();
        (1..NUMBER_WINDOW).for_each(|epoch| order.skip(epoch));
        assert_eq!(order.len(), 0);
        assert_eq!(order.arrive(true, 0, 0, 0), Verdict::Deliver(0));
        assert_eq!(drain(&mut order), []);
        assert_eq!(order.place(), (NUMBER_WINDOW, 0));
    }

    #[test]
    fn in_a_group_nothing_is_delivered_behind_what_was_sent_after_it() {
        let mut order = Order::default();
        // Sent: 10 11 (reliable) 12 13 (reliable) 14.
        assert_eq!(order.arrive(false, 2, 0, 14), Verdict::Waits);
        assert_eq!(order.arrive(true, 1, 0, 13), Verdict::Waits);
        assert_eq!(order.arrive(false, 1, 0, 12), Verdict::Waits);
        assert_eq!(order.arrive(true, 0, 0, 11), Verdict::Deliver(11));
        assert_eq!(order.arrive(false, 0, 0, 10), Verdict::Stale(10));
        assert_eq!(drain(&mut order), [12, 13, 14]);
    }
}
