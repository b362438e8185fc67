//! Messages that went, and came, on a path in datagrams of its carrier: outside of its segments, in any order,
//! and never again. Each side counts the datagrams that it sends on a path from 0; the other one tells which of
//! them it has.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::error::ProtocolError;
use crate::frame::MAX_DATAGRAM_RANGES;
use crate::ranges::RangeSet;

/// So many bytes may be without an answer: what is more goes in segments, which are answered by number.
const MOST_UNANSWERED: u64 = 128 * 1024;
/// So many datagrams are answered at once; fewer after the acknowledgement delay.
const ANSWER_AT_ONCE: u32 = 32;
/// A datagram is overtaken, not late, when so many newer ones arrived (RFC 9002 §6.1.1).
const OVERTAKEN: u64 = 3;

/// A message on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flying {
    /// The sender's name for it.
    pub(crate) id: u64,
    /// Its size.
    pub(crate) size: u64,
    number: u64,
    at: Instant,
    /// What the datagram took.
    bytes: u64,
}

/// What an answer says of messages.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    pub(crate) arrived: SmallVec<[Flying; 4]>,
    pub(crate) lost: SmallVec<[Flying; 4]>,
}

#[derive(Debug)]
pub(crate) struct Datagrams {
    /// Bytes that the carrier takes in one now; 0: it takes none.
    room: u64,
    /// The number of the next one.
    next: u64,
    flying: VecDeque<Flying>,
    unanswered: u64,
    sent_bytes: u64,
    /// A sign of life was asked for when one left, since only segments show that the path works.
    asked: Option<Instant>,
    /// Numbers that came, the newest.
    came: RangeSet,
    came_bytes: u64,
    /// How many of them the peer has to be told of, and when.
    unsaid: u32,
    deadline: Option<Instant>,
    due: bool,
}

impl Datagrams {
    pub(super) fn new() -> Self {
        Self {
            room: 0,
            next: 0,
            flying: VecDeque::new(),
            unanswered: 0,
            sent_bytes: 0,
            asked: None,
            came: RangeSet::default(),
            came_bytes: 0,
            unsaid: 0,
            deadline: None,
            due: false,
        }
    }

    /// The carrier takes datagrams of so many bytes now.
    pub(crate) fn set_room(&mut self, room: u64) {
        self.room = room;
    }

    /// Bytes that one may have now.
    pub(crate) fn room(&self) -> u64 {
        if self.unanswered < MOST_UNANSWERED { self.room } else { 0 }
    }

    /// The number of the next one.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Notes that the next one leaves, with a message.
    pub(crate) fn note(&mut self, now: Instant, id: u64, size: u64, bytes: u64) {
        self.flying.push_back(Flying { id, size, number: self.next, at: now, bytes });
        self.next += 1;
        self.unanswered += bytes;
        self.sent_bytes += bytes;
    }

    /// A sign of life should be asked for with it, if none was within `interval`.
    pub(crate) fn asks(&mut self, now: Instant, interval: Duration) -> bool {
        let asks = self.asked.is_none_or(|at| now >= at + interval);
        if asks {
            self.asked = Some(now);
        }
        asks
    }

    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    pub(crate) fn came_bytes(&self) -> u64 {
        self.came_bytes
    }

    /// The peer has these. What left long before the newest of them, and a round trip ago, is lost.
    pub(crate) fn answer(
        &mut self,
        now: Instant,
        round_trip: Duration,
        came: &[Range<u64>],
    ) -> Result<Answered, ProtocolError> {
        let newest = came.iter().map(|range| range.end).max().unwrap_or_default();
        if newest > self.next {
            return Err(ProtocolError::AckOfUnsent);
        }
        let late = round_trip + round_trip / 8;
        let mut answered = Answered::default();
        self.flying.retain(|flying| {
            if came.iter().any(|range| range.contains(&flying.number)) {
                answered.arrived.push(*flying);
            } else if flying.number + OVERTAKEN < newest && now >= flying.at + late {
                answered.lost.push(*flying);
            } else {
                return true;
            }
            self.unanswered -= flying.bytes;
            false
        });
        Ok(answered)
    }

    /// When the oldest has been without an answer for `patience`.
    pub(crate) fn loss_deadline(&self, patience: Duration) -> Option<Instant> {
        self.flying.front().map(|flying| flying.at + patience)
    }

    /// Takes out what has been without an answer for `patience`.
    pub(crate) fn take_lost(&mut self, now: Instant, patience: Duration) -> Vec<Flying> {
        let late = self.flying.iter().take_while(|flying| flying.at + patience <= now).count();
        let lost: Vec<Flying> = self.flying.drain(..late).collect();
        self.unanswered -= lost.iter().map(|flying| flying.bytes).sum::<u64>();
        lost
    }

