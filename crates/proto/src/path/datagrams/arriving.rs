//! Which datagrams came on a path, and when that is told.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::frame::MAX_DATAGRAM_RANGES;
use crate::ranges::RangeSet;

/// So many datagrams are answered at once in a segment; fewer after the acknowledgement delay.
const ANSWER_AT_ONCE: u32 = 32;
/// Answers in datagrams follow each other no sooner: one tells of all that came.
const ANSWER_EVERY: Duration = Duration::from_millis(5);

/// When something is to be told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Telling {
    #[default]
    Nothing,
    At(Instant),
    Now,
}

impl Telling {
    fn is_due(self, now: Instant) -> bool {
        match self {
            Self::Nothing => false,
            Self::At(at) => at <= now,
            Self::Now => true,
        }
    }

    fn deadline(self) -> Option<Instant> {
        match self {
            Self::At(at) => Some(at),
            _ => None,
        }
    }

    fn expire(&mut self, now: Instant) {
        if self.is_due(now) {
            *self = Self::Now;
        }
    }
}

/// Numbers of datagrams that came.
#[derive(Debug, Default)]
pub(crate) struct Arriving {
    /// The newest.
    came: RangeSet,
    bytes: u64,
    /// How many of them the peer was not told of in a segment, and when it has to be.
    unsaid: u32,
    telling: Telling,
    /// When it is to be told in a datagram, which may be lost, and when it was last.
    answering: Telling,
    answered: Option<Instant>,
}

impl Arriving {
    /// One came. False if it came before, or so many newer ones did that this cannot be told. `promptly`: the
    /// peer takes answers in datagrams too.
    #[must_use]
    pub(crate) fn take(
        &mut self,
        now: Instant,
        number: u64,
        bytes: usize,
        delay: Duration,
        promptly: bool,
    ) -> bool {
        self.bytes += bytes as u64;
        if promptly && self.answering == Telling::Nothing {
            let next = self.answered.map_or(now, |at| at + ANSWER_EVERY);
            self.answering = if next <= now { Telling::Now } else { Telling::At(next) };
        }
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
        } else if self.telling == Telling::Nothing {
            self.telling = Telling::At(now + delay);
        }
        true
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What came is to be told in a segment, perhaps again.
    pub(crate) fn owe_now(&mut self) {
        let any = self.came.first().is_some();
        self.telling = if any { Telling::Now } else { Telling::Nothing };
    }

    /// Nothing is to be told any more.
    pub(crate) fn owe_nothing(&mut self) {
        (self.unsaid, self.telling, self.answering) = (0, Telling::Nothing, Telling::Nothing);
    }

    /// When what came becomes due to be told.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        [self.telling, self.answering].into_iter().filter_map(Telling::deadline).min()
    }

    /// It has to be told in a segment now.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.telling.is_due(now)
    }

    /// It has to be told in a datagram now.
    pub(crate) fn is_answer_due(&self, now: Instant) -> bool {
        self.answering.is_due(now)
    }

    /// It has to be told in a datagram, now or soon.
    pub(crate) fn owes_answer(&self) -> bool {
        self.answering != Telling::Nothing
    }

    /// No datagram can tell it: a segment does.
    pub(crate) fn answer_in_segment(&mut self) {
        self.answering = Telling::Nothing;
        self.owe_now();
    }

    /// Deadlines have passed.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.telling.expire(now);
        self.answering.expire(now);
    }

    /// Says which numbers came, in a segment.
    pub(crate) fn say(&mut self) -> Vec<Range<u64>> {
        self.owe_nothing();
        self.came.iter().collect()
    }

    /// Says which numbers came, in a datagram.
    pub(crate) fn answer(&mut self, now: Instant) -> Vec<Range<u64>> {
        (self.answering, self.answered) = (Telling::Nothing, Some(now));
        self.came.iter().collect()
    }

    /// Something came that was not told in a segment.
    pub(crate) fn has_news(&self) -> bool {
        self.telling == Telling::Now || self.unsaid > 0
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn numbers_with_gaps_cost_a_bounded_memory_and_each_counts_once() {
        let (now, mut came) = (Instant::now(), Arriving::default());
        for number in (0..10_000).step_by(2) {
            assert!(came.take(now, number, 1, MS, false));
            assert!(!came.take(now, number, 1, MS, false), "again");
        }
        assert_eq!(came.came.len(), MAX_DATAGRAM_RANGES);
        assert!(!came.take(now, 3, 1, MS, false), "nobody knows any more");
        assert!(came.is_due(now) && came.say().len() == MAX_DATAGRAM_RANGES && !came.has_news());
        assert!(came.take(now, 20_000, 1, MS, false) && !came.is_due(now) && came.is_due(now + MS));
    }

    #[test]
    fn all_bytes_that_came_are_counted_those_that_came_again_too() {
        let (now, mut came) = (Instant::now(), Arriving::default());
        assert_eq!(came.bytes(), 0);
        for (number, size, is_new) in [(0, 1000, true), (2, 200, true), (0, 1000, false)] {
            assert_eq!(came.take(now, number, size, MS, false), is_new);
        }
        assert_eq!(came.bytes(), 2200);
    }

    #[test]
    fn the_first_is_answered_at_once_and_those_behind_it_together() {
        let (now, mut came) = (Instant::now(), Arriving::default());
        assert!(came.take(now, 0, 1, 25 * MS, true) && came.is_answer_due(now));
        assert!(came.answer(now).eq(&[0..1]) && !came.owes_answer());
        for number in 1..4 {
            assert!(came.take(now + MS, number, 1, 25 * MS, true) && !came.is_answer_due(now + MS));
        }
        assert_eq!(came.deadline(), Some(now + ANSWER_EVERY));
        came.expire(now + ANSWER_EVERY);
        assert!(came.is_answer_due(now + ANSWER_EVERY) && came.deadline() == Some(now + 25 * MS));
        assert!(!came.take(now + 6 * MS, 3, 1, MS, true), "a repetition is no news");
        came.answer_in_segment();
        assert!(!came.owes_answer() && came.is_due(now));
    }
}
