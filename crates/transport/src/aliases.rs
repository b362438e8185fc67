//! Client: the tokens of its own that servers have told, by which it finds them behind relays.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use whimbrel_base::relayed::Aliased;
use whimbrel_base::{EndpointId, RelayToken, RelayedAddr};

/// Places for which aliases are kept.
const MAX_PLACES: usize = 1024;
/// Aliases of one place: each connection to a server is told one.
const MAX_EACH: usize = 4;
/// So many QUIC connections begin with one alias. Nothing tells that a relay does not know it.
const MAX_LENT: u8 = 3;

/// Aliases by server and place. Each is for one path, so that an onlooker at one network learns nothing that could be
/// known again at another; a server tells the next one on each path through a relay. Where there is none, or a relay
/// did not know it, the token serves that everybody may know.
#[derive(Debug, Default)]
pub(crate) struct Aliases(Mutex<HashMap<(EndpointId, RelayedAddr), VecDeque<Known>>>);

#[derive(Debug)]
struct Known {
    alias: RelayToken,
    /// How often QUIC has begun with it.
    lent: u8,
}

impl Aliases {
    fn lock(&self) -> MutexGuard<'_, HashMap<(EndpointId, RelayedAddr), VecDeque<Known>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A server has told these.
    pub(crate) fn learn(&self, server: EndpointId, told: &[Aliased]) {
        let mut all = self.lock();
        for Aliased { place, alias } in told {
            if all.len() >= MAX_PLACES && !all.contains_key(&(server, *place)) {
                // None of them is needed.
                all.clear();
            }
            let of_place = all.entry((server, *place)).or_default();
            if of_place.iter().any(|known| known.alias == *alias) {
                continue;
            }
            if of_place.len() >= MAX_EACH {
                of_place.pop_front();
            }
            of_place.push_back(Known { alias: *alias, lent: 0 });
        }
    }

    /// What a TCP connection to there names. The relay has answered by now, so that it is used up.
    pub(crate) fn spend(&self, server: EndpointId, place: RelayedAddr) -> RelayToken {
        let mut all = self.lock();
        let of_place = all.get_mut(&(server, place));
        of_place.and_then(VecDeque::pop_back).map_or(place.token, |known| known.alias)
    }

    /// What a QUIC connection to there names: the same as the TCP connection that is dialled beside it.
    pub(crate) fn lend(&self, server: EndpointId, place: RelayedAddr) -> RelayToken {
        let mut all = self.lock();
        let Some(of_place) = all.get_mut(&(server, place)) else { return place.token };
        let Some(known) = of_place.back_mut() else { return place.token };
        let alias = known.alias;
        known.lent += 1;
        if known.lent >= MAX_LENT {
            of_place.pop_back();
        }
        alias
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_base::SecretKey;

    use super::*;

    fn token(byte: u8) -> RelayToken {
        RelayToken::from_bytes([byte; 10])
    }

    fn place(last: u8) -> RelayedAddr {
        RelayedAddr { relay: ([192, 0, 2, last], 443).into(), token: token(1) }
    }

    fn told(last: u8, alias: u8) -> Aliased {
        Aliased { place: place(last), alias: token(alias) }
    }

    #[test]
    fn an_alias_is_of_one_server_and_place_and_used_once_over_tcp() {
        let (server, other) = (SecretKey::from_bytes(&[1; 32]).id(), SecretKey::from_bytes(&[2; 32]).id());
        let aliases = Aliases::default();
        assert_eq!(aliases.spend(server, place(1)), token(1), "none was told");
        aliases.learn(server, &[told(1, 7), told(1, 7), told(1, 8)]);
        assert_eq!(aliases.spend(server, place(2)), token(1), "of another relay");
        assert_eq!(aliases.spend(other, place(1)), token(1), "of another server");
        assert_eq!(aliases.lend(server, place(1)), token(8), "the newest");
        assert_eq!(aliases.spend(server, place(1)), token(8), "that which QUIC has beside it");
        assert_eq!(aliases.spend(server, place(1)), token(7));
        assert_eq!(aliases.spend(server, place(1)), token(1), "they are used up");
    }

    #[test]
    fn a_relay_that_never_answers_over_quic_is_shown_an_alias_a_few_times_only() {
        let server = SecretKey::from_bytes(&[1; 32]).id();
        let aliases = Aliases::default();
        aliases.learn(server, &[told(1, 7)]);
        let named: Vec<_> = (0..4).map(|_| aliases.lend(server, place(1))).collect();
        assert_eq!(named, [token(7), token(7), token(7), token(1)]);
    }

    #[test]
    fn however_many_are_told_few_are_kept() {
        let server = SecretKey::from_bytes(&[1; 32]).id();
        let aliases = Aliases::default();
        (2..100).for_each(|byte| aliases.learn(server, &[told(1, byte)]));
        assert_eq!(aliases.lock().values().map(VecDeque::len).sum::<usize>(), MAX_EACH);
        assert_eq!(aliases.spend(server, place(1)), token(99));
        for port in 1..=5000 {
            let place = RelayedAddr { relay: ([192, 0, 2, 1], port).into(), token: token(1) };
            aliases.learn(server, &[Aliased { place, alias: token(7) }]);
        }
        assert!(aliases.lock().len() <= MAX_PLACES);
    }
}
