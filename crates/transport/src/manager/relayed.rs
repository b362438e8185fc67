//! The path through a relay that a connection has while it has no direct one.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use whimbrel_proto::{PathId, PathState, Side};

use crate::locator::Locator;
use crate::shared::State;

/// A path through a relay on which the connection depends.
pub(super) struct Relayed {
    pub(super) path: PathId,
    pub(super) relay: SocketAddr,
    pub(super) rtt: Duration,
    /// This side's address, and the place.
    pub(super) between: (IpAddr, Locator),
}

/// The newest relayed path that works, if no direct one does.
pub(super) fn relayed_path(state: &State) -> Option<Relayed> {
    if state.engine.side() == Side::Server || !state.engine.is_established() {
        return None;
    }
    let stats = state.engine.paths();
    let mut newest = None;
    for io in &state.paths {
        let Some(path) = stats.iter().find(|path| path.id == io.id && path.state == PathState::Active) else {
            continue;
        };
        let place = io.remote.relayed()?;
        if newest.as_ref().is_none_or(|known: &Relayed| known.path < io.id) {
            let between = (io.local.ip(), io.remote);
            newest = Some(Relayed { path: io.id, relay: place.relay, rtt: path.srtt, between });
        }
    }
    newest
}
