//! What the application does with messages.

use std::collections::VecDeque;
use std::time::Instant;

use super::Connection;
use crate::error::CloseCode;
use crate::flow::{FlowId, MessageId, Outcome, Tag, Urgency};
use crate::ids::{PathId, StreamId};
use crate::message::sender::Chance;
use crate::message::{
    Delays, FlowError, FlowOptions, FlowStats, JOURNAL_FLOWS, Message, MessageStats, Refused, SendError,
    SendOptions,
};
use crate::pacing::RateLimit;

impl Connection {
    /// Opens a flow of messages.
    ///
    /// # Errors
    /// [`FlowError`], above all [`FlowError::Unsupported`] if the peer does not take messages.
    pub fn open_flow(&mut self, options: FlowOptions) -> Result<FlowId, FlowError> {
        if let Some(code) = self.why_no_messages() {
            return Err(FlowError::ConnectionClosed(code));
        }
        if !self.is_established() {
            return Err(FlowError::NotEstablished);
        }
        self.session.messages.sender.open_flow(options)
    }

    /// Closes a flow. What was sent on it still goes its way. False if it was not open.
    pub fn close_flow(&mut self, flow: FlowId) -> bool {
        self.session.messages.sender.close_flow(flow)
    }

    /// Sends a message. What becomes of it is told by [`Event::MessageDone`](crate::Event::MessageDone).
    ///
    /// # Errors
    /// [`Refused`], with the data, if it is not taken. [`SendError::Full`]: wait for
    /// [`Event::FlowWritable`](crate::Event::FlowWritable), for as long as it makes sense.
    pub fn send_message(
        &mut self,
        now: Instant,
        flow: FlowId,
        data: Vec<u8>,
        options: SendOptions,
    ) -> Result<MessageId, Refused> {
        self.send(now, None, flow, data, options)
    }

    /// Cancels all messages of `drop`, replaces those of `flow` that have the tag in `options`, and sends the
    /// message, as one step: if it is refused, nothing has happened. What was not begun leaves no trace; what
    /// is wholly on its way may still arrive, but is not sent again. Where no order is promised, the message
    /// takes the place of the first that it replaces.
    ///
    /// # Errors
    /// As [`send_message`](Self::send_message); [`SendError::NoTag`] without a tag.
    pub fn replace_messages(
        &mut self,
        now: Instant,
        drop: &[(FlowId, Tag)],
        flow: FlowId,
        data: Vec<u8>,
        options: SendOptions,
    ) -> Result<MessageId, Refused> {
        self.send(now, Some(drop), flow, data, options)
    }

    #[inline]
    fn send(
        &mut self,
        now: Instant,
        replaces: Option<&[(FlowId, Tag)]>,
        flow: FlowId,
        data: Vec<u8>,
        mut options: SendOptions,
    ) -> Result<MessageId, Refused> {
        if let Some(code) = self.why_no_messages() {
            return Err(Refused { error: SendError::ConnectionClosed(code), data });
        }
        if self.held {
            return Err(Refused { error: SendError::Full, data });
        }
        let age = self.clock.tell(now);
        let sender = &mut self.session.messages.sender;
        if sender.is_unreliable(flow) {
            options.lifetime.get_or_insert(self.timeouts.unreliable_patience);
        }
        sender.send(age, replaces, flow, data, options, &mut self.events)
    }

    /// Cancels all messages of a flow that have a tag, as far as they are not wholly on their way.
    pub fn cancel_messages(&mut self, flow: FlowId, tag: Tag) {
        self.session.messages.sender.cancel(flow, tag, Outcome::Cancelled, &mut self.events);
    }

    /// Takes the next message that arrived, of whichever flow. What arrived before the connection ended can
    /// still be taken.
    pub fn recv_message(&mut self) -> Option<Message> {
        if self.held { None } else { self.session.messages.receiver.take() }
    }

    /// Takes messages as [`recv_message`](Self::recv_message) does, but so many at once, and no further one
    /// once they have so many `bytes`, or hold back as much credit as the peer is told of at once: for a
    /// driver that gives them to the application one by one. They count as unread until they are
    /// [settled](Self::settle_messages), and go [back](Self::put_messages_back) before a
    /// [snapshot](Self::snapshot), which does not have them otherwise.
    pub fn take_messages(&mut self, most: usize, bytes: usize, into: &mut VecDeque<Message>) {
        if !self.held {
            self.session.messages.receiver.take_ahead(most, bytes, into);
        }
    }

    /// The application has all that was [taken at once](Self::take_messages).
    pub fn settle_messages(&mut self) {
        self.session.messages.receiver.settle_ahead();
    }

    /// Puts back the last of what was [taken at once](Self::take_messages): it is what is taken next. The
    /// application has the rest.
    pub fn put_messages_back(&mut self, messages: impl DoubleEndedIterator<Item = Message>) {
        self.session.messages.receiver.put_back(messages);
    }

