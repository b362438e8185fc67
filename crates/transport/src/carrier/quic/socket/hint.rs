//! What a path's socket knows of the place that the path leads to.

use std::net::SocketAddr;
use std::sync::Arc;

use super::QuicSocket;
use super::places::Leading;

/// What a path's socket knows of the place that the path leads to.
#[derive(Debug)]
pub(crate) enum Hint {
    /// The socket leads nowhere else.
    Own(Arc<QuicSocket>),
    /// It is one of many places.
    Shared(Leading),
}

impl Hint {
    /// The peer's host, or somebody on the way, said last that nobody is reached there (ICMP).
    pub(crate) fn is_refused(&self) -> bool {
        match self {
            Self::Own(socket) => socket.is_refused(),
            Self::Shared(leading) => leading.is_refused(),
        }
    }

    /// The path leads there now.
    pub(crate) fn follow(&self, to: SocketAddr) {
        if let Self::Shared(leading) = self {
            leading.follow(to);
        }
    }
}
