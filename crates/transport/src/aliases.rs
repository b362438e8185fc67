//! Client: the tokens of its own that servers have told, by which it finds them behind relays.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use whimbrel_base::relayed::Aliased;
use whimbrel_base::{EndpointId, RelayToken, RelayedAddr};

/// Places for which aliases are kept.
const MAX_PLACES: usize = 1024;
/// Of these, places of one server: a list of what it tells has no more. One that tells others all the time
/// must not have those of other servers forgotten.
const MAX_OF_SERVER: usize = 16;
/// Aliases of one place: each connection to a server is told one.
const MAX_EACH: usize = 4;
/// So often one alias is named, and for so long since it was first: by what is dialled at the same moment
/// over both carriers, or once more before the server has told the next one.
const MOST: u8 = 3;
const AT_ONCE: Duration = Duration::from_secs(5);

/// Aliases by server and place. Each is for one path, so that an onlooker at one network learns nothing that
/// could be known again at another; a server tells the next one on each path through a relay. Where there is
/// none, or a path by one failed, the token serves that everybody may know.
#[derive(Debug, Default)]
pub(crate) struct Aliases(Mutex<HashMap<(EndpointId, RelayedAddr), VecDeque<Known>>>);

#[derive(Debug)]
struct Known {
    alias: RelayToken,
    /// How often it was named, and since when.
    named: u8,
    since: Option<Instant>,
}

impl Known {
    fn is_used_up(&self, now: Instant) -> bool {
        let is_old = |since: Instant| now.saturating_duration_since(since) > AT_ONCE;
        self.named >= MOST || self.since.is_some_and(is_old)
    }
}

impl Aliases {
    fn lock(&self) -> MutexGuard<'_, HashMap<(EndpointId, RelayedAddr), VecDeque<Known>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A server has told these.
    pub(crate) fn learn(&self, server: EndpointId, told: &[Aliased]) {
        let mut all = self.lock();
        for Aliased { place, alias } in told {
            if !all.contains_key(&(server, *place)) {
                make_room(&mut all, server);
            }
            let of_place = all.entry((server, *place)).or_default();
            if of_place.iter().any(|known| known.alias == *alias) {
                continue;
            }
            // What was named before is known to those who look on at that network.
            of_place.retain(|known| known.named == 0);
            if of_place.len() >= MAX_EACH {
                of_place.pop_front();
            }
            of_place.push_back(Known { alias: *alias, named: 0, since: None });
        }
    }

    /// What is named to the relay when the server is dialled there: the newest alias, or the server's own
    /// token.
    pub(crate) fn name(&self, server: EndpointId, place: RelayedAddr, now: Instant) -> RelayToken {
        let mut all = self.lock();
        let Some(of_place) = all.get_mut(&(server, place)) else { return place.token };
        while of_place.back().is_some_and(|known| known.is_used_up(now)) {
            of_place.pop_back();
        }
        let Some(known) = of_place.back_mut() else { return place.token };
        known.named += 1;
        known.since.get_or_insert(now);
        known.alias
    }

    /// A path to there has failed. The relay may not know its aliases, and says nothing of that: the next one
    /// is dialled by the server's own token.
    pub(crate) fn doubt(&self, server: EndpointId, place: RelayedAddr) {
        self.lock().remove(&(server, place));
    }
}

