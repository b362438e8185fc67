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
    batches: Mutex<Rates<EndpointId>>,
    batches_from: Mutex<Rates<Option<IpAddr>>>,
    mails: Mutex<Rates<EndpointId>>,
    mails_from: Mutex<Rates<Option<IpAddr>>>,
    mails_to: Mutex<Rates<Name>>,
}

impl Turns {
    pub(super) fn new(limits: &Limits) -> Self {
        let turns = limits.turns;
        let in_a_burst = |per_second: u32| per_second.saturating_mul(BURST.as_secs() as u32);
        Self {
            requests: Mutex::new(Rates::new(in_a_burst(limits.requests_per_second), BURST)),
            requests_from: Mutex::new(Rates::new(in_a_burst(limits.requests_per_address), BURST)),
            redeems: Mutex::new(Rates::new(turns.redeems_per_minute, MINUTE)),
            redeems_from: Mutex::new(Rates::new(turns.redeems_per_address, MINUTE)),
            joins_from: Mutex::new(Rates::new(limits.meetings.joins_per_address, MINUTE)),
            new_names: Mutex::new(Rates::new(limits.new_names_per_hour, HOUR)),
            proposals: Mutex::new(Rates::new(turns.proposals_per_hour, HOUR)),
            proposals_from: Mutex::new(Rates::new(turns.proposals_per_address, HOUR)),
            batches: Mutex::new(Rates::new(turns.batches_per_hour, HOUR)),
            batches_from: Mutex::new(Rates::new(turns.batches_per_address, HOUR)),
            mails: Mutex::new(Rates::new(turns.mails_per_hour, HOUR)),
            mails_from: Mutex::new(Rates::new(turns.mails_per_address, HOUR)),
            mails_to: Mutex::new(Rates::new(turns.mails_to_one, HOUR)),
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

    /// Whether the peer may leave one more batch.
    pub(super) fn leave(&self, peer: EndpointId, from: Option<IpAddr>) -> bool {
        take(&self.batches_from, from) && take(&self.batches, peer)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::SecretKey;

    use super::*;

    #[test]
    fn each_key_each_address_and_each_mail_address_has_the_turns_that_the_limits_say() {
        let mut limits = Limits::default();
        limits.turns.redeems_per_minute = 2;
        limits.turns.proposals_per_address = 3;
        limits.turns.mails_to_one = 1;
        let turns = Turns::new(&limits);
        let key = |seed| SecretKey::from_bytes(&[seed; 32]).id();
        let (one, other) = (Some(IpAddr::from([192, 0, 2, 1])), Some(IpAddr::from([192, 0, 2, 2])));
        let redeemed = (0..5).filter(|_| turns.redeem(key(1), one)).count();
        assert_eq!((redeemed, turns.redeem(key(2), one)), (2, true));
        let proposed = (0..5).filter(|seed| turns.propose(key(*seed), one)).count();
        assert_eq!((proposed, turns.propose(key(9), other)), (3, true));
        let to = |text: &str| text.parse::<Name>().unwrap();
        let mail = |seed, to: &Name| turns.mail(key(seed), other, to);
        let sent = [mail(1, &to("ada@example.org")), mail(2, &to("ada@example.org"))];
        assert_eq!((sent, mail(3, &to("bob@example.org"))), ([true, false], true));
    }
}
