//! Messages on their way out: flows, their queues, and what is on the wire without an end.

mod flows;
mod leaving;
mod runs;
mod settling;
mod snapshot;
mod tally;

pub(crate) use leaving::Chance;
pub(crate) use runs::{Ran, Together};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use self::tally::Tally;
use super::ascending::Ascending;
use super::credit::SendCredit;
use super::deadlines::Deadlines;
use super::outgoing::Outgoing;
use super::seen::Seen;
use super::turns::{Levels, Turn, Turns};
use super::window::Window;
use super::{
    FlowId, FlowOptions, MessageId, MessageStats, NUMBER_WINDOW, Outcome, Refused, SendError, SendOptions,
    Tag, cost,
};
use crate::event::{Event, Events};
use crate::ids::PathId;
use crate::varint;
use whimbrel_base::order;

/// So many bytes fill a segment well enough that a flow need not hold them back.
const FULL: u64 = 1200;

/// A flow of this side.
#[derive(Debug)]
struct Flow {
    options: FlowOptions,
    open: bool,
    lane: usize,
    /// The number of its next message.
    next: u64,
    /// Numbers of messages that have an end.
    settled: Seen,
    /// What its messages without an end take of its queue.
    queued: u64,
    /// A message found no room.
    blocked: bool,
    /// Counts of its messages, and how long they took.
    tally: Tally,
}

/// One queue: that of a flow, or of the flows of a group, which leave in the order sent.
#[derive(Debug)]
struct Lane {
    turn: Turn,
    sequenced: bool,
    /// The group that it belongs to.
    group: Option<u8>,
    /// Parts of these go again, the oldest message first.
    again: BTreeSet<u64>,
    /// Parts of these were sent.
    begun: VecDeque<u64>,
    /// Nothing of these was sent, by turn.
    fresh: Ascending<(u64, u64)>,
    /// A message that was begun goes before a fresh one next time.
    begun_first: bool,
    /// Bytes to send.
    backlog: u64,
    /// Unreliable messages that are under way in segments.
    in_segments: usize,
    /// It waits for credit, or for messages to end.
    parked: bool,
    /// Small messages are held back until then.
    wakes: Option<Duration>,
    /// A group's place for its next message, and the epochs that have an end.
    epoch: u64,
    index: u64,
    settled: Seen,
}

/// A part that goes on a second path too.
#[derive(Debug)]
struct Copy {
    id: u64,
    range: Range<u64>,
    /// Not on this one.
    first: PathId,
}

/// What is sent on this side's flows.
#[derive(Debug)]
pub(crate) struct Sender {
    flows: Vec<Flow>,
    lanes: Vec<Lane>,
    groups: BTreeMap<u8, usize>,
    /// Messages without an end.
    messages: Window<Outgoing>,
    next_id: u64,
    next_turn: u64,
    turns: Turns,
    tags: BTreeSet<(FlowId, Tag, u64)>,
    /// When messages expire.
    expiries: Deadlines,
    /// When lanes stop holding small messages back.
    wakes: BTreeSet<(Duration, usize)>,
    /// Messages of which the peer has to be told that they will not come.
    skips: BTreeSet<u64>,
    copies: VecDeque<Copy>,
    credit: SendCredit,
    /// Bytes held, of all flows.
    held: u64,
    /// No more is sent.
    closed: bool,
    stats: MessageStats,
}

impl Sender {
    pub(crate) fn new() -> Self {
        Self {
            flows: Vec::new(),
            lanes: Vec::new(),
            groups: BTreeMap::new(),
            messages: Window::default(),
            next_id: 0,
            next_turn: 0,
            turns: Turns::default(),
            tags: BTreeSet::new(),
            expiries: Deadlines::default(),
            wakes: BTreeSet::new(),
            skips: BTreeSet::new(),
            copies: VecDeque::new(),
            credit: SendCredit::none(),
            held: 0,
            closed: false,
            stats: MessageStats::default(),
        }
    }

