//! Containers of films and sounds that a player can enter in the middle: what it must read first, and the
//! places from which it can go on.
//!
//! Pure: bytes come in whatever pieces. Of what does not look as it should nothing is known.

mod matroska;
mod mp4;
mod transport;
mod walk;

use matroska::Matroska;
use mp4::Mp4;
use std::collections::VecDeque;
use transport::Packets;
use walk::Walk;

/// The most that is kept of what a player must read first. With a head of HTTP it fits into the first window
/// of a connection on one host, 64 KiB, so that a program's kernel mostly takes all of it at once.
pub(super) const MOST_BEGINNING: usize = 48 * 1024;
/// The most places that are known at once: those behind them are not noted.
const MOST_PLACES: usize = 256;
/// By so many bytes a container is known.
const MAGIC: usize = 8;

/// What is known of one.
pub(super) struct Container {
    kind: Kind,
    index: Index,
}

enum Kind {
    /// So much of it has come, which is too little to tell.
    Unknown(Vec<u8>),
    Matroska(Walk<Matroska>),
    Mp4(Walk<Mp4>),
    Transport(Packets),
    /// It is none, or cannot be entered in the middle.
    Other,
}

/// What was found in one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Index {
    /// What a player must read first.
    beginning: Vec<u8>,
    /// Where it can go on behind that: offsets, each greater than the one before.
    places: VecDeque<u64>,
}

/// What came does not belong to such a container, or to none that can be entered.
#[derive(Debug)]
struct Unfit;

impl Container {
    /// One of which nothing has come yet.
    pub(super) fn new() -> Self {
        Self { kind: Kind::Unknown(Vec::new()), index: Index::default() }
    }

    /// Whether it is known to be none that can be entered.
    pub(super) fn is_other(&self) -> bool {
        matches!(self.kind, Kind::Other)
    }

    /// What a player must read first: all of it once a place is known.
    pub(super) fn beginning(&self) -> &[u8] {
        &self.index.beginning
    }

    /// The last place at or before this offset.
    pub(super) fn before(&self, at: u64) -> Option<u64> {
        self.index.places.iter().rev().find(|place| **place <= at).copied()
    }

    /// The first place at or behind this offset.
    pub(super) fn behind(&self, at: u64) -> Option<u64> {
        self.index.places.iter().find(|place| **place >= at).copied()
    }

    /// Forgets places before the last one at or before this offset.
    pub(super) fn passes(&mut self, at: u64) {
        while self.index.places.get(1).is_some_and(|second| *second <= at) {
            self.index.places.pop_front();
        }
    }

    /// Takes what comes next.
    pub(super) fn sees(&mut self, bytes: &[u8]) {
        if self.look(bytes).is_err() {
            *self = Self { kind: Kind::Other, index: Index::default() };
        }
    }

    fn look(&mut self, bytes: &[u8]) -> Result<(), Unfit> {
        let begin = match &mut self.kind {
            Kind::Other => return Ok(()),
            Kind::Matroska(walk) => return walk.sees(bytes, &mut self.index),
            Kind::Mp4(walk) => return walk.sees(bytes, &mut self.index),
            Kind::Transport(packets) => return packets.sees(bytes, &mut self.index),
            Kind::Unknown(begin) => begin,
        };
        let (some, behind) = bytes.split_at(bytes.len().min(MAGIC - begin.len()));
        begin.extend_from_slice(some);
        if begin.len() < MAGIC {
            return Ok(());
        }
        let begin = std::mem::take(begin);
        self.kind = Kind::of(&begin);
        self.look(&begin)?;
        self.look(behind)
    }
}

impl Kind {
    fn of(begin: &[u8]) -> Self {
        match begin {
            [0x1a, 0x45, 0xdf, 0xa3, ..] => Self::Matroska(Walk::new(Matroska::default())),
            [_, _, _, _, b'f' | b's', b't', b'y', b'p', ..] => Self::Mp4(Walk::new(Mp4::default())),
            [transport::SYNC, ..] => Self::Transport(Packets::default()),
            _ => Self::Other,
        }
    }
}

impl Index {
    /// Has a player read this first, behind what was kept before.
    fn keep(&mut self, bytes: &[u8]) -> Result<(), Unfit> {
        if self.beginning.len() + bytes.len() > MOST_BEGINNING {
            return Err(Unfit);
        }
        self.beginning.extend_from_slice(bytes);
        Ok(())
    }

    /// Notes a place.
    fn enter(&mut self, at: u64) {
        if self.places.is_empty() {
            // All of it has come.
            self.beginning.shrink_to_fit();
        }
        if self.places.len() < MOST_PLACES && self.places.back().is_none_or(|last| *last < at) {
            self.places.push_back(at);
        }
    }
}