    /// [`recv_message`](Self::recv_message) has a message.
    #[must_use]
    pub fn has_messages(&self) -> bool {
        !self.held && self.session.messages.receiver.has_ready()
    }

    /// The application's flows that are open.
    #[must_use]
    pub fn known_flows(&self) -> Vec<FlowId> {
        let journals = self.journal_flows().map_or(0, |flows| flows.len());
        self.session.messages.sender.open_flows(journals)
    }

    /// The flows on which this side's journals send, notes and answers, if both sides keep journals; `None`
    /// until the peer has accepted.
    #[must_use]
    pub fn journal_flows(&self) -> Option<[FlowId; JOURNAL_FLOWS as usize]> {
        self.session.identity.both_keep_journals().then_some([FlowId(0), FlowId(1)])
    }

    /// Takes the next message that arrived on the peer's journal flows; as [`recv_message`](Self::recv_message).
    pub fn recv_journal(&mut self) -> Option<Message> {
        self.session.messages.receiver.take_journal()
    }

    /// The largest message that the peer takes, in bytes; 0 if it takes none, or has not said so yet.
    #[must_use]
    pub fn largest_message(&self) -> u64 {
        self.session.messages.sender.largest()
    }

    /// Counters of messages.
    #[must_use]
    pub fn message_stats(&self) -> MessageStats {
        self.session.messages.stats()
    }

    /// Counters of each of this side's flows, by number.
    #[must_use]
    pub fn flow_stats(&self) -> Vec<FlowStats> {
        self.session.messages.sender.flow_stats()
    }

    /// How long the messages took that the peer has.
    #[must_use]
    pub fn message_delays(&self) -> Delays {
        self.session.messages.sender.delays()
    }

    /// The driver's carrier for `path` would hold back what it is given, instead of putting it on the wire:
    /// it gets no unreliable messages until it does not any more. No driver knows; simulated ones say so.
    #[cfg(feature = "fuzzing")]
    pub fn set_takes_now(&mut self, path: PathId, takes_now: bool) {
        if let Some(path) = self.paths.get_mut(path) {
            path.takes_now = takes_now;
        }
    }

    /// How urgent this side's data on a stream is, among streams and flows. False if the stream is over.
    pub fn set_stream_urgency(&mut self, id: StreamId, urgency: Urgency) -> bool {
        self.session.streams.set_urgency(id, urgency)
    }

    /// Limits what this side sends, over all paths together, or lifts the limit (`None`). Holds from now on:
    /// what goes beyond it waits, nothing is dropped but what outlives its own lifetime. The limit is kept
    /// within 3 % over ten seconds, and is part of a snapshot.
    pub fn set_rate_limit(&mut self, now: Instant, limit: Option<RateLimit>) {
        self.pacing.limit(now, limit);
    }

    /// Limits what this side sends of one level of urgency, streams and messages together, or lifts the limit
    /// (`None`). As [`set_rate_limit`](Self::set_rate_limit), beside which it holds; what goes a second time
    /// over another path counts for that one alone.
    pub fn set_urgency_limit(&mut self, now: Instant, urgency: Urgency, limit: Option<RateLimit>) {
        self.pacing.limit_level(now, urgency, limit);
    }

    /// The limit of what this side sends.
    #[must_use]
    pub fn rate_limit(&self) -> Option<RateLimit> {
        self.pacing.limited_to()
    }

    /// What all messages so far have cost, and what of the peer's credit was given back. With nothing under
    /// way or unread, the one is the other's.
    #[cfg(feature = "fuzzing")]
    #[must_use]
    pub fn message_credit(&self) -> (u64, u64) {
        (self.session.messages.sender.spent(), self.session.messages.receiver.returned())
    }

    /// Why nothing can be sent any more.
    #[inline]
    fn why_no_messages(&self) -> Option<CloseCode> {
        self.session.ending.code()
    }

    /// What has become stale dies, and what was held back may go.
    pub(super) fn run_messages(&mut self, now: Instant) {
        let sender = &mut self.session.messages.sender;
        if sender.deadline().is_some() {
            sender.run(self.clock.since_begin(now), &mut self.events);
        }
    }

    /// What messages may be told of `path` when it takes a segment.
    pub(super) fn chance(&self, path: PathId) -> Chance {
        Chance {
            path,
            takes_now: self.paths.get(path).is_some_and(|p| p.takes_now),
            datagram: self.datagram_room(path),
            reliable: self.session.identity.both_take_reliable_datagrams(),
            second: self.shares_paths(),
            redundant: self.sharing.is_redundant(),
        }
    }

    /// What another path carried shall go on this one too, in segments.
    pub(super) fn has_copies(&mut self, chance: Chance) -> bool {
        chance.second
            && self.paths.get(chance.path).is_some_and(crate::path::Path::is_active)
            && self.session.messages.sender.has_copy_for(chance)
    }
}
