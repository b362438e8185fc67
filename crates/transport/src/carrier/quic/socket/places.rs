//! The places that paths lead to from a socket with many other ends, and of which of them it was said that
//! nobody is reached there.
//!
//! Anybody can say so to a port that the world knows. It counts only if it quotes the id by which QUIC calls
//! the other end on a path that leads there: whoever is not on the way does not know that.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Bytes of a datagram in which its mark is.
pub(super) const QUOTED: usize = SHORT_AT + MARK;

const LONG_HEADER: u8 = 0x80;
/// Bytes of an id that make a mark.
const MARK: usize = 8;
/// Where an id stands behind a short header (RFC 8999 §5.2).
const SHORT_AT: usize = 1;

/// The beginning of the id of whom a datagram of QUIC is for. `None` if that is not there.
///
/// A long header makes none: paths that are established send short ones, and whoever forges where a first
/// packet comes from has an answer sent there, behind a long one, to an id of its own choice.
fn mark(datagram: &[u8]) -> Option<u64> {
    if *datagram.first()? & LONG_HEADER != 0 {
        return None;
    }
    let id = datagram.get(SHORT_AT..)?.first_chunk::<MARK>()?;
    Some(u64::from_be_bytes(*id)).filter(|mark| *mark != NOTHING)
}

/// Instead of the mark of what was sent.
const NOTHING: u64 = 0;

/// An address, and a port. Of an address of a link, which link is not part of what is quoted.
type At = (IpAddr, u16);

fn at(place: SocketAddr) -> At {
    (place.ip().to_canonical(), place.port())
}

/// Those that paths lead to.
#[derive(Debug, Default)]
pub(super) struct Places {
    known: RwLock<HashMap<At, Place>>,
    /// How many of them are refused.
    refused: AtomicUsize,
}

#[derive(Debug, Default)]
struct Place {
    /// How many paths lead there.
    paths: usize,
    /// The mark of what was sent there last.
    sent: AtomicU64,
    /// It was said that nobody is reached there, and nothing came from there since.
    is_refused: AtomicBool,
}

impl Places {
    /// A datagram of QUIC is sent there. (How others begin, such as answers to STUN, strangers may know.)
    pub(super) fn send(&self, to: SocketAddr, datagram: &[u8]) {
        let Some(mark) = mark(datagram) else { return };
        if let Some(place) = self.read().get(&at(to)) {
            place.sent.store(mark, Ordering::Relaxed);
        }
    }

