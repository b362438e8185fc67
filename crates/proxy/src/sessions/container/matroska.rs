//! Matroska and WebM (RFC 9559): a player reads what is before the first cluster, and goes on with any
//! cluster whose first picture stands alone.

use super::walk::{Elements, Next};
use super::{Index, Unfit};

const EBML: u32 = 0x1a45_dfa3;
const SEGMENT: u32 = 0x1853_8067;
const CLUSTER: u32 = 0x1f43_b675;
/// These say where something is in the file, fill it up, or are sums of it.
const SEEK_HEAD: u32 = 0x114d_9b74;
const CUES: u32 = 0x1c53_bb6b;
const VOID: u32 = 0xec;
const SUM: u32 = 0xbf;
/// Files beside the film, such as its cover and fonts: they are often long, and it plays without.
const ATTACHMENTS: u32 = 0x1941_a469;
const TRACKS: u32 = 0x1654_ae6b;
const TRACK: u32 = 0xae;
const NUMBER: u32 = 0xd7;
const TYPE: u32 = 0x83;
const GROUP: u32 = 0xa0;
const BLOCK: u32 = 0xa1;
const SIMPLE_BLOCK: u32 = 0xa3;

/// What a player is given in the place of a segment's head: its length is not known.
const ENDLESS: [u8; 12] = [0x18, 0x53, 0x80, 0x67, 0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
/// The type of a track with pictures.
const PICTURES: u64 = 1;
/// Of a simple block: it stands alone.
const STANDS_ALONE: u8 = 0x80;

/// How far one is read.
#[derive(Default)]
pub(super) struct Matroska {
    stage: Stage,
    /// The track with pictures, if there is one.
    pictures: Option<u64>,
    /// A cluster of which it is not known whether its first picture stands alone.
    cluster: Option<u64>,
}

#[derive(Clone, Copy, Default)]
enum Stage {
    #[default]
    Start,
    /// The segment is next.
    Segment,
    /// What is before the first cluster.
    Beginning,
    Clusters,
}

/// The head of an element.
struct Element {
    id: u32,
    /// `None` if that is not known: what is in it follows, until something is that cannot be in it.
    size: Option<u64>,
    /// Of the head.
    length: usize,
}

impl Element {
    /// Of the bytes that it begins with. `None` if these are too few.
    fn of(bytes: &[u8]) -> Result<Option<Self>, Unfit> {
        let Some(first) = bytes.first() else { return Ok(None) };
        let of_id = first.leading_zeros() as usize + 1;
        if of_id > 4 {
            return Err(Unfit);
        }
        let Some((id, rest)) = bytes.split_at_checked(of_id) else { return Ok(None) };
        let Some((size, of_size)) = number(rest)? else { return Ok(None) };
        let id = id.iter().fold(0, |id, byte| id << 8 | u32::from(*byte));
        Ok(Some(Self { id, size, length: of_id + of_size }))
    }

    fn size(&self) -> Result<u64, Unfit> {
        self.size.ok_or(Unfit)
    }
}

/// A number that says how long it is, and how long. Its value is `None` if all bits are set.
fn number(bytes: &[u8]) -> Result<Option<(Option<u64>, usize)>, Unfit> {
    let Some(first) = bytes.first() else { return Ok(None) };
    let length = first.leading_zeros() as usize + 1;
    if length > 8 {
        return Err(Unfit);
    }
    let Some((_, rest)) = bytes.get(..length).and_then(|bytes| bytes.split_first()) else { return Ok(None) };
    let first = u64::from(*first) & (0xff >> length);
    let value = rest.iter().fold(first, |value, byte| value << 8 | u64::from(*byte));
    let is_known = value != (1 << (7 * length)) - 1;
    Ok(Some((is_known.then_some(value), length)))
}

impl Elements for Matroska {
    fn look(&mut self, at: u64, begin: &[u8], index: &mut Index) -> Result<Next, Unfit> {
        let Some(element) = Element::of(begin)? else { return Ok(Next::More) };
        match (self.stage, element.id) {
            (Stage::Start, EBML) => {
                self.stage = Stage::Segment;
                index.keep(begin)?;
                element.size().map(Next::Keep)
            }
            (Stage::Segment, SEGMENT) => {
                self.stage = Stage::Beginning;
                index.keep(&ENDLESS)?;
                Ok(Next::Skip(0))
            }
            (Stage::Segment, VOID | SUM) => element.size().map(Next::Skip),
            (Stage::Start | Stage::Segment, _) => Err(Unfit),
            (Stage::Beginning, SEEK_HEAD | CUES | ATTACHMENTS | VOID | SUM) => element.size().map(Next::Skip),
            (Stage::Beginning, CLUSTER) => {
                self.stage = Stage::Clusters;
                self.pictures = track_with_pictures(&index.beginning);
                self.cluster = Some(at);
                Ok(Next::Skip(0))
            }
            (Stage::Beginning, _) => {
                index.keep(begin)?;
                element.size().map(Next::Keep)
            }
            (Stage::Clusters, CLUSTER) => {
                self.cluster = Some(at);
                Ok(Next::Skip(0))
            }
            (Stage::Clusters, GROUP) if self.cluster.is_some() => Ok(Next::Skip(0)),
            (Stage::Clusters, BLOCK | SIMPLE_BLOCK) => self.block(&element, &begin[element.length..], index),
            (Stage::Clusters, EBML | SEGMENT) => Err(Unfit),
            (Stage::Clusters, _) => element.size().map(Next::Skip),
        }
    }
}

impl Matroska {
    /// Looks at the first bytes of a block.
    fn block(&mut self, element: &Element, said: &[u8], index: &mut Index) -> Result<Next, Unfit> {
        let size = element.size()?;
        let left = size.checked_sub(said.len() as u64).ok_or(Unfit)?;
        let Some(cluster) = self.cluster else { return Ok(Next::Skip(left)) };
        // Its track, a time of two bytes, and flags.
        let track = number(said)?;
        let flags = track.and_then(|(track, length)| Some((track, *said.get(length + 2)?)));
        let Some((track, flags)) = flags else {
            return if left > 0 { Ok(Next::More) } else { Err(Unfit) };
        };
        if self.pictures.is_none() || track == self.pictures {
            self.cluster = None;
            // Of a block in a group only what is behind it says so: it is taken for one.
            if element.id == BLOCK || flags & STANDS_ALONE != 0 {
                index.enter(cluster);
            }
        }
        Ok(Next::Skip(left))
    }
}

/// Elements one behind the other, with what is in each. What is in one of unknown length comes next.
struct Inside<'a>(&'a [u8]);

