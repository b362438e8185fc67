//! How long a connection waits for its peer, and for what.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::DecodeError;
use crate::snapshot;
use crate::varint::Reader;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const HOUR: Duration = ms(3_600_000);
const DAY: Duration = ms(24 * 3_600_000);

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
    /// After this much silence on a path a client asks for a sign of life, a server after twice as much. 100 ms
    /// to a day; default 60 s.
    pub heartbeat: Duration,
    /// No silence shorter than this makes a path suspect, however short its round trip is. 20 ms to 10 s;
    /// default 100 ms.
    pub suspect_least: Duration,
    /// Each silence longer than this makes a path suspect on which an answer is due. 100 ms to an hour, and not
    /// below `suspect_least`; default 10 s.
    pub suspect_most: Duration,
    /// The peer is called unreachable when no path works and nothing was heard of it for so long. At most a day;
    /// default 0: as soon as no path works.
    pub unreachable_after: Duration,
    /// As long as it is unreachable, that is said again so often to whoever follows it. 100 ms to a day; default
    /// 1 s.
    pub unreachable_every: Duration,
    /// A side that closes waits no longer than this for a path, or for the peer's answer. 1 s to a day; default
    /// 600 s. A shorter linger time counts instead.
    pub closing: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            heartbeat: ms(60_000),
            suspect_least: ms(100),
            suspect_most: ms(10_000),
            unreachable_after: Duration::ZERO,
            unreachable_every: ms(1000),
            closing: ms(600_000),
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

    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        let mut copy = *self;
        copy.parts().iter().for_each(|(_, value, _)| snapshot::time(out, **value));
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut this = Self::default();
        for (_, value, _) in this.parts() {
            *value = snapshot::read_time(reader)?;
        }
        this.check().map_err(|_| DecodeError::Invalid("timeout"))?;
        Ok(this)
    }

    fn parts(&mut self) -> [(&'static str, &mut Duration, RangeInclusive<Duration>); 6] {
        // The upper bound depends on the lower one, which is brought within its range first.
        let least = self.suspect_least.clamp(ms(100), ms(10_000));
        [
            ("heartbeat", &mut self.heartbeat, ms(100)..=DAY),
            ("suspect_least", &mut self.suspect_least, ms(20)..=ms(10_000)),
            ("suspect_most", &mut self.suspect_most, least..=HOUR),
            ("unreachable_after", &mut self.unreachable_after, Duration::ZERO..=DAY),
            ("unreachable_every", &mut self.unreachable_every, ms(100)..=DAY),
            ("closing", &mut self.closing, ms(1000)..=DAY),
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
}
