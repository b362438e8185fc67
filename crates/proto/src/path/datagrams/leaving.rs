//! Datagrams with messages that left on a path, and what became of them.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::error::ProtocolError;
use crate::rtt::Rtt;

/// So many bytes may be without an answer: what is more goes in segments, which are answered by number.
const MOST_UNANSWERED: u64 = 128 * 1024;
/// A datagram is overtaken, not late, when so many newer ones arrived (RFC 9002 §6.1.1).
const OVERTAKEN: u64 = 3;
/// An answer may be so much later than most, at least; or this part of a round trip.
const SLACK: Duration = Duration::from_millis(2);
const SLACK_SHARE: u32 = 16;
/// So many measurements tell how much round trips vary.
const FEW: u8 = 8;
/// Each further repetition of a message waits twice as long, up to so many times.
const MOST_DOUBLINGS: u8 = 6;
/// What was measured so long ago says nothing of the queues of now.
const RECENT: Duration = Duration::from_secs(2);
/// One datagram's fate changes the share of lost ones by this part.
const LOSS_WEIGHT: u32 = 32;
/// The share of lost ones is thought to be half as large after so long without a new one.
const LOSS_HALF_LIFE: Duration = Duration::from_secs(10);
/// Lost datagrams are counted in parts of this.
const ALL: u32 = 1 << 16;

/// Messages of one datagram on their way, whose names follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flying {
    /// The sender's name for the first of them.
    first: u64,
    count: u32,
    /// What the datagram took; 0 if others in it stand for that.
    bytes: u32,
    /// They were sent again meanwhile, or will be.
    pub(crate) repeated: bool,
    /// If they are reliable: how often they went in datagrams before.
    repetition: Option<u8>,
    number: u64,
    at: Instant,
}

impl Flying {
    /// The sender's names for them.
    pub(crate) fn ids(&self) -> Range<u64> {
        self.first..self.first + u64::from(self.count)
    }

    /// Takes a message of the same datagram in beside these, if it is the next. False if it is not.
    fn is_followed_by(&mut self, next: &Leaver) -> bool {
        let follows = self.ids().end == next.id && self.repetition == next.repetition;
        self.count += u32::from(follows);
        follows
    }

    /// Some of those in a datagram stand for it.
    fn is_first(&self) -> bool {
        self.bytes > 0
    }
}

/// What leaves in a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leaver {
    /// The sender's name for the message.
    pub(crate) id: u64,
    /// Its size.
    pub(crate) size: u64,
    /// If it is reliable: how often it went in datagrams before.
    pub(crate) repetition: Option<u8>,
}

/// What leaves in one datagram: mostly no more small messages than these fit in a packet.
pub(crate) type Leavers = SmallVec<[Leaver; 16]>;

/// What an answer says of messages.
#[derive(Debug, Default)]
pub(crate) struct Answered {
    pub(crate) arrived: SmallVec<[Flying; 4]>,
    pub(crate) lost: SmallVec<[Flying; 4]>,
}

/// The share of datagrams that is lost.
#[derive(Debug, Clone, Copy)]
struct Loss {
    share: u32,
    since: Instant,
}

impl Loss {
    fn note(&mut self, now: Instant, lost: bool) {
        let (before, sample) = (self.at(now), if lost { ALL } else { 0 });
        self.share = before - before / LOSS_WEIGHT + sample / LOSS_WEIGHT;
        self.since = now;
    }

    fn at(&self, now: Instant) -> u32 {
        let halvings = now.saturating_duration_since(self.since).as_secs() / LOSS_HALF_LIFE.as_secs();
        self.share.checked_shr(halvings.min(31) as u32).unwrap_or(0)
    }
}

/// Datagrams with messages that have no answer, and how those fared that have.
#[derive(Debug)]
pub(crate) struct Leaving {
    /// The number of the next one.
    next: u64,
    flying: VecDeque<Flying>,
    unanswered: u64,
    sent_bytes: u64,
    /// The last sign of life, or when one was asked for with a datagram.
    asked: Option<Instant>,
    /// From a datagram to its answer in a datagram, and when that was last measured.
    rtt: Rtt,
    measured: Option<Instant>,
    samples: u8,
    /// No message that is under way goes again before.
    repeats: Option<Instant>,
    loss: Loss,
}

impl Leaving {
    pub(super) fn new(now: Instant, rtt_hint: Option<Duration>) -> Self {
        Self {
            next: 0,
            flying: VecDeque::new(),
            unanswered: 0,
            sent_bytes: 0,
            asked: None,
            rtt: Rtt::new(rtt_hint),
            measured: None,
            samples: 0,
            repeats: None,
            loss: Loss { share: 0, since: now },
        }
    }

