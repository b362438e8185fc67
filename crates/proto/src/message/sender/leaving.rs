//! What messages put into segments.

use std::ops::Range;
use std::time::Duration;

use super::{Copy, Events, Flow, FlowId, Lane, NUMBER_WINDOW, Outcome, Outgoing, Sender};
use crate::content::Content;
use crate::draft::{Draft, MIN_PIECE};
use crate::frame::{self, Frame, MessageHeader, Place, Skip, kind};
use crate::ids::PathId;
use crate::path::Leaver;

/// What a piece takes besides its bytes, at most: type, length, flow, number, class, tag, place, size,
/// offset.
pub(super) const HEADER: usize = 1 + 2 + 2 + 8 + 1 + 8 + 18 + 4 + 4;
/// A message up to this size is not cut to fill a segment that has something in it.
pub(super) const SMALL: u64 = 4096;
/// What a segment may have in it all the same, such as acknowledgements.
const ALMOST_EMPTY: usize = 128;
/// Messages of one flow without order that are sent in turns.
const INTERLEAVED: usize = 16;
/// Reliable messages go in datagrams as long as no more than this waits on their lane: what floods is better
/// packed in segments.
pub(super) const FLOOD: u64 = 16 * 1024;
/// A reliable message that did not arrive in so many datagrams goes in a segment.
const MOST_DATAGRAMS: u8 = 4;
/// Parts that wait to go on a second path.
const MAX_COPIES: usize = 1024;

/// A path that takes a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chance {
    pub(crate) path: PathId,
    /// What it takes now goes on the wire now.
    pub(crate) takes_now: bool,
    /// How large a message's frame may be that goes in a datagram; 0: none may.
    pub(crate) datagram: u64,
    /// Reliable ones may go in datagrams too.
    pub(crate) reliable: bool,
    /// Another path carries data too.
    pub(crate) second: bool,
    /// Everything goes on two paths, whatever its flow wants.
    pub(crate) redundant: bool,
}

/// Where what goes in a datagram next stands among the parts that go on a second path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copied(usize);

/// What was said of a message.
struct Encoded {
    /// Its class is reliable.
    reliable: bool,
    /// All of it was said.
    whole: bool,
}

/// What came of a lane's turn.
enum Turned {
    /// It put so many bytes in.
    Sent(u64),
    /// Not into this segment.
    NotNow,
    /// It waits for something, or has nothing.
    Left,
}

impl Sender {
    /// Puts a piece of a message of one level of urgency in; `limit` is how long the segment should become.
    /// False if there is none that fits.
    pub(crate) fn put_one(
        &mut self,
        level: u8,
        now: Duration,
        chance: Chance,
        limit: usize,
        draft: &mut Draft<'_>,
        events: &mut Events,
    ) -> bool {
        let mut passed = 0;
        while let Some(lane) = self.turns.at(level, passed) {
            match self.put_from(lane, now, chance, limit, draft, events) {
                Turned::Sent(bytes) => {
                    let turn = &mut self.lanes[lane].turn;
                    self.turns.spend(lane, turn, bytes);
                    if self.lanes[lane].backlog == 0 {
                        self.activate(lane);
                    }
                    return true;
                }
                Turned::NotNow => passed += 1,
                Turned::Left => {}
            }
        }
        false
    }

    /// As [`put_one`](Self::put_one), until the segment is as long as it should become, or nothing that fits
    /// is left.
    pub(crate) fn put_all(
        &mut self,
        level: u8,
        now: Duration,
        chance: Chance,
        limit: usize,
        draft: &mut Draft<'_>,
        events: &mut Events,
    ) -> bool {
        let before = draft.len();
        while draft.room() >= MIN_PIECE
            && draft.len() < limit
            && (self.put_run(level, now, chance, limit, draft)
                || self.put_one(level, now, chance, limit, draft, events))
        {}
        draft.len() > before
    }