/// Makes room for another place of a server. No alias is needed.
fn make_room(all: &mut HashMap<(EndpointId, RelayedAddr), VecDeque<Known>>, server: EndpointId) {
    let of_server = all.keys().filter(|(of, _)| *of == server).count();
    if of_server >= MAX_OF_SERVER {
        all.retain(|(of, _), _| *of != server);
    }
    if all.len() >= MAX_PLACES {
        all.clear();
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
    fn an_alias_is_of_one_server_and_place_and_named_at_one_moment_alone() {
        let (server, other) = (SecretKey::from_bytes(&[1; 32]).id(), SecretKey::from_bytes(&[2; 32]).id());
        let (aliases, now) = (Aliases::default(), Instant::now());
        let later = now + AT_ONCE * 2;
        assert_eq!(aliases.name(server, place(1), now), token(1), "none was told");
        aliases.learn(server, &[told(1, 7), told(1, 7), told(1, 8)]);
        assert_eq!(aliases.name(server, place(2), now), token(1), "of another relay");
        assert_eq!(aliases.name(other, place(1), now), token(1), "of another server");
        assert_eq!(aliases.name(server, place(1), now), token(8), "the newest");
        assert_eq!(aliases.name(server, place(1), now), token(8), "over the other carrier");
        aliases.learn(server, &[told(1, 9)]);
        assert_eq!(aliases.name(server, place(1), now), token(9), "the server has told another one");
        assert_eq!(aliases.name(server, place(1), later), token(7), "those were named at another moment");
        assert_eq!(aliases.name(server, place(1), later + AT_ONCE * 2), token(1), "they are used up");
    }

    #[test]
    fn a_relay_that_does_not_know_an_alias_is_told_it_a_few_times_only() {
        let server = SecretKey::from_bytes(&[1; 32]).id();
        let (aliases, now) = (Aliases::default(), Instant::now());
        aliases.learn(server, &[told(1, 7)]);
        let named: Vec<_> = (0..4).map(|_| aliases.name(server, place(1), now)).collect();
        assert_eq!(named, [token(7), token(7), token(7), token(1)]);
    }

    #[test]
    fn once_a_path_has_failed_the_servers_own_token_is_named_until_another_alias_is_told() {
        let server = SecretKey::from_bytes(&[1; 32]).id();
        let (aliases, now) = (Aliases::default(), Instant::now());
        aliases.learn(server, &[told(1, 7), told(1, 8), told(2, 9)]);
        assert_eq!(aliases.name(server, place(1), now), token(8));
        aliases.doubt(server, place(1));
        assert_eq!(aliases.name(server, place(1), now), token(1), "of that relay none is known to be good");
        assert_eq!(aliases.name(server, place(2), now), token(9), "that of another one is");
        aliases.learn(server, &[told(1, 6)]);
        assert_eq!(aliases.name(server, place(1), now), token(6));
    }

    #[test]
    fn what_was_named_before_is_not_named_again_once_another_one_was_told() {
        let server = SecretKey::from_bytes(&[1; 32]).id();
        let (aliases, now) = (Aliases::default(), Instant::now());
        aliases.learn(server, &[told(1, 7)]);
        assert_eq!(aliases.name(server, place(1), now), token(7));
        aliases.learn(server, &[told(1, 8)]);
        let named: Vec<_> = (0..4).map(|_| aliases.name(server, place(1), now)).collect();
        assert_eq!(named, [token(8), token(8), token(8), token(1)]);
    }

    #[test]
    fn a_server_that_tells_places_without_end_has_no_others_forgotten() {
        let (honest, other) = (SecretKey::from_bytes(&[1; 32]).id(), SecretKey::from_bytes(&[2; 32]).id());
        let aliases = Aliases::default();
        aliases.learn(honest, &[told(1, 7)]);
        for port in 1..=5000 {
            let place = RelayedAddr { relay: ([192, 0, 2, 1], port).into(), token: token(1) };
            aliases.learn(other, &[Aliased { place, alias: token(8) }]);
        }
        assert!(aliases.lock().len() <= 1 + MAX_OF_SERVER);
        assert_eq!(aliases.name(honest, place(1), Instant::now()), token(7));
    }

    #[test]
    fn however_many_are_told_few_are_kept() {
        let server = SecretKey::from_bytes(&[1; 32]).id();
        let aliases = Aliases::default();
        (2..100).for_each(|byte| aliases.learn(server, &[told(1, byte)]));
        assert_eq!(aliases.lock().values().map(VecDeque::len).sum::<usize>(), MAX_EACH);
        assert_eq!(aliases.name(server, place(1), Instant::now()), token(99));
        for port in 1..=5000 {
            let place = RelayedAddr { relay: ([192, 0, 2, 1], port).into(), token: token(1) };
            aliases.learn(server, &[Aliased { place, alias: token(7) }]);
        }
        assert!(aliases.lock().len() <= MAX_PLACES);
    }
}