    /// As much as may be is without an answer.
    pub(super) fn is_full(&self) -> bool {
        self.unanswered >= MOST_UNANSWERED
    }

    /// Bytes of those without an answer.
    pub(crate) fn unanswered(&self) -> u64 {
        self.unanswered
    }

    /// The number of the next one.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Notes that the next one leaves, with these messages.
    pub(crate) fn note(&mut self, now: Instant, messages: &[Leaver], bytes: u64) {
        let mut stands_for = u32::try_from(bytes).unwrap_or(u32::MAX);
        let number = self.next;
        for leaver in messages {
            let here = self.flying.back_mut().filter(|last| last.number == number);
            if here.is_some_and(|last| last.is_followed_by(leaver)) {
                continue;
            }
            let (first, repetition, bytes) = (leaver.id, leaver.repetition, std::mem::take(&mut stands_for));
            let flying = Flying { first, count: 1, bytes, repeated: false, repetition, number, at: now };
            if let Some(at) = self.repeats_at(&flying) {
                self.repeats = Some(self.repeats.map_or(at, |known| known.min(at)));
            }
            self.flying.push_back(flying);
        }
        self.next += 1;
        self.unanswered += bytes;
        self.sent_bytes += bytes;
    }

    /// Notes that answers leave.
    pub(crate) fn note_answers(&mut self, bytes: u64) {
        self.sent_bytes += bytes;
    }

    /// A sign of life should be asked for with it, if there was none within `interval`.
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

    /// The peer has these. What left long before the newest of them, and a round trip ago, is lost.
    /// `promptly`: the answer came in a datagram itself, on this path.
    pub(crate) fn answer(
        &mut self,
        now: Instant,
        round_trip: Duration,
        came: &[Range<u64>],
        promptly: bool,
    ) -> Result<Answered, ProtocolError> {
        let newest = came.iter().map(|range| range.end).max().unwrap_or_default();
        if newest > self.next {
            return Err(ProtocolError::AckOfUnsent);
        }
        let round_trip = if self.measured.is_some() { self.rtt.smoothed() } else { round_trip };
        let late = round_trip + round_trip / 8;
        let (mut answered, mut newest_arrived) = (Answered::default(), None);
        // Of those behind the newest that came, nothing is said.
        let told_of = self.flying.partition_point(|flying| flying.number < newest);
        answered.arrived.reserve(told_of);
        let mut waiting: SmallVec<[Flying; 4]> = SmallVec::new();
        for flying in self.flying.drain(..told_of) {
            let arrived = came.iter().any(|range| range.contains(&flying.number));
            let lost = flying.number + OVERTAKEN < newest && now >= flying.at + late;
            if arrived {
                newest_arrived = Some(flying.at);
                answered.arrived.push(flying);
            } else if lost {
                answered.lost.push(flying);
            } else {
                waiting.push(flying);
                continue;
            }
            if flying.is_first() {
                self.loss.note(now, !arrived);
                self.unanswered -= u64::from(flying.bytes);
            }
        }
        waiting.into_iter().rev().for_each(|flying| self.flying.push_front(flying));
        if self.flying.is_empty() {
            self.repeats = None;
        }
        if let Some(at) = newest_arrived.filter(|_| promptly) {
            self.rtt.sample(now.saturating_duration_since(at), Duration::ZERO);
            self.samples = self.samples.saturating_add(1);
            (self.measured, self.asked) = (Some(now), Some(now));
        }
        Ok(answered)
    }

    /// When the oldest has been without an answer for `patience`, or a message goes again.
    pub(crate) fn deadline(&self, patience: Duration) -> Option<Instant> {
        let loss = self.flying.front().map(|flying| flying.at + patience);
        [loss, self.repeats].into_iter().flatten().min()
    }

    /// Takes out what has been without an answer for `patience`.
    pub(crate) fn take_lost(&mut self, now: Instant, patience: Duration) -> Vec<Flying> {
        let late = self.flying.iter().take_while(|flying| flying.at + patience <= now).count();
        let lost: Vec<Flying> = self.flying.drain(..late).collect();
        for flying in lost.iter().filter(|flying| flying.is_first()) {
            self.unanswered -= u64::from(flying.bytes);
            self.loss.note(now, true);
        }
        lost
    }