    fn put_from(
        &mut self,
        lane: usize,
        now: Duration,
        chance: Chance,
        limit: usize,
        draft: &mut Draft<'_>,
        events: &mut Events,
    ) -> Turned {
        if draft.room() < MIN_PIECE.max(HEADER + 1) {
            return Turned::NotNow;
        }
        let most = (limit.saturating_sub(draft.len())).max(MIN_PIECE) as u64;
        let room = ((draft.room() - HEADER) as u64).min(most);
        loop {
            let Some(id) = self.pick(lane, room) else {
                self.lanes[lane].parked = self.lanes[lane].backlog > 0;
                self.activate(lane);
                return Turned::Left;
            };
            let Some(message) = self.messages.get(id) else {
                return Turned::NotNow;
            };
            if message.deadline.is_some_and(|at| at <= now) {
                self.doom(id, Outcome::Expired, events);
                continue;
            }
            let flow = &self.flows[message.flow.0 as usize];
            if (!flow.options.class.reliable && !chance.takes_now) || self.fits_alone(id, chance) {
                return Turned::NotNow;
            }
            let full = (draft.room() - HEADER) as u64;
            let room = if message.is_begun() || message.size() > SMALL {
                room
            } else if message.size() > full && draft.len() > ALMOST_EMPTY {
                return Turned::NotNow;
            } else {
                // Whole, even if the segment becomes a little longer than it should.
                room.max(full.min(message.size()))
            };
            return Turned::Sent(self.put_piece(lane, id, room, chance, draft));
        }
    }

    /// The message whose turn it is in a lane; `None` if all wait for credit, or for others to end.
    fn pick(&self, lane: usize, room: u64) -> Option<u64> {
        let queue = &self.lanes[lane];
        if let Some(id) = queue.again.first() {
            return Some(*id);
        }
        let begun = queue.begun.front().copied();
        let fresh = queue.fresh.first().map(|(_, id)| *id);
        let fresh = match begun {
            Some(_) if queue.sequenced || queue.begun_first => None,
            Some(_) => fresh.filter(|id| queue.begun.len() < INTERLEAVED || self.fits(*id, room)),
            None => fresh,
        };
        fresh.filter(|id| self.may_begin(lane, *id)).or(begun)
    }

    /// Puts in a message of one level of urgency that goes in a datagram. Returns what leaves; `None` if there is
    /// none whose turn it is.
    pub(crate) fn put_alone(
        &mut self,
        level: u8,
        now: Duration,
        chance: Chance,
        out: &mut Vec<u8>,
        events: &mut Events,
    ) -> Option<Leaver> {
        let room = chance.datagram;
        let mut passed = 0;
        while let Some(lane) = self.turns.at(level, passed) {
            let Some(id) = self.pick(lane, room) else {
                self.lanes[lane].parked = self.lanes[lane].backlog > 0;
                self.activate(lane);
                continue;
            };
            if self.messages.get(id).and_then(|message| message.deadline).is_some_and(|at| at <= now) {
                self.doom(id, Outcome::Expired, events);
                continue;
            }
            if !self.turns.is_near(&self.lanes[lane].turn) {
                return None;
            }
            if self.fits_alone(id, chance) {
                let before = out.len();
                let (_, range) = self.take_piece(lane, id, room)?;
                let leaver = self.put_datagram(id, &range, out)?;
                if chance.second && self.is_redundant(id) && self.copies.len() < MAX_COPIES {
                    self.copies.push_back(Copy { id, range, first: chance.path });
                }
                let turn = &mut self.lanes[lane].turn;
                self.turns.spend(lane, turn, (out.len() - before) as u64);
                if self.lanes[lane].backlog == 0 {
                    self.activate(lane);
                }
                return Some(leaver);
            }
            passed += 1;
        }
        None
    }

