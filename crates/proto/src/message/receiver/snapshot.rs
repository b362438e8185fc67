//! What arrived, written down.

use super::super::order::Order;
use super::super::partial::{MAX_PIECES, Partial};
use super::super::snapshot as parts;
use super::super::{MAX_FLOWS, MAX_MESSAGE, cost};
use super::{Counts, Inflow, OrderOf, Receiver, RecvCredit, Whole};
use crate::error::DecodeError;
use crate::event::Events;
use crate::frame::MessageHeader;
use crate::snapshot::{bytes, flag, number, numbers, read_flag, read_numbers};
use crate::varint::Reader;

impl Receiver {
    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        self.credit.write_down(out, self.ahead.cost());
        let Counts { received, discarded, duplicates } = self.counts;
        numbers(out, [received, discarded, duplicates]);
        number(out, self.flows.len() as u64);
        for (flow, inflow) in &self.flows {
            number(out, *flow);
            parts::class(out, inflow.class);
            parts::seen(out, &inflow.settled);
        }
        number(out, self.orders().count() as u64);
        for (of, order) in self.orders() {
            let (is_group, who) = match of {
                OrderOf::Flow(flow) => (false, flow),
                OrderOf::Group(group) => (true, group),
            };
            flag(out, is_group);
            let (epoch, index) = order.place();
            numbers(out, [who, epoch, index, order.waiting().count() as u64]);
            for (epoch, index, whole) in order.waiting() {
                numbers(out, [epoch, index]);
                flag(out, whole.is_some());
                whole.iter().for_each(|whole| whole.write_down(out));
            }
        }
        number(out, self.partial.len() as u64);
        for partial in self.partial.values() {
            let header = &partial.header;
            numbers(out, [header.flow, header.number]);
            parts::class(out, header.class);
            parts::tag(out, header.tag);
            parts::place(out, header.place);
            numbers(out, [partial.size(), partial.pieces() as u64]);
            for (offset, piece) in partial.ranges() {
                number(out, offset);
                bytes(out, piece);
            }
        }
        number(out, self.arrived.len() as u64);
        self.arrived.iter().for_each(|whole| whole.write_down(out));
    }

    /// Reads itself back. An event tells that messages wait, and the peer is told what it may send.
    pub(crate) fn read_back(
        reader: &mut Reader<'_>,
        window: u64,
        journals: bool,
        events: &mut Events,
    ) -> Result<Self, DecodeError> {
        let mut this = Self::new(window);
        this.arrived.journals = journals;
        this.credit = RecvCredit::read_back(reader)?;
        let [received, discarded, duplicates] = read_numbers(reader)?;
        this.counts = Counts { received, discarded, duplicates };
        for _ in 0..reader.varint()? {
            let flow = reader.varint()?;
            if flow >= MAX_FLOWS {
                return Err(DecodeError::TooLarge("flow"));
            }
            let class = parts::read_class(reader)?;
            let inflow = Inflow { settled: parts::read_seen(reader)?, ..Inflow::new(class) };
            this.flows.insert(flow, inflow);
        }
        let mut paid = this.unread();
        for _ in 0..reader.varint()? {
            let is_group = read_flag(reader)?;
            let [who, epoch, index, waiting] = read_numbers(reader)?;
            let mut order = Order::at(epoch, index);
            for _ in 0..waiting {
                let [epoch, index] = read_numbers(reader)?;
                if !order.admits(epoch) {
                    return Err(DecodeError::TooLarge("place of a message"));
                }
                let is_here = read_flag(reader)?;
                let whole = is_here.then(|| Whole::read_back(reader, &mut paid)).transpose()?;
                this.held += whole.as_ref().map_or(0, |whole| whole.data.len() as u64);
                order.wait(epoch, index, whole);
            }
            if is_group {
                this.groups.insert(who, order);
            } else {
                // Whatever has an order has brought a message.
                let inflow = this.flows.get_mut(&who).ok_or(DecodeError::Invalid("order of a flow"))?;
                inflow.order = Some(Box::new(order));
            }
        }
        for _ in 0..reader.varint()? {
            let partial = read_partial(reader, &mut paid)?;
            this.held += partial.held();
            this.pieces += partial.pieces();
            if this.pieces > MAX_PIECES {
                return Err(DecodeError::TooLarge("pieces of messages"));
            }
            this.partial.insert((partial.header.flow, partial.header.number), partial);
        }
        for _ in 0..reader.varint()? {
            let whole = Whole::read_back(reader, &mut paid)?;
            this.held += whole.data.len() as u64;
            this.arrived.deliver(whole, events);
        }
        this.mark_credit();
        Ok(this)
    }
}

