//! What journals say to each other (docs/protocol.md, §6c).

use super::MAX_LABEL;

/// Journals that may be offered on one connection, each way.
pub(super) const MAX_INDEX: u8 = 32;
/// Numbers of messages are below this.
const MAX_NUMBER: u64 = 1 << 62;

const HELLO: u8 = 0;
const OFFER: u8 = 1;
const DATA: u8 = 2;
const START: u8 = 0;
const ACK: u8 = 1;

/// What a writer of messages says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Note<'a> {
    /// It begins, or begins anew: what was said before on the connection is forgotten. Of two connections of
    /// one store, the one of the later opening is the living process's.
    Hello { store: u128, opening: u64 },
    /// A journal, by the index that stands for it on this connection; it has its messages from `first` on.
    Offer { index: u8, journal: u128, first: u64, label: &'a str },
    /// A message: a [stamp](Stamp), and the content.
    Data { index: u8, number: u64, data: &'a [u8] },
}

/// Which opening of a store a message was written in: a random number. Two messages with the same number and
/// another stamp were written by copies of one store that went different ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp(pub(super) u64);

/// Bytes of a stamp.
pub(super) const STAMP: usize = 8;

/// A message as it is kept and sent: its stamp, then its content.
pub(super) fn envelope(stamp: Stamp, content: &[u8]) -> Vec<u8> {
    [&stamp.0.to_be_bytes()[..], content].concat()
}

/// The stamp of a message; `None` if it is cut off.
pub(super) fn stamp_of(message: &[u8]) -> Option<Stamp> {
    message.first_chunk().map(|stamp| Stamp(u64::from_be_bytes(*stamp)))
}

/// What a reader of messages says of a journal, which it names by its id: an answer may come late, when an
/// index stands for another one. All up to `low` are acknowledged, and on its disk as such; `stamp` is that
/// message's, as far as it knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The journal's messages from `low + 1` on shall come.
    Start { journal: u128, low: u64, stamp: Option<Stamp> },
    /// So many are acknowledged now.
    Ack { journal: u128, low: u64, stamp: Option<Stamp> },
}

/// What makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Violation(pub(super) &'static str);

/// A label is text that can be printed, not empty, of at most [`MAX_LABEL`] bytes.
pub(super) fn is_label(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_LABEL && !text.contains(char::is_control)
}

impl<'a> Note<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        match *self {
            Self::Hello { store, opening } => {
                [&[HELLO][..], &store.to_be_bytes(), &opening.to_be_bytes()].concat()
            }
            Self::Offer { index, journal, first, label } => {
                [&[OFFER, index][..], &journal.to_be_bytes(), &first.to_be_bytes(), label.as_bytes()].concat()
            }
            Self::Data { index, number, data } => [&[DATA, index][..], &number.to_be_bytes(), data].concat(),
        }
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, Violation> {
        let mut reader = Reader(bytes);
        match reader.byte()? {
            HELLO => {
                let (store, opening) = (u128::from_be_bytes(reader.array()?), reader.number()?);
                Ok(Self::Hello { store, opening })
            }
            OFFER => {
                let index = reader.index()?;
                let (journal, first) = (u128::from_be_bytes(reader.array()?), reader.number()?);
                let label = std::str::from_utf8(reader.0).ok().filter(|label| is_label(label));
                let label = label.ok_or(Violation("a journal's label is not printable text"))?;
                match first {
                    0 => Err(Violation("messages are numbered from 1")),
                    first => Ok(Self::Offer { index, journal, first, label }),
                }
            }
            DATA => {
                let (index, number, data) = (reader.index()?, reader.number()?, reader.0);
                stamp_of(data).ok_or(Violation("a message without its stamp"))?;
                Ok(Self::Data { index, number, data })
            }
            _ => Err(Violation("a journal's note of an unknown kind")),
        }
    }
}

