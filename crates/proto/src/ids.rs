//! Numbers of streams and paths, and which end we are.

use std::fmt;

/// Which end of the connection an engine is: the side that dialled, or the side that accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Dialled; opens and joins paths.
    Client,
    /// Accepted; answers them.
    Server,
}

impl Side {
    /// The other end.
    #[must_use]
    pub const fn peer(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// A stream's number. The lowest bit names the opener: 0 the client, 1 the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

impl StreamId {
    /// The `index`th stream (from 0) that `opener` opens.
    #[must_use]
    pub const fn new(opener: Side, index: u64) -> Self {
        Self(index << 1 | matches!(opener, Side::Server) as u64)
    }

    /// The side that opened the stream.
    #[must_use]
    pub const fn opener(self) -> Side {
        if self.0 & 1 == 0 { Side::Client } else { Side::Server }
    }

    /// How many streams the same side opened before this one.
    #[must_use]
    pub const fn index(self) -> u64 {
        self.0 >> 1
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A path's number within its connection; given out by the client, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u64);

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
