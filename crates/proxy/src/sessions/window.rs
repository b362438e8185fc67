//! Bytes of one direction that are under way, in the memory that they came in.

use bytes::Bytes;
use std::collections::VecDeque;
use std::io::IoSlice;

/// Less is copied, and put together: a piece takes some memory of its own, and holds all that it came in.
const SMALL: usize = 2048;
/// Less is copied too, each piece for itself: what a stream brings stands in memory of 16 KiB, however little
/// it is, and all of that would be held for it. So it is no more than twice what counts as kept.
const PINNED: usize = 8 * 1024;
/// How many pieces are looked at for one write.
const PIECES: usize = 8;

/// Bytes from one offset on: those before it were taken.
#[derive(Debug, Default)]
pub(super) struct Window {
    base: u64,
    length: usize,
    /// Bytes of the first piece that were released, and are held with what is left of it.
    passed: usize,
    pieces: VecDeque<Piece>,
}

#[derive(Debug)]
struct Piece {
    start: u64,
    bytes: Bytes,
}

impl Window {
    /// An empty one, at an offset.
    pub(super) fn at(base: u64) -> Self {
        Self { base, ..Self::default() }
    }

    /// One with bytes already.
    pub(super) fn with(base: u64, bytes: &[u8]) -> Self {
        let mut window = Self::at(base);
        // One piece would be held until all of it was taken.
        bytes.chunks(2 * PINNED).for_each(|piece| window.push(Bytes::copy_from_slice(piece)));
        window
    }

    /// All its bytes.
    pub(super) fn to_vec(&self) -> Vec<u8> {
        self.pieces.iter().flat_map(|piece| piece.bytes.iter().copied()).collect()
    }