impl<'a> Iterator for Inside<'a> {
    type Item = (u32, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let element = Element::of(self.0).ok().flatten()?;
        let size = element.size.map_or(Some(0), |size| usize::try_from(size).ok())?;
        let (inside, rest) = self.0.get(element.length..)?.split_at_checked(size)?;
        self.0 = rest;
        Some((element.id, inside))
    }
}

fn track_with_pictures(beginning: &[u8]) -> Option<u64> {
    let (_, tracks) = Inside(beginning).find(|(id, _)| *id == TRACKS)?;
    Inside(tracks).filter(|(id, _)| *id == TRACK).find_map(|(_, track)| {
        let value = |wanted| {
            let (_, bytes) = Inside(track).find(|(id, _)| *id == wanted)?;
            (bytes.len() <= 8).then(|| bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
        };
        if value(TYPE) == Some(PICTURES) { value(NUMBER) } else { None }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::found_in;
    use super::*;

    fn element(id: u32, inside: &[u8]) -> Vec<u8> {
        let id: Vec<u8> = id.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
        let size = (1 << 28 | u32::try_from(inside.len()).unwrap()).to_be_bytes();
        [&id[..], &size, inside].concat()
    }

    fn track(number: u8, kind: u8) -> Vec<u8> {
        element(TRACK, &[element(NUMBER, &[number]), element(TYPE, &[kind])].concat())
    }

    /// A block of this track.
    fn simple(track: u8, flags: u8) -> Vec<u8> {
        element(SIMPLE_BLOCK, &[0x80 | track, 0, 0, flags, 1, 2, 3])
    }

    fn cluster(blocks: &[Vec<u8>]) -> Vec<u8> {
        element(CLUSTER, &[element(0xe7, &[0]), blocks.concat()].concat())
    }

    /// The same, but its length is not said.
    fn live(blocks: &[Vec<u8>]) -> Vec<u8> {
        [&CLUSTER.to_be_bytes()[..], &[0xff], &element(0xe7, &[0]), &blocks.concat()].concat()
    }

    /// What is before the first cluster, and what a player is given of that.
    fn beginning(tracks: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
        let (header, tracks) = (element(EBML, b"\x42\x82\x84webm"), element(TRACKS, &tracks.concat()));
        let [seek, cues, files, void] = [SEEK_HEAD, CUES, ATTACHMENTS, VOID].map(|id| element(id, &[0; 40]));
        let segment = [&SEGMENT.to_be_bytes()[..], &[0x10, 9, 9, 9]].concat();
        let all = [&header[..], &segment, &seek, &tracks, &cues, &files, &void].concat();
        (all, [&header[..], &ENDLESS, &tracks].concat())
    }

    #[test]
    fn a_player_is_given_what_is_before_the_first_cluster_without_what_says_where_things_are_or_is_beside() {
        let (begin, given) = beginning(&[track(1, 1)]);
        assert_eq!(found_in(&begin).unwrap(), (given.clone(), vec![]));
        let one = cluster(&[simple(1, 0x80)]);
        let all = [&begin[..], &one, &element(CUES, &[1; 9]), &one].concat();
        let (from, next) = (begin.len() as u64, (begin.len() + one.len() + 4 + 4 + 9) as u64);
        assert_eq!(found_in(&all).unwrap(), (given, vec![from, next]));
    }

    #[test]
    fn a_cluster_is_entered_if_its_first_picture_stands_alone_whatever_is_heard_before() {
        let (begin, _) = beginning(&[track(1, 2), track(2, 1)]);
        let clusters = [
            (cluster(&[simple(1, 0x80), simple(2, 0)]), false),
            (cluster(&[simple(1, 0), simple(2, 0x80)]), true),
            (live(&[simple(2, 0x80), simple(2, 0)]), true),
            (live(&[simple(1, 0x80)]), false),
            (cluster(&[element(GROUP, &element(BLOCK, &[0x82, 0, 0, 0, 1])), simple(2, 0)]), true),
        ];
        let (mut all, mut expected) = (begin, Vec::new());
        for (cluster, is_place) in clusters {
            expected.extend(is_place.then_some(all.len() as u64));
            all.extend_from_slice(&cluster);
        }
        assert_eq!(found_in(&all).unwrap().1, expected);
        // Without pictures each cluster is one.
        let (begin, _) = beginning(&[track(1, 2)]);
        let all = [&begin[..], &cluster(&[simple(1, 0x80)])].concat();
        assert_eq!(found_in(&all).unwrap().1, [begin.len() as u64]);
    }

    #[test]
    fn what_is_no_matroska_is_none() {
        let (begin, _) = beginning(&[track(1, 1)]);
        for bad in [
            [&element(EBML, b"")[..], &element(TRACKS, b"")].concat(),
            [&begin[..], &[0x08]].concat(),
            [&begin[..], &cluster(&[element(SIMPLE_BLOCK, &[0x81, 0, 0])])].concat(),
            [&begin[..], &cluster(&[simple(1, 0x80)]), &begin].concat(),
            [&EBML.to_be_bytes()[..], &[0xff, 0, 0, 0]].concat(),
        ] {
            assert_eq!(found_in(&bad), None);
        }
    }
}
