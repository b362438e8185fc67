//! How far the peer may be ahead of the reader on one stream.

use std::time::Duration;

use crate::error::DecodeError;
use crate::params::MAX_GRANT;
use crate::snapshot;
use crate::varint::Reader;

/// What there is to know, besides the stream, for a window to be set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Time since the connection began.
    pub(crate) now: Duration,
    /// A quarter of the window that arrives within this time shows that the sender could use more; a reader
    /// that takes what can be read within this time keeps up.
    pub(crate) patience: Duration,
    /// The window grows no larger than this.
    pub(crate) most: u64,
}

/// A stream's receive window. It begins small and doubles whenever a quarter of it arrives within about a
/// round trip and the reader takes all that can be read as quickly, and so is always ahead of a sender in
/// slow start. A reader that stalls, or never catches up, gets no more than it has: a larger window would
/// only be a longer queue.
#[derive(Debug)]
pub(crate) struct Window {
    /// Bytes that the peer may be ahead of the reader.
    size: u64,
    /// The size is never below this.
    least: u64,
    /// Offset up to which the peer may send.
    limit: u64,
    /// When the present measurement began, and how much had arrived before.
    since: Option<(Duration, u64)>,
    /// Since when something can be read.
    readable: Option<Duration>,
    /// A quarter of the window arrived quickly since the reader last caught up.
    pressed: bool,
}

impl Window {
    pub(crate) fn new(size: u64) -> Self {
        Self { size, least: size, limit: size, since: None, readable: None, pressed: false }
    }

    /// Writes itself down; what is being measured is not.
    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        snapshot::numbers(out, [self.size, self.least, self.limit]);
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let [size, least, limit] = snapshot::read_counts(reader)?;
        if size > MAX_GRANT || least > MAX_GRANT {
            return Err(DecodeError::TooLarge("window of a stream"));
        }
        Ok(Self { size, least, limit, since: None, readable: None, pressed: false })
    }

    /// Returns the offset up to which the peer may send.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Makes the window of a stream that carries nothing yet larger. Returns true if it grew.
    pub(crate) fn widen(&mut self, size: u64) -> bool {
        let grows = size > self.size;
        if grows {
            self.size = size;
            self.limit = self.limit.max(size);
        }
        grows
    }

    /// Notes that something arrived: `arrived` bytes so far, some of which can be read or not, by a reader
    /// that is at `consumed`. Returns true if the limit was raised.
    pub(crate) fn arrived(&mut self, arrived: u64, consumed: u64, readable: bool, pace: &Pace) -> bool {
        if readable {
            self.readable.get_or_insert(pace.now);
        }
        let (since, before) = *self.since.get_or_insert((pace.now, arrived));
        if arrived - before >= self.size / 4 {
            self.pressed |= pace.now.saturating_sub(since) <= pace.patience;
            self.since = None;
        }
        // A reader that waits for a gap to be filled has caught up. (One that has read little has shown
        // nothing yet.)
        if self.pressed && self.readable.is_none() && consumed >= self.size / 2 {
            self.pressed = false;
            self.size = self.size.saturating_mul(2);
            return self.raise(consumed, pace);
        }
        false
    }

    /// Notes that the reader is at `consumed`, and whether that is all that can be read. Returns true if the
    /// limit was raised.
    pub(crate) fn read_to(&mut self, consumed: u64, all: bool, pace: &Pace) -> bool {
        if all && let Some(since) = self.readable.take() {
            let pressed = std::mem::take(&mut self.pressed);
            if pressed && pace.now.saturating_sub(since) <= pace.patience {
                self.size = self.size.saturating_mul(2);
            }
        }
        self.raise(consumed, pace)
    }

    fn raise(&mut self, consumed: u64, pace: &Pace) -> bool {
        self.size = self.size.clamp(self.least, pace.most.max(self.least));
        let limit = consumed + self.size;
        // In steps, not for every read.
        let worthwhile = limit.saturating_sub(self.limit) >= self.size / 2;
        if worthwhile {
            self.limit = limit;
        }
        worthwhile
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 64 << 10;
    const MOST: u64 = 8 << 20;
    const PATIENCE: Duration = Duration::from_millis(100);

    fn pace(ms: u64) -> Pace {
        Pace { now: Duration::from_millis(ms), patience: PATIENCE, most: MOST }
    }

    #[test]
    fn a_window_is_ahead_of_a_sender_that_doubles_its_rate_each_round_trip() {
        let mut window = Window::new(START);
        let (mut flight, mut sent, mut now) = (14_600, 0, 0);
        while flight < MOST / 2 {
            assert!(
                window.limit() >= sent + flight,
                "{flight} bytes behind {sent}, {} allowed",
                window.limit()
            );
            for piece in (sent..sent + flight).step_by(1460) {
                window.arrived(piece + 1460, piece, true, &pace(now));
                window.read_to(piece + 1460, true, &pace(now));
            }
            (sent, flight, now) = (sent + flight, flight * 2, now + 100);
        }
        assert!(window.size <= MOST);
    }

    #[test]
    fn the_window_of_a_slow_sender_does_not_grow() {
        let mut window = Window::new(START);
        // 100 KB a second.
        for i in 0..20_000 {
            window.arrived((i + 1) << 10, i << 10, true, &pace(i * 10));
            window.read_to((i + 1) << 10, true, &pace(i * 10));
        }
        assert_eq!(window.size, START);
    }

    #[test]
    fn the_window_of_a_reader_that_never_catches_up_does_not_grow() {
        let mut window = Window::new(START);
        window.arrived(START, 0, true, &pace(0));
        // The sender fills all that is granted at once; 1 MB a second is read.
        for i in 1..20_000 {
            if window.read_to(i << 10, false, &pace(i)) {
                window.arrived(window.limit(), i << 10, true, &pace(i));
            }
        }
        assert_eq!(window.size, START);
    }

    #[test]
    fn a_reader_that_takes_everything_now_and_then_is_slow() {
        let mut window = Window::new(START);
        for second in 0..100 {
            let arrived = window.limit();
            window.arrived(arrived, arrived - START, true, &pace(second * 1000));
            window.read_to(arrived, true, &pace(second * 1000 + 900));
        }
        assert_eq!(window.size, START);
    }

    #[test]
    fn a_gap_does_not_count_as_slow_reading() {
        let mut window = Window::new(START);
        for piece in 1..=START >> 10 {
            window.arrived(piece << 10, 0, false, &pace(0));
        }
        window.arrived(START, 0, true, &pace(1000));
        assert!(window.read_to(START, true, &pace(1000)));
        assert_eq!(window.size, 2 * START);
    }

    #[test]
    fn a_window_shrinks_when_there_is_less_to_share_but_limits_do_not() {
        let mut window = Window::new(START);
        for i in 0..20_000 {
            window.arrived((i + 1) << 10, i << 10, true, &pace(0));
            window.read_to((i + 1) << 10, true, &pace(0));
        }
        assert_eq!(window.size, MOST);
        let limit = window.limit();
        let scarce = Pace { most: 0, ..pace(0) };
        assert!(!window.read_to(20_001 << 10, true, &scarce));
        assert_eq!((window.size, window.limit()), (START, limit));
    }
}
