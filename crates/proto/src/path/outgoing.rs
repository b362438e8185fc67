//! Numbering and acknowledgement of what is sent on one path.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::content::Content;

/// One segment on its way.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) contents: SmallVec<[Content; 1]>,
    pub(crate) at: Instant,
    pub(crate) size: u32,
    pub(crate) eliciting: bool,
    /// How many segments this stands for. A run of segments that carried nothing but
    /// acknowledgements is one entry, because nobody need acknowledge them.
    run: u64,
    /// Bytes delivered on the path, and when that became known, as of the sending.
    delivered: u64,
    delivered_at: Instant,
    /// As much was in flight as the path was known to carry.
    full: bool,
}

impl Sent {
    fn is_bare(&self) -> bool {
        !self.eliciting && self.contents.is_empty()
    }
}

/// What an acknowledgement brought.
pub(crate) struct Acknowledged {
    pub(crate) segments: SmallVec<[Sent; 1]>,
}

impl Acknowledged {
    /// The newest segment that asked for an acknowledgement.
    pub(crate) fn newest(&self) -> Option<&Sent> {
        self.segments.iter().rev().find(|segment| segment.eliciting)
    }
}

/// What a path delivered between the sending of a segment and its acknowledgement.
pub(crate) struct Delivery {
    pub(crate) bytes: u64,
    pub(crate) interval: Duration,
    /// The path had as much to carry as it was known to.
    pub(crate) full: bool,
}

/// Segments sent on a path, and which of them are acknowledged.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Unacknowledged segments, oldest first; the oldest is number `acked`.
    sent: VecDeque<Sent>,
    acked: u64,
    /// Segments sent, acknowledged or not.
    count: u64,
    bytes: u64,
    in_flight: u64,
    /// Bytes that were acknowledged of what asked for it, and when they last grew.
    delivered: u64,
    delivered_at: Instant,
    /// Up to this segment, the contents were sent again elsewhere while the path might still deliver them.
    repeated: u64,
    /// The contents were given back: nothing is in flight any more, whatever is acknowledged later.
    given_back: bool,
}

