//! Letters in pieces of the size that a service keeps.
//!
//! A piece is the beginning of the letter's SHA-256 (16 bytes), its place from 0 on (1), how many there are
//! (1), and a part of the letter. They come in any order, and twice.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};
use whimbrel_names::{MAX_BATCH, MAX_OF_DEVICE};

use crate::vector::beginning;

const HEADER: usize = 16 + 1 + 1;
/// The most bytes of pieces whose others are waited for: more than a service keeps for a user.
const MAX_OPEN: usize = 1024 * 1024;
/// The most letters of which some pieces came: the room for each takes memory too, however small they are.
const MOST_OPEN: usize = 64;

/// The pieces of a letter. `None` if a service would not keep as many at once.
pub(super) fn cut(letter: &[u8]) -> Option<Vec<Vec<u8>>> {
    let chunks = letter.chunks(MAX_BATCH - HEADER);
    let count = u8::try_from(chunks.len()).ok().filter(|count| usize::from(*count) <= MAX_OF_DEVICE)?;
    let id = beginning(&Sha256::digest(letter));
    Some((0..).zip(chunks).map(|(place, chunk)| [&id[..], &[place, count], chunk].concat()).collect())
}

/// Pieces whose others did not come yet.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    open: BTreeMap<[u8; 16], Vec<Option<Vec<u8>>>>,
    bytes: usize,
}

impl Pieces {
    /// Takes a piece; returns the letter that is whole with it.
    pub(super) fn join(&mut self, piece: &[u8]) -> Option<Vec<u8>> {
        let (id, rest) = piece.split_first_chunk::<16>()?;
        let ([place, count], part) = rest.split_first_chunk::<2>()?;
        let (place, count) = (usize::from(*place), usize::from(*count));
        if place >= count || count > MAX_OF_DEVICE {
            return None;
        }
        self.bytes += part.len();
        let is_full = self.open.len() == MOST_OPEN && !self.open.contains_key(id);
        if is_full || self.bytes > MAX_OPEN {
            // Only a service that invents pieces comes so far.
            *self = Self { bytes: part.len(), ..Self::default() };
        }
        let parts = self.open.entry(*id).or_insert_with(|| vec![None; count]);
        *parts.get_mut(place)? = Some(part.to_vec());
        if parts.iter().any(Option::is_none) {
            return None;
        }
        let letter = self.open.remove(id)?.into_iter().flatten().collect::<Vec<_>>().concat();
        self.bytes = self.bytes.saturating_sub(letter.len());
        (beginning(&Sha256::digest(&letter)) == *id).then_some(letter)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_letter_comes_back_from_its_pieces_in_whatever_order_and_however_often_they_come() {
        let long: Vec<u8> = (0..50_000_u32).map(|number| (number % 251) as u8).collect();
        for letter in [vec![7], long] {
            let mut pieces = cut(&letter).unwrap();
            assert!(pieces.iter().all(|piece| piece.len() <= MAX_BATCH));
            pieces.reverse();
            let (last, others) = pieces.split_last().unwrap();
            let mut joined = Pieces::default();
            for piece in others.iter().chain(others) {
                assert_eq!(joined.join(piece), None);
            }
            assert_eq!(joined.join(last), Some(letter));
        }
    }

    #[test]
    fn pieces_that_are_torn_or_belong_to_another_letter_make_none() {
        let pieces = cut(&vec![1; MAX_BATCH * 2]).unwrap();
        let mut joined = Pieces::default();
        for piece in &pieces {
            for cut in 0..HEADER {
                assert_eq!(joined.join(&piece[..cut]), None);
            }
        }
        let mut other = pieces.clone();
        *other[1].last_mut().unwrap() ^= 1;
        for piece in &other {
            assert_eq!(joined.join(piece), None);
        }
        assert_eq!(cut(&vec![1; MAX_BATCH * MAX_OF_DEVICE]), None);
    }

    #[test]
    fn pieces_without_end_take_no_room_without_end() {
        let mut joined = Pieces::default();
        for size in [0, 1, 10_000, MAX_BATCH * 2] {
            for number in 0..5000_u16 {
                let mut piece = [&[0; 16][..], &[0, 2], vec![0_u8; size].as_slice()].concat();
                piece[..2].copy_from_slice(&number.to_be_bytes());
                assert_eq!(joined.join(&piece), None);
                let kept: usize = joined.open.values().flatten().flatten().map(Vec::len).sum();
                assert!(kept <= MAX_OPEN && joined.open.len() <= MOST_OPEN, "{kept}");
            }
        }
    }
}
