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
