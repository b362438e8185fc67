//! Messages on their way in: pieces become messages, messages are brought into their order, and wait in one
//! queue for the application.

mod ahead;
mod inflow;
mod snapshot;

use std::collections::{BTreeMap, VecDeque};

use self::ahead::Ahead;
use self::inflow::{Inflow, OrderOf, TAKES_NONE, check_epoch, order_of, place_of};
use super::credit::RecvCredit;
use super::order::{Order, Verdict};
use super::partial::{MAX_PIECES, Partial};
use super::{Class, FlowId, JOURNAL_FLOWS, Message, Tag, cost};
use crate::error::ProtocolError;
use crate::event::{Event, Events};
use crate::frame::{MessageHeader, Skip};

/// A message that is whole.
#[derive(Debug)]
struct Whole {
    flow: u64,
    class: Class,
    tag: Option<Tag>,
    data: Vec<u8>,
}

impl Whole {
    fn cost(&self) -> u64 {
        cost(self.data.len() as u64)
    }

    fn into_message(self) -> Message {
        let Self { flow, class, tag, data } = self;
        Message { flow: FlowId(flow), class, tag, data }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    received: u64,
    discarded: u64,
    duplicates: u64,
}

/// Messages that wait to be taken.
#[derive(Debug, Default)]
struct Arrived {
    ready: VecDeque<Whole>,
    /// The first flows are the journals'.
    journals: bool,
    /// What arrived on these.
    journal: VecDeque<Whole>,
}

impl Arrived {
    fn deliver(&mut self, whole: Whole, events: &mut Events) {
        let (queue, event) = match self.journals && whole.flow < JOURNAL_FLOWS {
            true => (&mut self.journal, Event::JournalReadable),
            false => (&mut self.ready, Event::MessageReadable),
        };
        if queue.is_empty() {
            events.push(event);
        }
        queue.push_back(whole);
    }

    /// Delivers those whose turn it is.
    fn deliver_from(&mut self, order: &mut Order<Whole>, events: &mut Events) {
        while let Some(whole) = order.next() {
            self.deliver(whole, events);
        }
    }

    fn len(&self) -> usize {
        self.ready.len() + self.journal.len()
    }

    fn iter(&self) -> impl Iterator<Item = &Whole> {
        self.ready.iter().chain(&self.journal)
    }
}

/// What arrives on the peer's flows.
#[derive(Debug)]
pub(crate) struct Receiver {
    flows: BTreeMap<u64, Inflow>,
    /// Those of groups.
    groups: BTreeMap<u64, Order<Whole>>,
    /// Messages of which a part is here, by flow and number.
    partial: BTreeMap<(u64, u64), Partial>,
    /// Pieces of them that lie apart from each other.
    pieces: usize,
    arrived: Arrived,
    ahead: Ahead,
    credit: RecvCredit,
    /// The peer has to be told what it may send.
    tell_credit: bool,
    /// This side takes messages.
    open: bool,
    held: u64,
    counts: Counts,
}

impl Receiver {
    /// The peer may have messages of so many bytes under way or unread; 0: it was told that it may send none.
    pub(crate) fn new(window: u64) -> Self {
        Self {
            flows: BTreeMap::new(),
            groups: BTreeMap::new(),
            partial: BTreeMap::new(),
            pieces: 0,
            arrived: Arrived::default(),
            ahead: Ahead::default(),
            credit: RecvCredit::new(window),
            tell_credit: false,
            open: window > 0,
            held: 0,
            counts: Counts::default(),
        }
    }

    /// Takes the next message for the application.
    pub(crate) fn take(&mut self) -> Option<Message> {
        let whole = self.arrived.ready.pop_front()?;
        Some(self.give_out(whole))
    }

    /// Takes the next message for the journals.
    pub(crate) fn take_journal(&mut self) -> Option<Message> {
        let whole = self.arrived.journal.pop_front()?;
        Some(self.give_out(whole))
    }

    /// What arrives on the first flows is for the journals, from now on.
    pub(crate) fn keep_journals(&mut self) {
        self.arrived.journals = true;
    }

