//! Things with ascending numbers, most of which come and go in order.

use std::collections::{BTreeMap, VecDeque};

/// Places that may be empty besides as many as are taken.
const SLACK: usize = 64;

/// A map whose keys are given out in ascending order. What is young lies in a row, so finding it costs one
/// addition; what outlives most of its neighbours moves to a tree, so that the row is never much longer than what
/// is in it.
#[derive(Debug)]
pub(crate) struct Window<T> {
    /// What is older than the row.
    old: BTreeMap<u64, T>,
    /// The number of the first place of the row.
    first: u64,
    row: VecDeque<Option<T>>,
    /// Places of the row that are taken.
    taken: usize,
}

impl<T> Default for Window<T> {
    fn default() -> Self {
        Self { old: BTreeMap::new(), first: 0, row: VecDeque::new(), taken: 0 }
    }
}

impl<T> Window<T> {
    /// Puts something in; quick if no higher number was in use before.
    #[inline]
    pub(crate) fn insert(&mut self, number: u64, item: T) {
        if number < self.first {
            self.old.insert(number, item);
            return;
        }
        let place = number - self.first;
        if place > self.row.len() as u64 {
            (0..self.row.len()).for_each(|_| self.retire());
            self.first = number;
        }
        let place = (number - self.first) as usize;
        match self.row.get_mut(place) {
            None => self.row.push_back(Some(item)),
            Some(here) => {
                self.taken -= usize::from(here.is_some());
                *here = Some(item);
            }
        }
        self.taken += 1;
        self.trim();
    }

    #[inline]
    pub(crate) fn get(&self, number: u64) -> Option<&T> {
        match self.place(number) {
            Some(place) => self.row.get(place)?.as_ref(),
            None => self.old.get(&number),
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        match self.place(number) {
            Some(place) => self.row.get_mut(place)?.as_mut(),
            None => self.old.get_mut(&number),
        }
    }

    #[inline]
    pub(crate) fn contains(&self, number: u64) -> bool {
        self.get(number).is_some()
    }

    /// Drops something where it is. False if there is nothing.
    #[inline]
    pub(crate) fn remove(&mut self, number: u64) -> bool {
        let Some(place) = self.place(number) else {
            return self.old.remove(&number).is_some();
        };
        let Some(item) = self.row.get_mut(place).filter(|item| item.is_some()) else {
            return false;
        };
        *item = None;
        self.taken -= 1;
        self.trim();
        true
    }

    pub(crate) fn len(&self) -> usize {
        self.old.len() + self.taken
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Everything, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let old = self.old.iter().map(|(number, item)| (*number, item));
        let row = (self.first..).zip(&self.row);
        old.chain(row.filter_map(|(number, item)| Some((number, item.as_ref()?))))
    }

    /// Where a number stands in the row, or would; `None` if it is older.
    #[inline]
    fn place(&self, number: u64) -> Option<usize> {
        number.checked_sub(self.first).map(|place| usize::try_from(place).unwrap_or(usize::MAX))
    }

    /// Empty places at the front go, and what keeps many empty places behind it moves.
    #[inline]
    fn trim(&mut self) {
        loop {
            while self.row.front().is_some_and(Option::is_none) {
                drop(self.row.pop_front());
                self.first += 1;
            }
            if self.row.len() <= 2 * self.taken + SLACK {
                break;
            }
            self.retire();
        }
        if self.row.is_empty() && self.row.capacity() > SLACK {
            self.row = VecDeque::new();
        }
    }

    /// The first place of the row goes; what is in it moves.
    fn retire(&mut self) {
        if let Some(item) = self.row.pop_front().flatten() {
            self.old.insert(self.first, item);
            self.taken -= 1;
        }
        self.first += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What happens to a window: so many numbers are passed over, the next is used, and another goes.
    fn steps() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((prop_oneof![9 => Just(0u64), 1 => 0u64..1000], 0u64..400), 1..400)
    }

    proptest! {
        #[test]
        fn behaves_like_a_map_and_its_row_is_hardly_longer_than_what_is_in_it(steps in steps()) {
            let (mut window, mut model, mut next) = (Window::default(), BTreeMap::new(), 0);
            for (passed, back) in steps {
                next += passed;
                window.insert(next, next);
                model.insert(next, next);
                let gone = next.saturating_sub(back);
                prop_assert_eq!(window.contains(gone), model.contains_key(&gone));
                prop_assert_eq!(window.remove(gone), model.remove(&gone).is_some());
                prop_assert!(!window.remove(gone));
                prop_assert_eq!(window.get(next).copied(), model.get(&next).copied());
                next += 1;
                prop_assert_eq!(window.len(), model.len());
                prop_assert!(window.row.len() <= 2 * window.taken + SLACK);
            }
            let all: Vec<(u64, u64)> = window.iter().map(|(number, item)| (number, *item)).collect();
            prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn one_that_stays_costs_nothing_while_thousands_pass() {
        let mut window = Window::default();
        for number in 0..10_000 {
            window.insert(number, number);
            if number > 0 {
                assert!(window.remove(number));
            }
        }
        assert!(window.row.len() <= SLACK + 2 && window.len() == 1);
        assert_eq!(window.get(0), Some(&0));
        assert!(window.remove(0));
        assert!(window.is_empty());
    }

    #[test]
    fn a_number_is_put_in_again_and_out_of_order() {
        let mut window = Window::default();
        for number in [5, 7, 6, 7, 2] {
            window.insert(number, number);
        }
        assert_eq!(window.iter().map(|(number, _)| number).collect::<Vec<_>>(), [2, 5, 6, 7]);
        if let Some(item) = window.get_mut(6) {
            *item = 60;
        }
        assert_eq!((window.len(), window.get(6)), (4, Some(&60)));
    }
}
