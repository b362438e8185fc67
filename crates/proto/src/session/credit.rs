//! Credit of a whole connection: how many bytes, counted over all streams, each side may send.
//!
//! Two limits bound what the peer may send. The *window* is how far it may be ahead of what has arrived here,
//! and is what keeps a path full. The *unread limit* is how far it may be ahead of what the application has
//! read, and is what bounds memory. It is much larger than the window: a stream that nobody reads holds no
//! more than its own window (see [`Window`](crate::stream::Window)), and as long as the sum of these stays
//! below the unread limit, it takes nothing from the others.

use crate::error::{DecodeError, ProtocolError};
use crate::params::MAX_GRANT;
use crate::snapshot;
use crate::varint::Reader;

/// Streams of one connection that are independent of each other: however many of them are never read, the
/// others run on. Beyond, streams share what is left.
pub(crate) const INDEPENDENT_STREAMS: u64 = 4096;
/// A stream's window may grow to this part of what may still be held unread.
const GROWN_PART: u64 = 16;
/// A stream is granted this part when it is opened.
const OPENED_PART: u64 = 128;

/// Both directions' connection credit.
#[derive(Debug)]
pub(crate) struct Credit {
    sent: u64,
    allowed: u64,
    received: u64,
    consumed: u64,
    granted: u64,
    window: u64,
    unread_limit: u64,
    /// Of the unread limit, what each of the independent streams can count on.
    share: u64,
}

