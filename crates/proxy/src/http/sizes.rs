//! How large the objects of a server were lately, to know how many bytes of the next one to expect.

/// So many of the last objects count.
const KEPT: usize = 8;
/// Of fewer objects nothing is concluded: that of a page's text is small, and those of its pictures may not
/// be.
const LEAST: usize = 4;

/// The sizes of the last objects.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sizes {
    last: [u64; KEPT],
    seen: usize,
}

impl Sizes {
    /// The same after another object of so many bytes.
    pub(super) fn after(mut self, size: u64) -> Self {
        self.last.rotate_right(1);
        self.last[0] = size;
        self.seen = self.seen.saturating_add(1);
        self
    }

    /// The most bytes to expect of the next object, if enough is known. It is the largest of the last ones:
    /// where one of many is large, waiting behind it on a slow network costs more than the way round.
    pub(super) fn largest(&self) -> Option<u64> {
        (self.seen >= LEAST).then(|| self.last.into_iter().max()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(sizes: impl IntoIterator<Item = u64>) -> Option<u64> {
        sizes.into_iter().fold(Sizes::default(), Sizes::after).largest()
    }

    #[test]
    fn the_largest_of_the_last_eight_is_expected_once_four_are_known() {
        assert_eq!(after([1000; 3]), None);
        assert_eq!(after([1000, 2000, 1000, 1000]), Some(2000));
        assert_eq!(after([14_000, 1, 2, 3, 4, 5, 6, 7]), Some(14_000));
        assert_eq!(after([14_000, 1, 2, 3, 4, 5, 6, 7, 6]), Some(7));
    }
}
