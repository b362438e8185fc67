//! Whom to dial, as whom, and along which ways.

use std::time::Duration;

use whimbrel_base::EndpointId;

use crate::dial::{Candidate, Dialler, Race};
use crate::endpoint_core::EndpointCore;

/// Whom to dial, and as whom. A round trip to the peer took `rtt` lately; TCP begins `again` after so long
/// without an answer.
pub(super) fn dialler(
    endpoint: &EndpointCore,
    peer: EndpointId,
    rtt: Option<Duration>,
    again: Option<Duration>,
) -> Dialler {
    Dialler {
        peer,
        clients: endpoint.tls.clients.clone(),
        aliases: endpoint.aliases.clone(),
        quic: endpoint.quic.clone(),
        carriers: endpoint.config.carriers,
        reach: endpoint.reach.clone(),
        sizes: endpoint.sizes.clone(),
        rtt,
        again,
        here: endpoint.addresses(),
        proxy: endpoint.config.http_proxy.clone(),
    }
}

/// Begins to dial along these ways.
pub(super) fn begin_race(who: Dialler, ways: Vec<Candidate>) -> Race {
    let mut ways = through_loopback(&who, ways);
    if let Some(proxy) = &who.proxy {
        ways.extend(proxy.ways(&ways, |ip| who.is_here(ip)));
    }
    Race::new(who, ways)
}

/// What is on this host is reached through the loopback interface, whatever address one comes from.
fn through_loopback(who: &Dialler, mut ways: Vec<Candidate>) -> Vec<Candidate> {
    for way in ways.iter_mut().filter(|way| who.is_here(way.remote.ip())) {
        if let Some(local) = &mut way.local {
            local.interface = None;
        }
    }
    ways
}
