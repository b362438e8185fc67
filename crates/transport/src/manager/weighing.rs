//! Client: learns how far a server's relays are, so that the next path or connection begins with the nearest one.

use futures_util::FutureExt;
use std::time::{Duration, Instant};

use whimbrel_base::RelayedAddr;

use super::joining::Joiner;
use crate::dial::{Candidate, round_trip};
use crate::locator::Locator;

/// A relay that answers later than this is too far.
const PATIENCE: Duration = Duration::from_secs(3);

impl Joiner {
    /// A path through a relay was answered, over which a round trip takes so long. Measures what it takes to open a TCP
    /// connection to each of the server's relays, from where the path comes, if there are several and that is not
    /// known. For this nobody waits.
    pub(super) fn weigh(&self, place: RelayedAddr, rtt: Duration, way: &Candidate) {
        let (distances, now) = (&self.endpoint.distances, Instant::now());
        distances.note_place(place, rtt, now);
        for relay in distances.to_measure(&self.shared.remote(), now) {
            let local = way.local.clone();
            if local.as_ref().is_some_and(|local| local.ip.is_ipv4() != relay.is_ipv4()) {
                continue;
            }
            let (distances, way) = (distances.clone(), Candidate { local, remote: Locator::Direct(relay) });
            tokio::spawn(FutureExt::boxed(async move {
                if let Ok(Ok(rtt)) = tokio::time::timeout(PATIENCE, round_trip(&way)).await {
                    tracing::debug!(%relay, ?rtt, "relay measured");
                    distances.note_relay(relay, rtt);
                }
            }));
        }
    }
}