    fn give_out(&mut self, whole: Whole) -> Message {
        self.give_back(whole.cost());
        self.held -= whole.data.len() as u64;
        whole.into_message()
    }

    /// A piece of a message arrives: `data` from `offset` on, of `size` bytes in all. The frame's decoder has
    /// seen to it that the piece lies within the message.
    pub(crate) fn piece(
        &mut self,
        header: MessageHeader,
        size: u64,
        offset: u64,
        data: &[u8],
        events: &mut Events,
    ) -> Result<(), ProtocolError> {
        if data.len() as u64 == size && self.partial.is_empty() && header.place.is_none() {
            return self.at_once(&header, data, events);
        }
        let key = (header.flow, header.number);
        if self.is_settled(header.flow, header.number, header.class)? {
            self.counts.duplicates += 1;
            return Ok(());
        }
        if let Some(partial) = self.partial.get_mut(&key) {
            let (held, pieces) = (partial.held(), partial.pieces());
            let fresh = partial.take(&header, size, offset, data)?;
            self.counts.duplicates += u64::from(!fresh);
            self.held += partial.held() - held;
            self.pieces = self.pieces + partial.pieces() - pieces;
            if partial.is_whole()
                && let Some(whole) = self.partial.remove(&key)
            {
                self.pieces -= whole.pieces();
                self.whole(header, whole.into_data(), events);
            }
        } else {
            self.check_place(&header)?;
            self.credit.receive(cost(size))?;
            if data.len() as u64 == size {
                self.held += size;
                self.whole(header, data.to_vec(), events);
            } else {
                let mut partial = Partial::new(header, size);
                partial.take(&header, size, offset, data)?;
                self.held += partial.held();
                self.pieces += partial.pieces();
                self.partial.insert(key, partial);
            }
        }
        if self.pieces > MAX_PIECES {
            return Err(ProtocolError::Message(header.flow, "messages arrived in too many pieces"));
        }
        Ok(())
    }

    /// A message of no group arrives in one piece, while no other is here in part: what takes most of the
    /// time where many come.
    #[inline]
    fn at_once(
        &mut self,
        header: &MessageHeader,
        data: &[u8],
        events: &mut Events,
    ) -> Result<(), ProtocolError> {
        let MessageHeader { flow, number, class, tag, .. } = *header;
        if !self.open {
            return Err(ProtocolError::Message(flow, TAKES_NONE));
        }
        let inflow = self.flows.entry(flow).or_insert_with(|| Inflow::new(class));
        if inflow.is_settled(flow, number, class)? {
            self.counts.duplicates += 1;
            return Ok(());
        }
        let (_, epoch, index) = place_of(header);
        if class.sequenced {
            // Its number is admitted, but messages before it may have had their places in a group.
            check_epoch(flow, inflow.order.as_deref(), epoch)?;
        }
        self.credit.receive(cost(data.len() as u64))?;
        inflow.settled.insert(number);
        self.counts.received += 1;
        self.held += data.len() as u64;
        let whole = Whole { flow, class, tag, data: data.to_vec() };
        if !class.sequenced {
            self.arrived.deliver(whole, events);
            return Ok(());
        }
        let order = inflow.order.get_or_insert_default();
        match order.arrive(class.reliable, epoch, index, whole) {
            Verdict::Deliver(whole) => {
                self.arrived.deliver(whole, events);
                self.arrived.deliver_from(order, events);
            }
            Verdict::Stale(whole) => self.discard(&whole),
            Verdict::Waits => {}
        }
        Ok(())
    }

    /// A message came too late.
    fn discard(&mut self, whole: &Whole) {
        self.counts.discarded += 1;
        self.held -= whole.data.len() as u64;
        self.give_back(whole.cost());
    }