    /// Takes a message. If it `replaces` others, those with the tags said are cancelled and those with the
    /// message's own tag replaced, all at once or, if the message is refused, not at all.
    pub(crate) fn send(
        &mut self,
        now: Duration,
        replaces: Option<&[(FlowId, Tag)]>,
        id: FlowId,
        data: Vec<u8>,
        options: SendOptions,
        events: &mut Events,
    ) -> Result<MessageId, Refused> {
        let Some(drop) = replaces else {
            return match self.check(id, data.len() as u64, options, 0) {
                Ok(()) => Ok(self.enqueue(now, id, data, options, None)),
                Err(error) => Err(Refused { error, data }),
            };
        };
        let Some(own) = options.tag else { return Err(Refused { error: SendError::NoTag, data }) };
        let replaced = Some((id, own));
        let freed = drop.iter().copied().chain(replaced).filter(|(flow, _)| *flow == id);
        let freed = self.unsent_with_any(freed);
        if let Err(error) = self.check(id, data.len() as u64, options, freed) {
            return Err(Refused { error, data });
        }
        for (flow, tag) in drop {
            self.cancel(*flow, *tag, Outcome::Cancelled, events);
        }
        let turn = replaced.and_then(|(flow, tag)| self.cancel(flow, tag, Outcome::Replaced, events));
        Ok(self.enqueue(now, id, data, options, turn))
    }

    /// Whether a message may be sent once so much of its flow's queue is `freed`.
    #[inline]
    fn check(&mut self, id: FlowId, size: u64, options: SendOptions, freed: u64) -> Result<(), SendError> {
        let most = self.credit.largest();
        if options.tag.is_some_and(|Tag(tag)| tag > varint::MAX) {
            return Err(SendError::Tag);
        }
        let flow = self.flows.get_mut(id.0 as usize).filter(|flow| flow.open);
        let flow = flow.ok_or(SendError::UnknownFlow(id))?;
        if size > most {
            return Err(SendError::TooLarge { size, most });
        }
        let queued = flow.queued - freed;
        if queued > 0 && queued + cost(size) > flow.options.queue {
            flow.blocked = true;
            return Err(SendError::Full);
        }
        Ok(())
    }

    /// What messages with any of these tags take of their queues that would leave them at once.
    fn unsent_with_any(&self, tags: impl Iterator<Item = (FlowId, Tag)>) -> u64 {
        let mut tags: Vec<(FlowId, Tag)> = tags.collect();
        order::by(&mut tags, Ord::cmp);
        tags.dedup();
        tags.iter().map(|(flow, tag)| self.unsent_with(*flow, *tag)).sum()
    }

    /// What messages with a tag take of the queue that would leave it at once.
    fn unsent_with(&self, flow: FlowId, tag: Tag) -> u64 {
        let unsent = self.tagged(flow, tag).filter_map(|id| self.messages.get(id)).filter(|m| !m.is_begun());
        unsent.map(Outgoing::cost).sum()
    }

    fn tagged(&self, flow: FlowId, tag: Tag) -> impl Iterator<Item = u64> {
        self.tags.range((flow, tag, 0)..=(flow, tag, u64::MAX)).map(|(_, _, id)| *id)
    }

    #[inline]
    fn enqueue(
        &mut self,
        now: Duration,
        flow: FlowId,
        data: Vec<u8>,
        options: SendOptions,
        turn: Option<u64>,
    ) -> MessageId {
        let id = self.next_id;
        self.next_id += 1;
        self.next_turn += 1;
        let of = &mut self.flows[flow.0 as usize];
        let lane = of.lane;
        // Where order is promised, what takes a place takes it at the end.
        let turn = turn.filter(|_| !of.options.class.sequenced).unwrap_or(self.next_turn);
        let mut message = Outgoing::new(flow, options.tag, turn, data);
        message.taken = Some(now);
        message.deadline = options.lifetime.and_then(|time| now.checked_add(time));
        message.retries = options.retransmissions;
        message.silent = options.silent;
        of.queued += message.cost();
        self.held += message.size();
        if let Some(tag) = options.tag {
            self.tags.insert((flow, tag, id));
        }
        if let Some(deadline) = message.deadline {
            self.expiries.insert(deadline, id);
        }
        let buffering = of.options.buffering;
        let queue = &mut self.lanes[lane];
        queue.fresh.insert((turn, id));
        queue.backlog += message.to_send();
        self.messages.insert(id, message);
        self.hold_back(now, lane, buffering);
        MessageId(id)
    }

    /// Puts a lane in turn, unless what it has is held back.
    fn hold_back(&mut self, now: Duration, lane: usize, buffering: Duration) {
        let queue = &mut self.lanes[lane];
        if queue.turn.waits() {
            return;
        }
        if buffering.is_zero() || queue.backlog >= FULL {
            return self.activate(lane);
        }
        let at = now + buffering;
        if queue.wakes.is_none_or(|known| at < known) {
            if let Some(known) = queue.wakes.replace(at) {
                self.wakes.remove(&(known, lane));
            }
            self.wakes.insert((at, lane));
        }
    }

