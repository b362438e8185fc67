//! A set whose items mostly come in ascending order and go in the same.

use std::collections::VecDeque;

/// Places that are kept although nothing is in them.
const KEPT: usize = 64;

/// A sorted row. What is put in at the end or taken out at the front costs nothing; elsewhere the shorter part of
/// the row moves by one place.
#[derive(Debug)]
pub(crate) struct Ascending<T>(VecDeque<T>);

impl<T> Default for Ascending<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: Ord> Ascending<T> {
    /// Puts an item in, unless it is there.
    #[inline]
    pub(crate) fn insert(&mut self, item: T) {
        if self.0.back().is_none_or(|last| *last < item) {
            self.0.push_back(item);
        } else if let Err(place) = self.0.binary_search(&item) {
            self.0.insert(place, item);
        }
    }

    /// Takes an item out, if it is there.
    #[inline]
    pub(crate) fn remove(&mut self, item: &T) {
        if self.0.front() == Some(item) {
            self.0.pop_front();
        } else if let Ok(place) = self.0.binary_search(item) {
            self.0.remove(place);
        }
        self.give_room_back();
    }

    #[inline]
    fn give_room_back(&mut self) {
        if self.0.is_empty() && self.0.capacity() > KEPT {
            self.0 = VecDeque::new();
        }
    }

    /// Takes the lowest item out.
    #[inline]
    pub(crate) fn pop_first(&mut self) -> Option<T> {
        let first = self.0.pop_front();
        self.give_room_back();
        first
    }

    /// The lowest item.
    #[inline]
    pub(crate) fn first(&self) -> Option<&T> {
        self.0.front()
    }

    /// The item that has so many lower ones.
    #[inline]
    pub(crate) fn get(&self, place: usize) -> Option<&T> {
        self.0.get(place)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_set(steps in prop::collection::vec((0u8..8, 0u64..100), 0..400)) {
            let (mut row, mut model) = (Ascending::default(), BTreeSet::new());
            for (what, item) in steps {
                match what {
                    0 => prop_assert_eq!(row.pop_first(), model.pop_first()),
                    1..4 => {
                        row.remove(&item);
                        model.remove(&item);
                    }
                    _ => {
                        row.insert(item);
                        model.insert(item);
                    }
                }
                prop_assert_eq!(row.first(), model.first());
                prop_assert!(row.0.iter().eq(model.iter()));
                prop_assert_eq!(row.get(1), model.iter().nth(1));
                prop_assert_eq!(row.is_empty(), model.is_empty());
            }
        }
    }

    #[test]
    fn an_empty_row_holds_no_memory_that_a_full_one_needed() {
        let mut row = Ascending::default();
        (0..10_000).for_each(|item| row.insert(item));
        (0..10_000).for_each(|item| row.remove(&item));
        assert!(row.first().is_none() && row.0.capacity() <= KEPT);
    }
}
