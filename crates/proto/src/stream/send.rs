//! The send half: what the application wrote, kept until the peer has it.

mod block;
mod snapshot;

use std::collections::VecDeque;
use std::ops::Range;

use block::Block;
use bytes::Bytes;

use crate::error::CloseCode;
use crate::ranges::RangeSet;
use crate::stream::pool::Pool;

pub(crate) use self::snapshot::Omitted;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fin {
    Open,
    /// The application is done; the end must be told (or told again).
    Pending,
    Sent,
    Acked,
}

/// What was written to a stream and is not with the peer yet, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Was given to no path yet.
    pub unsent: u64,
    /// Is not acknowledged, sent or not.
    pub unacknowledged: u64,
}

/// One direction's outgoing bytes, addressed by 64-bit offsets.
#[derive(Debug)]
pub(crate) struct Send {
    /// One behind the other, from the first byte that is held to the last.
    blocks: VecDeque<Block>,
    /// End of what the application wrote.
    end: u64,
    /// First offset never sent.
    next: u64,
    /// Everything below is acknowledged.
    acked_to: u64,
    acked: RangeSet,
    lost: RangeSet,
    fin: Fin,
    /// The peer's credit for this stream.
    pub(crate) max_data: u64,
    pub(crate) reset: Option<(CloseCode, ResetState)>,
    pub(crate) stopped: Option<CloseCode>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResetState {
    Sent,
    Acked,
}

impl Send {
    pub(crate) fn new(max_data: u64) -> Self {
        Self {
            blocks: VecDeque::new(),
            end: 0,
            next: 0,
            acked_to: 0,
            acked: RangeSet::default(),
            lost: RangeSet::default(),
            fin: Fin::Open,
            max_data,
            reset: None,
            stopped: None,
        }
    }

    /// Takes `data` behind what was written before.
    pub(crate) fn write(&mut self, pool: &Pool, mut data: &[u8]) {
        while !data.is_empty() {
            let room = self.blocks.back().map_or(0, Block::room);
            if room == 0 {
                // A lone small write costs no more memory than it needs.
                let is_lone = self.blocks.back().is_none_or(Block::is_given);
                self.blocks.push_back(Block::new(self.end, data.len(), is_lone, pool));
                continue;
            }
            let (now, later) = data.split_at(room.min(data.len()));
            if let Some(block) = self.blocks.back_mut() {
                block.extend(now);
            }
            self.end += now.len() as u64;
            data = later;
        }
    }

    /// The same without a copy, unless it is so little that a block of its own would cost more.
    pub(crate) fn write_chunk(&mut self, pool: &Pool, data: Bytes) {
        if data.len() < block::LEAST_GIVEN {
            return self.write(pool, &data);
        }
        let start = self.end;
        self.end += data.len() as u64;
        self.blocks.push_back(Block::given(start, data));
    }

    /// Bytes held for the application: written and not yet acknowledged.
    pub(crate) fn held(&self) -> u64 {
        self.end - self.acked_to
    }

    /// Bytes written, never sent, and still meant to be.
    pub(crate) fn unsent(&self) -> u64 {
        if self.reset.is_some() { 0 } else { self.end - self.next }
    }

    /// Bytes never sent that the peer's credit for the stream allows.
    pub(crate) fn sendable(&self) -> u64 {
        if self.reset.is_some() { 0 } else { self.end.min(self.max_data).saturating_sub(self.next) }
    }

    /// How many bytes may wait to be sent for the first time: at most `most`, and not further than `ahead` of
    /// the peer's credit.
    pub(crate) fn unsent_limit(&self, most: u64, ahead: Option<u64>) -> u64 {
        let credit = self.max_data.saturating_sub(self.next);
        ahead.map_or(most, |ahead| most.min(credit.saturating_add(ahead)))
    }

    /// Bytes that were lost and go again.
    pub(crate) fn to_repeat(&self) -> u64 {
        self.lost.total()
    }

    /// The end is written and has to be told.
    pub(crate) fn owes_end(&self) -> bool {
        self.fin == Fin::Pending && self.reset.is_none()
    }

    /// Something in `range` was not acknowledged, nor is it to be sent again anyway.
    pub(crate) fn is_missing(&self, range: &Range<u64>) -> bool {
        let open = range.start.max(self.acked_to)..range.end.max(self.acked_to);
        !open.is_empty()
            && range.start >= self.acked_to
            && self.acked.has_gap(&open)
            && !self.lost.overlaps(range)
    }

    /// First offset never sent.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn finish(&mut self) {
        if self.fin == Fin::Open {
            self.fin = Fin::Pending;
        }
    }

