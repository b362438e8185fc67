//! Where an endpoint is reached, beside the addresses of its host.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use whimbrel_base::relayed::{Aliased, add_aliases, pack};
use whimbrel_base::{AddressScope, RelayState, RelayToken, RelayedAddr};

/// Tokens for clients that are kept for each place.
const MAX_ALIASES: usize = 256;

/// What an endpoint was told of where it is reached. It does not know it itself.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// For good.
    advertised: Vec<SocketAddr>,
    /// Where a router passes on what is for this endpoint.
    mapped: Mutex<Vec<SocketAddr>>,
    /// The relays that pass on to it.
    relayed: Mutex<Vec<RelayedAddr>>,
    /// Tokens of which each client is to have one of its own, by place.
    aliases: Mutex<HashMap<RelayedAddr, Vec<RelayToken>>>,
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
        lock(&self.aliases).retain(|place, _| places.contains(place));
        set(&self.relayed, places)
    }

    /// Takes some more tokens for clients that come to a place. True if these are the first ones.
    pub(crate) fn add_aliases(&self, place: RelayedAddr, aliases: Vec<RelayToken>) -> bool {
        if aliases.is_empty() || !self.relayed().contains(&place) {
            return false;
        }
        let mut all = lock(&self.aliases);
        let are_first = !all.contains_key(&place);
        let kept = all.entry(place).or_default();
        kept.extend(aliases.into_iter().take(MAX_ALIASES.saturating_sub(kept.len())));
        are_first
    }

    /// How many more tokens for clients of a place there is room for.
    pub(crate) fn missing_aliases(&self, place: RelayedAddr) -> usize {
        if !self.relayed().contains(&place) {
            return 0;
        }
        MAX_ALIASES.saturating_sub(lock(&self.aliases).get(&place).map_or(0, Vec::len))
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

    /// As [`stated`](Self::stated), for one client, which is `told` a token of its own for each place behind
    /// a relay.
    pub(crate) fn stated_to(
        &self,
        told: &mut Vec<Aliased>,
        of_the_host: Vec<SocketAddr>,
        max: usize,
    ) -> Vec<SocketAddr> {
        let mut list = self.stated(of_the_host, max);
        let relayed = self.relayed();
        told.retain(|aliased| relayed.contains(&aliased.place));
        let mut all = lock(&self.aliases);
        for place in relayed {
            if told.iter().any(|aliased| aliased.place == place) {
                continue;
            }
            if let Some(alias) = all.get_mut(&place).and_then(Vec::pop) {
                told.push(Aliased { place, alias });
            }
        }
        add_aliases(&mut list, told, max);
        list
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
    use whimbrel_base::relayed::aliases;

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
    fn each_client_is_told_a_token_of_its_own_for_each_place_and_keeps_it_until_it_is_spent() {
        let token = |byte| RelayToken::from_bytes([byte; 10]);
        let at = |last| RelayedAddr { relay: ([192, 0, 2, last], 443).into(), token: token(1) };
        let places = Places::new(Vec::new());
        assert!(!places.add_aliases(at(1), vec![token(9)]), "there is no such place");
        assert!(places.set_relayed(vec![at(1), at(2)]));
        assert!(!places.add_aliases(at(1), Vec::new()), "there are none");
        assert!(places.add_aliases(at(1), vec![token(7)]), "the first");
        assert!(!places.add_aliases(at(1), vec![token(8)]));
        assert_eq!(places.missing_aliases(at(1)), MAX_ALIASES - 2);
        let (mut one, mut other, mut third) = (Vec::new(), Vec::new(), Vec::new());
        let told = |known: &mut Vec<Aliased>| aliases(&places.stated_to(known, Vec::new(), 16));
        assert_eq!(told(&mut one), [Aliased { place: at(1), alias: token(8) }]);
        assert_eq!(told(&mut one), one, "the same as long as it was not used");
        assert_eq!(told(&mut other), [Aliased { place: at(1), alias: token(7) }]);
        assert_eq!(told(&mut third), [], "none is left");
        let many = (0..=255).chain(0..9).map(token).collect::<Vec<_>>();
        assert!(places.add_aliases(at(2), many) && places.missing_aliases(at(2)) == 0);
        one.clear();
        assert_eq!(told(&mut one).len(), 1, "of the other relay");
        assert!(places.set_relayed(vec![at(1)]));
        assert_eq!(told(&mut one), [], "that is no place any more");
        assert_eq!((places.missing_aliases(at(2)), places.missing_aliases(at(1))), (0, MAX_ALIASES));
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
