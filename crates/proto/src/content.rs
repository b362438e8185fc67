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
    },
    MaxData,
    MaxStreamData(StreamId),
    MaxStreams,
    Reset(StreamId),
    Stop(StreamId),
    PathLost(PathId),
    Retire(PathId),
    Addresses,
    Address(u8),
    Priority(PathId),
    Handover,
    Close,
    CloseAck,
    /// The answer to OPEN: its acknowledgement shows that the client knows the secret.
    Accept,
}
