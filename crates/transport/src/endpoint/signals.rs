//! What an endpoint is told of the Wi-Fi that it uses.

use std::net::IpAddr;

use super::Endpoint;

impl Endpoint {
    /// Says how well this host's Wi-Fi networks are received: for each of its addresses there, in dBm. Each
    /// call says all that is known; of other addresses nothing is known any more. Paths that come up later
    /// hear it too. Of more than 256 addresses the others are left out.
    ///
    /// Connections tell of a signal that becomes weak, below -80 dBm, and of one that is well again, at
    /// -75 dBm, by [`PathSignal`](crate::ConnectionEvent::PathSignal). As long as it is weak, a client asks
    /// an idle path each second for a sign of life, a server each two. An endpoint reads no signals itself:
    /// the multi-access manager does, and `whimbrel-steering` says here what it tells. A program that has it
    /// do so does not call this beside it.
    pub fn set_signals(&self, received: impl IntoIterator<Item = (IpAddr, i8)>) {
        let endpoint = self.inner();
        endpoint.received.set(received);
        // Connections that are added from here on find it when their paths come up.
        endpoint.registry.all().iter().for_each(|shared| shared.hear_signals());
    }
}
