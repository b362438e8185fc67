//! What was sent and has no end, written down. There is no path then: whatever was on its way has come back.

use super::super::outgoing::Outgoing;
use super::super::snapshot as parts;
use super::super::{Delays, FlowId, MAX_MESSAGE, MessageStats};
use super::flows::check;
use super::tally::Tally;
use super::{SendCredit, Sender};
use crate::error::DecodeError;
use crate::event::{Event, Events};
use crate::snapshot::{
    bytes, flag, number, numbers, optional, read_counts, read_flag, read_numbers, read_optional,
};
use crate::varint::Reader;

const NO_FLOW: DecodeError = DecodeError::Invalid("flow of a message");

impl Sender {
    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        self.credit.write_down(out);
        numbers(out, [self.next_id, self.next_turn]);
        numbers(out, counts(&self.stats));
        number(out, self.flows.len() as u64);
        for flow in &self.flows {
            parts::options(out, &flow.options);
            flag(out, flow.open);
            number(out, flow.next);
            parts::seen(out, &flow.settled);
        }
        for lane in &self.lanes {
            numbers(out, [lane.epoch, lane.index]);
            parts::seen(out, &lane.settled);
        }
        number(out, self.messages.len() as u64);
        for (id, message) in self.messages.iter() {
            numbers(out, [id, message.flow.0]);
            message.write_down(out);
        }
    }

    /// Reads itself back. What the peer may not have waits to be sent again. Events tell that flows have
    /// room, as far as they do.
    pub(crate) fn read_back(reader: &mut Reader<'_>, events: &mut Events) -> Result<Self, DecodeError> {
        let mut this = Self::new();
        this.credit = SendCredit::read_back(reader)?;
        [this.next_id, this.next_turn] = read_numbers(reader)?;
        this.stats = read_stats(reader)?;
        for index in 0..reader.varint()? {
            let options = parts::read_options(reader)?;
            let flow = check(&options).and_then(|()| this.add_flow(options));
            let flow = flow.map_err(|_| DecodeError::Invalid("flow"))?;
            let flow = &mut this.flows[flow.0 as usize];
            flow.open = read_flag(reader)?;
            [flow.next] = read_counts(reader)?;
            flow.settled = parts::read_seen(reader)?;
            if flow.open {
                events.push(Event::FlowWritable(FlowId(index)));
            }
        }
        for lane in &mut this.lanes {
            [lane.epoch, lane.index] = read_counts(reader)?;
            lane.settled = parts::read_seen(reader)?;
        }
        let mut first = 0;
        for _ in 0..reader.varint()? {
            let [id, flow] = read_numbers(reader)?;
            if !(first..this.next_id).contains(&id) {
                return Err(DecodeError::Invalid("id of a message"));
            }
            let message = Outgoing::read_back(reader, FlowId(flow))?;
            this.put_back_in_place(id, message)?;
            first = id + 1;
        }
        for lane in 0..this.lanes.len() {
            this.activate(lane);
        }
        Ok(this)
    }

    /// Writes down what each flow has counted.
    pub(crate) fn write_tallies_down(&self, out: &mut Vec<u8>) {
        for flow in &self.flows {
            numbers(out, counts(&flow.tally.counts));
            flow.tally.delays.write_down(out);
        }
    }

    /// Reads back what each flow has counted, once the flows are there.
    pub(crate) fn read_tallies_back(&mut self, reader: &mut Reader<'_>) -> Result<(), DecodeError> {
        for flow in &mut self.flows {
            flow.tally = Tally { counts: read_stats(reader)?, delays: Delays::read_back(reader)? };
        }
        Ok(())
    }

    fn put_back_in_place(&mut self, id: u64, mut message: Outgoing) -> Result<(), DecodeError> {
        let flow = self.flows.get_mut(message.flow.0 as usize).ok_or(NO_FLOW)?;
        if message.number().is_some_and(|number| number >= flow.next) {
            return Err(DecodeError::Invalid("number of a message"));
        }
        let queue = &mut self.lanes[flow.lane];
        flow.queued += message.cost();
        self.held += message.held();
        if message.fate.is_some() {
            // Whatever of it was on its way, the peer has to be told.
            let _ = message.skip();
            self.skips.insert(id);
        } else {
            if let Some(tag) = message.tag() {
                self.tags.insert((message.flow, tag, id));
            }
            if let Some(at) = message.deadline {
                self.expiries.insert(at, id);
            }
            if !message.is_begun() {
                queue.fresh.insert((message.turn, id));
            } else {
                message.repeat(0..message.next());
                if message.wants_again() {
                    queue.again.insert(id);
                }
                if !message.is_wholly_sent() {
                    queue.begun.push_back(id);
                }
            }
            queue.backlog += message.to_send();
        }
        self.messages.insert(id, message);
        Ok(())
    }
}