    /// Returns the reliable messages whose answers should have come by now. They go again; the answers may yet
    /// come.
    pub(crate) fn take_late(&mut self, now: Instant) -> Vec<Flying> {
        if self.repeats.is_none_or(|at| at > now) {
            return Vec::new();
        }
        let mut late = Vec::new();
        let mut next: Option<Instant> = None;
        for index in 0..self.flying.len() {
            let Some(at) = self.repeats_at(&self.flying[index]) else { continue };
            if at > now {
                next = Some(next.map_or(at, |known| known.min(at)));
            } else {
                late.push(self.flying[index]);
                self.flying[index].repeated = true;
            }
        }
        self.repeats = next;
        late
    }

    fn repeats_at(&self, flying: &Flying) -> Option<Instant> {
        let repetition = flying.repetition.filter(|_| !flying.repeated)?;
        // One repetition may have met a loss of its own; further ones meet a path that is worse than it was.
        let doublings = repetition.saturating_sub(1).min(MOST_DOUBLINGS);
        Some(flying.at + self.patience() * (1 << doublings))
    }

    /// How long an answer takes, at most, if nothing is lost.
    fn patience(&self) -> Duration {
        let round_trip = self.rtt.smoothed();
        if self.samples < FEW {
            // The variation is a guess yet, and a repetition too many costs less than one that comes late.
            return round_trip * 3 / 2;
        }
        round_trip + (self.rtt.variation() * 4).max(round_trip / SLACK_SHARE).max(SLACK)
    }

    /// The path is lost: takes out what was on its way.
    pub(crate) fn give_up(&mut self) -> Vec<Flying> {
        (self.unanswered, self.repeats) = (0, None);
        self.flying.drain(..).collect()
    }

    /// What a message in a datagram and its answer take together, if that was measured of late.
    pub(crate) fn round_trip(&self, now: Instant) -> Option<Duration> {
        let recent = |at: &Instant| now.saturating_duration_since(*at) < RECENT;
        self.measured.filter(recent).map(|_| self.rtt.smoothed())
    }