    pub(crate) fn is_finishing(&self) -> bool {
        self.fin != Fin::Open
    }

    pub(crate) fn is_over(&self) -> bool {
        match self.reset {
            // It counts everything as acknowledged, so the other half says nothing any more.
            Some((_, state)) => state == ResetState::Acked,
            None => self.fin == Fin::Acked && self.acked_to == self.end,
        }
    }

    /// Everything written (and the end, if told) has reached the peer.
    pub(crate) fn is_drained(&self) -> bool {
        self.reset.is_some() || (self.acked_to == self.end && matches!(self.fin, Fin::Open | Fin::Acked))
    }

    /// The next piece to send, at most `max` bytes, lost pieces first; `credit` bounds how many
    /// never-sent bytes the connection still allows. Returns the range and whether the end goes with it.
    pub(crate) fn next_piece(&self, max: u64, credit: u64) -> Option<(Range<u64>, bool)> {
        if self.reset.is_some() {
            return None;
        }
        let range = if let Some(lost) = self.lost.first() {
            lost.start..lost.end.min(lost.start + max)
        } else {
            let limit = self.end.min(self.max_data).min(self.next.saturating_add(credit));
            self.next..limit.min(self.next + max).max(self.next)
        };
        let fin = range.end == self.end && self.fin == Fin::Pending;
        (fin || range.start < range.end).then_some((range, fin))
    }

    /// Something could be sent if paths and connection credit allowed.
    pub(crate) fn wants_to_send(&self) -> bool {
        self.next_piece(1, u64::MAX).is_some()
    }

    /// Notes that `range` left. Returns how many of its bytes are new (count against credit).
    pub(crate) fn sent(&mut self, range: &Range<u64>, fin: bool) -> u64 {
        self.lost.remove(range);
        if fin {
            self.fin = Fin::Sent;
        }
        let fresh = range.end.saturating_sub(self.next.max(range.start));
        self.next = self.next.max(range.end);
        fresh
    }

    /// Copies the bytes of `range` to `out`.
    pub(crate) fn copy(&self, range: Range<u64>, out: &mut Vec<u8>) {
        let behind = self.blocks.partition_point(|block| block.start() <= range.start);
        let mut at = range.start;
        for block in self.blocks.range(behind.saturating_sub(1)..) {
            if at >= range.end {
                return;
            }
            let bytes = block.bytes(at..range.end);
            debug_assert!(!bytes.is_empty(), "offset {at} is no longer held");
            out.extend_from_slice(bytes);
            at += bytes.len() as u64;
        }
        debug_assert!(at >= range.end, "offset {at} is no longer held");
    }

    /// The peer has `range`, and knows of the end if `fin`.
    pub(crate) fn acknowledged(&mut self, pool: &Pool, range: Range<u64>, fin: bool) {
        if fin {
            self.fin = Fin::Acked;
        }
        self.lost.remove(&range);
        if range.start > self.acked_to {
            return self.acked.insert(range);
        }
        self.acked_to = self.acked_to.max(range.end);
        while let Some(next) = self.acked.first().filter(|next| next.start <= self.acked_to) {
            self.acked.remove(&next);
            self.acked_to = self.acked_to.max(next.end);
        }
        self.release(pool);
    }

    /// The path that carried `range` is gone: what is not acknowledged goes again.
    /// Returns how many bytes that is.
    pub(crate) fn requeue(&mut self, range: Range<u64>, fin: bool) -> u64 {
        if fin && self.fin == Fin::Sent {
            self.fin = Fin::Pending;
        }
        let mut again = 0;
        for gap in self.acked.gaps(range.start.max(self.acked_to)..range.end.max(self.acked_to)) {
            again += gap.end - gap.start;
            self.lost.insert(gap);
        }
        again
    }

    pub(crate) fn reset(&mut self, code: CloseCode) {
        if self.reset.is_none() {
            self.reset = Some((code, ResetState::Sent));
            self.blocks = VecDeque::new();
            self.lost = RangeSet::default();
            self.acked = RangeSet::default();
            self.acked_to = self.end;
        }
    }

    pub(crate) fn reset_acknowledged(&mut self) {
        if let Some((_, state)) = &mut self.reset {
            *state = ResetState::Acked;
        }
    }

