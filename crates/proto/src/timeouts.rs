//! How long a connection waits for its peer, and for what.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::DecodeError;
use crate::snapshot::{self, FEW_TIMEOUTS};
use crate::varint::Reader;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const HOUR: Duration = ms(3_600_000);
const DAY: Duration = ms(24 * 3_600_000);

/// How many times there are.
const PARTS: usize = 9;

/// How long a connection waits for what. Each time has a range: [`check`](Self::check) tells of the first
/// that lies outside, and a configuration's are brought within.
///
/// ```
/// use std::time::Duration;
/// use whimbrel_proto::Timeouts;
///
/// // Says after two seconds that the peer is out of reach.
/// let watchful = Timeouts {
///     heartbeat: Duration::from_secs(1),
///     unreachable_after: Duration::from_secs(2),
///     ..Timeouts::default()
/// };
/// assert!(watchful.check().is_ok());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// After this much silence on a path a client asks for a sign of life, a server after twice as much. 100
    /// ms to a day; default 60 s.
    pub heartbeat: Duration,
    /// No silence shorter than this makes a path suspect, however short its round trip is. 20 ms to 10 s;
    /// default 100 ms.
    pub suspect_least: Duration,
    /// Each silence longer than this makes a path suspect on which an answer is due. 100 ms to an hour, and
    /// not below `suspect_least`; default 10 s.
    pub suspect_most: Duration,
    /// The peer is called unreachable when no path works and nothing was heard of it for so long. At most a
    /// day; default 0: as soon as no path works.
    pub unreachable_after: Duration,
    /// As long as it is unreachable, that is said again so often to whoever follows it. 100 ms to a day;
    /// default 1 s.
    pub unreachable_every: Duration,
    /// A side that closes waits no longer than this for a path, or for the peer's answer. 1 s to a day;
    /// default 600 s. A shorter linger time counts instead.
    pub closing: Duration,
    /// An unreliable message without a lifetime of its own waits no longer than this for a path that takes
    /// it. A change holds for messages that are sent after it. 10 ms to an hour; default 1 s.
    pub unreliable_patience: Duration,
    /// On a path that is given up in order, the peer has so much longer than for an answer to finish what it
    /// sends there. At most a minute; default 500 ms.
    pub last_words: Duration,
    /// A server's connection rests, packed, when no path was there for so long and nothing keeps it awake:
    /// most moves should be over by then. Where the peer is suspended, after 100 ms. 100 ms to a day; default
    /// 2 s.
    pub rest_after: Duration,
}

impl Default for Timeouts {
    /// As documented at each. These are part of the format of snapshots, which leave them out: others need
    /// another version.
    fn default() -> Self {
        Self {
            heartbeat: ms(60_000),
            suspect_least: ms(100),
            suspect_most: ms(10_000),
            unreachable_after: Duration::ZERO,
            unreachable_every: ms(1000),
            closing: ms(600_000),
            unreliable_patience: ms(1000),
            last_words: ms(500),
            rest_after: ms(2000),
        }
    }
}

/// A time outside of its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{name} must be from {least:?} to {most:?}, not {value:?}")]
#[non_exhaustive]
pub struct BadTimeout {
    /// Which of the [`Timeouts`].
    pub name: &'static str,
    /// What it was.
    pub value: Duration,
    /// The shortest that is allowed.
    pub least: Duration,
    /// The longest.
    pub most: Duration,
}

impl Timeouts {
    /// # Errors
    /// [`BadTimeout`] tells of the first time that lies outside of its range.
    pub fn check(&self) -> Result<(), BadTimeout> {
        let mut copy = *self;
        for (name, value, range) in copy.parts() {
            if !range.contains(value) {
                let (least, most) = (*range.start(), *range.end());
                return Err(BadTimeout { name, value: *value, least, most });
            }
        }
        Ok(())
    }

    /// Brings each within its range.
    pub(crate) fn clamp(&mut self) {
        for (_, value, range) in self.parts() {
            *value = (*value).clamp(*range.start(), *range.end());
        }
    }

