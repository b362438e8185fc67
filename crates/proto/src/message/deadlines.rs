//! When messages expire: mostly in the order in which they came, and mostly none does.

use std::collections::VecDeque;
use std::time::Duration;

/// Places that are kept although nothing is in them.
const KEPT: usize = 64;
/// The bit of an id, which no id has, that says that its message expires no more.
const GONE: u64 = 1 << 63;

/// A message's deadline; its id says whether it still counts.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    at: Duration,
    id: u64,
}

impl Deadline {
    fn key(self) -> (Duration, u64) {
        (self.at, self.id & !GONE)
    }

    fn is_gone(self) -> bool {
        self.id & GONE != 0
    }
}

/// A sorted row of deadlines. What is taken out within it only marks its place: messages that end by the
/// thousand, first those that went one way and then those that went another, would have the rest moved each
/// time. Places that do not count any more are never more than the others.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    row: VecDeque<Deadline>,
    gone: usize,
    /// Behind what was taken out last: what follows that is often taken out next.
    next: usize,
}

impl Deadlines {
    /// Notes that a message expires at that time.
    #[inline]
    pub(crate) fn insert(&mut self, at: Duration, id: u64) {
        let new = Deadline { at, id };
        if self.row.back().is_none_or(|last| last.key() < new.key()) {
            self.row.push_back(new);
            return;
        }
        match self.row.binary_search_by_key(&new.key(), |deadline| deadline.key()) {
            Err(place) => self.row.insert(place, new),
            Ok(place) => {
                self.gone -= usize::from(self.row[place].is_gone());
                self.row[place] = new;
            }
        }
        self.drop_gone();
    }

    /// A message does not expire then any more.
    #[inline]
    pub(crate) fn remove(&mut self, at: Duration, id: u64) {
        let key = (at, id);
        let is_here = |place: usize| self.row.get(place).is_some_and(|deadline| deadline.key() == key);
        let place = match is_here(self.next) {
            true => self.next,
            false if is_here(0) => 0,
            false => match self.row.binary_search_by_key(&key, |deadline| deadline.key()) {
                Ok(place) => place,
                Err(_) => return,
            },
        };
        let here = &mut self.row[place];
        self.gone += usize::from(!here.is_gone());
        here.id |= GONE;
        self.next = place + 1;
        self.drop_gone();
    }

    /// Returns the message that expires first.
    #[inline]
    pub(crate) fn first(&self) -> Option<(Duration, u64)> {
        // It counts, or it would not be there.
        self.row.front().map(|first| first.key())
    }

    /// Drops the places at the front that do not count, and all of them once they are the most.
    #[inline]
    fn drop_gone(&mut self) {
        while self.row.front().is_some_and(|first| first.is_gone()) {
            self.row.pop_front();
            self.gone -= 1;
            self.next = self.next.saturating_sub(1);
        }
        if self.gone > self.row.len() / 2 && self.gone > KEPT {
            self.row.retain(|deadline| !deadline.is_gone());
            (self.gone, self.next) = (0, 0);
        }
        if self.row.is_empty() && self.row.capacity() > KEPT {
            self.row = VecDeque::new();
        } else if self.row.capacity() / 8 > self.row.len().max(KEPT) {
            // A flood leaves no room behind while one that lasts for hours is still there.
            self.row.shrink_to(2 * self.row.len().max(KEPT));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_is_that_of_a_set_and_what_does_not_count_is_bounded(
            steps in prop::collection::vec((0u8..8, 0u64..30, 0u64..400), 0..800),
        ) {
            let (mut deadlines, mut model) = (Deadlines::default(), BTreeSet::new());
            for (what, millis, id) in steps {
                // Most come in order.
                let at = Duration::from_millis(if what < 6 { id } else { millis });
                if what % 2 == 0 {
                    deadlines.insert(at, id);
                    model.insert((at, id));
                } else {
                    deadlines.remove(at, id);
                    model.remove(&(at, id));
                }
                prop_assert_eq!(deadlines.first(), model.first().copied());
                prop_assert_eq!(deadlines.row.len() - deadlines.gone, model.len());
                prop_assert!(deadlines.gone <= model.len() + KEPT);
            }
        }
    }

    #[test]
    fn thousands_that_end_out_of_order_leave_nothing_behind() {
        let mut deadlines = Deadlines::default();
        let at = |id| Duration::from_micros(id);
        (0..10_000).for_each(|id| deadlines.insert(at(id), id));
        (5_000..10_000).for_each(|id| deadlines.remove(at(id), id));
        assert_eq!(deadlines.first(), Some((at(0), 0)));
        (0..5_000).for_each(|id| deadlines.remove(at(id), id));
        assert!(deadlines.first().is_none() && deadlines.row.capacity() <= KEPT);
    }

    #[test]
    fn one_that_stays_keeps_no_room_for_those_that_went() {
        let mut deadlines = Deadlines::default();
        let at = |id| Duration::from_micros(id);
        (0..10_000).for_each(|id| deadlines.insert(at(id), id));
        (1..10_000).for_each(|id| deadlines.remove(at(id), id));
        assert_eq!(deadlines.first(), Some((at(0), 0)));
        assert!(deadlines.row.capacity() <= 9 * KEPT, "{}", deadlines.row.capacity());
        (0..10_000).for_each(|id| deadlines.insert(at(id), id));
        (0..9_999).for_each(|id| deadlines.remove(at(id), id));
        assert_eq!(deadlines.first(), Some((at(9_999), 9_999)));
        assert!(deadlines.row.capacity() <= 9 * KEPT, "{}", deadlines.row.capacity());
    }
}