    /// A message will not come, or not whole.
    pub(crate) fn skip(&mut self, skip: Skip, events: &mut Events) -> Result<(), ProtocolError> {
        let Skip { header, size } = skip;
        if self.is_settled(header.flow, header.number, header.class)? {
            return Ok(());
        }
        match self.partial.remove(&(header.flow, header.number)) {
            Some(partial) => {
                self.held -= partial.held();
                self.pieces -= partial.pieces();
                self.give_back(cost(partial.size()));
            }
            None => {
                self.check_place(&header)?;
                self.credit.receive(cost(size))?;
                self.give_back(cost(size));
            }
        }
        self.settle(header.flow, header.number);
        if header.class.sequenced && header.class.reliable {
            let (of, epoch, _) = place_of(&header);
            let order = order_of(&mut self.flows, &mut self.groups, of, header.class);
            order.skip(epoch);
            self.arrived.deliver_from(order, events);
        }
        Ok(())
    }

    fn is_settled(&mut self, flow: u64, number: u64, class: Class) -> Result<bool, ProtocolError> {
        if !self.open {
            return Err(ProtocolError::Message(flow, TAKES_NONE));
        }
        self.flows.entry(flow).or_insert_with(|| Inflow::new(class)).is_settled(flow, number, class)
    }

    fn check_place(&self, header: &MessageHeader) -> Result<(), ProtocolError> {
        if !header.class.sequenced {
            return Ok(());
        }
        match place_of(header) {
            (OrderOf::Flow(flow), epoch, _) => {
                let order = self.flows.get(&flow).and_then(|inflow| inflow.order.as_deref());
                check_epoch(header.flow, order, epoch)
            }
            (OrderOf::Group(group), epoch, _) => {
                check_epoch(header.flow, self.groups.get(&group), epoch)
            }
        }
    }

    fn settle(&mut self, flow: u64, number: u64) {
        if let Some(inflow) = self.flows.get_mut(&flow) {
            inflow.settled.insert(number);
        }
    }

    fn whole(&mut self, header: MessageHeader, data: Vec<u8>, events: &mut Events) {
        self.settle(header.flow, header.number);
        self.counts.received += 1;
        let MessageHeader { flow, class, tag, .. } = header;
        let whole = Whole { flow, class, tag, data };
        if !class.sequenced {
            return self.arrived.deliver(whole, events);
        }
        let (of, epoch, index) = place_of(&header);
        let order = order_of(&mut self.flows, &mut self.groups, of, class);
        match order.arrive(class.reliable, epoch, index, whole) {
            Verdict::Deliver(whole) => {
                self.arrived.deliver(whole, events);
                self.arrived.deliver_from(order, events);
            }
            Verdict::Stale(whole) => self.discard(&whole),
            Verdict::Waits => {}
        }
    }

    fn give_back(&mut self, cost: u64) {
        self.tell_credit |= self.credit.consume(cost);
    }

    /// The peer has to be told what it may send.
    pub(crate) fn has_credit_to_tell(&self) -> bool {
        self.tell_credit
    }

    /// What the peer may send has to be told anew.
    pub(crate) fn mark_credit(&mut self) {
        self.tell_credit = self.open;
    }

    /// Returns what the peer may send, if it has to be told.
    pub(crate) fn take_credit_to_tell(&mut self) -> Option<u64> {
        std::mem::take(&mut self.tell_credit).then(|| self.credit.granted())
    }

    /// Bytes of messages that are here and were not taken.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Messages that are here in part, that wait for others, or that wait to be taken.
    pub(crate) fn len(&self) -> usize {
        let waiting: usize = self.orders().map(|(_, order)| order.len()).sum();
        self.partial.len() + waiting + self.arrived.len()
    }

    /// All orders: those of flows, then those of groups.
    fn orders(&self) -> impl Iterator<Item = (OrderOf, &Order<Whole>)> {
        let flows = self.flows.iter();
        let of_flows =
            flows.filter_map(|(flow, inflow)| Some((OrderOf::Flow(*flow), inflow.order.as_deref()?)));
        of_flows.chain(self.groups.iter().map(|(group, order)| (OrderOf::Group(*group), order)))
    }

    /// What was given back of the peer's credit.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn returned(&self) -> u64 {
        self.credit.returned()
    }

    /// Of the credit, what arrived and was not given back.
    fn unread(&self) -> u64 {
        self.credit.unread()
    }