    /// By how much losses delay a message whose repetition takes `time`, on average.
    pub(crate) fn delay_of_losses(&self, now: Instant, time: Duration) -> Duration {
        time.mul_f64(f64::from(self.loss.at(now)) / f64::from(ALL))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn ids(flying: &[Flying]) -> Vec<u64> {
        flying.iter().flat_map(Flying::ids).collect()
    }

    fn unreliable(id: u64, size: u64) -> Leaver {
        Leaver { id, size, repetition: None }
    }

    fn reliable(id: u64, repetition: u8) -> Leaver {
        Leaver { id, size: 10, repetition: Some(repetition) }
    }

    #[test]
    fn a_sign_of_life_is_asked_for_once_an_interval() {
        let begin = Instant::now();
        let mut out = Leaving::new(begin, Some(20 * MS));
        let asks = [0, 1, 9, 10, 11, 25].map(|ms| out.asks(begin + ms * MS, 10 * MS));
        assert_eq!(asks, [true, false, false, true, false, true]);
    }

    #[test]
    fn what_was_overtaken_is_lost_after_a_round_trip_and_what_is_last_after_a_while() {
        let begin = Instant::now();
        let mut out = Leaving::new(begin, Some(20 * MS));
        (0..8).for_each(|n| out.note(begin + MS * n as u32, &[unreliable(100 + n, 10)], 40));
        let answered = out.answer(begin + 20 * MS, 20 * MS, &[1..2, 4..6], false).unwrap();
        assert_eq!((ids(&answered.arrived), ids(&answered.lost)), (vec![101, 104, 105], vec![]), "not yet");
        let answered = out.answer(begin + 25 * MS, 20 * MS, &[1..2, 4..6], false).unwrap();
        assert_eq!(ids(&answered.lost), [100, 102], "the third may only be late");
        assert_eq!(out.deadline(100 * MS), Some(begin + 103 * MS));
        assert_eq!(ids(&out.take_lost(begin + 106 * MS, 100 * MS)), [103, 106]);
        assert_eq!(ids(&out.give_up()), [107]);
        assert_eq!((out.unanswered, out.deadline(MS)), (0, None));
        assert!(matches!(out.answer(begin, MS, &[8..9], false), Err(ProtocolError::AckOfUnsent)));
    }

    #[test]
    fn what_has_no_answer_is_bounded() {
        let now = Instant::now();
        let mut out = Leaving::new(now, None);
        let mut sent = 0;
        while !out.is_full() {
            out.note(now, &[unreliable(sent, 1000)], 1100);
            sent += 1;
        }
        assert_eq!(sent, 120);
        out.answer(now, MS, &[0..1], false).unwrap();
        assert!(!out.is_full());
    }

    #[test]
    fn what_shares_a_datagram_arrives_or_is_lost_together_and_counts_once() {
        let begin = Instant::now();
        let mut out = Leaving::new(begin, Some(20 * MS));
        out.note(begin, &[unreliable(1, 10), unreliable(2, 10)], 50);
        out.note(begin, &[unreliable(3, 10), reliable(4, 0)], 50);
        assert_eq!((out.unanswered, out.next()), (100, 2));
        let answered = out.answer(begin + 10 * MS, 20 * MS, &[1..2], false).unwrap();
        assert_eq!((ids(&answered.arrived), out.unanswered), (vec![3, 4], 50));
        assert_eq!(ids(&out.take_lost(begin + 200 * MS, 100 * MS)), [1, 2]);
        assert_eq!((out.unanswered, out.flying.len()), (0, 0));
        assert_eq!(out.loss.at(begin + 200 * MS), ALL / LOSS_WEIGHT, "one datagram of two");
    }

    #[test]
    fn messages_of_a_datagram_that_follow_each_other_are_one_run() {
        let now = Instant::now();
        let mut out = Leaving::new(now, None);
        let ids_of = |ids: [u64; 3]| ids.map(|id| unreliable(id, 10));
        out.note(now, &ids_of([7, 8, 9]), 50);
        assert_eq!((out.flying.len(), out.flying[0].ids()), (1, 7..10));
        out.note(now, &ids_of([10, 12, 11]), 50);
        assert_eq!(out.flying.len(), 4, "another datagram's, one that is missing, and one that went before");
        out.note(now, &[unreliable(13, 10), reliable(14, 0), reliable(15, 1)], 50);
        assert_eq!(out.flying.len(), 7, "each is sent again at another time, or never");
        assert_eq!(out.unanswered(), 150);
    }

    /// A sender that knows that answers take 20 ms.
    fn measured() -> (Leaving, Instant) {
        let mut now = Instant::now();
        let mut out = Leaving::new(now, Some(20 * MS));
        for n in 0..40 {
            out.note(now, &[reliable(n, 0)], 40);
            out.answer(now + 20 * MS, MS, &[n..n + 1], true).unwrap();
            now += 20 * MS;
        }
        (out, now)
    }

    #[test]
    fn a_reliable_message_goes_again_as_soon_as_its_answer_is_late_and_counts_if_that_comes_yet() {
        let (mut out, now) = measured();
        out.note(now, &[reliable(50, 0)], 40);
        out.note(now + MS, &[unreliable(51, 10)], 40);
        let at = out.deadline(Duration::from_secs(1)).unwrap();
        assert!(at > now + 20 * MS && at <= now + 23 * MS, "{:?}", at - now);
        assert!(out.take_late(at - MS).is_empty());
        assert_eq!(ids(&out.take_late(at)), [50]);
        assert!(out.take_late(at + 50 * MS).is_empty(), "once");
        let answered = out.answer(at + MS, MS, &[40..42], true).unwrap();
        assert_eq!(ids(&answered.arrived), [50, 51], "it was only late");
        assert!(answered.arrived[0].repeated);
    }

    #[test]
    fn further_repetitions_wait_longer_and_longer() {
        let waits = |repetition| {
            let (mut out, now) = measured();
            out.note(now, &[reliable(1, repetition)], 40);
            out.repeats.unwrap() - now
        };
        let all: Vec<Duration> = (0..4).map(waits).collect();
        assert_eq!((all[0], all[2], all[3]), (all[1], all[1] * 2, all[1] * 4));
        assert_eq!(waits(u8::MAX), all[0] * 64);
    }

    #[test]
    fn losses_are_remembered_for_a_while() {
        let (mut out, mut now) = measured();
        assert_eq!(out.delay_of_losses(now, 100 * MS), Duration::ZERO);
        for n in 0..400_u64 {
            out.note(now, &[unreliable(n, 10)], 40);
            now += MS;
            let number = out.next() - 1;
            if n % 10 != 0 {
                out.answer(now + 30 * MS, MS, &[number..number + 1], true).unwrap();
            }
        }
        let delay = out.delay_of_losses(now, 100 * MS);
        assert!(delay > 4 * MS && delay < 20 * MS, "a tenth is lost: {delay:?}");
        assert!(out.delay_of_losses(now + 60 * Duration::from_secs(1), 100 * MS) < MS / 2);
        assert!(out.round_trip(now).is_some() && out.round_trip(now + 3 * RECENT).is_none());
    }
}
