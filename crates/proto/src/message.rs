//! Messages: content with a class that says what happens when its path is lost, beside streams in the same
//! connection [mockets].
//!
//! A *flow* is a sequence of messages of one class. What waits is cut into pieces and interleaved, so a large
//! message does not keep a small one waiting. A message gets its number when its first piece leaves: what
//! expires, is replaced or is cancelled before that leaves no trace on the wire. One that dies later is
//! settled by SKIP, which gives its credit back.

pub(crate) mod ascending;
pub(crate) mod credit;
pub(crate) mod deadlines;
pub(crate) mod delays;
pub(crate) mod order;
pub(crate) mod outgoing;
pub(crate) mod partial;
pub(crate) mod receiver;
pub(crate) mod seen;
pub(crate) mod sender;
mod snapshot;
pub(crate) mod turns;
pub(crate) mod window;

use std::time::Duration;

pub use self::delays::Delays;
use crate::error::CloseCode;
use crate::flow::{Class, FlowId, MAX_FLOWS, MAX_MESSAGE, MessageId, Outcome, Tag, Urgency};

/// The first flows of each side, if both keep journals: notes of their writers, and answers of their readers.
pub const JOURNAL_FLOWS: u64 = 2;
/// Longest that a flow may hold small messages back to send several at once.
pub const MAX_BUFFERING: Duration = Duration::from_secs(1);
/// What a message costs in credit and in queues beside its bytes.
pub const MESSAGE_COST: u64 = 256;
/// Credit with which a message of the largest size can be sent while small ones go on.
pub const MESSAGE_WINDOW: u64 = 2 * (MAX_MESSAGE + MESSAGE_COST);
/// Messages of a flow that may be without an end at the same time, from the oldest one on.
pub(crate) const NUMBER_WINDOW: u64 = 32_768;

/// What a flow is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowOptions {
    /// What is promised of its messages.
    pub class: Class,
    /// How urgent they are.
    pub urgency: Urgency,
    /// Share of the rate among flows that are equally urgent, 1 to 255.
    pub weight: u8,
    /// Small messages wait for so long that several go at once; at most [`MAX_BUFFERING`].
    pub buffering: Duration,
    /// Sequenced flows of one group are delivered in the order in which they were sent, across the flows. A
    /// group is as urgent as the most urgent of its flows, and weighs as much as the heaviest.
    pub group: Option<u8>,
    /// Everything goes on two paths where there are two.
    pub redundant: bool,
    /// Bytes that may wait to be sent or acknowledged, [`MESSAGE_COST`] a message included. One message may
    /// wait in any case.
    pub queue: u64,
}

impl FlowOptions {
    /// A flow of a class, as urgent as others.
    #[must_use]
    pub const fn new(class: Class) -> Self {
        Self {
            class,
            urgency: Urgency::USUAL,
            weight: 16,
            buffering: Duration::ZERO,
            group: None,
            redundant: false,
            queue: 4 << 20,
        }
    }
}

/// What holds for one message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// The kind of message, for those who want to replace or cancel it. Told to the receiver.
    pub tag: Option<Tag>,
    /// After this time it is neither sent nor sent again. Without one, a reliable message waits for as long
    /// as the connection lasts, an unreliable one for
    /// [`unreliable_patience`](crate::Timeouts::unreliable_patience).
    pub lifetime: Option<Duration>,
    /// How often a reliable message may be sent again after its path was lost or fell silent.
    pub retransmissions: Option<u32>,
    /// Nobody waits for the message's outcome: there is no event about it.
    pub silent: bool,
}

/// A message that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// The peer's flow that it was sent on.
    pub flow: FlowId,
    /// The flow's class.
    pub class: Class,
    /// What the sender calls messages of its kind.
    pub tag: Option<Tag>,
    /// The content.
    pub data: Vec<u8>,
}