/// Reads bytes as a container, whole and cut in two at what the first of them says. For fuzzers.
pub fn read_anything(bytes: &[u8]) {
    let cut = bytes.first().map_or(0, |first| usize::from(*first).min(bytes.len()));
    assert!(found(&[bytes]) == found(&[&bytes[..cut], &bytes[cut..]]), "cuts change nothing");
}

/// What is found in a container that comes in these pieces. `None` if it is none.
fn found(pieces: &[&[u8]]) -> Option<(Vec<u8>, Vec<u64>)> {
    let mut container = Container::new();
    pieces.iter().for_each(|piece| container.sees(piece));
    let Index { beginning, places } = container.index;
    (!matches!(container.kind, Kind::Other)).then(|| (beginning, places.into()))
}

/// What is found, however the container is cut in two, and byte by byte.
#[cfg(test)]
#[track_caller]
fn found_in(all: &[u8]) -> Option<(Vec<u8>, Vec<u64>)> {
    let whole = found(&[all]);
    (0..=all.len()).for_each(|cut| assert_eq!(found(&[&all[..cut], &all[cut..]]), whole, "cut at {cut}"));
    assert_eq!(found(&all.chunks(1).collect::<Vec<_>>()), whole);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The beginning of a container of each kind, which what follows may spoil.
    const BEGINNINGS: [&[u8]; 4] = [
        b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff\x1f\x43\xb6\x75\xff",
        b"\0\0\0\x08ftyp\0\0\0\x08moov\0\0\0\x08moof",
        b"\x47\x40\0\x10\0\0\xb0\x0d\0\x01\xc1\0\0\0\x01\xf0\0\x2a\xb1\x04\xb2",
        b"",
    ];

    #[test]
    fn places_are_found_on_either_side_of_an_offset_and_forgotten_once_they_are_passed() {
        let mut container = Container::new();
        [10, 20, 30].into_iter().for_each(|place| container.index.enter(place));
        container.index.enter(30);
        assert_eq!(container.index.places, [10, 20, 30]);
        let around = |container: &Container, at| (container.before(at), container.behind(at));
        assert_eq!(around(&container, 9), (None, Some(10)));
        assert_eq!(around(&container, 20), (Some(20), Some(20)));
        assert_eq!(around(&container, 31), (Some(30), None));
        container.passes(29);
        assert_eq!(container.index.places, [20, 30], "the last one before is needed");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut index = Index::default();
        (0..10_000).for_each(|at| index.enter(at));
        assert_eq!(index.places.len(), MOST_PLACES);
        assert!(index.keep(&[0; MOST_BEGINNING]).is_ok() && index.keep(&[0]).is_err());
        // A beginning without an end, of each kind.
        for begin in
            [&b"\x1a\x45\xdf\xa3\x08\x7f\xff\xff\xff"[..], b"\0\0\0\x10ftypisomisom\x7f\xff\xff\xffmoov"]
        {
            let mut container = Container::new();
            container.sees(begin);
            (0..100).for_each(|_| container.sees(&[7; 1024]));
            assert!(container.is_other() && container.beginning().is_empty());
        }
    }

    #[test]
    fn what_is_no_such_container_is_known_by_its_first_bytes() {
        for other in
            [&b"\x89PNG\r\n\x1a\n"[..], b"OggS\0\x02\0\0", b"ID3\x04\0\0\0\0", b"<html>\n\n", &[0; 8]]
        {
            assert_eq!(found_in(other), None);
            assert_eq!(found_in(&other[..7]), Some((Vec::new(), Vec::new())), "more is needed");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_give_the_same_however_they_are_cut(
            kind in 0..BEGINNINGS.len(),
            rest in proptest::collection::vec(any::<u8>(), 0..600),
            cuts in proptest::collection::vec(0_usize..700, 0..6),
        ) {
            let all = [BEGINNINGS[kind], &rest].concat();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(all.len())).collect();
            cuts.sort_unstable();
            let (mut pieces, mut from) = (Vec::new(), 0);
            for cut in cuts {
                pieces.push(&all[from..cut]);
                from = cut;
            }
            pieces.push(&all[from..]);
            let whole = found(&[&all]);
            prop_assert_eq!(found(&pieces), whole.clone());
            let Some((beginning, places)) = whole else { return Ok(()) };
            prop_assert!(beginning.len() <= all.len() + 12 && places.len() <= MOST_PLACES);
            prop_assert!(places.iter().all(|place| *place < all.len() as u64));
            prop_assert!(places.is_sorted());
        }
    }
}
