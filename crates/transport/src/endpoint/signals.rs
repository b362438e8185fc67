//! What an endpoint is told of the Wi-Fi that it uses.

use std::collections::HashMap;
use std::net::IpAddr;

use super::Endpoint;

/// Addresses of which something may be told.
const MOST: usize = 256;

impl Endpoint {
    /// Says how well this host's Wi-Fi networks are received: for each of its addresses there, in dBm. Each
    /// call says all that is known; of other addresses nothing is known any more. A path hears of the first
    /// call after it came up. Of more than 256 addresses the others are left out.
    ///
    /// Connections tell of a signal that becomes weak, below -80 dBm, and of one that is well again, at
    /// -75 dBm, by [`PathSignal`](crate::ConnectionEvent::PathSignal). As long as it is weak, a client asks
    /// an idle path each second for a sign of life, a server each two. An endpoint reads no signals itself:
    /// the multi-access manager does, and `whimbrel-steering` says here what it tells.
    pub fn set_signals(&self, received: impl IntoIterator<Item = (IpAddr, i8)>) {
        let received = received.into_iter().take(MOST).map(|(ip, dbm)| (ip.to_canonical(), dbm));
        let received: HashMap<IpAddr, i8> = received.collect();
        for shared in self.inner().registry.all() {
            shared.hear_signals(|ip| received.get(&ip).copied());
        }
    }
}
