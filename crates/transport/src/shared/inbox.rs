//! Messages that were taken from the engine together, for the application to take one by one.
//!
//! The driver has the connection's lock while it cuts a segment into messages, 150 small ones. Whoever takes
//! them should not have to wait for it each time, nor it for them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use whimbrel_proto::{Connection as Engine, Message};

use super::effort::Effort;

/// So many messages are taken ahead together, at most, and no further one once they have so many bytes.
const MESSAGES: usize = 256;
const BYTES: usize = 32 * 1024;

/// Has a lock of its own, which is taken before the connection's.
#[derive(Default)]
pub(crate) struct Inbox(Mutex<Option<Box<Taken>>>);

/// There is none where messages come one by one.
#[derive(Default)]
struct Taken {
    messages: VecDeque<Message>,
    effort: Effort,
}

/// An inbox, locked.
pub(crate) struct Opened<'a>(MutexGuard<'a, Option<Box<Taken>>>);

impl Inbox {
    #[inline]
    pub(crate) fn open(&self) -> Opened<'_> {
        Opened(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Opened<'_> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|taken| taken.messages.is_empty())
    }

    /// Takes the next message. True beside it if that completes a [step](Effort::is_step).
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(Message, bool)> {
        let Taken { messages, effort } = self.0.as_deref_mut()?;
        let message = messages.pop_front()?;
        let is_step = effort.is_step(message.data.len());
        Some((message, is_step))
    }

    /// Takes the next message from the engine, and some of those behind it into the inbox, which is empty.
    pub(crate) fn take_through(mut self, engine: &mut Engine) -> Option<Message> {
        let next = engine.recv_message();
        self.refill(engine);
        next
    }

    /// Tells the engine that the application has all that was in the inbox, which gives the peer its credit
    /// back, and takes some more.
    pub(crate) fn refill(&mut self, engine: &mut Engine) {
        engine.settle_messages();
        if engine.has_messages() {
            let taken = self.0.get_or_insert_default();
            engine.take_messages(MESSAGES, BYTES, &mut taken.messages);
        } else {
            *self.0 = None;
        }
    }

    /// Puts everything back into the engine.
    pub(crate) fn empty_into(&mut self, engine: &mut Engine) {
        let messages = self.0.take().map(|taken| taken.messages).unwrap_or_default();
        engine.put_messages_back(messages.into_iter());
    }
}