    /// Whether a message that waits goes in a datagram: it goes whole. Where the order of unreliable ones is
    /// promised, it must not overtake those that were sent before, which would be dropped.
    fn fits_alone(&self, id: u64, chance: Chance) -> bool {
        if chance.datagram == 0 {
            return false;
        }
        self.messages.get(id).is_some_and(|message| {
            let flow = &self.flows[message.flow.0 as usize];
            let (class, lane) = (flow.options.class, &self.lanes[flow.lane]);
            let waits = if class.reliable {
                if message.is_begun() { message.goes_again_whole() } else { lane.backlog <= FLOOD }
            } else {
                let overtakes = class.sequenced && lane.in_segments > 0;
                !message.is_begun() && !overtakes
            };
            waits && self.may_go_alone(message, chance)
        })
    }

    /// Whether a whole message may go in a datagram. Unreliable ones that go on two paths do not, as they would
    /// not be sent again, nor do those of which each repetition counts.
    fn may_go_alone(&self, message: &Outgoing, chance: Chance) -> bool {
        let options = &self.flows[message.flow.0 as usize].options;
        let may = match options.class.reliable {
            true => chance.reliable && message.retries.is_none() && message.datagrams < MOST_DATAGRAMS,
            false => chance.takes_now && !options.redundant,
        };
        may && message.size() + HEADER as u64 <= chance.datagram
    }

    fn fits(&self, id: u64, room: u64) -> bool {
        self.messages.get(id).is_some_and(|message| message.size() <= room)
    }

    fn may_begin(&self, lane: usize, id: u64) -> bool {
        let Some(message) = self.messages.get(id) else {
            return false;
        };
        let (flow, queue) = (&self.flows[message.flow.0 as usize], &self.lanes[lane]);
        let in_order = queue.group.is_none() || queue.epoch < queue.settled.lowest() + NUMBER_WINDOW - 1;
        self.credit.affords(message.cost()) && flow.settled.admits(flow.next) && in_order
    }

    /// Returns how many bytes of the segment it took.
    fn put_piece(&mut self, lane: usize, id: u64, room: u64, chance: Chance, draft: &mut Draft<'_>) -> u64 {
        let before = draft.len();
        let Some((flow, range)) = self.take_piece(lane, id, room) else {
            return 0;
        };
        let options = &self.flows[flow.0 as usize].options;
        let redundant = chance.redundant || options.redundant;
        if !options.class.reliable
            && let Some(message) = self.messages.get_mut(id)
            && !std::mem::replace(&mut message.in_segments, true)
        {
            self.lanes[lane].in_segments += 1;
        }
        if redundant && chance.second && self.copies.len() < MAX_COPIES {
            self.copies.push_back(Copy { id, range: range.clone(), first: chance.path });
        }
        self.put_frame(id, range, draft);
        (draft.len() - before) as u64
    }

    /// Takes the next piece out of a message of a flow, which is begun with it if it was not.
    fn take_piece(&mut self, lane: usize, id: u64, room: u64) -> Option<(FlowId, Range<u64>)> {
        let message = self.messages.get_mut(id)?;
        let (fresh, to_send, again) = (!message.is_begun(), message.to_send(), message.wants_again());
        let (flow, queue) = (&mut self.flows[message.flow.0 as usize], &mut self.lanes[lane]);
        if fresh {
            self.credit.pay(message.cost());
            begin(flow, queue, id, message);
        }
        let range = message.take_piece(room);
        queue.backlog = queue.backlog + message.to_send() - to_send;
        let size = range.end - range.start;
        if again {
            if !message.wants_again() {
                queue.again.remove(&id);
            }
        } else {
            // One that was begun and one that was not take turns, and so do those that were begun.
            queue.begun_first = fresh;
            let at_front = queue.begun.front() == Some(&id);
            if message.is_wholly_sent() {
                if at_front {
                    queue.begun.pop_front();
                } else {
                    queue.begun.retain(|begun| *begun != id);
                }
            } else if at_front && !queue.sequenced {
                queue.begun.rotate_left(1);
            }
        }
        for stats in [&mut self.stats, &mut flow.tally.counts] {
            stats.sent += u64::from(fresh);
            *if again { &mut stats.bytes_resent } else { &mut stats.bytes_sent } += size;
        }
        Some((message.flow, range))
    }

