//! One message on its way out.

use std::num::NonZeroU64;
use std::ops::Range;
use std::time::Duration;

use super::{FlowId, MAX_MESSAGE, Outcome, Tag, cost};
use crate::frame::Place;
use crate::ranges::RangeSet;

/// How far the peer has been told that a message will not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Skipping {
    /// It may come.
    No,
    /// SKIP has to go.
    Owed,
    /// SKIP was sent, perhaps on a path that is lost: the peer may know, and drop what it gets of the message.
    Sent,
}

/// A message that has no end yet. There may be thousands, each of which is looked at again long after it was
/// put in: they take no more room than they need.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(super) flow: FlowId,
    /// One more than its tag.
    tag: Option<NonZeroU64>,
    /// Where it stands in its lane's queue.
    pub(super) turn: u64,
    /// When it was taken, since the connection began; `None` if that was before a snapshot.
    pub(super) taken: Option<Duration>,
    /// From then on (since the connection began) it is not sent any more.
    pub(super) deadline: Option<Duration>,
    /// How often it may still be sent again; `None`: without limit.
    pub(super) retries: Option<u32>,
    pub(super) silent: bool,
    /// One more than its number.
    number: Option<NonZeroU64>,
    /// Its place in its group.
    pub(super) place: Option<Box<Place>>,
    /// What shall become of it instead of delivery, unless the peer turns out to have it.
    pub(super) fate: Option<Outcome>,
    /// The application knows what became of it.
    pub(super) told: bool,
    /// How often it went in a datagram.
    pub(super) datagrams: u8,
    /// Later ones of its lane must not overtake it in datagrams.
    pub(super) in_segments: bool,
    data: Vec<u8>,
    size: u32,
    /// The first byte that was never sent.
    next: u32,
    /// Of a message that did not go whole, and once, on one path.
    parts: Option<Box<Parts>>,
    skipping: Skipping,
}

/// What became of parts of a message. Few messages need to know.
#[derive(Debug, Default)]
struct Parts {
    /// What was sent, came back, and goes again.
    again: RangeSet,
    /// What the peer has, unless that is everything.
    acked: RangeSet,
    /// What is on its way on a second path too.
    copied: RangeSet,
}

impl Outgoing {
    /// The message has at most [`MAX_MESSAGE`] bytes.
    #[inline]
    pub(super) fn new(flow: FlowId, tag: Option<Tag>, turn: u64, data: Vec<u8>) -> Self {
        Self {
            flow,
            tag: tag.and_then(|Tag(tag)| one_more(tag)),
            turn,
            taken: None,
            deadline: None,
            retries: None,
            silent: false,
            number: None,
            place: None,
            fate: None,
            told: false,
            datagrams: 0,
            in_segments: false,
            size: data.len() as u32,
            data,
            next: 0,
            parts: None,
            skipping: Skipping::No,
        }
    }

    #[inline]
    pub(super) fn tag(&self) -> Option<Tag> {
        self.tag.map(|tag| Tag(tag.get() - 1))
    }

    /// Its number in the flow, once a part of it was sent.
    #[inline]
    pub(super) fn number(&self) -> Option<u64> {
        self.number.map(|number| number.get() - 1)
    }

    /// A part of it is sent.
    pub(super) fn set_number(&mut self, number: Option<u64>) {
        self.number = number.and_then(one_more);
    }

    /// All of it is sent at once, under this number.
    #[inline]
    pub(super) fn begin_whole(&mut self, number: u64) {
        (self.number, self.next) = (one_more(number), self.size);
    }

    fn parts(&mut self) -> &mut Parts {
        self.parts.get_or_insert_default()
    }

    /// All of it goes again: the peer has none of it, as far as is known.
    pub(super) fn goes_again_whole(&self) -> bool {
        self.goes_again() == Some(0..self.size().max(1))
    }

    /// The first part that goes again.
    #[inline]
    fn goes_again(&self) -> Option<Range<u64>> {
        self.parts.as_ref()?.again.first()
    }

    #[inline]
    pub(super) fn size(&self) -> u64 {
        self.size.into()
    }

    /// What it costs in credit, and takes of its queue.
    #[inline]
    pub(super) fn cost(&self) -> u64 {
        cost(self.size())
    }

    #[inline]
    pub(super) fn is_begun(&self) -> bool {
        self.number.is_some()
    }

    /// Every byte was sent once.
    #[inline]
    pub(super) fn is_wholly_sent(&self) -> bool {
        self.is_begun() && self.next == self.size
    }

    /// Something is to be sent, for the first time or again.
    #[inline]
    pub(super) fn wants_to_send(&self) -> bool {
        self.fate.is_none() && (!self.is_wholly_sent() || self.wants_again())
    }

    #[inline]
    pub(super) fn wants_again(&self) -> bool {
        self.fate.is_none() && self.goes_again().is_some()
    }

    /// Bytes to send, at least one if there is anything.
    #[inline]
    pub(super) fn to_send(&self) -> u64 {
        match self.wants_to_send() {
            true => {
                let again = self.parts.as_ref().map_or(0, |parts| parts.again.total());
                (u64::from(self.size - self.next) + again).max(1)
            }
            false => 0,
        }
    }

