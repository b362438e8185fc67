//! Which carriers get through, remembered for each network: whoever blocks UDP (or TCP) does so for long, and
//! need not be asked again for each path. A carrier gets through if the peer answers on it: something that
//! accepts TCP connections may be a portal.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use whimbrel_base::EndpointId;

use super::{CarrierKind, Carriers, lock};
use crate::locator::Locator;

/// What was learnt is worth asking again after this.
const EXPIRY: Duration = Duration::from_secs(600);
/// A carrier that works says of another's failure, if there is no more than this between them, that it is
/// not the network that is down.
const SAME_TIME: Duration = Duration::from_secs(30);
const MAX_NETWORKS: usize = 64;
const MAX_REMOTES: usize = 256;
const MAX_PEERS: usize = 1024;

/// What is known of all networks of a host.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    networks: Mutex<HashMap<IpAddr, Network>>,
    /// Something has failed, some time.
    has_failures: AtomicBool,
    /// What a round trip to a peer took when a path to it was answered last.
    round_trips: Mutex<HashMap<EndpointId, Duration>>,
}

/// What is known of the network in which we have one address.
#[derive(Debug, Default)]
struct Network {
    remotes: HashMap<Locator, Outcomes>,
}

/// Of one remote address, by carrier.
#[derive(Debug, Default)]
struct Outcomes {
    worked: [Option<Instant>; KINDS],
    failed: [Option<Instant>; KINDS],
}

const KINDS: usize = 2;

/// MPTCP is TCP to whoever blocks.
fn index(kind: CarrierKind) -> usize {
    match kind {
        CarrierKind::Tcp | CarrierKind::Mptcp => 0,
        CarrierKind::Quic => 1,
    }
}

impl Outcomes {
    /// Some carrier failed lately, and there is none of which that is not the last that was heard.
    fn is_doubtful(&self, now: Instant) -> bool {
        let mut kinds = self.worked.iter().zip(&self.failed);
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < EXPIRY;
        self.failed.iter().flatten().any(is_recent)
            && kinds.all(|(worked, failed)| worked.is_none() || worked < failed)
    }

    /// The carrier failed, and not because nothing got through at all.
    fn is_blocked(&self, kind: usize, now: Instant) -> bool {
        let Some(failed) = self.failed[kind].filter(|at| now.saturating_duration_since(*at) < EXPIRY) else {
            return false;
        };
        let better = self.worked.iter().enumerate().filter(|(other, _)| *other != kind);
        self.worked[kind].is_none_or(|worked| worked < failed)
            && better.filter_map(|(_, at)| *at).any(|at| at.abs_diff(failed) < SAME_TIME || at > failed)
    }
}

/// The time between two instants, whichever comes first.
trait AbsDiff {
    fn abs_diff(self, other: Self) -> Duration;
}

impl AbsDiff for Instant {
    fn abs_diff(self, other: Self) -> Duration {
        self.saturating_duration_since(other) + other.saturating_duration_since(self)
    }
}

impl Network {
    fn is_blocked(&self, remote: Locator, kind: usize, now: Instant) -> bool {
        if let Some(outcomes) = self.remotes.get(&remote)
            && (outcomes.worked[kind].is_some() || outcomes.failed[kind].is_some())
        {
            return outcomes.is_blocked(kind, now);
        }
        // Not tried there: what never works elsewhere will not work here.
        let works = self.remotes.values().any(|outcomes| outcomes.worked[kind].is_some());
        !works && self.remotes.values().any(|outcomes| outcomes.is_blocked(kind, now))
    }
}

impl Reach {
    /// A carrier got through from one of our addresses to a remote one, or did not.
    pub(crate) fn note(&self, local: IpAddr, remote: Locator, kind: CarrierKind, worked: bool, now: Instant) {
        let mut networks = lock(&self.networks);
        if networks.len() >= MAX_NETWORKS && !networks.contains_key(&local) {
            networks.clear();
        }
        let network = networks.entry(local).or_default();
        if network.remotes.len() >= MAX_REMOTES && !network.remotes.contains_key(&remote) {
            network.remotes.clear();
        }
        let outcomes = network.remotes.entry(remote).or_default();
        let which = if worked { &mut outcomes.worked } else { &mut outcomes.failed };
        which[index(kind)] = Some(now);
        if !worked {
            self.has_failures.store(true, Ordering::Relaxed);
        }
    }

    /// Whether any attempt has failed, so that what is known matters.
    pub(crate) fn has_failures(&self) -> bool {
        self.has_failures.load(Ordering::Relaxed)
    }

    /// A path to the peer was answered, over which a round trip takes so long.
    pub(crate) fn note_rtt(&self, peer: EndpointId, rtt: Duration) {
        let mut round_trips = lock(&self.round_trips);
        if round_trips.len() >= MAX_PEERS && !round_trips.contains_key(&peer) {
            round_trips.clear();
        }
        round_trips.insert(peer, rtt);
    }

    /// What a round trip to the peer took last, over any connection.
    pub(crate) fn rtt(&self, peer: &EndpointId) -> Option<Duration> {
        lock(&self.round_trips).get(peer).copied()
    }