    fn put_frame(&self, id: u64, range: Range<u64>, draft: &mut Draft<'_>) {
        let Some(Encoded { reliable, whole }) = self.encode_piece(id, &range, draft.out) else {
            return;
        };
        if whole {
            return draft.note_message(id, reliable);
        }
        let (start, end) = (range.start as u32, range.end as u32);
        draft.contents.push(Content::Message { id, range: start..end, reliable, elsewhere: false });
    }

    /// Appends a piece's frame.
    fn encode_piece(&self, id: u64, range: &Range<u64>, out: &mut Vec<u8>) -> Option<Encoded> {
        let (message, header) = self.header(id)?;
        let whole = range.end - range.start == message.size();
        frame::put(out, if whole { kind::MESSAGE } else { kind::MESSAGE_PIECE }, |out| {
            header.encode(out);
            if !whole {
                frame::put_extent(out, message.size(), range.start);
            }
            out.extend_from_slice(message.bytes(range));
        });
        Some(Encoded { reliable: header.class.reliable, whole })
    }

    fn header(&self, id: u64) -> Option<(&Outgoing, MessageHeader)> {
        let message = self.messages.get(id)?;
        let class = self.flows[message.flow.0 as usize].options.class;
        let (flow, tag, place) = (message.flow.0, message.tag(), message.place.as_deref().copied());
        Some((message, MessageHeader { flow, number: message.number()?, class, tag, place }))
    }

    /// Something waits to go on `path` that went on another one before.
    pub(crate) fn has_copy_for(&mut self, chance: Chance) -> bool {
        self.forget_copies();
        let goes = |copy: &Copy| copy.first != chance.path && !self.copy_fits_alone(copy, chance);
        self.copies.iter().any(|copy| goes(copy) && self.is_needed(copy))
    }

    /// Finds what went on another path before and goes in a datagram on this one.
    pub(crate) fn copy_alone(&mut self, chance: Chance) -> Option<Copied> {
        if !chance.second {
            return None;
        }
        self.forget_copies();
        let goes = |copy: &Copy| copy.first != chance.path && self.copy_fits_alone(copy, chance);
        self.copies.iter().position(|copy| goes(copy) && self.is_needed(copy)).map(Copied)
    }

    /// Puts it in. Returns what leaves.
    pub(crate) fn put_copy_alone(&mut self, copied: Copied, out: &mut Vec<u8>) -> Option<Leaver> {
        let Copy { id, range, .. } = self.copies.remove(copied.0)?;
        self.note_copied(id, &range);
        self.put_datagram(id, &range, out)
    }

    fn forget_copies(&mut self) {
        while self.copies.front().is_some_and(|copy| !self.messages.contains(copy.id)) {
            self.copies.pop_front();
        }
    }

    fn copy_fits_alone(&self, copy: &Copy, chance: Chance) -> bool {
        let message = self.messages.get(copy.id);
        message.is_some_and(|message| {
            let whole = copy.range == (0..message.size());
            whole && self.may_go_alone(message, chance)
        })
    }

    fn note_copied(&mut self, id: u64, range: &Range<u64>) {
        if let Some(message) = self.messages.get_mut(id) {
            message.copy(range.clone());
            let flow = message.flow;
            self.count(flow, |stats| stats.bytes_resent += range.end - range.start);
        }
    }

    /// Appends a datagram's frame, with a whole message.
    fn put_datagram(&mut self, id: u64, range: &Range<u64>, out: &mut Vec<u8>) -> Option<Leaver> {
        let Encoded { reliable, .. } = self.encode_piece(id, range, out)?;
        let message = self.messages.get_mut(id)?;
        let repetition = reliable.then_some(message.datagrams);
        message.datagrams = message.datagrams.saturating_add(1);
        Some(Leaver { id, size: range.end - range.start, repetition })
    }

