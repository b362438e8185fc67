//! By which of this host's addresses a direct path may leave.
//!
//! Packets that open gateways leave from the listening socket, which belongs to all interfaces: the system's
//! routes choose among them. Where a policy chooses, a path is opened only if both choose the same.

use std::net::{IpAddr, SocketAddr};

use whimbrel_proto::{HandoverMode, PathState, Priority};

use crate::dial::{Candidate, source};
use crate::endpoint_core::EndpointCore;
use crate::policy::PathPolicy;
use crate::shared::Shared;

/// Where direct paths of a connection may leave this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// As routes say.
    Any,
    /// From this address alone.
    At(IpAddr),
    /// Nowhere, because routes lead out elsewhere than the policy wants.
    Nowhere,
}

impl Exit {
    /// Of a connection that goes through this relay.
    pub(super) fn of(
        endpoint: &EndpointCore,
        shared: &Shared,
        policy: &PathPolicy,
        relay: SocketAddr,
    ) -> Self {
        if !policy.is_selective() {
            return Self::Any;
        }
        let set = endpoint.addresses();
        let is_free = |ip: &IpAddr| {
            let local = set.addresses.iter().find(|local| local.ip == *ip);
            local.is_some_and(|local| !policy.reserves(&policy.interface(local)))
        };
        let mut exits = carrying(shared).into_iter().filter(is_free).map(Self::At);
        exits.find(|exit| exit.leads_to(relay)).unwrap_or(Self::Nowhere)
    }

    /// Whether what is sent there leaves as it should. Asks the kernel.
    pub(super) fn leads_to(self, at: SocketAddr) -> bool {
        match self {
            Self::Any => true,
            Self::At(ip) => source(&Candidate { local: None, remote: at.into() }) == Some(ip),
            Self::Nowhere => false,
        }
    }
}

/// This side's addresses on the relayed paths that carry: on all, if all stand by. None in mode `single`,
/// where a second path of the same interface would be one too many.
fn carrying(shared: &Shared) -> Vec<IpAddr> {
    let state = shared.lock();
    if state.engine.handover() == HandoverMode::Single {
        return Vec::new();
    }
    let stats = state.engine.paths();
    let relayed = state.paths.iter().filter(|io| io.remote.relayed().is_some());
    let active = relayed.filter_map(|io| {
        let path = stats.iter().find(|path| path.id == io.id && path.state == PathState::Active)?;
        Some((io.local.ip().to_canonical(), path.priority))
    });
    let active: Vec<(IpAddr, Priority)> = active.collect();
    let some_carry = active.iter().any(|(_, priority)| *priority == Priority::Normal);
    let carry = active.into_iter().filter(|(_, priority)| !some_carry || *priority == Priority::Normal);
    carry.map(|(ip, _)| ip).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leaves_where_both_the_policy_and_the_routes_want_it() {
        let here = SocketAddr::from(([127, 0, 0, 1], 9));
        assert!(Exit::Any.leads_to(here) && Exit::At(here.ip()).leads_to(here));
        assert!(!Exit::At([192, 0, 2, 1].into()).leads_to(here), "routes lead out elsewhere");
        assert!(!Exit::Nowhere.leads_to(here));
    }
}
