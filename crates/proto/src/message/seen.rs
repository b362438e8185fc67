//! Which numbers of a sequence are settled, from the first on.

use std::collections::VecDeque;

use super::NUMBER_WINDOW;

const WORD: u64 = 64;

/// A set of numbers that fills up from below. It costs a bit for each number between the lowest one that is
/// missing and the highest one in it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Seen {
    /// Numbers below this many words are all in the set.
    full: u64,
    words: VecDeque<u64>,
}

impl Seen {
    /// Everything below `lowest` is in the set, and nothing else.
    pub(crate) fn below(lowest: u64) -> Self {
        let bits = (1u64 << (lowest % WORD)) - 1;
        let words = if bits == 0 { VecDeque::new() } else { VecDeque::from([bits]) };
        Self { full: lowest / WORD, words }
    }

    /// Returns the lowest number that is missing.
    #[inline]
    pub(crate) fn lowest(&self) -> u64 {
        let begun = self.words.front().map_or(0, |word| u64::from(word.trailing_ones()));
        self.full * WORD + begun
    }

    /// Whether the number lies so close to the lowest missing one that it may be used.
    #[inline]
    pub(crate) fn admits(&self, number: u64) -> bool {
        number < self.lowest() + NUMBER_WINDOW
    }

    #[inline]
    pub(crate) fn contains(&self, number: u64) -> bool {
        match (number / WORD).checked_sub(self.full) {
            None => true,
            Some(word) => self.words.get(word as usize).is_some_and(|bits| bits >> (number % WORD) & 1 == 1),
        }
    }

    /// Adds a number. False if it was in the set, or is not [admitted](Self::admits), and so costs too much.
    #[inline]
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        let Some(word) = (number / WORD).checked_sub(self.full).filter(|_| self.admits(number)) else {
            return false;
        };
        let word = word as usize;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let bit = 1 << (number % WORD);
        let fresh = self.words[word] & bit == 0;
        self.words[word] |= bit;
        while self.words.front() == Some(&u64::MAX) {
            self.words.pop_front();
            self.full += 1;
        }
        fresh
    }

    /// Numbers in the set above the lowest missing one.
    pub(crate) fn beyond(&self) -> impl Iterator<Item = u64> {
        let (full, lowest) = (self.full, self.lowest());
        let numbers = (0..self.words.len() as u64 * WORD).map(move |at| full * WORD + at);
        numbers.filter(move |number| *number > lowest && self.contains(*number))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_set_of_numbers(start in 0u64..200, numbers in prop::collection::vec(0u64..300, 0..300)) {
            let mut seen = Seen::below(start);
            let mut model: BTreeSet<u64> = (0..start).collect();
            for number in numbers {
                prop_assert_eq!(seen.insert(number), model.insert(number));
                let lowest = (0..).find(|n| !model.contains(n)).unwrap_or(0);
                prop_assert_eq!(seen.lowest(), lowest);
                prop_assert!((0..320).all(|n| seen.contains(n) == model.contains(&n)));
                let beyond: Vec<u64> = model.iter().copied().filter(|n| *n > lowest).collect();
                prop_assert_eq!(seen.beyond().collect::<Vec<_>>(), beyond);
            }
        }
    }

    #[test]
    fn numbers_that_arrive_in_order_cost_nothing() {
        let mut seen = Seen::default();
        (0..10_000).for_each(|number| assert!(seen.insert(number)));
        assert!(seen.words.len() <= 1 && seen.lowest() == 10_000);
        assert!(seen.admits(10_000 + NUMBER_WINDOW - 1) && !seen.admits(10_000 + NUMBER_WINDOW));
        assert!(!seen.insert(1 << 61) && !seen.contains(1 << 61) && seen.words.len() <= 1, "it is left out");
    }
}