    /// Takes out the next piece of at most `room` bytes: what goes again comes first.
    pub(super) fn take_piece(&mut self, room: u64) -> Range<u64> {
        if let Some(first) = self.goes_again() {
            let piece = first.start..first.end.min(first.start + room);
            self.parts().again.remove(&piece);
            return piece.start..piece.end.min(self.size());
        }
        let piece = self.next()..self.size().min(self.next() + room);
        self.next = piece.end as u32;
        piece
    }

    #[inline]
    pub(super) fn bytes(&self, range: &Range<u64>) -> &[u8] {
        self.data.get(range.start as usize..range.end as usize).unwrap_or_default()
    }

    /// The peer has a part of it. True if it has all of it now.
    #[must_use]
    pub(super) fn acknowledge(&mut self, range: Range<u64>) -> bool {
        if range.end - range.start == self.size() {
            return true;
        }
        let whole = 0..self.size();
        let parts = self.parts();
        parts.again.remove(&range);
        parts.copied.remove(&range);
        parts.acked.insert(range);
        !parts.acked.has_gap(&whole)
    }

    /// A part goes on a second path too.
    pub(super) fn copy(&mut self, range: Range<u64>) {
        self.parts().copied.insert(range);
    }

    /// Whether the peer may need a copy of this part.
    pub(super) fn needs(&self, range: &Range<u64>) -> bool {
        let is_missing = self.parts.as_ref().is_none_or(|parts| {
            (parts.acked.has_gap(range) || range.is_empty()) && !parts.again.overlaps(range)
        });
        self.fate.is_none() && is_missing
    }

    /// The path of a part was lost. True if no other path carries it.
    #[must_use]
    pub(super) fn come_back(&mut self, range: &Range<u64>) -> bool {
        if let Some(parts) =
            self.parts.as_mut().filter(|parts| !range.is_empty() && !parts.copied.has_gap(range))
        {
            parts.copied.remove(range);
            return false;
        }
        true
    }

    /// A part goes again, as far as the peer does not have it. True if that begins a repetition.
    pub(super) fn repeat(&mut self, range: Range<u64>) -> bool {
        let (begins, size) = (self.goes_again().is_none(), self.size());
        let Parts { again, acked, .. } = self.parts();
        if size == 0 {
            // Nothing but its being there was told: it is told anew.
            again.insert(0..1);
            return begins;
        }
        let missing = acked.gaps(range);
        let any = !missing.is_empty();
        missing.into_iter().for_each(|gap| again.insert(gap));
        begins && any
    }

    /// It will not be sent any more; what it holds is freed.
    pub(super) fn give_up(&mut self, fate: Outcome) {
        self.fate.get_or_insert(fate);
        self.data = Vec::new();
        if let Some(parts) = &mut self.parts {
            parts.again = RangeSet::default();
        }
    }

    /// True, once: the peer has to be told that it will not come.
    #[must_use]
    pub(super) fn skip(&mut self) -> bool {
        let first = self.skipping == Skipping::No;
        if first {
            self.skipping = Skipping::Owed;
        }
        first
    }

    /// SKIP leaves now.
    pub(super) fn skip_leaves(&mut self) {
        self.skipping = Skipping::Sent;
    }

    /// SKIP is on its way, or has to go.
    #[inline]
    pub(super) fn is_skipped(&self) -> bool {
        self.skipping != Skipping::No
    }

    /// SKIP was on its way at some time.
    pub(super) fn may_be_dropped(&self) -> bool {
        self.skipping == Skipping::Sent
    }

    /// Every byte was sent once, under no tag and in no group, and nothing more is known of it: when the peer
    /// has it there is nothing else to clear away.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        let is_alone = self.tag.is_none() && self.place.is_none() && self.parts.is_none();
        is_alone && self.fate.is_none() && !self.told && !self.is_skipped() && self.is_wholly_sent()
    }

    /// Bytes that it holds.
    #[inline]
    pub(super) fn held(&self) -> u64 {
        self.data.len() as u64
    }

    /// What the peer is known to have.
    pub(super) fn acked(&self) -> impl Iterator<Item = Range<u64>> {
        self.parts.iter().flat_map(|parts| parts.acked.iter())
    }

    /// Takes back what was written down, of a message of at most [`MAX_MESSAGE`] bytes.
    pub(super) fn restore(&mut self, size: u64, next: u64, data: Vec<u8>, acked: Vec<Range<u64>>) {
        (self.size, self.next, self.data) = (size as u32, next as u32, data);
        acked.into_iter().for_each(|range| self.parts().acked.insert(range));
    }

    /// The first byte that was never sent.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.next.into()
    }
}

/// Tags and numbers are below 2⁶².
fn one_more(number: u64) -> Option<NonZeroU64> {
    NonZeroU64::new(number + 1)
}

const _: () = assert!(MAX_MESSAGE <= u32::MAX as u64, "sizes fit");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_takes_two_cache_lines_beside_its_bytes() {
        assert!(size_of::<Option<Outgoing>>() <= 128);
    }

    #[test]
    fn tags_and_numbers_are_kept_from_the_lowest_to_the_highest() {
        for number in [0, 1, crate::varint::MAX] {
            let mut message = Outgoing::new(FlowId(3), Some(Tag(number)), 0, Vec::new());
            assert_eq!((message.tag(), message.number()), (Some(Tag(number)), None));
            message.set_number(Some(number));
            assert_eq!(message.number(), Some(number));
        }
        assert_eq!(Outgoing::new(FlowId(3), None, 0, Vec::new()).tag(), None);
    }
}