impl Outgoing {
    fn write_down(&self, out: &mut Vec<u8>) {
        parts::tag(out, self.tag());
        number(out, self.turn);
        parts::time(out, self.deadline);
        optional(out, self.retries.map(u64::from));
        flag(out, self.silent);
        optional(out, self.number());
        parts::place(out, self.place.as_deref().copied());
        parts::outcome(out, self.fate);
        flag(out, self.told);
        numbers(out, [self.size(), self.next(), self.acked().count() as u64]);
        self.acked().for_each(|range| numbers(out, [range.start, range.end]));
        bytes(out, self.bytes(&(0..self.held())));
    }

    fn read_back(reader: &mut Reader<'_>, flow: FlowId) -> Result<Self, DecodeError> {
        let (tag, turn) = (parts::read_tag(reader)?, reader.varint()?);
        let mut this = Self::new(flow, tag, turn, Vec::new());
        this.deadline = parts::read_time(reader)?;
        let retries = read_optional(reader)?;
        this.retries = retries.map(|retries| retries.min(u64::from(u32::MAX)) as u32);
        this.silent = read_flag(reader)?;
        this.set_number(read_optional(reader)?);
        this.place = parts::read_place(reader)?.map(Box::new);
        this.fate = parts::read_outcome(reader)?;
        this.told = read_flag(reader)?;
        let [size, next, acked] = read_numbers(reader)?;
        if size > MAX_MESSAGE || next > size || (next > 0 && !this.is_begun()) {
            return Err(DecodeError::Invalid("size of a message"));
        }
        let mut ranges = Vec::new();
        for _ in 0..acked {
            let [start, end] = read_numbers(reader)?;
            if start >= end || end > next {
                return Err(DecodeError::Invalid("range of a message"));
            }
            ranges.push(start..end);
        }
        let data = reader.prefixed()?;
        // One that was given up has no bytes any more, and had been begun.
        let is_right = match this.fate {
            None => data.len() as u64 == size,
            Some(_) => data.is_empty() && this.is_begun(),
        };
        if !is_right {
            return Err(DecodeError::Invalid("size of a message"));
        }
        this.restore(size, next, data.to_vec(), ranges);
        Ok(this)
    }
}

fn counts(stats: &MessageStats) -> [u64; 8] {
    let MessageStats {
        sent, bytes_sent, bytes_resent, delivered, expired, replaced, cancelled, lost, ..
    } = *stats;
    [sent, bytes_sent, bytes_resent, delivered, expired, replaced, cancelled, lost]
}

fn read_stats(reader: &mut Reader<'_>) -> Result<MessageStats, DecodeError> {
    let [sent, bytes_sent, bytes_resent, delivered, expired, replaced, cancelled, lost] =
        read_numbers(reader)?;
    let stats = MessageStats::default();
    Ok(MessageStats {
        sent,
        bytes_sent,
        bytes_resent,
        delivered,
        expired,
        replaced,
        cancelled,
        lost,
        ..stats
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::super::{Class, FlowOptions};
    use super::*;
    use crate::snapshot::MOST_COUNTED;

    #[test]
    fn a_message_that_cannot_be_is_not_read_back() {
        let read = |change: &dyn Fn(&mut Sender)| {
            let mut sender = Sender::new();
            sender.add_flow(FlowOptions::new(Class::RELIABLE)).unwrap();
            (sender.next_id, sender.flows[0].next) = (8, 6);
            let mut message = Outgoing::new(FlowId(0), None, 0, b"whole".to_vec());
            message.set_number(Some(5));
            sender.messages.insert(7, message);
            change(&mut sender);
            let mut bytes = Vec::new();
            sender.write_down(&mut bytes);
            Sender::read_back(&mut Reader::new(&bytes), &mut Events::default()).map(drop)
        };
        assert_eq!(read(&|_| {}), Ok(()));
        assert_eq!(read(&|sender| sender.next_id = 7), Err(DecodeError::Invalid("id of a message")));
        assert_eq!(
            read(&|sender| sender.flows[0].next = 5),
            Err(DecodeError::Invalid("number of a message")),
            "it was not given out"
        );
        assert_eq!(
            read(&|sender| sender.flows[0].next = MOST_COUNTED + 1),
            Err(DecodeError::TooLarge("count in a snapshot"))
        );
        assert_eq!(read(&|sender| sender.flows[0].options.weight = 0), Err(DecodeError::Invalid("flow")));
        let fresh_and_given_up = |sender: &mut Sender| {
            let message = sender.messages.get_mut(7).unwrap();
            message.set_number(None);
            message.give_up(crate::flow::Outcome::Expired);
        };
        assert_eq!(read(&fresh_and_given_up), Err(DecodeError::Invalid("size of a message")));
    }
}
