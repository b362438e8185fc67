//! MP4 in fragments (ISO/IEC 14496-12, §8.8): a player reads what is before the first fragment, and goes on
//! with any of them. One that is not in fragments has its tables for all of it, and cannot be entered.

use super::walk::{Elements, Next};
use super::{Index, Unfit};

/// Of a box's head, and of one with a long length.
const SHORT: usize = 8;
const LONG: usize = 16;
/// Of a fragment's head (`tfhd`): it says by an offset in the file where its bytes are.
const IS_ABSOLUTE: u8 = 1;

/// How far one is read.
#[derive(Default)]
pub(super) struct Mp4 {
    /// What a player must know of its tracks has come.
    has_tracks: bool,
    has_fragments: bool,
    /// A fragment of which it is not known where its bytes are.
    fragment: Option<u64>,
}

impl Elements for Mp4 {
    fn look(&mut self, at: u64, begin: &[u8], index: &mut Index) -> Result<Next, Unfit> {
        let Some((size, kind)) = begin.first_chunk::<SHORT>().map(|head| head.split_at(4)) else {
            return Ok(Next::More);
        };
        let size = size.iter().fold(0, |size, byte| size << 8 | u64::from(*byte));
        let (size, length) = match size {
            // To the end of the file.
            0 => (u64::MAX, SHORT),
            1 => match begin.get(SHORT..LONG) {
                Some(size) => (size.iter().fold(0, |size, byte| size << 8 | u64::from(*byte)), LONG),
                None => return Ok(Next::More),
            },
            size => (size, SHORT),
        };
        let inside = size.checked_sub(length as u64).ok_or(Unfit)?;
        match kind {
            b"moof" if self.has_tracks => {
                (self.has_fragments, self.fragment) = (true, Some(at));
                Ok(Next::Skip(0))
            }
            b"moof" => Err(Unfit),
            _ if self.has_fragments => self.in_fragments(kind, inside, &begin[length..], index),
            b"mdat" => Err(Unfit),
            // They fill it up, or say where something is in the file.
            b"free" | b"skip" | b"wide" | b"sidx" | b"mfra" => Ok(Next::Skip(inside)),
            _ => {
                self.has_tracks |= kind == b"moov";
                index.keep(begin)?;
                Ok(Next::Keep(inside))
            }
        }
    }
}

impl Mp4 {
    fn in_fragments(
        &mut self,
        kind: &[u8],
        inside: u64,
        said: &[u8],
        index: &mut Index,
    ) -> Result<Next, Unfit> {
        match (kind, self.fragment) {
            (b"traf", Some(_)) => Ok(Next::Skip(0)),
            (b"tfhd", Some(fragment)) => {
                let left = inside.checked_sub(said.len() as u64).ok_or(Unfit)?;
                // A version, and flags.
                match said.get(3) {
                    Some(flags) if flags & IS_ABSOLUTE != 0 => Err(Unfit),
                    Some(_) => {
                        self.fragment = None;
                        index.enter(fragment);
                        Ok(Next::Skip(left))
                    }
                    None if left > 0 => Ok(Next::More),
                    None => Err(Unfit),
                }
            }
            (b"ftyp" | b"moov", _) => Err(Unfit),
            _ => Ok(Next::Skip(inside)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::found_in;
    use super::*;

    fn boxed(kind: &[u8; 4], inside: &[u8]) -> Vec<u8> {
        let size = u32::try_from(SHORT + inside.len()).unwrap();
        [&size.to_be_bytes()[..], kind, inside].concat()
    }

    fn long(kind: &[u8; 4], inside: &[u8]) -> Vec<u8> {
        [&1_u32.to_be_bytes()[..], kind, &((LONG + inside.len()) as u64).to_be_bytes(), inside].concat()
    }

    fn fragment(flags: u8) -> Vec<u8> {
        let tracks = boxed(
            b"traf",
            &[boxed(b"tfhd", &[0, 2, 0, flags, 0, 0, 0, 1]), boxed(b"trun", &[0; 9])].concat(),
        );
        [boxed(b"moof", &[boxed(b"mfhd", &[0; 8]), tracks].concat()), boxed(b"mdat", b"moof or not")].concat()
    }

    #[test]
    fn a_player_is_given_the_tracks_and_may_enter_each_fragment() {
        let (kind, tracks) = (boxed(b"ftyp", b"iso5....iso5"), boxed(b"moov", &[3; 90]));
        let begin = [&kind[..], &boxed(b"free", b"..."), &tracks, &boxed(b"sidx", &[0; 20])].concat();
        let (one, filler) = (fragment(0), [boxed(b"styp", b"msdh"), long(b"emsg", b"...")].concat());
        let all = [&begin[..], &one, &filler, &one].concat();
        let places = vec![begin.len() as u64, (begin.len() + one.len() + filler.len()) as u64];
        assert_eq!(found_in(&all).unwrap(), ([kind, tracks].concat(), places));
    }

    #[test]
    fn what_is_not_in_fragments_or_says_where_they_are_in_the_file_cannot_be_entered() {
        let begin = [boxed(b"ftyp", b"isom....isom"), boxed(b"moov", b"tracks")].concat();
        assert!(found_in(&begin).is_some());
        for bad in [
            [&begin[..], &boxed(b"mdat", b"x")].concat(),
            [&begin[..], &fragment(IS_ABSOLUTE)].concat(),
            [&begin[..], &boxed(b"moof", &boxed(b"traf", &boxed(b"tfhd", &[0; 3])))].concat(),
            [&begin[..], &fragment(0), &begin].concat(),
            [boxed(b"ftyp", b"isom"), fragment(0)].concat(),
            [&begin[..], b"\0\0\0\x07free"].concat(),
        ] {
            assert_eq!(found_in(&bad), None);
        }
    }
}
