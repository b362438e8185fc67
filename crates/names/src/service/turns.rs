//! How often peers may ask, by their keys and addresses.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use whimbrel_base::{EndpointId, Name};
use whimbrel_transport::Connection;

use super::rates::Rates;
use crate::registry::Limits;

/// Requests of this time may come at once.
const BURST: Duration = Duration::from_secs(10);
/// Turns that a look-up of all that a user has takes: it may look at 64 names.
pub(super) const OF_DEVICES: usize = 16;
/// How soon a request that waits for its turn tries again.
const PAUSE: Duration = Duration::from_millis(20);
/// Tries to redeem an invitation, in a minute and by one key. Codes have 80 random bits.
const REDEEMS_PER_MINUTE: u32 = 10;
/// The same from one address, whatever keys it uses.
const REDEEMS_PER_ADDRESS: u32 = 60;

/// Proposals that a key may make in an hour.
const PROPOSALS_PER_HOUR: u32 = 20;
/// The same from one address, whatever keys it uses.
const PROPOSALS_PER_ADDRESS: u32 = 60;

/// Mails that a key has sent in an hour, to whatever address.
const MAILS_PER_HOUR: u32 = 5;
/// The same from one address, whatever keys it uses.
const MAILS_PER_ADDRESS: u32 = 20;
/// Mails to one mail address, whoever asks.
const MAILS_TO_ONE: u32 = 3;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);

/// What each key and each address may do how often, on this server.
#[derive(Debug)]
pub(super) struct Turns {
    requests: Mutex<Rates<EndpointId>>,
    requests_from: Mutex<Rates<Option<IpAddr>>>,
    redeems: Mutex<Rates<EndpointId>>,
    redeems_from: Mutex<Rates<Option<IpAddr>>>,
    joins_from: Mutex<Rates<Option<IpAddr>>>,
    new_names: Mutex<Rates<Option<IpAddr>>>,
    proposals: Mutex<Rates<EndpointId>>,
    proposals_from: Mutex<Rates<Option<IpAddr>>>,
    mails: Mutex<Rates<EndpointId>>,
    mails_from: Mutex<Rates<Option<IpAddr>>>,
    mails_to: Mutex<Rates<Name>>,
}

impl Turns {
    pub(super) fn new(limits: &Limits) -> Self {
        let in_a_burst = |per_second: u32| per_second.saturating_mul(BURST.as_secs() as u32);
        Self {
            requests: Mutex::new(Rates::new(in_a_burst(limits.requests_per_second), BURST)),
            requests_from: Mutex::new(Rates::new(in_a_burst(limits.requests_per_address), BURST)),
            redeems: Mutex::new(Rates::new(REDEEMS_PER_MINUTE, MINUTE)),
            redeems_from: Mutex::new(Rates::new(REDEEMS_PER_ADDRESS, MINUTE)),
            joins_from: Mutex::new(Rates::new(limits.meetings.joins_per_address, MINUTE)),
            new_names: Mutex::new(Rates::new(limits.new_names_per_hour, HOUR)),
            proposals: Mutex::new(Rates::new(PROPOSALS_PER_HOUR, HOUR)),
            proposals_from: Mutex::new(Rates::new(PROPOSALS_PER_ADDRESS, HOUR)),
            mails: Mutex::new(Rates::new(MAILS_PER_HOUR, HOUR)),
            mails_from: Mutex::new(Rates::new(MAILS_PER_ADDRESS, HOUR)),
            mails_to: Mutex::new(Rates::new(MAILS_TO_ONE, HOUR)),
        }
    }

    /// Waits until the peer, and its address, may ask once more.
    pub(super) async fn request(&self, peer: EndpointId, from: Option<IpAddr>) {
        // First the key: what waits for its own turn takes none from others at its address.
        while !take(&self.requests, peer) {
            tokio::time::sleep(PAUSE).await;
        }
        while !take(&self.requests_from, from) {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Whether the peer may try one more invitation.
    pub(super) fn redeem(&self, peer: EndpointId, from: Option<IpAddr>) -> bool {
        take(&self.redeems, peer) && take(&self.redeems_from, from)
    }

    /// Whether one more meeting may be joined from this address.
    pub(super) fn join(&self, from: Option<IpAddr>) -> bool {
        take(&self.joins_from, from)
    }

    /// Whether the peer may make one more proposal.
    pub(super) fn propose(&self, peer: EndpointId, from: Option<IpAddr>) -> bool {
        // First the address: keys cost nothing, and the table of keys is full at some time, for everybody.
        take(&self.proposals_from, from) && take(&self.proposals, peer)
    }

    /// Whether the peer may have one more mail sent to this address.
    pub(super) fn mail(&self, peer: EndpointId, from: Option<IpAddr>, to: &Name) -> bool {
        take(&self.mails_from, from) && take(&self.mails, peer) && take(&self.mails_to, to.clone())
    }

    /// Whether one more new name may come from this address.
    pub(super) fn new_name(&self, from: Option<IpAddr>) -> bool {
        take(&self.new_names, from)
    }
}

fn take<K: Eq + std::hash::Hash>(rates: &Mutex<Rates<K>>, key: K) -> bool {
    // Nothing under this lock panics half-way through a change.
    rates.lock().unwrap_or_else(PoisonError::into_inner).take(key, Instant::now())
}

/// Where a peer connects from: an IPv4 address, or the /64 network of an IPv6 one.
pub(super) fn address(connection: &Connection) -> Option<IpAddr> {
    let remote = connection.stats().paths.first()?.remote.ip().to_canonical();
    Some(match remote {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip @ IpAddr::V4(_) => ip,
    })
}