    fn release(&mut self, pool: &Pool) {
        while self.blocks.front().is_some_and(|block| block.end() <= self.acked_to) {
            self.blocks.pop_front().into_iter().for_each(|block| block.give_back(pool));
        }
        if self.blocks.is_empty() {
            self.blocks = VecDeque::new();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn bytes(send: &Send, range: Range<u64>) -> Vec<u8> {
        let mut out = Vec::new();
        send.copy(range, &mut out);
        out
    }

    #[test]
    fn pieces_cross_blocks_and_come_back_exactly() {
        let data: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        let mut send = Send::new(u64::MAX);
        send.write(&Pool::default(), &data[..100]);
        send.write(&Pool::default(), &data[100..]);
        assert_eq!(bytes(&send, 65_000..140_000), &data[65_000..140_000]);
        send.sent(&(0..200_000), false);
        send.acknowledged(&Pool::default(), 0..70_000, false);
        assert_eq!(send.held(), 130_000);
        assert_eq!(bytes(&send, 70_000..200_000), &data[70_000..]);
    }

    #[test]
    fn what_is_given_is_kept_as_it_is_between_what_is_copied() {
        let (pool, mut send) = (Pool::default(), Send::new(u64::MAX));
        let data: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        let given = Bytes::copy_from_slice(&data);
        let mut at = 0;
        // Heads and bodies, as they come; the smallest are copied.
        for length in [3, 20_000, 3, 5, 70_000, block::LEAST_GIVEN - 1, 100_000].into_iter().cycle().take(11)
        {
            let next = data.len().min(at + length);
            match length < 100 {
                true => send.write(&pool, &data[at..next]),
                false => send.write_chunk(&pool, given.slice(at..next)),
            }
            at = next;
        }
        assert!(!given.is_unique(), "it was copied");
        for range in [0..at, 2..4, 19_990..20_010, 20_003..20_012, 90_000..at - 1] {
            assert_eq!(bytes(&send, range.start as u64..range.end as u64), &data[range]);
        }
        send.sent(&(0..at as u64), false);
        send.acknowledged(&pool, 0..50_000, false);
        assert_eq!(bytes(&send, 50_000..at as u64), &data[50_000..at]);
        send.acknowledged(&pool, 50_000..at as u64, false);
        assert!(given.is_unique() && send.held() == 0, "what the peer has is kept");
    }

    #[test]
    fn lost_pieces_go_again_first_and_only_where_unacknowledged() {
        let mut send = Send::new(u64::MAX);
        send.write(&Pool::default(), &[7; 1000]);
        send.sent(&(0..600), false);
        send.acknowledged(&Pool::default(), 100..200, false);
        assert_eq!(send.requeue(0..300, false), 200);
        assert_eq!(send.next_piece(1000, 1000), Some((0..100, false)));
        send.sent(&(0..100), false);
        assert_eq!(send.next_piece(1000, 1000), Some((200..300, false)));
        send.acknowledged(&Pool::default(), 200..300, false);
        assert_eq!(send.next_piece(1000, 1000), Some((600..1000, false)));
    }

    #[test]
    fn a_lost_end_is_told_again() {
        let mut send = Send::new(u64::MAX);
        send.write(&Pool::default(), b"abc");
        send.finish();
        let (range, fin) = send.next_piece(100, 100).unwrap();
        assert!(fin);
        send.sent(&range, fin);
        assert!(send.next_piece(100, 100).is_none());
        send.requeue(range, fin);
        assert_eq!(send.next_piece(100, 100), Some((0..3, true)));
        send.sent(&(0..3), true);
        send.acknowledged(&Pool::default(), 0..3, true);
        assert!(send.is_over());
    }

    #[test]
    fn a_reset_is_over_only_when_it_was_acknowledged() {
        let mut send = Send::new(u64::MAX);
        send.write(&Pool::default(), &[1; 100]);
        send.finish();
        send.sent(&(0..50), false);
        send.sent(&(50..100), true);
        send.reset(CloseCode::NONE);
        // The end arrived, the beginning did not: the peer still has to hear of the reset.
        send.acknowledged(&Pool::default(), 50..100, true);
        assert!(!send.is_over());
        send.reset_acknowledged();
        assert!(send.is_over());
    }

    #[test]
    fn credit_bounds_new_bytes_only() {
        let mut send = Send::new(10);
        send.write(&Pool::default(), &[1; 50]);
        assert_eq!(send.next_piece(100, 4), Some((0..4, false)));
        send.sent(&(0..10), false);
        assert!(send.next_piece(100, 100).is_none());
        send.requeue(0..10, false);
        assert_eq!(send.next_piece(100, 0), Some((0..10, false)));
    }

    #[test]
    fn writing_after_everything_was_acknowledged_starts_at_the_right_offset() {
        let mut send = Send::new(u64::MAX);
        send.write(&Pool::default(), b"hello");
        send.sent(&(0..5), false);
        send.acknowledged(&Pool::default(), 0..5, false);
        send.write(&Pool::default(), b"world");
        assert_eq!(bytes(&send, 5..10), b"world");
    }
}