    /// Writes those down that are not as usual: which they are, a bit for each, and what they are.
    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        let (mut own, mut usual) = (*self, Self::default());
        let (own, usual) = (own.parts(), usual.parts());
        let differs = |at: &usize| own[*at].1 != usual[*at].1;
        snapshot::number(out, (0..PARTS).filter(differs).fold(0, |bits, at| bits | 1 << at));
        (0..PARTS).filter(differs).for_each(|at| snapshot::time(out, *own[at].1));
    }

    /// Reads what a snapshot of that version has of them; the others are as usual.
    pub(crate) fn read_back(reader: &mut Reader<'_>, version: u8) -> Result<Self, DecodeError> {
        // Versions of before had the first six, whatever they were.
        let which = if version < FEW_TIMEOUTS { 0b11_1111 } else { reader.varint()? };
        if which >> PARTS != 0 {
            return Err(DecodeError::Invalid("timeout"));
        }
        let mut this = Self::default();
        for (at, (_, value, _)) in this.parts().into_iter().enumerate() {
            if which >> at & 1 == 1 {
                *value = snapshot::read_time(reader)?;
            }
        }
        this.check().map_err(|_| DecodeError::Invalid("timeout"))?;
        Ok(this)
    }

    fn parts(&mut self) -> [(&'static str, &mut Duration, RangeInclusive<Duration>); PARTS] {
        // The upper bound depends on the lower one, which is brought within its range first.
        let least = self.suspect_least.clamp(ms(100), ms(10_000));
        [
            ("heartbeat", &mut self.heartbeat, ms(100)..=DAY),
            ("suspect_least", &mut self.suspect_least, ms(20)..=ms(10_000)),
            ("suspect_most", &mut self.suspect_most, least..=HOUR),
            ("unreachable_after", &mut self.unreachable_after, Duration::ZERO..=DAY),
            ("unreachable_every", &mut self.unreachable_every, ms(100)..=DAY),
            ("closing", &mut self.closing, ms(1000)..=DAY),
            ("unreliable_patience", &mut self.unreliable_patience, ms(10)..=HOUR),
            ("last_words", &mut self.last_words, Duration::ZERO..=ms(60_000)),
            ("rest_after", &mut self.rest_after, ms(100)..=DAY),
        ]
    }

    /// What makes a path suspect, for a peer that may hold an acknowledgement back for so long.
    pub(crate) fn silence(&self, ack_delay: Duration) -> Silence {
        Silence { ack_delay, least: self.suspect_least, most: self.suspect_most }
    }
}

/// How long a silence makes a path suspect, as far as that does not depend on the path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Silence {
    /// What the peer may hold back.
    pub(crate) ack_delay: Duration,
    pub(crate) least: Duration,
    pub(crate) most: Duration,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_time_outside_of_its_range_is_named_and_can_be_brought_within() {
        assert!(Timeouts::default().check().is_ok());
        let mut timeouts = Timeouts {
            heartbeat: Duration::ZERO,
            suspect_least: ms(5000),
            suspect_most: ms(1000),
            closing: Duration::MAX,
            ..Timeouts::default()
        };
        let error = timeouts.check().unwrap_err();
        assert_eq!(error.to_string(), "heartbeat must be from 100ms to 86400s, not 0ns");
        timeouts.heartbeat = ms(100);
        assert_eq!(timeouts.check().unwrap_err().name, "suspect_most", "it is below the other one");
        timeouts.clamp();
        assert!(timeouts.check().is_ok());
        assert_eq!((timeouts.suspect_most, timeouts.closing), (ms(5000), DAY));
    }

    #[test]
    fn times_that_are_not_as_usual_are_written_down_and_those_of_older_versions_are_read() {
        let unusual = Timeouts { heartbeat: ms(7000), rest_after: ms(300), ..Timeouts::default() };
        for (timeouts, size) in [(Timeouts::default(), 1), (unusual, 2 + 4 + 4)] {
            let mut bytes = Vec::new();
            timeouts.write_down(&mut bytes);
            assert_eq!(bytes.len(), size);
            assert_eq!(Timeouts::read_back(&mut Reader::new(&bytes), FEW_TIMEOUTS), Ok(timeouts));
        }
        let mut before = Vec::new();
        for millis in [7000, 100, 10_000, 0, 1000, 600_000] {
            snapshot::time(&mut before, ms(millis));
        }
        let read = Timeouts::read_back(&mut Reader::new(&before), FEW_TIMEOUTS - 1);
        // What is left out means these for ever.
        let all = Timeouts {
            heartbeat: ms(7000),
            suspect_least: ms(100),
            suspect_most: ms(10_000),
            unreachable_after: Duration::ZERO,
            unreachable_every: ms(1000),
            closing: ms(600_000),
            unreliable_patience: ms(1000),
            last_words: ms(500),
            rest_after: ms(2000),
        };
        assert_eq!(read, Ok(all));
        assert_eq!(all, Timeouts { heartbeat: ms(7000), ..Timeouts::default() });
        // A time that is not known, and one outside of its range.
        let mut too_short = vec![1];
        snapshot::time(&mut too_short, ms(1));
        for bytes in [&[0x42, 0][..], &too_short] {
            let read = Timeouts::read_back(&mut Reader::new(bytes), FEW_TIMEOUTS);
            assert_eq!(read, Err(DecodeError::Invalid("timeout")));
        }
    }
}