    /// Puts a lane in turn if it has something to send, and takes it out otherwise.
    fn activate(&mut self, lane: usize) {
        let queue = &mut self.lanes[lane];
        if let Some(at) = queue.wakes.take() {
            self.wakes.remove(&(at, lane));
        }
        if queue.backlog > 0 && !queue.parked && !self.closed {
            self.turns.join(lane, &mut queue.turn);
        } else {
            self.turns.leave(lane, &mut queue.turn);
        }
    }

    /// Lanes that waited for credit, or for messages to end, may try again.
    fn unpark(&mut self) {
        for lane in 0..self.lanes.len() {
            if std::mem::take(&mut self.lanes[lane].parked) {
                self.activate(lane);
            }
        }
    }

    /// Cancels what has a tag. Returns the turn of the first of those that were not begun.
    pub(crate) fn cancel(
        &mut self,
        flow: FlowId,
        tag: Tag,
        fate: Outcome,
        events: &mut Events,
    ) -> Option<u64> {
        let ids: Vec<u64> = self.tagged(flow, tag).collect();
        let fresh = ids.iter().filter_map(|id| self.messages.get(*id)).filter(|m| !m.is_begun());
        let turn = fresh.map(|m| m.turn).min();
        for id in ids {
            self.doom(id, fate, events);
        }
        turn
    }

    /// The next time at which [`run`](Self::run) has something to do.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let expiry = self.expiries.first().map(|(at, _)| at);
        let wake = self.wakes.first().map(|(at, _)| *at);
        [expiry, wake].into_iter().flatten().min()
    }

    /// Does what is due.
    pub(crate) fn run(&mut self, now: Duration, events: &mut Events) {
        while let Some((at, id)) = self.expiries.first().filter(|(at, _)| *at <= now) {
            self.expiries.remove(at, id);
            self.doom(id, Outcome::Expired, events);
        }
        while let Some((_, lane)) = self.wakes.first().copied().filter(|(at, _)| *at <= now) {
            self.activate(lane);
        }
    }

    /// The peer has stated how much it takes; 0 if it takes no messages.
    pub(crate) fn open(&mut self, window: u64) {
        self.credit.open(window);
        self.unpark();
    }

    /// The peer takes messages.
    pub(crate) fn is_open(&self) -> bool {
        self.credit.is_open()
    }

    /// The peer allows more.
    pub(crate) fn allow(&mut self, limit: u64) {
        if self.credit.allow(limit) {
            self.unpark();
        }
    }

    /// Nothing is sent any more, and nothing that was sent is waited for.
    pub(crate) fn close(&mut self, events: &mut Events) {
        self.closed = true;
        for lane in 0..self.lanes.len() {
            self.activate(lane);
        }
        let ids: Vec<u64> = self.messages.iter().map(|(id, _)| id).collect();
        for id in ids {
            self.settle(id, Outcome::Lost, events);
        }
        self.copies.clear();
        self.skips.clear();
    }

    /// Every message has an end.
    pub(crate) fn is_drained(&self) -> bool {
        self.messages.is_empty()
    }

    /// Nothing waits to be sent. Held-back messages count as nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.turns.waiting() == 0
    }

    /// Levels of urgency at which something waits.
    pub(crate) fn levels(&self) -> Levels {
        self.turns.waiting()
    }

    /// Bytes of these levels of urgency that wait to be sent in segments. A path that does not take them now
    /// gets no unreliable ones, and one where they fit in a datagram none of either.
    pub(crate) fn waiting(&self, levels: Levels, chance: Chance) -> u64 {
        if self.is_idle() {
            return 0;
        }
        let waits = |lane: &Lane| lane.turn.waits() && levels >> lane.turn.level & 1 == 1;
        let active = self.lanes.iter().enumerate().filter(|(_, lane)| waits(lane));
        let useful = active.filter(|(at, _)| self.goes_in_segments(*at, chance));
        useful.map(|(_, lane)| lane.backlog).sum()
    }

    /// Bytes of these levels of urgency that wait to be sent in datagrams.
    pub(crate) fn waiting_alone(&self, levels: Levels, chance: Chance) -> u64 {
        let waits = |lane: &Lane| lane.turn.waits() && levels >> lane.turn.level & 1 == 1;
        let active = self.lanes.iter().enumerate().filter(|(_, lane)| waits(lane));
        let useful = active.filter(|(at, _)| self.goes_alone(*at, chance));
        useful.map(|(_, lane)| lane.backlog).sum()
    }

    /// The size of the largest message that the peer takes.
    pub(crate) fn largest(&self) -> u64 {
        self.credit.largest()
    }

    /// Bytes that are held until the peer has them.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// What all messages so far have cost.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn spent(&self) -> u64 {
        self.credit.spent()
    }

    /// Messages without an end.
    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }
}
