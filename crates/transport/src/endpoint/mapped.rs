//! Ports of a router that lead to an endpoint.

use std::net::SocketAddr;

use super::Endpoint;

impl Endpoint {
    /// Where a router passes on what is for this endpoint, instead of what was set before: places that are
    /// told before the host's own. Its records are published anew, and its peers told.
    pub fn set_mapped(&self, places: Vec<SocketAddr>) {
        let core = self.inner();
        if core.places.set_mapped(places) {
            core.tell_places();
        }
    }
}
