//! Sending from a socket that something came to.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

use quinn::udp::Transmit;

use super::Open;

/// Sends from the socket, and the address, that a datagram came to. Does not keep the socket open.
#[derive(Clone)]
pub struct Outlet {
    open: Weak<Open>,
    bound: SocketAddr,
    /// Of the host's addresses, if the socket is bound to all of them.
    source: Option<IpAddr>,
}

impl Outlet {
    pub(super) fn new(open: &Arc<Open>, bound: SocketAddr, source: Option<IpAddr>) -> Self {
        Self { open: Arc::downgrade(open), bound, source }
    }

    /// Where its socket is bound, and the address that datagrams leave from, if that is one of several. An
    /// endpoint with a socket at the same place [makes the same](crate::Endpoint::outlet).
    #[must_use]
    pub fn place(&self) -> (SocketAddr, Option<IpAddr>) {
        (self.bound, self.source)
    }

    /// Sends a datagram, if the socket is still there and the kernel takes it now. Otherwise it is lost, as
    /// datagrams are. Does not block.
    pub fn send(&self, datagram: &[u8], to: SocketAddr) {
        let Some(open) = self.open.upgrade() else { return };
        let (src_ip, contents) = (self.source, datagram);
        let transmit = Transmit { destination: to, ecn: None, contents, segment_size: None, src_ip };
        if let Err(error) = open.send(&transmit) {
            tracing::trace!(%to, %error, "a datagram is lost");
        }
    }
}

impl fmt::Debug for Outlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlet").field("source", &self.source).finish_non_exhaustive()
    }
}
