//! Ports of a router that lead to an endpoint.

use std::net::SocketAddr;

use super::Endpoint;
use crate::endpoint_core::lock;

impl Endpoint {
    /// Where a router passes on what is for this endpoint, instead of what was set before: places that are told
    /// before the host's own. Its records are published anew, and its peers told.
    pub fn set_mapped(&self, places: Vec<SocketAddr>) {
        let core = self.inner();
        if std::mem::replace(&mut *lock(&core.mapped), places.clone()) != places {
            core.tell_places();
        }
    }
}
