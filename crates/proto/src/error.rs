//! What can go wrong in the engine, and the codes a connection or stream ends with.

use std::fmt;
use std::io;

use crate::ids::StreamId;

/// Bytes from the peer that are not a frame, or not one that may stand where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end in the middle of a field.
    #[error("the bytes end in the middle of a field")]
    Truncated,
    /// A field is longer or larger than the protocol allows.
    #[error("the field {0} is larger than the protocol allows")]
    TooLarge(&'static str),
    /// A field has a value that means nothing.
    #[error("the field {0} has a value that means nothing")]
    Invalid(&'static str),
    /// A frame type that must be understood, but is not.
    #[error("the frame type {0:#x} must be understood, but is not known to this version")]
    UnknownFrame(u64),
}

/// The peer broke the protocol; the connection is closed with [`ProtocolError::code`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A frame could not be decoded.
    #[error("malformed frame: {0}")]
    Decode(#[from] DecodeError),
    /// A frame stands where it may not stand.
    #[error("unexpected {0} frame")]
    Unexpected(&'static str),
    /// The answers to two OPENs of one connection differ: the server lost its state between them.
    #[error("two answers to the same opening differ: the server lost its state between them")]
    OtherAnswer,
    /// More data than the granted window.
    #[error("the peer sent more data than it was granted")]
    FlowControl,
    /// More streams than granted.
    #[error("the peer opened more streams than it was granted")]
    StreamLimit,
    /// A stream's end moved, or data came behind it.
    #[error("stream {0} changed its final size")]
    FinalSize(StreamId),
    /// An acknowledgement of something never sent.
    #[error("the peer acknowledged segments that were never sent")]
    AckOfUnsent,
    /// A message, or what is said of one, cannot be.
    #[error("flow {0} of the peer: {1}")]
    Message(u64, &'static str),
    /// A stream in so many pieces that storing them would cost more than the window.
    #[error("stream {0} arrived in too many pieces")]
    TooManyGaps(StreamId),
}

impl ProtocolError {
    /// The close code that tells the peer.
    #[must_use]
    pub const fn code(&self) -> CloseCode {
        match self {
            Self::FlowControl | Self::TooManyGaps(_) => CloseCode::FLOW_CONTROL,
            Self::StreamLimit => CloseCode::STREAM_LIMIT,
            _ => CloseCode::PROTOCOL,
        }
    }
}

/// Why a connection, a path or a stream was closed or refused. Codes from
/// [`CloseCode::APPLICATION`] on belong to the application.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CloseCode(pub u64);

impl CloseCode {
    /// An orderly end.
    pub const NONE: Self = Self(0x0);
    /// The peer broke the protocol.
    pub const PROTOCOL: Self = Self(0x1);
    /// The peer exceeded a window.
    pub const FLOW_CONTROL: Self = Self(0x2);
    /// The peer opened too many streams.
    pub const STREAM_LIMIT: Self = Self(0x3);
    /// Something broke on this side.
    pub const INTERNAL: Self = Self(0x4);
    /// No state is kept for this connection: it ended, or its linger time is over.
    pub const UNKNOWN_CONNECTION: Self = Self(0x5);
    /// The proof of belonging to the connection was wrong.
    pub const BAD_PROOF: Self = Self(0x6);
    /// The path id was used before.
    pub const PATH_ID_REUSED: Self = Self(0x7);
    /// The listener does not let this peer in.
    pub const NOT_ALLOWED: Self = Self(0x8);
    /// Nobody listens under the requested name.
    pub const NO_LISTENER: Self = Self(0x9);
    /// Too many connections for now.
    pub const BUSY: Self = Self(0xa);
    /// The process is stopping.
    pub const GOING_AWAY: Self = Self(0xb);
    /// No path came back within the linger time.
    pub const LINGER_EXPIRED: Self = Self(0xc);
    /// State was given up to make room for others.
    pub const EVICTED: Self = Self(0xd);
    /// No common protocol version.
    pub const VERSION: Self = Self(0xe);
    /// The stream's handle was dropped before its end.
    pub const STREAM_DROPPED: Self = Self(0xf);
    /// Another copy of this side was read back, and has the connection.
    pub const SUPERSEDED: Self = Self(0x10);
    /// This side was written down, to go on elsewhere.
    pub const SUSPENDED: Self = Self(0x11);
    /// This side handed its end over to another key.
    pub const HANDED_OVER: Self = Self(0x12);
    /// In STOP: the stream goes one way, from its opener to the other side.
    pub const ONE_WAY: Self = Self(0x20);
    /// The first code that belongs to the application.
    pub const APPLICATION: Self = Self(0x100);

    /// An application's own code, `0` being the first.
    #[must_use]
    pub const fn application(code: u32) -> Self {
        Self(Self::APPLICATION.0 + code as u64)
    }

    const fn text(self) -> Option<&'static str> {
        Some(match self {
            Self::NONE => "orderly end",
            Self::PROTOCOL => "protocol broken",
            Self::FLOW_CONTROL => "window exceeded",
            Self::STREAM_LIMIT => "too many streams",
            Self::INTERNAL => "internal error",
            Self::UNKNOWN_CONNECTION => "connection not known any more",
            Self::BAD_PROOF => "wrong proof",
            Self::PATH_ID_REUSED => "path id used before",
            Self::NOT_ALLOWED => "not allowed",
            Self::NO_LISTENER => "nobody listens under this name",
            Self::BUSY => "too many connections",
            Self::GOING_AWAY => "the process is stopping",
            Self::LINGER_EXPIRED => "no contact within the linger time",
            Self::EVICTED => "given up to make room",
            Self::VERSION => "no common protocol version",
            Self::STREAM_DROPPED => "stream dropped before its end",
            Self::SUPERSEDED => "superseded: another copy of this side has the connection",
            Self::SUSPENDED => "suspended, to go on elsewhere",
            Self::HANDED_OVER => "handed over to another key",
            Self::ONE_WAY => "the stream goes one way",
            _ => return None,
        })
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => write!(f, "{text} (code {:#x})", self.0),
            None => write!(f, "code {:#x}", self.0),
        }
    }
}

impl fmt::Debug for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A stream operation that cannot be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The stream is unknown: never opened, or both directions are over.
    #[error("stream {0} is closed")]
    Closed(StreamId),
    /// Data cannot follow the stream's end.
    #[error("stream {0} was already finished")]
    Finished(StreamId),
    /// The peer does not want to read on.
    #[error("the peer stopped reading stream {0}: {1}")]
    Stopped(StreamId, CloseCode),
    /// The peer gave the stream up.
    #[error("the peer reset stream {0}: {1}")]
    Reset(StreamId, CloseCode),
    /// The connection is over.
    #[error("the connection is closed: {0}")]
    ConnectionClosed(CloseCode),
}

impl StreamError {
    /// What a stream's [`io::Error`] was made from, if it was made from one of these.
    ///
    /// ```
    /// # use whimbrel_proto::{CloseCode, StreamError, StreamId};
    /// # let error = std::io::Error::other(StreamError::Reset(StreamId(0), CloseCode::application(7)));
    /// let Some(StreamError::Reset(_, code)) = StreamError::of(&error) else { panic!("{error}") };
    /// assert_eq!(*code, CloseCode::application(7));
    /// ```
    #[must_use]
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}