impl Answer {
    pub(super) fn encode(self) -> Vec<u8> {
        let (kind, journal, low, stamp) = match self {
            Self::Start { journal, low, stamp } => (START, journal, low, stamp),
            Self::Ack { journal, low, stamp } => (ACK, journal, low, stamp),
        };
        let stamp = stamp.map(|Stamp(stamp)| stamp.to_be_bytes());
        let stamp = stamp.as_ref().map_or(&[][..], |stamp| stamp);
        [&[kind][..], &journal.to_be_bytes(), &low.to_be_bytes(), stamp].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Violation> {
        let mut reader = Reader(bytes);
        let kind = reader.byte()?;
        let (journal, low) = (u128::from_be_bytes(reader.array()?), reader.number()?);
        let stamp = if reader.0.is_empty() { None } else { Some(Stamp(u64::from_be_bytes(reader.array()?))) };
        match kind {
            START => Ok(Self::Start { journal, low, stamp }),
            ACK => Ok(Self::Ack { journal, low, stamp }),
            _ => Err(Violation("a journal's answer of an unknown kind")),
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Violation> {
        let (array, rest) = self.0.split_first_chunk().ok_or(Violation("a journal's note is cut off"))?;
        self.0 = rest;
        Ok(*array)
    }

    fn byte(&mut self) -> Result<u8, Violation> {
        Ok(self.array::<1>()?[0])
    }

    fn index(&mut self) -> Result<u8, Violation> {
        match self.byte()? {
            index if index < MAX_INDEX => Ok(index),
            _ => Err(Violation("too many journals on one connection")),
        }
    }

    fn number(&mut self) -> Result<u64, Violation> {
        match u64::from_be_bytes(self.array()?) {
            number if number < MAX_NUMBER => Ok(number),
            _ => Err(Violation("a message's number is too large")),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn notes_and_answers_round_trip_and_no_part_of_one_is_taken_for_another() {
        let notes = [
            Note::Hello { store: 7 << 100, opening: 3 },
            Note::Offer { index: 31, journal: 1 << 127, first: 1, label: "readings" },
            Note::Data { index: 0, number: MAX_NUMBER - 1, data: b"stamped:20.5" },
        ];
        for note in notes {
            let bytes = note.encode();
            assert_eq!(Note::decode(&bytes).unwrap(), note);
            for end in 0..bytes.len() {
                assert_ne!(Note::decode(&bytes[..end]), Ok(note));
            }
        }
        for answer in [
            Answer::Start { journal: 1, low: 0, stamp: None },
            Answer::Ack { journal: 1 << 127, low: 9, stamp: Some(Stamp(7)) },
        ] {
            let bytes = answer.encode();
            assert_eq!(Answer::decode(&bytes).unwrap(), answer);
            assert!((0..bytes.len()).all(|end| Answer::decode(&bytes[..end]) != Ok(answer)));
        }
    }

    #[test]
    fn what_is_beyond_a_limit_is_refused() {
        assert!(Note::decode(&[9]).is_err() && Answer::decode(&[9; 25]).is_err());
        let far = Note::Data { index: MAX_INDEX, number: 1, data: b"stamped:" };
        assert!(Note::decode(&far.encode()).is_err());
        let large = Note::Data { index: 0, number: MAX_NUMBER, data: b"stamped:" };
        assert!(Note::decode(&large.encode()).is_err());
        let cut = Note::Data { index: 0, number: 1, data: b"stamped" };
        assert!(Note::decode(&cut.encode()).is_err());
        let offer = |first, label| Note::Offer { index: 0, journal: 1, first, label }.encode();
        let long = "x".repeat(MAX_LABEL + 1);
        for bad in [offer(0, "x"), offer(1, ""), offer(1, "a\nb"), offer(1, &long)] {
            assert!(Note::decode(&bad).is_err());
        }
    }

    #[test]
    fn whatever_comes_is_refused_or_can_be_said_again() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        let mut taken = 0;
        for _ in 0..50_000 {
            let mut bytes: Vec<u8> = (0..next() % 48).map(|_| next() % 128).collect();
            bytes.insert(0, next() % 4);
            // Small numbers and indices.
            (1..bytes.len().min(20)).for_each(|at| bytes[at] %= 32);
            if let Ok(note) = Note::decode(&bytes) {
                taken += 1;
                assert!(bytes.starts_with(&note.encode()));
            }
            if let Ok(answer) = Answer::decode(&bytes) {
                assert!(bytes.starts_with(&answer.encode()));
            }
        }
        assert!(taken > 1000, "only {taken} were taken");
    }
}