    /// The offset of its first byte.
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// The offset behind its last byte.
    pub(super) fn end(&self) -> u64 {
        self.base + self.length as u64
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// How much memory its bytes hold: a piece is held until all of it was released.
    pub(super) fn held(&self) -> usize {
        self.length + self.passed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(super) fn push(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        let (start, length, is_one) = (self.end(), bytes.len(), self.pieces.len() == 1);
        match self.pieces.back_mut() {
            Some(last) if last.bytes.len() < SMALL && length < SMALL => {
                if is_one {
                    self.passed = 0;
                }
                last.bytes = [&last.bytes[..], &bytes[..]].concat().into();
            }
            _ => {
                let bytes = if length < PINNED { Bytes::copy_from_slice(&bytes) } else { bytes };
                self.pieces.push_back(Piece { start, bytes });
            }
        }
        self.length += length;
    }

    /// Forgets what is before an offset. False, and nothing happens, if that is beyond the end.
    pub(super) fn release(&mut self, to: u64) -> bool {
        if to > self.end() {
            return false;
        }
        let mut left = usize::try_from(to.saturating_sub(self.base)).unwrap_or(usize::MAX).min(self.length);
        (self.base, self.length) = (self.base + left as u64, self.length - left);
        while let Some(first) = self.pieces.front_mut().filter(|_| left > 0) {
            let taken = left.min(first.bytes.len());
            left -= taken;
            if taken == first.bytes.len() {
                self.pieces.pop_front();
                self.passed = 0;
            } else {
                self.passed += taken;
                first.start += taken as u64;
                first.bytes = first.bytes.slice(taken..);
            }
        }
        if self.pieces.is_empty() {
            self.pieces = VecDeque::new();
        }
        true
    }

    /// Has bytes again that were released: those of a window that ends where this one begins.
    pub(super) fn put_before(&mut self, mut before: Self) {
        if before.end() != self.base {
            return;
        }
        let passed = if before.pieces.is_empty() { self.passed } else { before.passed };
        before.pieces.append(&mut self.pieces);
        let length = before.length + self.length;
        *self = Self { base: before.base, length, passed, pieces: before.pieces };
    }

    /// Some bytes from an offset on, at most so many: none at the end, and none that were released.
    pub(super) fn from(&self, offset: u64, most: usize) -> Bytes {
        let behind = self.pieces.partition_point(|piece| piece.start <= offset);
        let piece = behind.checked_sub(1).and_then(|at| self.pieces.get(at));
        let Some(Piece { start, bytes }) = piece else { return Bytes::new() };
        let begin = usize::try_from(offset - start).map_or(bytes.len(), |skip| skip.min(bytes.len()));
        bytes.slice(begin..bytes.len().min(begin.saturating_add(most)))
    }

    /// The first bytes, at most so many, for one write. They may be less than there are.
    pub(super) fn first(&self, most: usize) -> Vec<IoSlice<'_>> {
        let mut left = most;
        let pieces = self.pieces.iter().take(PIECES).map(|Piece { bytes, .. }| {
            let some = &bytes[..bytes.len().min(left)];
            left -= some.len();
            some
        });
        pieces.filter(|some| !some.is_empty()).map(IoSlice::new).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_by_their_offset_until_they_are_released() {
        let mut window = Window::at(100);
        let all: Vec<u8> = (0..=255).cycle().take(50_000).collect();
        let (mut pushed, mut released) = (0, 0);
        for length in [1, 700, 5000, 20, 1, 9000].into_iter().cycle() {
            let more = (pushed + length).min(all.len());
            window.push(Bytes::copy_from_slice(&all[pushed..more]));
            pushed = more;
            for at in (released..pushed).step_by(7) {
                let found = window.from(100 + at as u64, 50);
                assert_eq!(found, &all[at..at + found.len()]);
                assert!(!found.is_empty() && found.len() <= 50);
            }
            let first: Vec<u8> = window.first(3000).iter().flat_map(|some| some.to_vec()).collect();
            assert_eq!(first, &all[released..released + first.len()]);
            assert!(!first.is_empty() && first.len() <= 3000);
            assert!(window.from(100 + pushed as u64, 50).is_empty());
            assert_eq!(window.to_vec(), &all[released..pushed]);
            released = (released + 2300).min(pushed);
            assert!(window.release(100 + released as u64));
            assert_eq!((window.base(), window.end()), (100 + released as u64, 100 + pushed as u64));
            assert_eq!(window.len(), pushed - released);
            assert!(window.from(99 + released as u64, 1).is_empty(), "released");
            if released == all.len() {
                break;
            }
        }
        assert!(window.is_empty() && window.pieces.capacity() == 0);
    }

    #[test]
    fn nobody_releases_what_never_came_and_an_old_count_changes_nothing() {
        let mut window = Window::at(10);
        window.push(Bytes::from_static(b"abc"));
        assert!(!window.release(14) && !window.release(u64::MAX));
        assert!(window.release(12) && window.release(3));
        assert_eq!((window.base(), &window.from(12, 9)[..]), (12, &b"c"[..]));
    }

    #[test]
    fn bytes_that_were_released_are_had_again_if_they_end_where_the_others_begin() {
        let mut window = Window::with(10, b"de");
        window.put_before(Window::with(6, b"abc"));
        assert_eq!((window.base(), window.len()), (10, 2), "one is missing");
        window.put_before(Window::with(7, b"abc"));
        assert_eq!((window.base(), window.end(), &window.to_vec()[..]), (7, 12, &b"abcde"[..]));
        assert_eq!((&window.from(9, 9)[..], &window.from(10, 9)[..]), (&b"c"[..], &b"de"[..]));
        assert!(window.release(11) && window.to_vec() == b"e");
    }

    #[test]
    fn a_piece_of_which_a_part_was_released_is_held_whole_unless_what_is_left_was_copied() {
        const PIECE: usize = 16 * 1024;
        let (mut window, piece) = (Window::at(5), || Bytes::from(vec![7; PIECE]));
        window.push(piece());
        window.push(piece());
        assert_eq!(window.held(), 2 * PIECE);
        for (released, length, held) in [
            (1000, 2 * PIECE - 1000, 2 * PIECE),
            (2000, 2 * PIECE - 2000, 2 * PIECE),
            (PIECE, PIECE, PIECE),
            (2 * PIECE - 1, 1, PIECE),
        ] {
            assert!(window.release(5 + released as u64));
            assert_eq!((window.len(), window.held()), (length, held), "{released}");
        }
        window.put_before(Window::at(window.base()));
        assert_eq!(window.held(), PIECE, "nothing came before it");
        window.push(Bytes::from_static(b"x"));
        assert_eq!((window.len(), window.held()), (2, 2));
        assert!(window.release(window.end()));
        assert_eq!(window.held(), 0);
    }

    #[test]
    fn what_is_little_of_its_memory_does_not_hold_it() {
        let (mut window, memory) = (Window::default(), Bytes::from(vec![7; 16 * 1024]));
        window.push(memory.slice(..PINNED - 1));
        assert!(memory.is_unique() && window.len() == PINNED - 1);
        window.push(memory.slice(..PINNED));
        assert!(!memory.is_unique(), "it was copied");
    }

    #[test]
    fn many_small_pieces_are_few_and_hold_nothing_but_themselves() {
        let (mut window, memory) = (Window::default(), Bytes::from(vec![7; 64 * 1024]));
        (0..64 * 1024).for_each(|at| window.push(memory.slice(at..=at)));
        assert!(window.pieces.len() <= 64 * 1024 / SMALL + 1, "{} pieces", window.pieces.len());
        assert!(memory.is_unique() && window.len() == 64 * 1024);
    }
}
