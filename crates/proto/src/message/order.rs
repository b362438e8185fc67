//! The order in which sequenced messages are delivered: each flow's own, or that of a group of flows.
//!
//! A place is an epoch and an index. Each reliable message ends an epoch; unreliable ones stand before it, in
//! the order of their indices. So nobody waits for an unreliable message, and none that came too late is
//! delivered behind what was sent after it.

use std::collections::BTreeMap;

use super::NUMBER_WINDOW;

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
    /// What has arrived before its turn, or will not come (`None`). Reliable ones stand at the end of their
    /// epoch.
    waiting: BTreeMap<(u64, u64), Option<T>>,
}

/// The place of a reliable message in its epoch.
const END: u64 = u64::MAX;

impl<T> Default for Order<T> {
    fn default() -> Self {
        Self { epoch: 0, index: 0, waiting: BTreeMap::new() }
    }
}

impl<T> Order<T> {
    /// At this place, and with nothing waiting.
    pub(super) fn at(epoch: u64, index: u64) -> Self {
        Self { epoch, index, waiting: BTreeMap::new() }
    }

    /// Where it stands.
    pub(super) fn place(&self) -> (u64, u64) {
        (self.epoch, self.index)
    }

    /// What waits for others: epoch, index, content.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (u64, u64, Option<&T>)> {
        self.waiting.iter().map(|((epoch, index), item)| (*epoch, *index, item.as_ref()))
    }

    /// Puts what has waited back.
    pub(super) fn wait(&mut self, epoch: u64, index: u64, item: Option<T>) {
        self.waiting.insert((epoch, index), item);
    }

    /// Whether a place lies so close to what is due that it may be used.
    pub(super) fn admits(&self, epoch: u64) -> bool {
        epoch < self.epoch.saturating_add(NUMBER_WINDOW)
    }

    /// A message of an [admitted](Self::admits) epoch is there. [`next`](Self::next) has what follows.
    pub(super) fn arrive(&mut self, reliable: bool, epoch: u64, index: u64, item: T) -> Verdict<T> {
        let index = if reliable { END } else { index.min(END - 1) };
        if (epoch, index) < (self.epoch, self.index) {
            return Verdict::Stale(item);
        }
        if epoch > self.epoch {
            return match self.waiting.insert((epoch, index), Some(item)) {
                // Two messages at one place: one of them is as good as lost.
                Some(Some(other)) => Verdict::Stale(other),
                _ => Verdict::Waits,
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
            self.waiting.entry((epoch, END)).or_insert(None);
        }
    }

    fn pass(&mut self, index: u64) {
        (self.epoch, self.index) = if index == END { (self.epoch + 1, 0) } else { (self.epoch, index + 1) };
    }

    /// Returns the next one that has waited and whose turn it is now.
    pub(super) fn next(&mut self) -> Option<T> {
        while let Some(entry) = self.waiting.first_entry() {
            let (epoch, index) = *entry.key();
            if epoch > self.epoch {
                return None;
            }
            let item = entry.remove();
            if (epoch, index) >= (self.epoch, self.index) {
                self.pass(index);
            }
            if item.is_some() {
                return item;
            }
        }
        None
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
