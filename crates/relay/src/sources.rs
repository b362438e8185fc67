//! How many connections wait, by the address that they came from.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::rates::source;

/// Counts those that have a [place](Self::enter).
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources(Arc<Mutex<HashMap<[u8; 8], usize>>>);

impl Sources {
    fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 8], usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives one from there a place until that is dropped. `None` if there are `most` of its address (IPv4,
    /// or /64 of IPv6) already.
    pub(crate) fn enter(&self, from: IpAddr, most: usize) -> Option<Place> {
        let of = source(from);
        let mut all = self.lock();
        let count = all.get(&of).copied().unwrap_or_default();
        if count >= most {
            return None;
        }
        all.insert(of, count + 1);
        Some(Place { all: self.clone(), of })
    }
}

/// One that waits.
#[derive(Debug)]
pub(crate) struct Place {
    all: Sources,
    of: [u8; 8],
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        let left = all.get(&self.of).copied().unwrap_or_default().saturating_sub(1);
        if left == 0 {
            all.remove(&self.of);
        } else {
            all.insert(self.of, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_of_an_address_have_places_and_those_that_leave_make_room() {
        let sources = Sources::default();
        let [one, other] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        let (first, second) = (sources.enter(one, 2), sources.enter(one, 2));
        assert!(first.is_some() && second.is_some() && sources.enter(one, 2).is_none());
        let elsewhere = sources.enter(other, 2);
        assert!(elsewhere.is_some(), "of another address");
        drop(first);
        let third = sources.enter(one, 2);
        assert!(third.is_some() && sources.enter(one, 2).is_none());
        drop((second, third, elsewhere));
        assert!(sources.lock().is_empty(), "nothing is kept of those that are gone");
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let sources = Sources::default();
        let [one, same, other] = ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"]
            .map(|ip| ip.parse::<std::net::Ipv6Addr>().map(IpAddr::from).ok());
        let enter = |ip: Option<IpAddr>| ip.and_then(|ip| sources.enter(ip, 1));
        let place = enter(one);
        assert!(place.is_some() && enter(same).is_none() && enter(other).is_some());
    }
}
