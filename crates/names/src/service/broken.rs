//! Why a stream ends before its end.

use std::io;

use crate::protocol::ProtocolError;

/// Why a stream is not served to its end.
pub(in crate::service) enum Broken {
    Stream,
    Protocol(ProtocolError),
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self::Stream
    }
}

impl From<ProtocolError> for Broken {
    fn from(error: ProtocolError) -> Self {
        Self::Protocol(error)
    }
}
