//! Where an endpoint is reached, beside the addresses of its host.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use whimbrel_base::relayed::pack;
use whimbrel_base::{AddressScope, RelayState, RelayedAddr};

/// What an endpoint was told of where it is reached. It does not know it itself.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// For good.
    advertised: Vec<SocketAddr>,
    /// Where a router passes on what is for this endpoint.
    mapped: Mutex<Vec<SocketAddr>>,
    /// The relays that pass on to it.
    relayed: Mutex<Vec<RelayedAddr>>,
    /// What this endpoint says of itself as a relay, if it is one of a group.
    relay_state: Mutex<Option<RelayState>>,
}

impl Places {
    pub(crate) fn new(advertised: Vec<SocketAddr>) -> Self {
        Self { advertised, ..Self::default() }
    }

    /// False if that was known.
    pub(crate) fn set_mapped(&self, places: Vec<SocketAddr>) -> bool {
        set(&self.mapped, places)
    }

    /// False if that was known.
    pub(crate) fn set_relayed(&self, places: Vec<RelayedAddr>) -> bool {
        set(&self.relayed, places)
    }

    pub(crate) fn relayed(&self) -> Vec<RelayedAddr> {
        lock(&self.relayed).clone()
    }

    /// False if that was known.
    pub(crate) fn set_relay_state(&self, state: Option<RelayState>) -> bool {
        set(&self.relay_state, state)
    }

    pub(crate) fn relay_state(&self) -> Option<RelayState> {
        lock(&self.relay_state).clone()
    }

    /// All that lead to the endpoint's own sockets: what was advertised, and what a router passes on.
    pub(crate) fn direct(&self) -> Vec<SocketAddr> {
        let mapped = lock(&self.mapped).clone();
        self.advertised.iter().copied().chain(mapped).collect()
    }

    /// At most `max` places, as others are told: these, those of the host, and those behind relays.
    pub(crate) fn stated(&self, of_the_host: Vec<SocketAddr>, max: usize) -> Vec<SocketAddr> {
        let mut direct = self.advertised.clone();
        for address in lock(&self.mapped).iter().copied().chain(of_the_host) {
            if !direct.contains(&address) {
                direct.push(address);
            }
        }
        pack(&direct, &lock(&self.relayed), max)
    }
}

/// Those that are reached from anywhere, as far as their addresses tell.
pub(crate) fn public(mut places: Vec<SocketAddr>) -> Vec<SocketAddr> {
    places.retain(|place| AddressScope::of(place.ip()) == AddressScope::Global);
    places
}

/// Replaces what is there. False if it was the same.
fn set<T: PartialEq>(place: &Mutex<T>, new: T) -> bool {
    let mut place = lock(place);
    let is_new = *place != new;
    *place = new;
    is_new
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_a_router_passes_on_is_stated_behind_what_was_advertised_and_before_the_hosts_own() {
        let at = |last| SocketAddr::from(([192, 0, 2, last], 7));
        let places = Places::new(vec![at(1)]);
        assert!(places.set_mapped(vec![at(2), at(1)]));
        assert!(!places.set_mapped(vec![at(2), at(1)]), "that was known");
        assert_eq!(places.stated(vec![at(3), at(2)], 8), [at(1), at(2), at(3)]);
        assert_eq!(places.stated(vec![at(3)], 2), [at(1), at(2)]);
        assert_eq!(places.direct(), [at(1), at(2), at(1)]);
        assert!(places.set_mapped(Vec::new()) && places.direct() == [at(1)]);
    }

    #[test]
    fn of_the_hosts_own_places_the_public_ones_are_told_to_strangers_and_what_was_advertised_stays() {
        let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 7);
        let own = ["192.168.1.2", "100.64.0.9", "fd00::2", "127.0.0.1", "203.0.113.2", "2001:db8::2"].map(at);
        let told = public(own.to_vec());
        assert_eq!(told, own[4..]);
        let places = Places::new(vec![at("10.0.0.1")]);
        assert_eq!(places.stated(told, 8), [at("10.0.0.1"), own[4], own[5]]);
    }
}