    /// The path is lost: takes out what was on its way.
    pub(crate) fn give_up(&mut self) -> Vec<Flying> {
        self.unanswered = 0;
        self.flying.drain(..).collect()
    }

    /// One came. False if it came before, or so many newer ones did that this cannot be told.
    #[must_use]
    pub(crate) fn take(&mut self, now: Instant, number: u64, bytes: usize, delay: Duration) -> bool {
        self.came_bytes += bytes as u64;
        let forgotten = self.came.len() == MAX_DATAGRAM_RANGES
            && self.came.first().is_some_and(|range| number < range.start);
        if forgotten || !self.came.has_gap(&(number..number + 1)) {
            return false;
        }
        self.came.insert(number..number + 1);
        while self.came.len() > MAX_DATAGRAM_RANGES
            && let Some(oldest) = self.came.first()
        {
            self.came.remove(&oldest);
        }
        self.unsaid += 1;
        if self.unsaid >= ANSWER_AT_ONCE {
            self.owe_now();
        } else if !self.due {
            self.deadline.get_or_insert(now + delay);
        }
        true
    }

    /// What came is to be told, perhaps again.
    pub(crate) fn owe_now(&mut self) {
        self.due = self.came.first().is_some();
        self.deadline = None;
    }

    /// Nothing is to be told any more.
    pub(crate) fn owe_nothing(&mut self) {
        (self.due, self.unsaid, self.deadline) = (false, 0, None);
    }

    /// When what came becomes due to be told.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.due || self.deadline.is_some_and(|at| at <= now)
    }

    /// The deadline has passed.
    pub(crate) fn expire(&mut self, now: Instant) {
        if self.is_due(now) {
            self.owe_now();
        }
    }

    /// Says which numbers came, which is told with it.
    pub(crate) fn say(&mut self) -> Vec<Range<u64>> {
        self.owe_nothing();
        self.came.iter().collect()
    }

    /// Something came that was not told.
    pub(crate) fn has_news(&self) -> bool {
        self.due || self.unsaid > 0
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn ids(flying: &[Flying]) -> Vec<u64> {
        flying.iter().map(|flying| flying.id).collect()
    }

    #[test]
    fn what_was_overtaken_is_lost_after_a_round_trip_and_what_is_last_after_a_while() {
        let (begin, mut out) = (Instant::now(), Datagrams::new());
        out.set_room(1200);
        (0..8).for_each(|n| out.note(begin + MS * n as u32, 100 + n, 10, 40));
        let answered = out.answer(begin + 20 * MS, 20 * MS, &[1..2, 4..6]).unwrap();
        assert_eq!((ids(&answered.arrived), ids(&answered.lost)), (vec![101, 104, 105], vec![]), "not yet");
        let answered = out.answer(begin + 25 * MS, 20 * MS, &[1..2, 4..6]).unwrap();
        assert_eq!(ids(&answered.lost), [100, 102], "the third may only be late");
        assert_eq!(out.loss_deadline(100 * MS), Some(begin + 103 * MS));
        assert_eq!(ids(&out.take_lost(begin + 106 * MS, 100 * MS)), [103, 106]);
        assert_eq!(ids(&out.give_up()), [107]);
        assert_eq!((out.unanswered, out.loss_deadline(MS)), (0, None));
        assert!(matches!(out.answer(begin, MS, &[8..9]), Err(ProtocolError::AckOfUnsent)));
    }

    #[test]
    fn what_has_no_answer_is_bounded() {
        let (now, mut out) = (Instant::now(), Datagrams::new());
        out.set_room(1200);
        let mut sent = 0;
        while out.room() > 0 {
            out.note(now, sent, 1000, 1100);
            sent += 1;
        }
        assert_eq!(sent, 120);
        out.answer(now, MS, &[0..1]).unwrap();
        assert_eq!(out.room(), 1200);
    }

    #[test]
    fn numbers_with_gaps_cost_a_bounded_memory_and_each_counts_once() {
        let (now, mut came) = (Instant::now(), Datagrams::new());
        for number in (0..10_000).step_by(2) {
            assert!(came.take(now, number, 1, MS));
            assert!(!came.take(now, number, 1, MS), "again");
        }
        assert_eq!(came.came.len(), MAX_DATAGRAM_RANGES);
        assert!(!came.take(now, 3, 1, MS), "nobody knows any more");
        assert!(came.is_due(now) && came.say().len() == MAX_DATAGRAM_RANGES && !came.has_news());
        assert!(came.take(now, 20_000, 1, MS) && !came.is_due(now) && came.is_due(now + MS));
    }
}
