//! What was received on one path, and what of that the peer has to be told.

use std::time::{Duration, Instant};

/// So many bytes are acknowledged at once; fewer after the acknowledgement delay.
const ACK_BYTES: u64 = 256 * 1024;
/// News of a path that is older goes on other paths too.
const ALONG: Duration = Duration::from_millis(100);

/// Segments received on a path, and how many of them were told.
#[derive(Debug)]
pub(crate) struct Incoming {
    segments: u64,
    bytes: u64,
    /// The peer retires the path: how many segments it has put on it in total.
    end: Option<u64>,
    /// Segments, as last told where the path is answered for.
    reported: u64,
    /// Segments, as last told along on another path.
    told_along: u64,
    /// Bytes received in segments that ask for an acknowledgement, since the last one.
    unreported_bytes: u64,
    newest_eliciting: Instant,
    /// When an acknowledgement becomes due.
    deadline: Option<Instant>,
    /// It should go with the next chance to send.
    due: bool,
}

impl Incoming {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            segments: 0,
            bytes: 0,
            end: None,
            reported: 0,
            told_along: 0,
            unreported_bytes: 0,
            newest_eliciting: now,
            deadline: None,
            due: false,
        }
    }

    /// Segments received so far.
    pub(crate) fn segments(&self) -> u64 {
        self.segments
    }

    /// Bytes received so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts a segment. False if the peer had said that there would be no further one.
    #[must_use]
    pub(crate) fn count(&mut self, size: usize) -> bool {
        self.segments += 1;
        self.bytes += size as u64;
        self.end.is_none_or(|end| self.segments <= end)
    }

    /// The peer puts `segments` on the path in total. False if that cannot be.
    #[must_use]
    pub(crate) fn ends_at(&mut self, segments: u64) -> bool {
        let holds = self.end.is_none_or(|end| end == segments) && segments >= self.segments;
        if holds {
            self.end = Some(segments);
        }
        holds
    }

    /// All that the peer will ever put on the path was received.
    pub(crate) fn is_whole(&self) -> bool {
        self.end == Some(self.segments)
    }

    /// A segment of `size` bytes wants an acknowledgement, within `delay`.
    pub(crate) fn owe(&mut self, now: Instant, size: usize, delay: Duration) {
        self.newest_eliciting = now;
        self.unreported_bytes += size as u64;
        if self.unreported_bytes >= ACK_BYTES || self.is_whole() {
            self.owe_now();
        } else if !self.due {
            self.deadline.get_or_insert(now + delay);
        }
    }

    /// An acknowledgement is due.
    pub(crate) fn owe_now(&mut self) {
        self.due = true;
        self.deadline = None;
    }

    /// Nothing is to be acknowledged here any more.
    pub(crate) fn owe_nothing(&mut self) {
        self.due = false;
        self.deadline = None;
    }

    /// What was told may not have arrived: it is told again.
    pub(crate) fn tell_again(&mut self) {
        if self.segments > 0 {
            self.reported = self.reported.min(self.segments - 1);
            self.owe_now();
        }
    }

    /// When an acknowledgement becomes due, unless it is already.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.due || self.deadline.is_some_and(|at| at <= now)
    }

    /// Something was received that asks for an acknowledgement and has none, or what was told is to be told
    /// again.
    pub(crate) fn is_owed(&self) -> bool {
        self.due || self.unreported_bytes > 0
    }

    /// Makes due what is due by `now`: from then on it is a matter of room on the carrier, not of time.
    pub(crate) fn expire(&mut self, now: Instant) {
        if self.is_due(now) {
            self.owe_now();
        }
    }

    /// Something was received since the last report.
    pub(crate) fn has_news(&self) -> bool {
        self.segments > self.reported
    }

    /// What was received may not be known to the peer if nothing comes back on this path.
    pub(crate) fn is_unheard(&self, now: Instant, srtt: Duration) -> bool {
        let age = now.saturating_duration_since(self.newest_eliciting);
        self.segments > self.told_along && age > srtt + ALONG
    }

    /// For how long the newest segment has waited for its acknowledgement.
    pub(crate) fn held_back(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.newest_eliciting)
    }

    /// The count was told where this path is answered for.
    pub(crate) fn note_told(&mut self) {
        self.reported = self.segments;
        self.unreported_bytes = 0;
        self.owe_nothing();
    }

    /// The count was told on another path besides.
    pub(crate) fn note_told_along(&mut self) {
        self.told_along = self.segments;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(25);

    #[test]
    fn an_acknowledgement_is_due_after_the_delay_or_when_much_came() {
        let now = Instant::now();
        let mut incoming = Incoming::new(now);
        assert!(incoming.count(100));
        incoming.owe(now, 100, DELAY);
        assert!(!incoming.is_due(now) && incoming.is_due(now + DELAY) && incoming.has_news());
        incoming.owe(now, ACK_BYTES as usize, DELAY);
        assert!(incoming.is_due(now));
        incoming.note_told();
        assert!(!incoming.is_due(now + DELAY) && !incoming.has_news());
        incoming.tell_again();
        assert!(incoming.is_due(now) && incoming.has_news());
    }

    #[test]
    fn what_was_told_along_is_told_there_again_only_when_more_has_come() {
        let (now, srtt) = (Instant::now(), DELAY);
        let later = now + srtt + ALONG + DELAY;
        let mut incoming = Incoming::new(now);
        assert!(incoming.count(100));
        incoming.owe(now, 100, DELAY);
        assert!(!incoming.is_unheard(now, srtt) && incoming.is_unheard(later, srtt));
        incoming.note_told_along();
        assert!(!incoming.is_unheard(later, srtt));
        assert!(incoming.count(100) && incoming.is_unheard(later, srtt));
    }

    #[test]
    fn the_last_segment_of_a_path_that_retires_is_acknowledged_at_once() {
        let now = Instant::now();
        let mut incoming = Incoming::new(now);
        assert!(incoming.count(10) && incoming.ends_at(2) && !incoming.is_whole());
        assert!(!incoming.ends_at(3), "it was 2");
        assert!(incoming.ends_at(2), "said again");
        assert!(incoming.count(10) && incoming.is_whole());
        incoming.owe(now, 10, DELAY);
        assert!(incoming.is_due(now));
        assert!(!incoming.count(10), "nothing may follow");
    }
}
