//! Sorting and gathering that is made once for all kinds of elements.
//!
//! The standard library makes its sorts anew for every type and every key, 5 KB each, and a `collect` into a
//! [`BTreeMap`] or [`BTreeSet`] is such a sort: in a program that sorts some sixty kinds of short lists that
//! was a fiftieth of all of it. Here positions are sorted, in one way for all; only what exchanges the
//! elements is made for each kind. What sorts long lists often uses the standard library's.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Sorts by `compare`; what is equal keeps its order. Takes memory for two numbers an element.
///
/// ```
/// let mut names = ["b", "a", "C"];
/// whimbrel_base::order::by(&mut names, |one, other| one.to_lowercase().cmp(&other.to_lowercase()));
/// assert_eq!(names, ["a", "b", "C"]);
/// ```
pub fn by<T>(items: &mut [T], mut compare: impl FnMut(&T, &T) -> Ordering) {
    let mut to = places(items.len(), &mut |one, other| compare(&items[one], &items[other]));
    for at in 0..to.len() {
        while to[at] != at {
            let place = to[at];
            items.swap(at, place);
            to.swap(at, place);
        }
    }
}

/// Sorts by what `key` makes of each element; what is equal keeps its order.
///
/// ```
/// let mut rows = [(2, 'x'), (1, 'y'), (2, 'a')];
/// whimbrel_base::order::by_key(&mut rows, |row| row.0);
/// assert_eq!(rows, [(1, 'y'), (2, 'x'), (2, 'a')]);
/// ```
pub fn by_key<T, K: Ord>(items: &mut [T], mut key: impl FnMut(&T) -> K) {
    by(items, |one, other| key(one).cmp(&key(other)));
}

/// The set of all `items`.
pub fn set<T: Ord>(items: impl IntoIterator<Item = T>) -> BTreeSet<T> {
    let mut set = BTreeSet::new();
    set.extend(items);
    set
}

/// The map of all `items`; of those with the same key, the last.
pub fn map<K: Ord, V>(items: impl IntoIterator<Item = (K, V)>) -> BTreeMap<K, V> {
    let mut map = BTreeMap::new();
    map.extend(items);
    map
}

/// Where each of `count` elements goes when they are sorted.
fn places(count: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|one, other| compare(*one, *other));
    let mut to = vec![0; count];
    for (place, from) in order.into_iter().enumerate() {
        to[from] = place;
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn elements_are_sorted_as_the_standard_library_sorts_them(rows: Vec<(u8, u32)>) {
            let (mut ours, mut theirs) = (rows.clone(), rows);
            by_key(&mut ours, |row| row.0);
            theirs.sort_by_key(|row| row.0);
            prop_assert_eq!(ours, theirs);
        }

        #[test]
        fn what_is_gathered_is_what_would_be_collected(rows: Vec<(u8, u32)>) {
            prop_assert_eq!(map(rows.clone()), rows.iter().copied().collect());
            prop_assert_eq!(set(rows.clone()), rows.into_iter().collect());
        }
    }
}
