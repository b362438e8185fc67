//! Words for flows and their messages: numbers, bounds, what is promised, what became of one.

/// Largest message, in bytes.
pub const MAX_MESSAGE: u64 = 16 << 20;
/// Flows that each side may have, closed ones that can be used again among them. Their numbers are below
/// this.
pub const MAX_FLOWS: u64 = 1024;

/// A flow of messages from one side to the other; each side numbers its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

/// A message that was sent, to be recognised in [`Event::MessageDone`](crate::Event::MessageDone). Never used
/// twice in a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub u64);

/// What an application calls messages that replace each other; below 2⁶².
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

/// What is promised of a flow's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    /// Sent again when a path is lost, and delivered exactly once. Otherwise at most once.
    pub reliable: bool,
    /// Delivered in the order sent. Of unreliable messages, what is older than one that was delivered is
    /// dropped.
    pub sequenced: bool,
}

impl Class {
    /// Delivered exactly once, in order.
    pub const RELIABLE_SEQUENCED: Self = Self { reliable: true, sequenced: true };
    /// Delivered exactly once, as soon as each is there.
    pub const RELIABLE: Self = Self { reliable: true, sequenced: false };
    /// Delivered at most once, and only if newer than the last.
    pub const UNRELIABLE_SEQUENCED: Self = Self { reliable: false, sequenced: true };
    /// Delivered at most once.
    pub const UNRELIABLE: Self = Self { reliable: false, sequenced: false };
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::RELIABLE_SEQUENCED, Self::RELIABLE, Self::UNRELIABLE_SEQUENCED, Self::UNRELIABLE];
}

/// How urgent a flow or a stream is, as in RFC 9218: 0 goes first, 7 last, 3 is the default. What is less
/// urgent gets at least 2 % of the rate all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Urgency(u8);

impl Urgency {
    /// Goes before everything else.
    pub const FIRST: Self = Self(0);
    /// Goes before what is as urgent as usual.
    pub(crate) const EARLY: Self = Self(2);
    /// The default.
    pub(crate) const USUAL: Self = Self(3);
    /// Goes when nothing else waits, or at 2 % of the rate.
    pub const LAST: Self = Self(7);

    /// `None` unless `level` is at most 7.
    #[must_use]
    pub const fn new(level: u8) -> Option<Self> {
        if level <= Self::LAST.0 { Some(Self(level)) } else { None }
    }

    /// The level, 0 to 7.
    #[must_use]
    pub const fn level(self) -> u8 {
        self.0
    }
}

impl Default for Urgency {
    fn default() -> Self {
        Self::USUAL
    }
}

/// What became of a message. The peer may have one that was wholly on its way when it expired, was
/// replaced, cancelled or lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The peer has it. (A sequenced unreliable one was dropped there if a newer one came first.)
    Delivered,
    /// Its lifetime was over first.
    Expired,
    /// A newer one with its tag took its place.
    Replaced,
    /// It was cancelled.
    Cancelled,
    /// Its path was lost, and it may not be sent again.
    Lost,
}
