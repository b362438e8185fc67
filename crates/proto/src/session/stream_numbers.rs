//! How many streams each side has opened and may open.
//!
//! The peer is allowed more as it uses what it has: who opens a handful costs next to nothing, who opens
//! thousands gets there within a few round trips, and nobody gets beyond the configured maximum.

use crate::error::DecodeError;
use crate::params::MAX_GRANT;
use crate::snapshot;
use crate::varint::Reader;

/// Numbers of streams, by who opened them.
#[derive(Debug)]
pub(crate) struct StreamNumbers {
    opened_here: u64,
    allowed_here: u64,
    opened_by_peer: u64,
    closed_of_peer: u64,
    granted: u64,
    /// So many streams of the peer may be open at once; grows up to `most`.
    at_once: u64,
    most: u64,
}

impl StreamNumbers {
    /// This side may open `allowed` streams, the peer `first` at first and up to `most` at once later.
    pub(crate) fn new(allowed: u64, first: u64, most: u64) -> Self {
        Self {
            opened_here: 0,
            allowed_here: allowed,
            opened_by_peer: 0,
            closed_of_peer: 0,
            granted: first,
            at_once: first,
            most: most.clamp(first, MAX_GRANT),
        }
    }

    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        snapshot::numbers(out, [self.opened_here, self.allowed_here, self.opened_by_peer]);
        snapshot::numbers(out, [self.closed_of_peer, self.granted, self.at_once, self.most]);
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let [opened_here, allowed_here, opened_by_peer] = snapshot::read_numbers(reader)?;
        let [closed_of_peer, granted, at_once, most] = snapshot::read_numbers(reader)?;
        let within = closed_of_peer <= opened_by_peer && opened_by_peer <= granted;
        // So that no sum overflows, and what may be open grows.
        let sane = opened_here.max(opened_by_peer).max(at_once).max(most) <= MAX_GRANT && at_once > 0;
        if !within || !sane || granted > closed_of_peer.saturating_add(at_once) {
            return Err(DecodeError::Invalid("stream numbers"));
        }
        Ok(Self { opened_here, allowed_here, opened_by_peer, closed_of_peer, granted, at_once, most })
    }

    /// Takes in how many streams the peer allows. Limits never shrink.
    pub(crate) fn allow(&mut self, limit: u64) {
        self.allowed_here = self.allowed_here.max(limit);
    }

    /// Returns the index of the next stream of this side, unless the peer allows no more.
    pub(crate) fn open(&mut self) -> Option<u64> {
        let next = self.opened_here;
        (next < self.allowed_here).then(|| {
            self.opened_here += 1;
            next
        })
    }

    /// Returns true if this side has opened the stream with this index.
    pub(crate) fn is_opened_here(&self, index: u64) -> bool {
        index < self.opened_here
    }

    /// Returns true if the peer has opened the stream with this index.
    pub(crate) fn is_opened_by_peer(&self, index: u64) -> bool {
        index < self.opened_by_peer
    }

    /// Returns how many streams of the peer are not forgotten.
    pub(crate) fn open_of_peer(&self) -> u64 {
        self.opened_by_peer - self.closed_of_peer
    }

    /// Returns true if the peer may name the stream with this index of its own.
    pub(crate) fn is_granted(&self, index: u64) -> bool {
        index < self.granted
    }

    /// Returns the index of the next stream that the peer opens by naming `index`, if any is left.
    pub(crate) fn open_up_to(&mut self, index: u64) -> Option<u64> {
        let next = self.opened_by_peer;
        (next <= index).then(|| {
            self.opened_by_peer += 1;
            next
        })
    }

    /// Notes that a stream of the peer is forgotten.
    pub(crate) fn note_closed(&mut self) {
        self.closed_of_peer += 1;
    }

    /// Raises what the peer may open, if that is worth telling.
    pub(crate) fn raise(&mut self) -> bool {
        while self.opened_by_peer - self.closed_of_peer >= self.at_once / 2 && self.at_once < self.most {
            self.at_once = (self.at_once * 2).min(self.most);
        }
        let limit = self.closed_of_peer + self.at_once;
        // In steps, not for every stream.
        let worthwhile = limit - self.granted >= (self.at_once / 4).max(1);
        if worthwhile {
            self.granted = limit;
        }
        worthwhile
    }

    /// Returns how many streams the peer may open in all.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has the peer open all that it may until it is allowed no more.
    fn open_all(numbers: &mut StreamNumbers) {
        loop {
            while numbers.open_up_to(numbers.granted() - 1).is_some() {}
            if !numbers.raise() {
                return;
            }
        }
    }

    #[test]
    fn what_the_peer_may_open_grows_with_use_up_to_the_maximum() {
        let mut numbers = StreamNumbers::new(0, 16, 1000);
        assert!(!numbers.raise(), "nothing was used");
        open_all(&mut numbers);
        assert_eq!(numbers.granted(), 1000);
    }

    #[test]
    fn numbers_that_were_written_down_are_read_back_if_they_can_be_true() {
        let read = |numbers: [u64; 7]| {
            let mut bytes = Vec::new();
            snapshot::numbers(&mut bytes, numbers);
            StreamNumbers::read_back(&mut Reader::new(&bytes)).map(|read| {
                let mut again = Vec::new();
                read.write_down(&mut again);
                again == bytes
            })
        };
        // Opened and allowed here, opened and closed by the peer, granted, at once, at most.
        assert_eq!(read([1, 9, 5, 2, 10, 8, 100]), Ok(true));
        for wrong in [
            [1, 9, 5, 6, 10, 8, 100],  // more closed than opened
            [1, 9, 11, 5, 10, 8, 100], // more opened than granted
            [1, 9, 5, 2, 11, 8, 100],  // more granted than may be open at once
            [1, 9, 5, 5, 5, 0, 100],   // none may be open: twice that is none
            [MAX_GRANT + 1, MAX_GRANT + 1, 5, 2, 10, 8, 100],
            [1, 9, 5, 2, 10, 8, MAX_GRANT + 1],
        ] {
            assert_eq!(read(wrong), Err(DecodeError::Invalid("stream numbers")), "{wrong:?}");
        }
    }

    #[test]
    fn streams_that_are_over_make_room_for_others() {
        let mut numbers = StreamNumbers::new(0, 16, 16);
        open_all(&mut numbers);
        assert_eq!(numbers.granted(), 16);
        (0..4).for_each(|_| numbers.note_closed());
        assert!(numbers.raise());
        assert_eq!(numbers.granted(), 20);
    }

    #[test]
    fn this_side_opens_what_the_peer_allows() {
        let mut numbers = StreamNumbers::new(1, 16, 16);
        assert_eq!((numbers.open(), numbers.open()), (Some(0), None));
        numbers.allow(2);
        assert_eq!((numbers.open(), numbers.open()), (Some(1), None));
        assert!(numbers.is_opened_here(1) && !numbers.is_opened_here(2));
    }
}
