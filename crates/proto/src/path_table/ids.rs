//! Which path ids may still be used.

use crate::error::DecodeError;
use crate::ids::{PathId, Side};
use crate::snapshot;
use crate::varint::Reader;

/// How far below the highest id an unused one is still let in. Paths that are dialled at the same time arrive
/// in any order.
const WINDOW: u64 = 256;
const WORD: u64 = u64::BITS as u64;

/// The path ids of a connection: a client gives them out in order, a server takes each one once.
#[derive(Debug, Default)]
pub(super) struct PathIds {
    /// One more than the highest id that was given out, let in or called lost.
    next: u64,
    /// For each id within the window, at its place modulo the window: it was used.
    used: [u64; (WINDOW / WORD) as usize],
}

impl PathIds {
    /// Client: the id of a new path.
    pub(super) fn give(&mut self) -> PathId {
        let id = PathId(self.next);
        self.spend(id);
        id
    }

    /// Server: whether a path may be let in under `id`: it was neither let in nor called lost, nor is it so
    /// old that nobody remembers.
    pub(super) fn is_fresh(&self, id: PathId) -> bool {
        id.0 >= self.next || (id.0.saturating_add(WINDOW) >= self.next && !self.is_used(id.0))
    }

    /// No id as high as `id` was used.
    pub(super) fn is_highest(&self, id: PathId) -> bool {
        id.0 >= self.next
    }

    /// From now on nothing is let in under `id`.
    pub(super) fn spend(&mut self, id: PathId) {
        if id.0 >= self.next {
            let first = self.next.max(id.0.saturating_sub(WINDOW - 1));
            (first..=id.0).for_each(|skipped| self.used[word(skipped)] &= !bit(skipped));
            self.next = id.0 + 1;
        }
        if id.0.saturating_add(WINDOW) >= self.next {
            self.used[word(id.0)] |= bit(id.0);
        }
    }

    pub(super) fn write_down(&self, out: &mut Vec<u8>) {
        snapshot::number(out, self.next);
        self.used.iter().for_each(|word| out.extend_from_slice(&word.to_be_bytes()));
    }

    /// A client counts on from what it gave out; a server's client may have given out any.
    pub(super) fn read_back(reader: &mut Reader<'_>, side: Side) -> Result<Self, DecodeError> {
        let [next] = match side {
            Side::Client => snapshot::read_counts(reader)?,
            Side::Server => snapshot::read_numbers(reader)?,
        };
        let mut this = Self { next, ..Self::default() };
        for word in &mut this.used {
            *word = u64::from_be_bytes(reader.array()?);
        }
        Ok(this)
    }

    fn is_used(&self, id: u64) -> bool {
        self.used[word(id)] & bit(id) != 0
    }
}

const fn word(id: u64) -> usize {
    (id % WINDOW / WORD) as usize
}

const fn bit(id: u64) -> u64 {
    1 << (id % WORD)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_are_given_out_in_order() {
        let mut ids = PathIds::default();
        assert_eq!([ids.give(), ids.give(), ids.give()].map(|id| id.0), [0, 1, 2]);
    }

    #[test]
    fn an_id_is_let_in_once_in_whatever_order_they_come() {
        let mut ids = PathIds::default();
        for id in [3, 0, 2, 1, 300, 299, 45] {
            assert!(ids.is_fresh(PathId(id)), "{id}");
            ids.spend(PathId(id));
            assert!(!ids.is_fresh(PathId(id)), "{id}");
        }
        assert!(!ids.is_fresh(PathId(44)), "below the window");
        assert!(ids.is_fresh(PathId(46)));
    }

    #[test]
    fn the_highest_id_there_is_does_not_overflow() {
        let mut ids = PathIds::default();
        let highest = PathId(crate::varint::MAX);
        ids.spend(highest);
        assert!(!ids.is_fresh(highest) && !ids.is_fresh(PathId(0)));
        assert!(ids.is_fresh(PathId(highest.0 - 1)));
    }

    proptest! {
        #[test]
        fn no_id_is_ever_fresh_again(
            steps in prop::collection::vec((any::<bool>(), 0..2 * WINDOW), 1..400)
        ) {
            let (mut ids, mut used) = (PathIds::default(), BTreeSet::new());
            let mut highest = 0u64;
            for (ahead, distance) in steps {
                let id = if ahead { highest + distance / 8 } else { highest.saturating_sub(distance) };
                let fresh = ids.is_fresh(PathId(id));
                let known = used.contains(&id);
                prop_assert!(!(fresh && known), "{} came twice", id);
                prop_assert!(fresh || known || id + WINDOW <= highest, "{} was refused", id);
                ids.spend(PathId(id));
                used.insert(id);
                highest = highest.max(id);
            }
        }
    }
}