/// A message of that size was paid for, before it was whole: a small piece may take the room of a large one.
fn pay(paid: &mut u64, size: u64) -> Result<(), DecodeError> {
    *paid = paid.checked_sub(cost(size)).ok_or(DecodeError::TooLarge("messages"))?;
    Ok(())
}

fn read_partial(reader: &mut Reader<'_>, paid: &mut u64) -> Result<Partial, DecodeError> {
    let [flow, number] = read_numbers(reader)?;
    let (class, tag) = (parts::read_class(reader)?, parts::read_tag(reader)?);
    let header = MessageHeader { flow, number, class, tag, place: parts::read_place(reader)? };
    let [size, pieces] = read_numbers(reader)?;
    if size > MAX_MESSAGE {
        return Err(DecodeError::Invalid("size of a message"));
    }
    pay(paid, size)?;
    let mut partial = Partial::new(header, size);
    for _ in 0..pieces {
        let (offset, piece) = (reader.varint()?, reader.prefixed()?);
        let within = offset.checked_add(piece.len() as u64).is_some_and(|end| end <= size);
        if !within || partial.take(&header, size, offset, piece).is_err() {
            return Err(DecodeError::Invalid("piece of a message"));
        }
    }
    Ok(partial)
}

impl Whole {
    fn write_down(&self, out: &mut Vec<u8>) {
        number(out, self.flow);
        parts::class(out, self.class);
        parts::tag(out, self.tag);
        bytes(out, &self.data);
    }

    fn read_back(reader: &mut Reader<'_>, paid: &mut u64) -> Result<Self, DecodeError> {
        let flow = reader.varint()?;
        let (class, tag) = (parts::read_class(reader)?, parts::read_tag(reader)?);
        let data = reader.prefixed()?.to_vec();
        pay(paid, data.len() as u64)?;
        Ok(Self { flow, class, tag, data })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::super::{Class, NUMBER_WINDOW};
    use super::*;
    use crate::frame::Place;

    #[test]
    fn a_snapshot_with_the_order_of_a_flow_that_brought_nothing_is_refused() {
        let (mut receiver, mut events) = (Receiver::new(10_000), Events::default());
        let class = Class::RELIABLE_SEQUENCED;
        let header = MessageHeader { flow: 0, number: 1, class, tag: None, place: None };
        receiver.piece(header, 3, 0, b"one", &mut events).unwrap();
        let read = |receiver: &Receiver| {
            let mut bytes = Vec::new();
            receiver.write_down(&mut bytes);
            Receiver::read_back(&mut Reader::new(&bytes), 10_000, false, &mut Events::default())
        };
        let mut receiver = read(&receiver).unwrap();
        assert_eq!((receiver.len(), receiver.take()), (1, None), "it waits for another");
        let order = receiver.flows.remove(&0).unwrap().order.unwrap();
        let mut bytes = Vec::new();
        receiver.write_down(&mut bytes);
        // The credit and counts, seven small numbers and so far; then no flow, and no order.
        let (end, known) = (bytes.len() - 2, bytes.len() - 4);
        assert_eq!(bytes[known..], [0; 4]);
        bytes.truncate(end - 1);
        // An order of flow 0, at its beginning, in which nothing waits.
        bytes.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(order.place(), (0, 0));
        let read = Receiver::read_back(&mut Reader::new(&bytes), 10_000, false, &mut Events::default());
        assert_eq!(read.err(), Some(DecodeError::Invalid("order of a flow")));
    }

    #[test]
    fn a_place_of_its_own_far_behind_those_in_a_group_is_refused_and_what_waits_can_be_written_down() {
        let window = 1 << 30;
        let (mut receiver, mut events) = (Receiver::new(window), Events::default());
        let mut piece = |number: u64, group: Option<u64>, data: &[u8]| {
            let place = group.map(|epoch| Place { group: 1, epoch, index: 0 });
            let class = Class::RELIABLE_SEQUENCED;
            let header = MessageHeader { flow: 0, number, class, tag: None, place };
            let result = receiver.piece(header, data.len() as u64, 0, data, &mut events);
            (result.is_ok(), receiver.flows[&0].order.as_ref().map(|order| order.len()))
        };
        for number in 0..NUMBER_WINDOW {
            assert_eq!(piece(number, Some(number), b""), (true, None));
        }
        assert_eq!(piece(NUMBER_WINDOW, None, b"x"), (false, None), "in one piece");
        let mut bytes = Vec::new();
        receiver.write_down(&mut bytes);
        let read = Receiver::read_back(&mut Reader::new(&bytes), window, false, &mut Events::default());
        assert!(read.is_ok(), "{:?}", read.err());
    }
}
