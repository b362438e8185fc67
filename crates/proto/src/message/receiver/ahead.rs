//! Messages that are taken together, before the application wants each of them.

use std::collections::VecDeque;

use super::super::{FlowId, Message};
use super::{Receiver, Whole};

/// What was taken ahead, and neither settled nor put back.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    cost: u64,
    bytes: u64,
}

impl Ahead {
    /// What it costs in credit.
    pub(super) fn cost(&self) -> u64 {
        self.cost
    }
}

impl Receiver {
    /// Takes so many messages for the application, at most, and no further one once they have so many
    /// `bytes`, or hold back as much credit as is told at once. They count as unread until they are settled.
    pub(crate) fn take_ahead(&mut self, most: usize, bytes: usize, into: &mut VecDeque<Message>) {
        into.reserve(most.min(self.arrived.ready.len()));
        let (mut count, mut taken, step) = (0, 0, self.credit.step());
        while count < most
            && taken < bytes
            && self.ahead.cost < step
            && let Some(whole) = self.arrived.ready.pop_front()
        {
            self.ahead.cost += whole.cost();
            self.ahead.bytes += whole.data.len() as u64;
            (count, taken) = (count + 1, taken + whole.data.len());
            into.push_back(whole.into_message());
        }
    }

    /// The application has all that was taken ahead.
    pub(crate) fn settle_ahead(&mut self) {
        let Ahead { cost, bytes } = std::mem::take(&mut self.ahead);
        if cost > 0 {
            self.held -= bytes;
            self.give_back(cost);
        }
    }

    /// Puts the last of what was taken ahead back, to be taken next. The application has the others.
    pub(crate) fn put_back(&mut self, messages: impl DoubleEndedIterator<Item = Message>) {
        for message in messages.rev() {
            let Message { flow: FlowId(flow), class, tag, data } = message;
            let whole = Whole { flow, class, tag, data };
            self.ahead.cost -= whole.cost();
            self.ahead.bytes -= whole.data.len() as u64;
            self.arrived.ready.push_front(whole);
        }
        self.settle_ahead();
    }

    /// Messages wait to be taken.
    pub(crate) fn has_ready(&self) -> bool {
        !self.arrived.ready.is_empty()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::super::{Class, Tag, cost};
    use super::*;
    use crate::event::Events;
    use crate::frame::MessageHeader;
    use crate::varint::Reader;

    const WINDOW: u64 = 1 << 20;

    fn with_messages(count: u8) -> Receiver {
        in_window(WINDOW, count)
    }

    fn in_window(window: u64, count: u8) -> Receiver {
        let (mut receiver, mut events) = (Receiver::new(window), Events::default());
        for number in 0..count {
            let (class, tag) = (Class::RELIABLE, Some(Tag(number.into())));
            let header = MessageHeader { flow: 3, number: number.into(), class, tag, place: None };
            receiver.piece(header, 100, 0, &[number; 100], &mut events).unwrap();
        }
        receiver
    }

    fn rest(receiver: &mut Receiver) -> Vec<u8> {
        std::iter::from_fn(|| receiver.take()).map(|message| message.data[0]).collect()
    }

    #[test]
    fn what_is_taken_ahead_counts_as_unread_until_the_application_has_it() {
        let (mut receiver, mut ahead) = (with_messages(6), VecDeque::new());
        receiver.take_ahead(4, usize::MAX, &mut ahead);
        assert_eq!((ahead.len(), receiver.len()), (4, 2));
        assert_eq!((receiver.unread(), receiver.held()), (6 * cost(100), 600));
        receiver.settle_ahead();
        assert_eq!((receiver.unread(), receiver.held()), (2 * cost(100), 200));
        receiver.settle_ahead();
        assert_eq!(rest(&mut receiver), [4, 5]);
        assert_eq!((receiver.unread(), receiver.held()), (0, 0));
    }

    #[test]
    fn what_comes_back_is_the_next_as_it_was_and_the_others_are_read() {
        let (mut receiver, mut ahead) = (with_messages(6), VecDeque::new());
        let third =
            Message { flow: FlowId(3), class: Class::RELIABLE, tag: Some(Tag(2)), data: vec![2; 100] };
        receiver.take_ahead(4, usize::MAX, &mut ahead);
        drop(ahead.drain(..2));
        receiver.put_back(ahead.drain(..));
        assert_eq!((receiver.unread(), receiver.held()), (4 * cost(100), 400));
        assert_eq!(receiver.take(), Some(third));
        assert_eq!(rest(&mut receiver), [3, 4, 5]);
        assert_eq!((receiver.unread(), receiver.held()), (0, 0));
    }

    #[test]
    fn no_more_is_taken_ahead_than_was_wanted() {
        let (mut receiver, mut ahead) = (with_messages(6), VecDeque::new());
        receiver.take_ahead(10, 250, &mut ahead);
        assert_eq!(ahead.len(), 3, "two are too few");
        receiver.take_ahead(1, usize::MAX, &mut ahead);
        assert_eq!((ahead.len(), receiver.has_ready()), (4, true));
        receiver.take_ahead(10, usize::MAX, &mut ahead);
        assert_eq!((ahead.len(), receiver.has_ready()), (6, false));
    }

    #[test]
    fn what_is_taken_ahead_holds_back_one_step_of_the_credit() {
        // An eighth is told at once.
        let (mut receiver, mut ahead) = (in_window(16 * cost(100), 6), VecDeque::new());
        receiver.take_ahead(10, usize::MAX, &mut ahead);
        receiver.take_ahead(10, usize::MAX, &mut ahead);
        assert_eq!((ahead.len(), receiver.has_credit_to_tell()), (2, false));
        receiver.settle_ahead();
        assert!(receiver.has_credit_to_tell());
        receiver.take_ahead(10, usize::MAX, &mut ahead);
        assert_eq!(ahead.len(), 4);
    }

    #[test]
    fn what_was_taken_ahead_is_read_for_a_snapshot() {
        let (mut receiver, mut ahead) = (with_messages(6), VecDeque::new());
        receiver.take_ahead(4, usize::MAX, &mut ahead);
        let mut bytes = Vec::new();
        receiver.write_down(&mut bytes);
        let mut events = Events::default();
        let mut read = Receiver::read_back(&mut Reader::new(&bytes), WINDOW, false, &mut events).unwrap();
        assert_eq!(read.unread(), 2 * cost(100));
        assert_eq!(rest(&mut read), [4, 5]);
        assert_eq!(read.unread(), 0);
    }
}
