//! How far the relays of servers are from here: of several that a server names, the one nearest to both is
//! dialled first.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use whimbrel_base::RelayedAddr;

use crate::locator::Locator;

/// What was measured is worth measuring again after this.
const EXPIRY: Duration = Duration::from_secs(600);
/// Differences below this, or below a tenth, leave the server's own order as it is.
const INDISTINCT: Duration = Duration::from_millis(3);
const MAX_RELAYS: usize = 256;
const MAX_PLACES: usize = 1024;
/// Relays of one server that are measured.
const MOST: usize = 8;

/// What was measured of relays since this host moved last.
#[derive(Debug, Default)]
pub(crate) struct Distances(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Round trips to relays, as far as these answered.
    relays: HashMap<SocketAddr, (Option<Duration>, Instant)>,
    /// Round trips through them from end to end.
    places: HashMap<RelayedAddr, (Duration, Instant)>,
}

impl Distances {
    /// A round trip through a relay to the server behind it took so long.
    pub(crate) fn note_place(&self, place: RelayedAddr, rtt: Duration, now: Instant) {
        let mut known = self.lock();
        if known.places.len() >= MAX_PLACES && !known.places.contains_key(&place) {
            known.places.clear();
        }
        known.places.insert(place, (rtt, now));
    }

    /// A round trip to a relay took so long. Counts only if it was [to be measured](Self::to_measure) since
    /// the last move.
    pub(crate) fn note_relay(&self, relay: SocketAddr, rtt: Duration) {
        if let Some((known, _)) = self.lock().relays.get_mut(&relay) {
            *known = Some(rtt);
        }
    }

    /// The relays of a server that are to be measured now, because it has several. They are not named again
    /// for ten minutes, whatever comes of it.
    pub(crate) fn to_measure(&self, places: &[Locator], now: Instant) -> Vec<SocketAddr> {
        let mut relays: Vec<SocketAddr> = Vec::new();
        for place in places.iter().filter_map(Locator::relayed) {
            if !relays.contains(&place.relay) {
                relays.push(place.relay);
            }
        }
        if relays.len() < 2 {
            return Vec::new();
        }
        relays.truncate(MOST);
        let mut known = self.lock();
        relays.retain(|relay| known.relays.get(relay).is_none_or(|(_, at)| !is_fresh(*at, now)));
        if known.relays.len() + relays.len() > MAX_RELAYS {
            known.relays.clear();
        }
        known.relays.extend(relays.iter().map(|relay| (*relay, (None, now))));
        relays
    }

    /// What a round trip to a relay takes, if that was measured.
    pub(crate) fn to_relay(&self, relay: SocketAddr) -> Option<Duration> {
        self.lock().relays.get(&relay).and_then(|(rtt, _)| *rtt)
    }

    /// The places of a server, those behind relays in the order of what is known of their distance.
    pub(crate) fn order(&self, places: Vec<Locator>, now: Instant) -> Vec<Locator> {
        let known = self.lock();
        if known.relays.is_empty() && known.places.is_empty() {
            return places;
        }
        nearest_first(places, |place| known.distance(place, now))
    }

