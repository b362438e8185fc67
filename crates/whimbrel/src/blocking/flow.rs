//! Messages, for programs without an async runtime.

use std::time::Duration;

use whimbrel_transport::{
    self as transport, FlowId, MessageId, Outcome, Refused, SendError, SendOptions, Tag,
};

use super::runtime::Background;

/// As [`crate::Flow`]: messages of one class to the peer. Cheap to clone. It is closed when the last clone is
/// dropped: what was sent still goes its way.
#[derive(Clone, Debug)]
pub struct Flow {
    flow: transport::Flow,
    runtime: Background,
}

impl Flow {
    pub(super) fn new(flow: transport::Flow, runtime: Background) -> Self {
        Self { flow, runtime }
    }

    /// Sends a message; waits while the flow's queue is full. The message is sent although nobody waits for
    /// what is returned.
    ///
    /// # Errors
    /// [`SendError`], but for [`SendError::Full`].
    pub fn send(&self, data: impl Into<Vec<u8>>, options: SendOptions) -> Result<Sent, SendError> {
        self.runtime.wait(self.flow.send(data, options)).map(|sent| self.sent(sent))
    }

    /// As [`send`](Self::send), but gives up when the queue has had no room for `limit`.
    ///
    /// # Errors
    /// [`SendError::Full`] after `limit`; otherwise as [`send`](Self::send).
    pub fn send_timeout(
        &self,
        data: impl Into<Vec<u8>>,
        options: SendOptions,
        limit: Duration,
    ) -> Result<Sent, SendError> {
        self.runtime.wait(self.flow.send_timeout(data, options, limit)).map(|sent| self.sent(sent))
    }

    /// As [`send`](Self::send), but does not wait.
    ///
    /// # Errors
    /// [`Refused`] gives the message back: with [`SendError::Full`] if the queue has no room.
    pub fn try_send(&self, data: impl Into<Vec<u8>>, options: SendOptions) -> Result<Sent, Refused> {
        self.flow.try_send(data, options).map(|sent| self.sent(sent))
    }

    /// Takes the place of all messages of this flow with the tag in `options` that are not delivered yet; see
    /// [`crate::Flow::replace`].
    ///
    /// # Errors
    /// [`SendError::NoTag`] without a tag; otherwise as [`send`](Self::send).
    pub fn replace(&self, data: impl Into<Vec<u8>>, options: SendOptions) -> Result<Sent, SendError> {
        self.replace_all(&[], data, options)
    }

    /// As [`replace`](Self::replace), and cancels all messages with the tags of `drop` in the same step.
    ///
    /// # Errors
    /// As [`replace`](Self::replace).
    pub fn replace_all(
        &self,
        drop: &[(FlowId, Tag)],
        data: impl Into<Vec<u8>>,
        options: SendOptions,
    ) -> Result<Sent, SendError> {
        self.runtime.wait(self.flow.replace_all(drop, data, options)).map(|sent| self.sent(sent))
    }

    /// Cancels all messages of this flow with a tag, as far as they are not wholly on their way. Does not
    /// wait.
    pub fn cancel(&self, tag: Tag) {
        self.flow.cancel(tag);
    }

    /// The flow's number, which the peer finds in its [messages](crate::Message::flow).
    #[must_use]
    pub fn id(&self) -> FlowId {
        self.flow.id()
    }

    fn sent(&self, sent: transport::Sent) -> Sent {
        Sent { sent, runtime: self.runtime.clone() }
    }
}

/// A message that was sent. Dropped, it changes nothing.
#[derive(Debug)]
pub struct Sent {
    sent: transport::Sent,
    runtime: Background,
}

impl Sent {
    /// The message's number, never used twice in a connection.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.sent.id()
    }

    /// Waits until it is known what became of the message. [`Outcome::Lost`] as well if the connection ended
    /// first, or nobody was to be told ([`silent`](SendOptions::silent)).
    #[must_use]
    pub fn outcome(self) -> Outcome {
        self.runtime.wait(self.sent)
    }

    /// As [`outcome`](Self::outcome), for at most `limit`.
    ///
    /// # Errors
    /// Itself, if it is not known by then.
    pub fn outcome_timeout(mut self, limit: Duration) -> Result<Outcome, Self> {
        self.runtime.wait_for(limit, &mut self.sent).ok_or(self)
    }
}