    fn is_redundant(&self, id: u64) -> bool {
        let of = |message: &Outgoing| self.flows[message.flow.0 as usize].options.redundant;
        self.messages.get(id).is_some_and(of)
    }

    fn is_needed(&self, copy: &Copy) -> bool {
        self.messages.get(copy.id).is_some_and(|message| message.needs(&copy.range))
    }

    /// Puts in what went on another path before and shall go on two. False if there is nothing.
    pub(crate) fn put_copy(&mut self, chance: Chance, draft: &mut Draft<'_>) -> bool {
        if draft.room() < MIN_PIECE.max(HEADER + 1) {
            return false;
        }
        while let Some(at) = self.next_copy(chance)
            && let Some(copy) = self.copies.remove(at)
        {
            if !self.is_needed(&copy) {
                continue;
            }
            let room = (draft.room() - HEADER) as u64;
            let range = copy.range.start..copy.range.end.min(copy.range.start + room);
            if range.end < copy.range.end {
                let range = range.end..copy.range.end;
                self.copies.push_front(Copy { id: copy.id, range, first: copy.first });
            }
            self.note_copied(copy.id, &range);
            self.put_frame(copy.id, range, draft);
            return true;
        }
        false
    }

    fn next_copy(&self, chance: Chance) -> Option<usize> {
        let goes = |copy: &Copy| copy.first != chance.path && !self.copy_fits_alone(copy, chance);
        self.copies.iter().position(goes)
    }

    /// The peer has to be told of messages that will not come.
    pub(crate) fn has_skips(&self) -> bool {
        !self.skips.is_empty()
    }

    /// Tells the peer of messages that will not come, as long as there is `room`.
    pub(crate) fn put_skips(&mut self, draft: &mut Draft<'_>, has_room: impl Fn(&Draft<'_>) -> bool) {
        while has_room(draft)
            && draft.room() >= HEADER
            && let Some(id) = self.skips.pop_first()
        {
            if let Some((message, header)) = self.header(id) {
                let skip = Skip { header: MessageHeader { tag: None, ..header }, size: message.size() };
                draft.put(&Frame::Skip(skip), Some(Content::Skip(id)));
            }
            if let Some(message) = self.messages.get_mut(id) {
                message.skip_leaves();
            }
        }
    }

    /// Whether a lane's next message goes in a segment of a path: one for which the path has no datagram and, if
    /// it is unreliable, as long as the path takes what it gets now.
    pub(super) fn goes_in_segments(&self, lane: usize, chance: Chance) -> bool {
        if chance.takes_now && chance.datagram == 0 {
            return true;
        }
        self.pick(lane, u64::MAX).is_some_and(|id| {
            let reliable = |m: &Outgoing| self.flows[m.flow.0 as usize].options.class.reliable;
            let takes = chance.takes_now || self.messages.get(id).is_some_and(reliable);
            takes && !self.fits_alone(id, chance)
        })
    }

    /// Whether a lane's next message goes in a datagram.
    pub(super) fn goes_alone(&self, lane: usize, chance: Chance) -> bool {
        self.pick(lane, chance.datagram).is_some_and(|id| self.fits_alone(id, chance))
    }
}

/// Gives a message its number and, in a group, its place.
fn begin(flow: &mut Flow, queue: &mut Lane, id: u64, message: &mut Outgoing) {
    message.set_number(Some(flow.next));
    flow.next += 1;
    if let Some(group) = queue.group {
        message.place = Some(Box::new(Place { group, epoch: queue.epoch, index: queue.index }));
        let reliable = flow.options.class.reliable;
        (queue.epoch, queue.index) =
            if reliable { (queue.epoch + 1, 0) } else { (queue.epoch, queue.index + 1) };
    }
    queue.fresh.remove(&(message.turn, id));
    queue.begun.push_back(id);
}