impl Credit {
    /// The peer may be `window` bytes ahead of what has arrived, and the application `unread_limit` bytes
    /// behind it. `stream_window` is what the peer may send on each stream at first, `allowed` what this side
    /// may send.
    pub(crate) fn new(window: u64, unread_limit: u64, stream_window: u64, allowed: u64) -> Self {
        Self {
            sent: 0,
            allowed,
            received: 0,
            consumed: 0,
            granted: window,
            window,
            unread_limit,
            share: stream_window.min(unread_limit / 3 * 2 / INDEPENDENT_STREAMS),
        }
    }

    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        let limits = [self.granted, self.window, self.unread_limit, self.share];
        snapshot::numbers(out, [self.sent, self.allowed, self.received, self.consumed]);
        snapshot::numbers(out, limits);
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let [sent, allowed, received, consumed] = snapshot::read_numbers(reader)?;
        let [granted, window, unread_limit, share] = snapshot::read_numbers(reader)?;
        let within = sent <= allowed && consumed <= received && received <= granted;
        // So that no sum overflows.
        let sane = unread_limit <= MAX_GRANT && window <= MAX_GRANT && received <= snapshot::MOST_COUNTED;
        let settled = granted <= received.min(consumed.saturating_add(unread_limit)).saturating_add(window);
        if !(within && sane && settled) {
            return Err(DecodeError::Invalid("credit"));
        }
        Ok(Self { sent, allowed, received, consumed, granted, window, unread_limit, share })
    }

    /// Takes in how much the peer allows. Limits never shrink.
    pub(crate) fn allow(&mut self, limit: u64) {
        self.allowed = self.allowed.max(limit);
    }

    /// Returns how many bytes may be sent for the first time.
    pub(crate) fn room(&self) -> u64 {
        self.allowed - self.sent
    }

    /// Notes that `bytes` were sent for the first time.
    pub(crate) fn note_sent(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// Notes that `bytes` arrived. Returns true if the peer should be told a new limit.
    ///
    /// # Errors
    /// [`ProtocolError::FlowControl`] if the peer was not allowed as much.
    pub(crate) fn receive(&mut self, bytes: u64) -> Result<bool, ProtocolError> {
        self.received += bytes;
        if self.received > self.granted {
            return Err(ProtocolError::FlowControl);
        }
        Ok(self.raise())
    }

    /// Notes that `bytes` were read or dropped. Returns true if the peer should be told a new limit.
    pub(crate) fn consume(&mut self, bytes: u64) -> bool {
        self.consumed += bytes;
        self.raise()
    }

    fn raise(&mut self) -> bool {
        let limit = self.received.min(self.consumed + self.unread_limit) + self.window;
        // In steps, not for every segment.
        let worthwhile = limit - self.granted >= self.window / 2;
        if worthwhile {
            self.granted = limit;
        }
        worthwhile
    }

    /// Returns how many bytes the peer may send in all.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    /// Returns how many bytes arrived that the application has not read; gaps before them count.
    pub(crate) fn unread(&self) -> u64 {
        self.received - self.consumed
    }

    /// Returns how large the window of a stream may grow while `streams` are open.
    pub(crate) fn grown_window(&self, streams: usize) -> u64 {
        self.to_spare(streams) / GROWN_PART
    }

    /// Returns how large the window of a stream may be that was just opened, `streams` being open.
    pub(crate) fn opening_window(&self, streams: usize) -> u64 {
        self.to_spare(streams) / OPENED_PART
    }

    /// What streams beyond the open ones do not depend on.
    fn to_spare(&self, streams: usize) -> u64 {
        let further = INDEPENDENT_STREAMS.saturating_sub(streams as u64);
        self.unread_limit.saturating_sub(self.unread()).saturating_sub(further.saturating_mul(self.share))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const WINDOW: u64 = 1000;
    const UNREAD: u64 = 10_000;

    fn credit() -> Credit {
        Credit::new(WINDOW, UNREAD, 100, 0)
    }

    #[test]
    fn what_was_written_down_is_read_back_if_it_can_be_true() {
        let read = |numbers: [u64; 8]| {
            let mut bytes = Vec::new();
            snapshot::numbers(&mut bytes, numbers);
            Credit::read_back(&mut Reader::new(&bytes)).map(|read| {
                let mut again = Vec::new();
                read.write_down(&mut again);
                again == bytes
            })
        };
        // Sent, allowed, received, consumed, granted, window, unread limit, share.
        assert_eq!(read([5, 9, 700, 600, 1700, WINDOW, UNREAD, 100]), Ok(true));
        for wrong in [
            [10, 9, 700, 600, 1700, WINDOW, UNREAD, 100],
            [5, 9, 700, 701, 1700, WINDOW, UNREAD, 100],
            [5, 9, 1701, 600, 1700, WINDOW, UNREAD, 100],
            [5, 9, 700, 600, 1701, WINDOW, UNREAD, 100],
            [5, 9, 700, 600, 1700, MAX_GRANT + 1, UNREAD, 100],
            [5, 9, 700, 600, 1700, WINDOW, MAX_GRANT + 1, 100],
            [5, 9, (1 << 61) + 1, 1 << 61, (1 << 61) + 2, WINDOW, UNREAD, 100],
        ] {
            assert_eq!(read(wrong), Err(DecodeError::Invalid("credit")), "{wrong:?}");
        }
    }

    #[test]
    fn shares_that_are_too_large_leave_nothing_to_spare() {
        let credit = Credit { share: u64::MAX, ..credit() };
        assert_eq!((credit.grown_window(1), credit.opening_window(1)), (0, 0));
    }

    #[test]
    fn bytes_that_nobody_reads_take_nothing_from_the_window() {
        let mut credit = credit();
        for _ in 0..UNREAD / WINDOW {
            assert!(credit.receive(WINDOW).unwrap());
            assert_eq!(credit.granted() - credit.unread(), WINDOW);
        }
    }

    #[test]
    fn the_peer_is_never_allowed_more_than_both_limits_together() {
        let mut credit = credit();
        while credit.receive(WINDOW / 2).is_ok() {}
        assert_eq!(credit.granted(), WINDOW + UNREAD);
        assert!(credit.consume(WINDOW / 2), "what is read makes room");
        assert_eq!(credit.granted(), WINDOW + UNREAD + WINDOW / 2);
    }

    #[test]
    fn a_peer_that_sends_more_than_it_may_is_told() {
        assert_eq!(credit().receive(WINDOW + 1), Err(ProtocolError::FlowControl));
    }

    #[test]
    fn limits_never_shrink_and_what_was_sent_counts() {
        let mut credit = credit();
        credit.allow(500);
        credit.allow(200);
        credit.note_sent(100);
        assert_eq!(credit.room(), 400);
    }

    #[test]
    fn windows_do_not_grow_at_the_cost_of_streams_to_come() {
        let share = 100;
        let mut credit = Credit::new(WINDOW, 2 * share * INDEPENDENT_STREAMS, share, 0);
        let at_first = credit.grown_window(0);
        for _ in 0..INDEPENDENT_STREAMS {
            credit.receive(share).unwrap();
        }
        let streams = INDEPENDENT_STREAMS as usize;
        assert!(credit.grown_window(streams) >= at_first, "each holds its share and no more");
        credit.receive(WINDOW / 2).unwrap();
        assert!(credit.grown_window(streams) < at_first);
        assert!(credit.opening_window(streams) < credit.grown_window(streams));
    }
}
