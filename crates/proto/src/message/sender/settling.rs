//! What becomes of messages: acknowledged, lost with a path, given up, settled.

use std::ops::Range;
use std::time::Duration;

use super::{Event, Events, FlowId, MessageId, Outcome, Outgoing, Sender};

impl Sender {
    /// The peer has these messages, as is known `now`.
    pub(crate) fn all_delivered(&mut self, now: Duration, mut ids: Range<u64>, events: &mut Events) {
        while !ids.is_empty() {
            ids.start += self.run_delivered(now, &ids, events);
            if let Some(id) = ids.next() {
                self.whole_delivered(now, id, events);
            }
        }
    }

    /// Settles the first of these messages, as far as they are of one flow and there is nothing to say of any
    /// but that the peer has it. Returns how many that were.
    fn run_delivered(&mut self, now: Duration, ids: &Range<u64>, events: &mut Events) -> u64 {
        let Some(of) = self.messages.get(ids.start).map(|message| message.flow) else { return 0 };
        let flow = &mut self.flows[of.0 as usize];
        let (mut count, mut held, mut in_segments) = (0, 0, 0);
        for id in ids.clone() {
            let Some(message) = self.messages.get(id) else { break };
            let Some(number) = message.number().filter(|_| message.flow == of && message.is_plain()) else {
                break;
            };
            if let Some(taken) = message.taken {
                flow.tally.delays.note(now.saturating_sub(taken));
            }
            if let Some(at) = message.deadline {
                self.expiries.remove(at, id);
            }
            if !message.silent {
                events.push(Event::MessageDone(MessageId(id), Outcome::Delivered));
            }
            (count, held) = (count + 1, held + message.held());
            in_segments += usize::from(message.in_segments);
            flow.queued -= message.cost();
            flow.settled.insert(number);
            self.messages.remove(id);
        }
        if count > 0 {
            self.held -= held;
            (self.stats.delivered, flow.tally.counts.delivered) =
                (self.stats.delivered + count, flow.tally.counts.delivered + count);
            let lane = flow.lane;
            self.lanes[lane].in_segments -= in_segments;
            self.has_room(of, events);
            self.has_settled(lane);
        }
        count
    }

    /// Tells whoever waits for room in a flow's queue if there is much of it, or if all that it holds is on
    /// its way: until half of that had arrived, others would go instead, however urgent it is.
    fn has_room(&mut self, of: FlowId, events: &mut Events) {
        let flow = &mut self.flows[of.0 as usize];
        let queue = flow.options.queue;
        let most = if self.lanes[flow.lane].backlog == 0 { queue - queue / 8 } else { queue / 2 };
        if flow.blocked && flow.queued <= most {
            flow.blocked = false;
            events.push(Event::FlowWritable(of));
        }
    }

    /// Messages of a lane have their end: others, which waited for that, may go.
    fn has_settled(&mut self, lane: usize) {
        let queue = &mut self.lanes[lane];
        if queue.backlog == 0 || std::mem::take(&mut queue.parked) {
            self.activate(lane);
        }
    }

    fn whole_delivered(&mut self, now: Duration, id: u64, events: &mut Events) {
        let Some(message) = self.messages.get(id) else {
            return;
        };
        // Once SKIP has left, what arrives behind it is acknowledged and dropped.
        let outcome = message.fate.filter(|_| message.may_be_dropped()).unwrap_or(Outcome::Delivered);
        if let Some(taken) = message.taken.filter(|_| outcome == Outcome::Delivered) {
            self.flows[message.flow.0 as usize].tally.delays.note(now.saturating_sub(taken));
        }
        self.settle(id, outcome, events);
    }

    /// The peer has a part of a message, as is known `now`.
    pub(crate) fn delivered(&mut self, now: Duration, id: u64, range: Range<u64>, events: &mut Events) {
        let Some(message) = self.messages.get_mut(id) else {
            return;
        };
        let before = message.to_send();
        let whole = message.acknowledge(range);
        let (after, again) = (message.to_send(), message.wants_again());
        let lane = self.flows[message.flow.0 as usize].lane;
        let queue = &mut self.lanes[lane];
        queue.backlog = queue.backlog + after - before;
        if !again {
            queue.again.remove(&id);
        }
        if whole {
            self.whole_delivered(now, id, events);
        } else if queue.backlog == 0 {
            self.activate(lane);
        }
    }

    /// The path that carried these messages was lost, or fell silent.
    pub(crate) fn all_come_back(&mut self, ids: Range<u64>, events: &mut Events) {
        for id in ids {
            if let Some(size) = self.messages.get(id).map(Outgoing::size) {
                self.come_back(id, 0..size, events);
            }
        }
    }