    /// This host is elsewhere: what was measured there says nothing of here.
    pub(crate) fn forget(&self) {
        *self.lock() = Known::default();
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// The round trip through a relay to the server behind it, as far as can be told: it was measured, or the
    /// way from here to the relay was. Then the server is taken to be as far from this relay as from the
    /// nearest one of which that is known, for it names those that are near itself; and where it is known of
    /// none, all count alike.
    fn distance(&self, place: RelayedAddr, now: Instant) -> Option<Duration> {
        if let Some(whole) = self.whole(&place, now) {
            return Some(whole);
        }
        let near = self.relay(place.relay, now)?;
        let is_of_server = |(other, (_, at)): &(&RelayedAddr, &(Duration, Instant))| {
            other.token == place.token && is_fresh(*at, now)
        };
        let of_server: Vec<_> = self.places.iter().filter(is_of_server).collect();
        let beyond = of_server.iter().filter_map(|(other, (whole, _))| {
            let near = self.relay(other.relay, now)?;
            Some(whole.saturating_sub(near))
        });
        match beyond.min() {
            Some(beyond) => Some(near.saturating_add(beyond)),
            // Half a way is not weighed against whole ones.
            None => of_server.is_empty().then_some(near),
        }
    }

    fn whole(&self, place: &RelayedAddr, now: Instant) -> Option<Duration> {
        self.places.get(place).filter(|(_, at)| is_fresh(*at, now)).map(|(rtt, _)| *rtt)
    }

    fn relay(&self, relay: SocketAddr, now: Instant) -> Option<Duration> {
        self.relays.get(&relay).filter(|(_, at)| is_fresh(*at, now)).and_then(|(rtt, _)| *rtt)
    }
}

fn is_fresh(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < EXPIRY
}

/// Puts those places behind relays whose distance is known in its order, in the positions that they have
/// among all. The order in which they are given, the server's, stands among those that are about as far. A
/// pure function.
fn nearest_first(
    mut places: Vec<Locator>,
    distance: impl Fn(RelayedAddr) -> Option<Duration>,
) -> Vec<Locator> {
    let known = |(slot, place): (usize, &Locator)| Some((slot, *place, distance(place.relayed()?)?));
    let known: Vec<(usize, Locator, Duration)> = places.iter().enumerate().filter_map(known).collect();
    let mut left = known.clone();
    for (slot, ..) in known {
        let Some(nearest) = left.iter().map(|(.., rtt)| *rtt).min() else { break };
        let bound = nearest.saturating_add(nearest / 10).saturating_add(INDISTINCT);
        if let Some(next) = left.iter().position(|(.., rtt)| *rtt <= bound) {
            places[slot] = left.remove(next).1;
        }
    }
    places
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_base::RelayToken;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn behind(relay: u8, server: u8) -> RelayedAddr {
        let relay = SocketAddr::from(([203, 0, 113, relay], 443));
        RelayedAddr { relay, token: RelayToken::from_bytes([server; 10]) }
    }

    fn places(relays: &[u8]) -> Vec<Locator> {
        relays.iter().map(|relay| Locator::Relayed(behind(*relay, 1))).collect()
    }

    /// By number: how far each relay is.
    fn ordered(relays: &[u8], rtts: &[(u8, u64)]) -> Vec<Locator> {
        let rtt = |place: RelayedAddr| {
            rtts.iter().find(|(relay, _)| behind(*relay, 1) == place).map(|(_, rtt)| ms(*rtt))
        };
        nearest_first(places(relays), rtt)
    }

    #[test]
    fn the_nearest_relay_comes_first_and_what_is_not_known_stays_where_it_is() {
        assert_eq!(ordered(&[1, 2, 3], &[(1, 100), (2, 20), (3, 50)]), places(&[2, 3, 1]));
        assert_eq!(ordered(&[1, 2, 3], &[(1, 100), (3, 50)]), places(&[3, 2, 1]));
        assert_eq!(ordered(&[1, 2, 3], &[(2, 1)]), places(&[1, 2, 3]));
        assert_eq!(ordered(&[], &[(2, 1)]), places(&[]));
        let direct = Locator::Direct("192.0.2.1:4433".parse().unwrap());
        let all = vec![places(&[1])[0], direct, places(&[2])[0]];
        let rtt = |place: RelayedAddr| Some(if place == behind(2, 1) { ms(10) } else { ms(90) });
        assert_eq!(nearest_first(all, rtt), [places(&[2])[0], direct, places(&[1])[0]]);
    }

    #[test]
    fn among_relays_about_as_far_the_servers_order_stands() {
        assert_eq!(ordered(&[1, 2], &[(1, 105), (2, 100)]), places(&[1, 2]));
        assert_eq!(ordered(&[1, 2], &[(1, 3), (2, 1)]), places(&[1, 2]));
        assert_eq!(ordered(&[1, 2, 3], &[(1, 150), (2, 105), (3, 100)]), places(&[2, 3, 1]));
        assert_eq!(ordered(&[1, 2], &[(1, u64::MAX), (2, u64::MAX - 1)]), places(&[1, 2]));
    }

    #[test]
    fn both_sides_of_a_relay_count_as_far_as_they_are_known() {
        let (distances, now) = (Distances::default(), Instant::now());
        let both = places(&[1, 2]);
        assert_eq!(distances.order(both.clone(), now), both, "nothing is known");
        assert_eq!(distances.to_measure(&both, now), [behind(1, 1).relay, behind(2, 1).relay]);
        distances.note_relay(behind(1, 1).relay, ms(90));
        distances.note_relay(behind(2, 1).relay, ms(30));
        assert_eq!(distances.order(both.clone(), now), places(&[2, 1]), "nothing is known of the server");
        // 10 ms lie between the first one and the server, and so much at least behind the second one.
        distances.note_place(behind(1, 1), ms(100), now);
        assert_eq!(distances.order(both.clone(), now), places(&[2, 1]));
        // It was tried, and is far from the server.
        distances.note_place(behind(2, 1), ms(170), now);
        assert_eq!(distances.order(both.clone(), now), both);
        // Of another server nothing but the ways to the relays is known.
        let other = [1, 2].map(|relay| Locator::Relayed(behind(relay, 2)));
        assert_eq!(distances.order(other.to_vec(), now), [other[1], other[0]]);
        assert_eq!(distances.order(other.to_vec(), now + EXPIRY), other);
        distances.forget();
        assert_eq!(distances.order(other.to_vec(), now), other);
    }

    #[test]
    fn a_way_to_a_relay_is_not_weighed_against_ways_to_the_server() {
        let (distances, now) = (Distances::default(), Instant::now());
        let both = places(&[1, 2]);
        distances.to_measure(&both, now);
        distances.note_relay(behind(2, 1).relay, ms(90));
        distances.note_place(behind(1, 1), ms(100), now);
        assert_eq!(distances.order(both.clone(), now), both);
    }

    #[test]
    fn relays_are_measured_once_in_ten_minutes_where_there_is_a_choice() {
        let (distances, now) = (Distances::default(), Instant::now());
        let one = [places(&[1]), vec![Locator::Direct("192.0.2.1:4433".parse().unwrap())]].concat();
        assert!(distances.to_measure(&one, now).is_empty());
        assert_eq!(distances.to_measure(&places(&[1, 2, 1]), now).len(), 2);
        assert_eq!(distances.to_measure(&places(&[1, 2, 3]), now), [behind(3, 1).relay]);
        assert!(distances.to_measure(&places(&[1, 2]), now).is_empty());
        assert_eq!(distances.to_measure(&places(&[1, 2]), now + EXPIRY).len(), 2);
        // What was asked before a move and answered after it counts no more.
        distances.forget();
        distances.note_relay(behind(1, 1).relay, ms(10));
        assert_eq!(distances.to_relay(behind(1, 1).relay), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (distances, now) = (Distances::default(), Instant::now());
        for number in 0..5000_u16 {
            let [high, low] = number.to_be_bytes();
            let place =
                |last| RelayedAddr { relay: SocketAddr::from(([high, low, 0, last], 1)), ..behind(1, 1) };
            distances.to_measure(&[place(1), place(2)].map(Locator::Relayed), now);
            distances.note_place(place(1), ms(1), now);
        }
        let known = distances.lock();
        assert!(known.relays.len() <= MAX_RELAYS && known.places.len() <= MAX_PLACES);
        drop(known);
        let many: Vec<u8> = (0..100).collect();
        assert_eq!(distances.to_measure(&places(&many), now).len(), MOST);
    }
}