    /// It is said that a datagram, which began so, did not reach anybody there.
    pub(super) fn refuse(&self, to: SocketAddr, quoted: &[u8]) {
        let Some(mark) = mark(quoted) else { return };
        if let Some(place) = self.read().get(&at(to))
            && place.sent.load(Ordering::Relaxed) == mark
            && !place.is_refused.swap(true, Ordering::Relaxed)
        {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Something came from there.
    pub(super) fn hear(&self, from: SocketAddr) {
        if self.refused.load(Ordering::Relaxed) == 0 {
            return;
        }
        if let Some(place) = self.read().get(&at(from))
            && place.is_refused.swap(false, Ordering::Relaxed)
        {
            self.refused.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn is_refused(&self, at: At) -> bool {
        self.read().get(&at).is_some_and(|place| place.is_refused.load(Ordering::Relaxed))
    }

    fn add(&self, at: At) {
        self.write().entry(at).or_default().paths += 1;
    }

    fn remove(&self, at: At) {
        let mut known = self.write();
        let Some(place) = known.get_mut(&at) else { return };
        place.paths -= 1;
        if place.paths == 0 {
            if *place.is_refused.get_mut() {
                self.refused.fetch_sub(1, Ordering::Relaxed);
            }
            known.remove(&at);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<At, Place>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<At, Place>> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One path's place among those of its socket, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Leading {
    places: Arc<Places>,
    at: Mutex<At>,
}

impl Leading {
    pub(super) fn new(places: Arc<Places>, to: SocketAddr) -> Self {
        let at = at(to);
        places.add(at);
        Self { places, at: Mutex::new(at) }
    }

    /// The path leads there now: the peer's gateway may have given it another port.
    pub(super) fn follow(&self, to: SocketAddr) {
        let to = at(to);
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        if *at != to {
            self.places.add(to);
            self.places.remove(*at);
            *at = to;
        }
    }

    /// It was said that nobody is reached there, and nothing came from there since.
    pub(super) fn is_refused(&self) -> bool {
        let at = *self.at.lock().unwrap_or_else(PoisonError::into_inner);
        self.places.is_refused(at)
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        let at = *self.at.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.places.remove(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet with a short header.
    fn packet(id: [u8; 8]) -> Vec<u8> {
        [&[0x41_u8][..], &id, b"protected"].concat()
    }

    fn place(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 4433))
    }

    fn places() -> Arc<Places> {
        Arc::default()
    }

    #[test]
    fn what_is_said_counts_only_of_a_place_of_a_path_and_if_it_quotes_what_was_sent_there() {
        let places = places();
        let leading = Leading::new(places.clone(), place(1));
        let other = Leading::new(places.clone(), place(2));
        places.refuse(place(1), &packet([7; 8]));
        assert!(!leading.is_refused(), "nothing was sent");
        places.send(place(1), &packet([7; 8]));
        places.send(place(2), &packet([8; 8]));
        for quoted in [packet([8; 8]), packet([7; 8])[..8].to_vec(), Vec::new(), vec![0; 36]] {
            places.refuse(place(1), &quoted);
            assert!(!leading.is_refused(), "{quoted:?}");
        }
        places.refuse(SocketAddr::new(place(1).ip(), 4434), &packet([7; 8]));
        assert!(!leading.is_refused(), "of another port");
        places.refuse(place(1), &packet([7; 8])[..QUOTED]);
        assert!(leading.is_refused() && !other.is_refused());
        // Of one that no path leads to there is nothing to note.
        places.refuse(place(3), &packet([7; 8]));
        assert_eq!(places.read().len(), 2);
    }

    #[test]
    fn whoever_is_heard_again_is_not_refused_and_others_stay_so() {
        let places = places();
        let [one, other] = [1, 2].map(|last| Leading::new(places.clone(), place(last)));
        for last in [1, 2] {
            places.send(place(last), &packet([last; 8]));
            places.refuse(place(last), &packet([last; 8]));
        }
        places.hear(place(3));
        assert!(one.is_refused() && other.is_refused());
        places.hear(place(1));
        assert!(!one.is_refused() && other.is_refused());
        places.refuse(place(1), &packet([1; 8]));
        assert!(one.is_refused(), "once more");
    }

    #[test]
    fn a_place_is_known_for_as_long_as_a_path_leads_there() {
        let places = places();
        let first = Leading::new(places.clone(), place(1));
        let second = Leading::new(places.clone(), place(1));
        places.send(place(1), &packet([1; 8]));
        places.refuse(place(1), &packet([1; 8]));
        drop(first);
        assert!(second.is_refused(), "another path leads there");
        second.follow(place(2));
        assert!(!second.is_refused());
        assert_eq!(places.read().keys().copied().collect::<Vec<_>>(), [at(place(2))]);
        drop(second);
        assert!(places.read().is_empty());
        assert_eq!(places.refused.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_datagram_is_known_by_its_id_behind_a_short_header() {
        let id = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(mark(&packet(id)[..QUOTED]), Some(u64::from_be_bytes(id)));
        for length in 0..QUOTED {
            assert_eq!(mark(&packet(id)[..length]), None, "{length}");
        }
        assert_eq!(mark(&packet([0; 8])), None, "it would match where nothing was sent");
    }

    /// It is sent to wherever a first packet says that it comes from, and to the id that this says.
    #[test]
    fn what_strangers_can_have_sent_to_a_place_is_not_what_makes_them_believed() {
        let places = places();
        let leading = Leading::new(places.clone(), place(1));
        places.send(place(1), &packet([7; 8]));
        let answer = [&[0xc0_u8, 0, 0, 0, 1, 8][..], &[9; 8], &[0; 20]].concat();
        places.send(place(1), &answer);
        for quoted in [&answer[..], &answer[..QUOTED], &packet([9; 8])[..]] {
            places.refuse(place(1), quoted);
            assert!(!leading.is_refused(), "{quoted:?}");
        }
        places.refuse(place(1), &packet([7; 8]));
        assert!(leading.is_refused(), "what was sent on the path still counts");
    }

    #[test]
    fn an_address_is_the_same_in_both_families_forms() {
        let mapped = "[::ffff:192.0.2.1]:4433".parse::<SocketAddr>();
        assert_eq!(mapped.map(at), Ok(at(place(1))));
    }
}