    /// The path that carried a part of a message was lost, or fell silent: reliable ones go again, others
    /// never.
    pub(crate) fn come_back(&mut self, id: u64, range: Range<u64>, events: &mut Events) {
        let Some(message) = self.messages.get_mut(id) else {
            return;
        };
        if !message.come_back(&range) {
            return;
        }
        let flow = &self.flows[message.flow.0 as usize];
        if message.fate.is_some() {
            return self.owe_skip(id);
        }
        let (before, reliable, lane) = (message.to_send(), flow.options.class.reliable, flow.lane);
        let mut worn_out = !reliable;
        let repeats = reliable && message.repeat(range);
        if repeats {
            worn_out = message.retries == Some(0);
            message.retries = message.retries.map(|left| left.saturating_sub(1));
        }
        let queue = &mut self.lanes[lane];
        queue.backlog = queue.backlog + message.to_send() - before;
        if message.wants_again() {
            queue.again.insert(id);
        }
        if repeats && !worn_out {
            let flow = message.flow;
            self.count(flow, |stats| stats.retransmitted += 1);
        }
        if worn_out {
            self.doom(id, Outcome::Lost, events);
            self.owe_skip(id);
        } else {
            self.activate(lane);
        }
    }

    /// A message is not sent any more, neither what is left of it nor what comes back.
    pub(super) fn doom(&mut self, id: u64, fate: Outcome, events: &mut Events) {
        let Some(message) = self.messages.get_mut(id) else {
            return;
        };
        if message.fate.is_some() {
            return;
        }
        if !message.is_begun() {
            return self.settle(id, fate, events);
        }
        let (partly, returned) = (!message.is_wholly_sent(), message.wants_again());
        let before = message.to_send();
        self.held -= message.held();
        message.give_up(fate);
        if let Some(tag) = message.tag() {
            self.tags.remove(&(message.flow, tag, id));
        }
        if let Some(at) = message.deadline {
            self.expiries.remove(at, id);
        }
        let (flow, silent) = (message.flow, message.silent);
        let lane = self.flows[flow.0 as usize].lane;
        let tell = partly && !std::mem::replace(&mut message.told, true);
        let queue = &mut self.lanes[lane];
        queue.backlog -= before;
        queue.again.remove(&id);
        queue.begun.retain(|begun| *begun != id);
        if tell {
            // The peer cannot have it.
            self.tell(id, flow, fate, silent, events);
        }
        if partly || returned {
            self.owe_skip(id);
        }
        self.activate(lane);
    }

    fn owe_skip(&mut self, id: u64) {
        if self.messages.get_mut(id).is_some_and(|message| message.skip()) {
            self.skips.insert(id);
        }
    }

    /// The peer knows that a message will not come.
    pub(crate) fn skip_delivered(&mut self, id: u64, events: &mut Events) {
        let fate = self.messages.get(id).and_then(|message| message.fate);
        self.settle(id, fate.unwrap_or(Outcome::Lost), events);
    }

    /// What told the peer that a message will not come was lost with its path.
    pub(crate) fn skip_came_back(&mut self, id: u64) {
        if self.messages.contains(id) {
            self.skips.insert(id);
        }
    }

    /// A message has its end: both sides know of it, or it never left.
    pub(super) fn settle(&mut self, id: u64, outcome: Outcome, events: &mut Events) {
        let Some(message) = self.messages.get(id) else {
            return;
        };
        let (of, told, silent) = (message.flow, message.told, message.silent);
        self.held -= message.held();
        if message.fate.is_none() {
            if let Some(tag) = message.tag() {
                self.tags.remove(&(message.flow, tag, id));
            }
            if let Some(at) = message.deadline {
                self.expiries.remove(at, id);
            }
        }
        if message.is_skipped() {
            self.skips.remove(&id);
        }
        let flow = &mut self.flows[message.flow.0 as usize];
        let lane = flow.lane;
        flow.queued -= message.cost();
        let queue = &mut self.lanes[lane];
        queue.in_segments -= usize::from(message.in_segments);
        queue.backlog -= message.to_send();
        match message.number() {
            None => queue.fresh.remove(&(message.turn, id)),
            Some(number) => {
                flow.settled.insert(number);
                if let Some(place) = message.place.as_deref().filter(|_| flow.options.class.reliable) {
                    queue.settled.insert(place.epoch);
                }
                if message.wants_again() {
                    queue.again.remove(&id);
                }
                if !message.is_wholly_sent() {
                    queue.begun.retain(|begun| *begun != id);
                }
            }
        }
        self.has_room(of, events);
        self.messages.remove(id);
        if !told {
            self.tell(id, of, outcome, silent, events);
        }
        self.has_settled(lane);
    }

    fn tell(&mut self, id: u64, flow: FlowId, outcome: Outcome, silent: bool, events: &mut Events) {
        self.count(flow, |stats| {
            *match outcome {
                Outcome::Delivered => &mut stats.delivered,
                Outcome::Expired => &mut stats.expired,
                Outcome::Replaced => &mut stats.replaced,
                Outcome::Cancelled => &mut stats.cancelled,
                Outcome::Lost => &mut stats.lost,
            } += 1;
        });
        if !silent {
            events.push(Event::MessageDone(MessageId(id), outcome));
        }
    }
}
