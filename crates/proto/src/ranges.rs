//! A small set of disjoint half-open ranges of stream offsets.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint, non-adjacent, ordered ranges of `u64`.
#[derive(Debug, Default, Clone)]
pub(crate) struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    pub(crate) fn first(&self) -> Option<Range<u64>> {
        self.0.first_key_value().map(|(&start, &end)| start..end)
    }

    /// How many ranges there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    /// Adds a range, merging with its neighbours.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if start >= end {
            return;
        }
        while let Some((&s, &e)) = self.0.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.0.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.0.insert(start, end);
    }

    /// Takes a range out, splitting what overlaps it.
    pub(crate) fn remove(&mut self, range: &Range<u64>) {
        if range.start >= range.end {
            return;
        }
        while let Some((&s, &e)) = self.0.range(..range.end).next_back() {
            if e <= range.start {
                break;
            }
            self.0.remove(&s);
            if e > range.end {
                self.0.insert(range.end, e);
            }
            if s < range.start {
                self.0.insert(s, range.start);
            }
        }
    }

    /// How many numbers are in the set.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// Some of `range` is not in the set.
    pub(crate) fn has_gap(&self, range: &Range<u64>) -> bool {
        let before = self.0.range(..=range.start).next_back();
        range.start < range.end && before.is_none_or(|(_, end)| *end < range.end)
    }

    /// Some of `range` is in the set.
    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        self.0.range(..range.end).next_back().is_some_and(|(_, end)| *end > range.start)
    }

    /// The parts of `range` that are not in the set.
    pub(crate) fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        let before = self.0.range(..=range.start).next_back();
        for (&s, &e) in before.into_iter().chain(self.0.range(range.start + 1..)) {
            if s >= range.end {
                break;
            }
            if s > at {
                gaps.push(at..s);
            }
            at = at.max(e);
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn members(set: &RangeSet) -> Vec<u64> {
        set.0.iter().flat_map(|(&s, &e)| s..e).collect()
    }

    proptest! {
        #[test]
        fn behaves_like_a_set_of_numbers(ops in prop::collection::vec((any::<bool>(), 0u64..40, 0u64..12), 1..60)) {
            let mut set = RangeSet::default();
            let mut model = std::collections::BTreeSet::new();
            for (add, start, len) in ops {
                let range = start..start + len;
                if add {
                    set.insert(range.clone());
                    model.extend(range);
                } else {
                    set.remove(&range);
                    model.retain(|n| !range.contains(n));
                }
                prop_assert_eq!(members(&set), model.iter().copied().collect::<Vec<_>>());
                let gaps: Vec<u64> = set.gaps(5..30).into_iter().flatten().collect();
                let expected: Vec<u64> = (5..30).filter(|n| !model.contains(n)).collect();
                prop_assert_eq!(&gaps, &expected);
                prop_assert_eq!(set.total(), members(&set).len() as u64);
                prop_assert_eq!(set.has_gap(&(5..30)), !expected.is_empty());
                prop_assert_eq!(set.overlaps(&(5..30)), expected.len() < 25);
                let merged = set.0.iter().zip(set.0.iter().skip(1)).all(|((_, e), (s, _))| e < s);
                prop_assert!(merged);
            }
        }
    }
}