    pub(crate) fn add_to(&self, stats: &mut super::MessageStats) {
        let Counts { received, discarded, duplicates } = self.counts;
        (stats.received, stats.discarded, stats.duplicates) = (received, discarded, duplicates);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::MESSAGE_COST;
    use super::*;
    use crate::error::DecodeError;
    use crate::varint::Reader;

    fn header(number: u64, class: Class) -> MessageHeader {
        MessageHeader { flow: 0, number, class, tag: None, place: None }
    }

    struct World(Receiver, Events);

    impl World {
        fn new(window: u64) -> Self {
            Self(Receiver::new(window), Events::default())
        }

        fn piece(
            &mut self,
            header: MessageHeader,
            size: u64,
            offset: u64,
            data: &[u8],
        ) -> Result<(), String> {
            self.0.piece(header, size, offset, data, &mut self.1).map_err(|error| error.to_string())
        }

        fn taken(&mut self) -> Vec<Vec<u8>> {
            std::iter::from_fn(|| self.0.take()).map(|message| message.data).collect()
        }
    }

    #[test]
    fn pieces_that_overlap_make_one_message_and_cost_once() {
        let mut world = World::new(10_000);
        let of = header(0, Class::RELIABLE);
        for (offset, data) in [(4, "efgh"), (2, "cdef"), (2, "cdef"), (0, "abc"), (0, "abcd")] {
            world.piece(of, 8, offset, data.as_bytes()).unwrap();
        }
        assert_eq!(world.taken(), [b"abcdefgh".to_vec()]);
        assert_eq!((world.0.unread(), world.0.held(), world.0.len(), world.0.pieces), (0, 0, 0, 0));
    }

    #[test]
    fn open_messages_without_end_are_bounded_by_credit() {
        let mut world = World::new(100 * MESSAGE_COST);
        let mut refused = None;
        for number in 0..200 {
            refused = world.piece(header(number, Class::UNRELIABLE), 2, 0, b"x").err();
            if refused.is_some() {
                break;
            }
        }
        assert_eq!(refused.unwrap(), ProtocolError::FlowControl.to_string());
        assert!(world.0.len() < 100);
    }

    #[test]
    fn numbers_far_ahead_contradictions_and_other_classes_are_refused() {
        let mut world = World::new(1 << 20);
        let far = header(super::super::NUMBER_WINDOW, Class::UNRELIABLE);
        assert!(world.piece(far, 1, 0, b"x").unwrap_err().contains("without an end"));
        world.piece(header(0, Class::UNRELIABLE), 9, 0, b"x").unwrap();
        assert!(world.piece(header(0, Class::UNRELIABLE), 8, 1, b"y").unwrap_err().contains("contradict"));
        assert!(world.piece(header(1, Class::RELIABLE), 1, 0, b"y").unwrap_err().contains("class"));
        assert!(World::new(0).piece(header(0, Class::RELIABLE), 1, 0, b"x").is_err());
    }

    #[test]
    fn a_snapshot_takes_no_more_room_than_was_paid_for() {
        let mut world = World::new(10_000);
        world.piece(header(0, Class::RELIABLE), 900, 899, b"x").unwrap();
        let read = |receiver: &Receiver| {
            let mut bytes = Vec::new();
            receiver.write_down(&mut bytes);
            Receiver::read_back(&mut Reader::new(&bytes), 10_000, false, &mut Events::default()).map(drop)
        };
        assert_eq!(read(&world.0), Ok(()));
        world.0.credit.consume(1);
        assert_eq!(read(&world.0), Err(DecodeError::TooLarge("messages")));
    }

    #[test]
    fn what_is_skipped_gives_its_credit_back_and_never_comes() {
        let mut world = World::new(2000);
        let class = Class::RELIABLE_SEQUENCED;
        world.piece(header(1, class), 3, 0, b"one").unwrap();
        world.piece(header(0, class), 900, 0, b"ze").unwrap();
        let skip = Skip { header: header(0, class), size: 900 };
        world.0.skip(skip, &mut world.1).unwrap();
        world.0.skip(skip, &mut world.1).unwrap();
        world.piece(header(0, class), 900, 0, b"ze").unwrap();
        assert_eq!(world.taken(), [b"one".to_vec()]);
        assert_eq!((world.0.unread(), world.0.held(), world.0.len()), (0, 0, 0));
    }
}
