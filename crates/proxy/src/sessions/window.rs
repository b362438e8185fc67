//! Bytes of one direction that are under way.

use std::collections::VecDeque;

/// What an empty one keeps of its memory, so that thousands of idle ones cost little.
const LEAST: usize = 4 * 1024;

/// Bytes from one offset on: those before it were taken.
#[derive(Debug, Default)]
pub(super) struct Window {
    base: u64,
    bytes: VecDeque<u8>,
}

impl Window {
    /// An empty one, at an offset.
    pub(super) fn at(base: u64) -> Self {
        Self { base, bytes: VecDeque::new() }
    }

    /// One with bytes already.
    pub(super) fn with(base: u64, bytes: Vec<u8>) -> Self {
        Self { base, bytes: bytes.into() }
    }

    /// All its bytes.
    pub(super) fn to_vec(&self) -> Vec<u8> {
        let (front, back) = self.bytes.as_slices();
        [front, back].concat()
    }

    /// The offset of its first byte.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// The offset behind its last byte.
    pub(super) fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Forgets what is before an offset. False, and nothing happens, if that is beyond the end.
    pub(super) fn release(&mut self, to: u64) -> bool {
        if to > self.end() {
            return false;
        }
        let n = usize::try_from(to.saturating_sub(self.base)).unwrap_or(usize::MAX).min(self.bytes.len());
        self.bytes.drain(..n);
        self.base += n as u64;
        if self.bytes.is_empty() && self.bytes.capacity() > LEAST {
            self.bytes = VecDeque::new();
        }
        true
    }

    /// Some bytes from an offset on, at most so many: none at the end, and none that were released.
    pub(super) fn from(&self, offset: u64, most: usize) -> &[u8] {
        let Some(skip) = offset.checked_sub(self.base).and_then(|skip| usize::try_from(skip).ok()) else {
            return &[];
        };
        let (front, back) = self.bytes.as_slices();
        let rest = match front.get(skip..) {
            Some(rest) if !rest.is_empty() => rest,
            _ => back.get(skip - front.len()..).unwrap_or_default(),
        };
        &rest[..rest.len().min(most)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_by_their_offset_until_they_are_released() {
        let mut window = Window::at(100);
        let all: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        let (mut pushed, mut released) = (0, 0);
        // So that the ring goes round.
        while released < all.len() {
            let more = (pushed + 700).min(all.len());
            window.push(&all[pushed..more]);
            pushed = more;
            for at in released..pushed {
                let found = window.from(100 + at as u64, 50);
                assert_eq!(found, &all[at..at + found.len()]);
                assert!(!found.is_empty());
            }
            assert!(window.from(100 + pushed as u64, 50).is_empty());
            released = (released + 650).min(pushed);
            assert!(window.release(100 + released as u64));
            assert_eq!((window.base(), window.end()), (100 + released as u64, 100 + pushed as u64));
            assert_eq!(window.len(), pushed - released);
            assert!(window.from(99 + released as u64, 1).is_empty(), "released");
        }
        assert!(window.is_empty() && window.bytes.capacity() <= LEAST);
    }

    #[test]
    fn nobody_releases_what_never_came_and_an_old_count_changes_nothing() {
        let mut window = Window::at(10);
        window.push(b"abc");
        assert!(!window.release(14) && !window.release(u64::MAX));
        assert!(window.release(12) && window.release(3));
        assert_eq!((window.base(), window.from(12, 9)), (12, &b"c"[..]));
    }
}
