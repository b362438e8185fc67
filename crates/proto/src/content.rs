//! What segments carry, as far as it has to be sent again when it is lost.

use std::ops::Range;

use crate::ids::{PathId, StreamId};

/// What a segment carried, to be sent again if the segment is lost with its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Stream {
        id: StreamId,
        range: Range<u64>,
        fin: bool,
        /// It was sent again on another path, whose loss would repeat it.
        elsewhere: bool,
        /// It was under way on another path already when it was sent.
        again: bool,
    },
    /// A part of a message.
    Message {
        id: u64,
        range: Range<u32>,
        reliable: bool,
        /// As for streams.
        elsewhere: bool,
    },
    /// A message will not come.
    Skip(u64),
    MaxMessages,
    /// What came on a path in datagrams.
    Datagrams(PathId),
    MaxData,
    MaxStreamData(StreamId),
    MaxStreams,
    Reset(StreamId),
    Stop(StreamId),
    PathLost(PathId),
    Retire(PathId),
    Addresses,
    Candidates,
    Observed,
    Address(u8),
    Priority(PathId),
    Handover,
    Close,
    CloseAck,
    Suspend,
    /// This side's end is handed over.
    Assign,
    /// The claim of a server that was read back, or its answer to TAKE_OVER: by this word of the server's
    /// [tenure](crate::session::tenure::Tenure::word) its secret is the present one.
    Word(u64),
    /// The answer to OPEN: its acknowledgement shows that the client knows the secret.
    Accept,
}
