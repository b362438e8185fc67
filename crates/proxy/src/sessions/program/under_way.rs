//! What is between this process and a program on this host, for those that have no session of their own.

use std::net::SocketAddr;

use tokio::net::TcpStream;

#[cfg(target_os = "linux")]
use super::queues;

/// What is in the kernel between this process and a program on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderWay {
    /// Bytes that were written here, and that the program has not read. Its end of this direction counts as
    /// one.
    pub to_program: u64,
    /// Bytes that the program has sent, and that were not read here. Its end of this direction counts as one.
    pub from_program: u64,
}

impl UnderWay {
    /// Of this connection, where that is known.
    #[must_use]
    pub fn of(connection: &TcpStream) -> Option<Self> {
        Self::between(connection.local_addr().ok()?, connection.peer_addr().ok()?)
    }

    /// Of the connection whose ends are these, the first one that of this process.
    #[cfg(target_os = "linux")]
    pub(crate) fn between(here: SocketAddr, there: SocketAddr) -> Option<Self> {
        let (own, other) = (queues::of(here, there)?, queues::of(there, here)?);
        Some(Self {
            to_program: u64::from(own.unsent) + u64::from(other.unread),
            from_program: u64::from(other.unsent) + u64::from(own.unread),
        })
    }

    /// Of the connection whose ends are these, the first one that of this process.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn between(_: SocketAddr, _: SocketAddr) -> Option<Self> {
        None
    }
}
