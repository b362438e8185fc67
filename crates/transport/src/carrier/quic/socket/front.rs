//! What sees datagrams before the endpoint does: a relay takes those that are for somebody else.

use std::net::SocketAddr;

use super::Outlet;

/// Looks at datagrams that come to the endpoint's UDP sockets, and takes those that are not for this
/// endpoint.
pub trait DatagramFront: Send + Sync + 'static {
    /// Looks at a datagram that came from there, to the socket that `outlet` sends from. Returns whether it
    /// is taken: then nobody else sees it. Must not block.
    fn take(&self, datagram: &[u8], from: SocketAddr, outlet: &Outlet) -> bool;
}
