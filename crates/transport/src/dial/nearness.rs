//! Which places seem to be in a network of this host. A pure function of addresses.

use std::net::{IpAddr, SocketAddr};

use whimbrel_base::address::AddressScope;

use crate::locator::Locator;
use crate::monitor::AddressSet;

/// The same places, of which those that are direct and seem to be in a network of this host come before other
/// direct ones: a gateway need not turn back what is sent to its own outside.
pub(super) fn near_first(remote: &[Locator], local: &AddressSet) -> Vec<Locator> {
    let mut places = remote.to_vec();
    let direct: Vec<usize> = (0..places.len()).filter(|at| places[*at].direct().is_some()).collect();
    let is_near = |place: &Locator| local.addresses.iter().any(|local| are_near(local.ip, place.ip()));
    let (near, far): (Vec<_>, Vec<_>) = direct.iter().map(|at| places[*at]).partition(is_near);
    for (at, place) in direct.into_iter().zip(near.into_iter().chain(far)) {
        places[at] = place;
    }
    places
}

/// Whether a place seems to be in a private network that this host is not in.
pub(super) fn is_elsewhere(place: Locator, local: &AddressSet) -> bool {
    let private = |at: &SocketAddr| AddressScope::of(at.ip()) == AddressScope::Private;
    let is_near = |at: SocketAddr| local.addresses.iter().any(|local| are_near(local.ip, at.ip()));
    place.direct().filter(private).is_some_and(|at| !is_near(at))
}

/// Whether two private addresses are alike as those of one network mostly are.
fn are_near(one: IpAddr, other: IpAddr) -> bool {
    let are_private = [one, other].iter().all(|ip| AddressScope::of(*ip) == AddressScope::Private);
    are_private
        && match (one.to_canonical(), other.to_canonical()) {
            (IpAddr::V4(one), IpAddr::V4(other)) => one.octets()[..3] == other.octets()[..3],
            (IpAddr::V6(one), IpAddr::V6(other)) => one.octets()[..8] == other.octets()[..8],
            _ => false,
        }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::monitor::LocalAddress;

    fn at(text: &str) -> Locator {
        Locator::Direct(text.parse().unwrap())
    }

    fn set(ips: &[&str]) -> AddressSet {
        let address = |ip: &&str| LocalAddress { ip: ip.parse().unwrap(), interface: None };
        AddressSet { addresses: ips.iter().map(address).collect(), ..AddressSet::default() }
    }

    #[test]
    fn of_direct_places_those_nearby_come_first_and_relays_stay_where_they_are() {
        let local = set(&["192.168.7.2"]);
        let token = whimbrel_base::RelayToken::from_bytes([1; 10]);
        let relay = "198.51.100.1:443".parse().unwrap();
        let relayed = Locator::Relayed(whimbrel_base::RelayedAddr { relay, token });
        let [outside, near, far] = ["203.0.113.5:7", "192.168.7.9:7", "192.168.8.9:7"].map(at);
        let order = near_first(&[relayed, outside, far, near], &local);
        assert_eq!(order, [relayed, near, outside, far]);
        assert_eq!(near_first(&[outside, far], &local), [outside, far]);
        let elsewhere = [relayed, outside, near, far].map(|place| is_elsewhere(place, &local));
        assert_eq!(elsewhere, [false, false, false, true]);
        // Loopback and public addresses are as they were told.
        let local = set(&["127.0.0.1", "203.0.113.9"]);
        let told = ["203.0.113.7:7", "127.0.0.5:7", "203.0.113.5:7"].map(at);
        assert_eq!(near_first(&told, &local), told);
    }
}