impl Outgoing {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            sent: VecDeque::new(),
            acked: 0,
            count: 0,
            bytes: 0,
            in_flight: 0,
            delivered: 0,
            delivered_at: now,
            repeated: 0,
            given_back: false,
        }
    }

    /// Segments sent so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Bytes sent so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that ask for an acknowledgement and have none.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Bytes of segments that were acknowledged.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// No segment was acknowledged.
    pub(crate) fn is_unheard(&self) -> bool {
        self.acked == 0
    }

    /// Segments that are not acknowledged, oldest first.
    pub(crate) fn segments(&self) -> impl DoubleEndedIterator<Item = &Sent> + ExactSizeIterator {
        self.sent.iter()
    }

    /// What these segments carry.
    pub(crate) fn contents(&self) -> impl Iterator<Item = &Content> {
        self.sent.iter().flat_map(|segment| &segment.contents)
    }

    /// Notes a segment that leaves. True if nothing was in flight before it.
    pub(crate) fn note(
        &mut self,
        now: Instant,
        size: usize,
        eliciting: bool,
        full: bool,
        contents: SmallVec<[Content; 1]>,
    ) -> bool {
        let begins = eliciting && self.in_flight == 0;
        if begins {
            self.delivered_at = now;
        }
        if eliciting {
            self.in_flight += size as u64;
        }
        self.bytes += size as u64;
        self.count += 1;
        let (delivered, delivered_at) = (self.delivered, self.delivered_at);
        let size = size as u32;
        let segment = Sent { contents, at: now, size, eliciting, run: 1, delivered, delivered_at, full };
        match self.sent.back_mut() {
            Some(last) if last.is_bare() && segment.is_bare() => last.run += 1,
            _ => self.sent.push_back(segment),
        }
        begins
    }

    /// Takes out the segments below `count`, newly acknowledged. `None` if `count` was never sent.
    pub(crate) fn acknowledge(&mut self, count: u64) -> Option<Acknowledged> {
        if count > self.count {
            return None;
        }
        let mut segments = SmallVec::new();
        while self.acked < count
            && let Some(mut segment) = self.sent.pop_front()
        {
            if self.acked + segment.run > count {
                segment.run -= count - self.acked;
                self.acked = count;
                self.sent.push_front(segment);
                break;
            }
            self.acked += segment.run;
            if segment.eliciting && !self.given_back {
                self.in_flight -= u64::from(segment.size);
                self.delivered += u64::from(segment.size);
            }
            segments.push(segment);
        }
        Some(Acknowledged { segments })
    }

    /// What was delivered since `segment` was sent, which was acknowledged just now.
    pub(crate) fn delivery(&mut self, now: Instant, segment: &Sent) -> Delivery {
        self.delivered_at = now;
        let interval = now.saturating_duration_since(segment.delivered_at);
        Delivery { bytes: self.delivered - segment.delivered, interval, full: segment.full }
    }

    /// Gives back what is not acknowledged, for other paths. The segments stay, since an acknowledgement may
    /// yet come.
    pub(crate) fn give_back(&mut self) -> Vec<Content> {
        if std::mem::replace(&mut self.given_back, true) {
            return Vec::new();
        }
        self.in_flight = 0;
        self.contents().cloned().collect()
    }

    /// No acknowledgement will come any more.
    pub(crate) fn forget(&mut self) {
        self.sent.clear();
    }

    /// Takes out what shall go again on another path while this one may still deliver it: what arrives here
    /// first counts, and need not go there any more. `opening`: what belongs to the opening of the path
    /// stays.
    pub(crate) fn repeat_elsewhere(&mut self, opening: bool) -> Vec<Content> {
        let mut repeated = Vec::new();
        if self.repeated == self.count {
            return repeated;
        }
        self.repeated = self.count;
        for segment in &mut self.sent {
            segment.contents.retain(|content| match content {
                Content::Stream { elsewhere: true, .. }
                | Content::Message { elsewhere: true, .. }
                | Content::Messages { elsewhere: true, .. }
                | Content::Accept => true,
                // It arrives here or not at all.
                Content::Message { reliable: false, .. } | Content::Messages { reliable: false, .. } => true,
                Content::Stream { .. } | Content::Message { .. } | Content::Messages { .. } => {
                    repeated.push(content.clone());
                    if let Content::Stream { elsewhere, .. }
                    | Content::Message { elsewhere, .. }
                    | Content::Messages { elsewhere, .. } = content
                    {
                        *elsewhere = true;
                    }
                    true
                }
                Content::PathLost(_) | Content::Priority(_) if opening => true,
                _ => {
                    repeated.push(content.clone());
                    false
                }
            });
        }
        repeated
    }

    /// The piece of a stream that stands at `place` in segment `index` goes on another path too, up to `end`,
    /// with the stream's end or without. From now on that much hangs on the other path.
    pub(crate) fn overtaken(&mut self, index: usize, place: usize, end: u64, with_end: bool) {
        let Some(segment) = self.sent.get_mut(index) else {
            return;
        };
        if let Some(Content::Stream { id, range, fin, elsewhere, again }) = segment.contents.get_mut(place) {
            let (id, rest, fin_left, again) = (*id, end..range.end, *fin && !with_end, *again);
            (*fin, *elsewhere) = (with_end, true);
            range.end = end;
            if !rest.is_empty() || fin_left {
                segment.contents.push(Content::Stream {
                    id,
                    range: rest,
                    fin: fin_left,
                    elsewhere: false,
                    again,
                });
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ids::StreamId;
    use smallvec::smallvec;

    fn piece(start: u64, end: u64) -> Content {
        Content::Stream { id: StreamId(0), range: start..end, fin: false, elsewhere: false, again: false }
    }

    fn two_segments() -> Outgoing {
        let now = Instant::now();
        let mut outgoing = Outgoing::new(now);
        assert!(outgoing.note(now, 100, true, false, smallvec![piece(0, 90)]));
        assert!(!outgoing.note(now, 50, true, false, smallvec![piece(90, 130), Content::MaxData]));
        outgoing
    }

    #[test]
    fn an_acknowledgement_takes_out_what_it_counts_and_no_more() {
        let mut outgoing = two_segments();
        assert!(outgoing.acknowledge(3).is_none(), "never sent");
        assert_eq!(outgoing.acknowledge(1).unwrap().segments.len(), 1);
        assert_eq!(outgoing.in_flight(), 50);
        assert!(outgoing.acknowledge(1).unwrap().newest().is_none(), "nothing new");
    }

    #[test]
    fn segments_that_nobody_acknowledges_cost_nothing() {
        let now = Instant::now();
        let mut outgoing = Outgoing::new(now);
        let begins = (0..1000).any(|_| outgoing.note(now, 20, false, false, smallvec![]));
        assert!(!begins);
        assert_eq!((outgoing.segments().len(), outgoing.count(), outgoing.in_flight()), (1, 1000, 0));
        outgoing.acknowledge(400).unwrap();
        assert_eq!(outgoing.segments().len(), 1);
        outgoing.acknowledge(1000).unwrap();
        assert_eq!(outgoing.segments().len(), 0);
    }

    #[test]
    fn what_was_given_back_is_not_in_flight_when_it_is_acknowledged_late() {
        let mut outgoing = two_segments();
        assert_eq!(outgoing.give_back().len(), 3);
        assert_eq!(outgoing.give_back(), []);
        assert_eq!(outgoing.acknowledge(2).unwrap().segments.len(), 2);
        assert_eq!(outgoing.in_flight(), 0);
    }

    #[test]
    fn bytes_repeated_elsewhere_still_count_when_they_arrive_here() {
        let mut outgoing = two_segments();
        assert_eq!(outgoing.repeat_elsewhere(false), [piece(0, 90), piece(90, 130), Content::MaxData]);
        assert_eq!(outgoing.repeat_elsewhere(false), [], "once");
        let ranges: Vec<_> = outgoing.contents().cloned().collect();
        assert!(ranges.iter().all(|c| matches!(c, Content::Stream { elsewhere: true, .. })), "{ranges:?}");
        assert_eq!(ranges.len(), 2);
    }

    #[test]
    fn of_runs_of_messages_only_reliable_ones_are_repeated_elsewhere_and_once() {
        let now = Instant::now();
        let (reliable, unreliable) = (Content::message(4, true), Content::message(5, false));
        let mut outgoing = Outgoing::new(now);
        assert!(outgoing.note(now, 100, true, false, smallvec![reliable.clone(), unreliable.clone()]));
        assert_eq!(outgoing.repeat_elsewhere(false), [reliable]);
        assert_eq!(outgoing.give_back().len(), 2, "an acknowledgement may yet come for both");
        assert!(outgoing.contents().any(|content| *content == unreliable));
        assert_eq!(outgoing.repeat_elsewhere(false), [], "once");
    }

    #[test]
    fn the_rest_of_a_piece_that_was_overtaken_in_part_stays() {
        let mut outgoing = two_segments();
        outgoing.overtaken(0, 0, 40, false);
        let here: Vec<_> = outgoing.segments().next().unwrap().contents.to_vec();
        let gone =
            Content::Stream { id: StreamId(0), range: 0..40, fin: false, elsewhere: true, again: false };
        assert_eq!(here, [gone, piece(40, 90)]);
    }
}