    /// Which carriers to try, best first: what is blocked is left out, unless nothing else is left.
    pub(crate) fn order(
        &self,
        local: Option<IpAddr>,
        remote: Locator,
        carriers: Carriers,
        now: Instant,
    ) -> SmallVec<[CarrierKind; 2]> {
        let all = carriers.order();
        let networks = lock(&self.networks);
        let Some(network) = local.and_then(|local| networks.get(&local)) else { return all };
        let open = |kind: &CarrierKind| !network.is_blocked(remote, index(*kind), now);
        let open: SmallVec<_> = all.iter().copied().filter(open).collect();
        if open.is_empty() { all } else { open }
    }

    /// Whether the last attempts to be answered there failed, from any network and on any carrier: other
    /// addresses should be tried first.
    pub(crate) fn is_doubtful(&self, remote: Locator, now: Instant) -> bool {
        let networks = lock(&self.networks);
        let mut outcomes = networks.values().filter_map(|network| network.remotes.get(&remote)).peekable();
        outcomes.peek().is_some() && outcomes.all(|outcomes| outcomes.is_doubtful(now))
    }

    /// The address is new: it may be in another network than before.
    pub(crate) fn forget(&self, local: IpAddr) {
        lock(&self.networks).remove(&local);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;

    const HOME: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    const HOTEL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 2));
    const SERVER: Locator = server(1);
    const OTHER: Locator = server(2);
    use CarrierKind::{Quic, Tcp};

    const fn server(n: u8) -> Locator {
        Locator::Direct(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, n)), 443))
    }

    fn order(reach: &Reach, local: IpAddr, remote: Locator, now: Instant) -> Vec<CarrierKind> {
        reach.order(Some(local), remote, Carriers::Auto, now).to_vec()
    }

    #[test]
    fn what_is_blocked_in_one_network_is_not_tried_there_again_until_it_expires() {
        let (reach, now) = (Reach::default(), Instant::now());
        let both = order(&reach, HOTEL, SERVER, now);
        assert_eq!(both.len(), 2);
        reach.note(HOTEL, SERVER, Quic, false, now);
        assert_eq!(order(&reach, HOTEL, SERVER, now), both, "nothing else works either");
        reach.note(HOTEL, SERVER, Tcp, true, now);
        assert_eq!(order(&reach, HOTEL, SERVER, now), [Tcp]);
        assert_eq!(order(&reach, HOTEL, OTHER, now), [Tcp], "nothing of its kind ever worked there");
        assert_eq!(order(&reach, HOME, SERVER, now), both);
        assert_eq!(order(&reach, HOTEL, SERVER, now + EXPIRY), both);
        reach.forget(HOTEL);
        assert_eq!(order(&reach, HOTEL, SERVER, now), both);
    }

    #[test]
    fn what_works_with_others_is_blocked_by_this_one_only() {
        let (reach, now) = (Reach::default(), Instant::now());
        reach.note(HOME, OTHER, Quic, true, now);
        reach.note(HOME, SERVER, Quic, false, now);
        reach.note(HOME, SERVER, Tcp, true, now);
        assert_eq!(order(&reach, HOME, SERVER, now), [Tcp]);
        assert_eq!(order(&reach, HOME, OTHER, now).len(), 2);
        let later = now + Duration::from_secs(1);
        reach.note(HOME, SERVER, Quic, true, later);
        assert_eq!(order(&reach, HOME, SERVER, later).len(), 2);
    }

    #[test]
    fn an_address_is_doubtful_while_nothing_has_worked_there_since_a_failure() {
        let (reach, now) = (Reach::default(), Instant::now());
        assert!(!reach.is_doubtful(SERVER, now));
        reach.note(HOME, SERVER, Tcp, false, now);
        assert!(reach.is_doubtful(SERVER, now));
        assert!(!reach.is_doubtful(OTHER, now));
        assert!(!reach.is_doubtful(SERVER, now + EXPIRY));
        reach.note(HOTEL, SERVER, Quic, true, now);
        assert!(!reach.is_doubtful(SERVER, now), "it can be reached from elsewhere");
        reach.note(HOTEL, SERVER, Quic, false, now + SAME_TIME);
        assert!(reach.is_doubtful(SERVER, now + SAME_TIME));
    }

    #[test]
    fn one_carrier_alone_is_tried_whatever_is_known() {
        let (reach, now) = (Reach::default(), Instant::now());
        reach.note(HOTEL, SERVER, Quic, false, now);
        reach.note(HOTEL, SERVER, Tcp, true, now);
        let only = reach.order(Some(HOTEL), SERVER, Carriers::Only(Quic), now);
        assert_eq!(only.to_vec(), [Quic]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (reach, now) = (Reach::default(), Instant::now());
        for n in 0..10_000u32 {
            reach.note(IpAddr::from(n.to_be_bytes()), SERVER, Quic, false, now);
            reach.note(HOME, Locator::Direct(SocketAddr::from((n.to_be_bytes(), 1))), Quic, false, now);
        }
        let networks = lock(&reach.networks);
        assert!(networks.len() <= MAX_NETWORKS);
        assert!(networks.values().all(|network| network.remotes.len() <= MAX_REMOTES));
    }
}
