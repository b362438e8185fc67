//! What objects consist of.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

/// The bytes repeat after so many. It is a prime: a part that a program of powers of two has put in the wrong
/// place differs from what belongs there.
const PERIOD: usize = 1_048_573;
/// The most that is given at once.
const PIECE: usize = 256 * 1024;

/// Bytes that every object begins with, however long it is.
pub(crate) struct Content(Vec<u8>);

impl Content {
    pub(crate) fn new() -> Arc<Self> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let words = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        let mut bytes: Vec<u8> = words.take(PERIOD.div_ceil(8)).flatten().take(PERIOD).collect();
        // So that a piece is one slice, wherever it begins.
        bytes.extend_from_within(..PIECE);
        Arc::new(Self(bytes))
    }

    /// Some of the bytes between two offsets: none where there are none.
    pub(super) fn between(&self, offset: u64, end: u64) -> &[u8] {
        let at = (offset % PERIOD as u64) as usize;
        let most = usize::try_from(end.saturating_sub(offset)).unwrap_or(PIECE).min(PIECE);
        &self.0[at..at + most]
    }

    /// The SHA-256 of an object of so many bytes.
    pub(crate) fn digest(&self, bytes: u64) -> [u8; 32] {
        let (mut hash, mut at) = (Sha256::new(), 0);
        while at < bytes {
            let piece = self.between(at, bytes);
            hash.update(piece);
            at += piece.len() as u64;
        }
        hash.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_the_same_wherever_its_pieces_begin() {
        let content = Content::new();
        let read = |step: u64| {
            let (mut all, mut at, end) = (Vec::new(), 0, 3_000_000);
            while at < end {
                let piece = content.between(at, end.min(at + step));
                all.extend_from_slice(piece);
                at += piece.len() as u64;
            }
            all
        };
        let all = read(u64::MAX >> 1);
        assert!(all.len() == 3_000_000 && all == read(999));
        assert_eq!(Sha256::digest(&all)[..], content.digest(3_000_000));
        assert!(content.between(5, 5).is_empty() && content.between(9, 5).is_empty());
        // Neither blocks nor megabytes repeat.
        assert!(all[..4096] != all[1 << 20..(1 << 20) + 4096] && all[..4096] != all[4096..8192]);
    }
}