/// Why a flow cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlowError {
    /// The peer has not answered yet; wait for [`Event::Established`](crate::Event::Established).
    #[error("the peer has not told yet whether it takes messages: wait until the connection is established")]
    NotEstablished,
    /// The peer's program is too old, or does not want messages. Streams work.
    #[error("the peer does not take messages: its program is older, or has them switched off; use a stream")]
    Unsupported,
    /// All numbers are in use.
    #[error("{MAX_FLOWS} flows are open: close one first")]
    TooMany,
    /// Only sequenced flows have an order that could be shared.
    #[error("a group puts sequenced flows in one order, and this flow is not sequenced")]
    GroupNeedsSequence,
    /// A weight of 0 would never be served.
    #[error("the weight of a flow must be 1 to 255, not 0")]
    Weight,
    /// Messages would be held back for too long.
    #[error("a flow may hold messages back for at most {MAX_BUFFERING:?}")]
    Buffering,
    /// The connection is over.
    #[error("the connection is closed: {0}")]
    ConnectionClosed(CloseCode),
}

/// Why a message is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The flow was closed, or never opened.
    #[error("flow {} is not open", .0.0)]
    UnknownFlow(FlowId),
    /// The message is larger than the peer takes.
    #[error("a message of {size} bytes is too large: the peer takes at most {most}")]
    TooLarge {
        /// Its size in bytes.
        size: u64,
        /// The largest that would be taken.
        most: u64,
    },
    /// The queue has no room; [`Event::FlowWritable`](crate::Event::FlowWritable) tells when it has.
    #[error("the queue of the flow is full: wait for room, or replace what is in it")]
    Full,
    /// There is nothing that a message without a tag could replace.
    #[error("only a message with a tag can replace others")]
    NoTag,
    /// A tag is too large to be told.
    #[error("a tag must be below 2^62")]
    Tag,
    /// The connection is over.
    #[error("the connection is closed: {0}")]
    ConnectionClosed(CloseCode),
}

/// A message that was not taken, given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub error: SendError,
    /// The message's bytes.
    pub data: Vec<u8>,
}

/// What became of a connection's messages, or of a flow's, all 64-bit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageStats {
    /// Messages that were taken and have no end yet: they wait to be sent, or to be acknowledged.
    pub queued: u64,
    /// Bytes of these that are held.
    pub bytes_queued: u64,
    /// Messages of which a part was sent.
    pub sent: u64,
    /// Bytes of messages that were sent for the first time.
    pub bytes_sent: u64,
    /// Times that a reliable message, or a part of it, had to be sent again because its path was lost or fell
    /// silent, or a datagram of it got lost.
    pub retransmitted: u64,
    /// Bytes of messages that were sent again, or on a second path.
    pub bytes_resent: u64,
    /// Messages that the peer has.
    pub delivered: u64,
    /// Messages whose lifetime was over first.
    pub expired: u64,
    /// Messages whose place a newer one took.
    pub replaced: u64,
    /// Messages that were cancelled.
    pub cancelled: u64,
    /// Messages whose path was lost, and that might not be sent again.
    pub lost: u64,
    /// Messages that arrived whole.
    pub received: u64,
    /// Of these, messages that were dropped because a newer one was delivered before.
    pub discarded: u64,
    /// Pieces that arrived although they were there already.
    pub duplicates: u64,
}

/// What became of the messages of one of this side's flows. Counts go on when a closed flow's number is used
/// again, and in a connection that was restored from a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowStats {
    /// Its number.
    pub id: FlowId,
    /// It was not closed.
    pub open: bool,
    /// Its options, as it was opened last.
    pub options: FlowOptions,
    /// What became of its messages. Counts of messages that arrived are 0: a flow has one direction.
    pub messages: MessageStats,
    /// How long those that were delivered took.
    pub delays: Delays,
}

/// What a message of `size` bytes costs in credit.
pub(crate) const fn cost(size: u64) -> u64 {
    size + MESSAGE_COST
}
