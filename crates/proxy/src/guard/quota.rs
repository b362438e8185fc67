//! How many connections there are, for each peer and in all.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts connections, and says when there are too many. `K` is who has them.
///
/// The last places are shared: where others have some as well, a peer gets none beyond as many as are free.
/// So a newcomer finds a place, however few take all that they may (dynamic thresholds, as in the buffers of
/// switches: Choudhury and Hahne, 1998).
pub struct Quota<K> {
    inner: Arc<Inner<K>>,
}

struct Inner<K> {
    each: usize,
    total: usize,
    taken: Mutex<Taken<K>>,
}

struct Taken<K> {
    /// Those who have any: no more entries than there are connections.
    by_peer: HashMap<K, usize>,
    total: usize,
}

/// One connection's place, free again when this is dropped.
pub struct Place<K: Eq + Hash> {
    inner: Arc<Inner<K>>,
    peer: K,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Full {
    /// This peer has as many as one may have.
    #[error("{0} connections are open for this key; let some end first")]
    Peer(usize),
    /// Others want the last places.
    #[error("{0} connections are open for this key, and few places are left for others; let some end first")]
    Share(usize),
    /// All together have as many as there may be.
    #[error("{0} connections are open in all; try again later")]
    All(usize),
}

impl<K: Eq + Hash + Clone> Quota<K> {
    /// So many for each peer, and so many in all.
    pub fn new(each: usize, total: usize) -> Self {
        let taken = Mutex::new(Taken { by_peer: HashMap::new(), total: 0 });
        Self { inner: Arc::new(Inner { each, total, taken }) }
    }

    /// A place for one more connection of this peer.
    ///
    /// # Errors
    /// When there is none.
    pub fn take(&self, peer: K) -> Result<Place<K>, Full> {
        let mut taken = self.inner.taken();
        if taken.total >= self.inner.total {
            return Err(Full::All(self.inner.total));
        }
        let own = taken.by_peer.get(&peer).copied().unwrap_or_default();
        if own >= self.inner.each {
            return Err(Full::Peer(self.inner.each));
        }
        let (free, is_alone) = (self.inner.total - taken.total, own == taken.total);
        if own >= free && !is_alone {
            return Err(Full::Share(own));
        }
        taken.by_peer.insert(peer.clone(), own + 1);
        taken.total += 1;
        Ok(Place { inner: Arc::clone(&self.inner), peer })
    }

    /// How many places are taken.
    pub fn in_use(&self) -> usize {
        self.inner.taken().total
    }

    /// A place for a connection that was counted in the process that this one goes on for: it is not refused.
    pub fn keep(&self, peer: K) -> Place<K> {
        self.inner.keep(peer)
    }
}

impl<K: Eq + Hash + Clone> Place<K> {
    /// Whose it is.
    pub fn peer(&self) -> &K {
        &self.peer
    }

    /// A place of another peer for the same connection, which goes over to it, and so is not refused: it was
    /// counted when it began.
    #[must_use]
    pub fn beside(&self, peer: K) -> Self {
        self.inner.keep(peer)
    }
}

impl<K: Eq + Hash + Clone> Inner<K> {
    fn keep(self: &Arc<Self>, peer: K) -> Place<K> {
        let mut taken = self.taken();
        *taken.by_peer.entry(peer.clone()).or_default() += 1;
        taken.total += 1;
        Place { inner: Arc::clone(self), peer }
    }
}

impl<K> Inner<K> {
    fn taken(&self) -> MutexGuard<'_, Taken<K>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self.inner.taken();
        taken.total -= 1;
        if let Some(own) = taken.by_peer.get_mut(&self.peer) {
            *own -= 1;
            if *own == 0 {
                taken.by_peer.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn nobody_has_more_places_than_allowed_and_all_come_back() {
        let quota = Quota::new(2, 4);
        let first = quota.take("ada").unwrap();
        let _second = quota.take("ada").unwrap();
        assert_eq!(quota.take("ada").err(), Some(Full::Peer(2)));
        let third = quota.take("bob").unwrap();
        let _fourth = quota.take("carl").unwrap();
        assert_eq!(quota.take("eve").err(), Some(Full::All(4)));
        drop(first);
        assert_eq!(quota.take("ada").err(), Some(Full::Share(1)), "the last one is for others");
        drop(third);
        let _again = quota.take("ada").unwrap();
        assert_eq!(quota.inner.taken().by_peer.len(), 2, "who has none is forgotten");
        assert_eq!(quota.in_use(), 3);
    }

    #[test]
    fn a_connection_that_goes_over_to_another_peer_is_counted_as_that_ones_also_if_it_has_all_that_it_may() {
        let quota = Quota::new(1, 3);
        let first = quota.take("ada").unwrap();
        let own = quota.take("bob").unwrap();
        let over = first.beside("bob");
        assert_eq!((*first.peer(), *over.peer()), ("ada", "bob"));
        drop(first);
        assert_eq!(quota.take("bob").err(), Some(Full::Peer(1)));
        assert_eq!(quota.inner.taken().total, 2);
        drop(over);
        assert_eq!(quota.take("bob").err(), Some(Full::Peer(1)), "it has the other one");
        drop(own);
        assert!(quota.inner.taken().by_peer.is_empty());
    }

    #[test]
    fn keys_that_take_all_that_they_can_leave_places_for_newcomers() {
        let quota = Quota::new(256, 4096);
        let mut held = Vec::new();
        for greedy in 0..16 {
            held.extend(std::iter::from_fn(|| quota.take(greedy).ok()));
        }
        let newcomer: Vec<_> = std::iter::from_fn(|| quota.take(99).ok()).collect();
        assert!(newcomer.len() >= 64, "{}", newcomer.len());
        assert!(quota.take(100).is_ok());
        // Who is alone has all that one may have.
        let small = Quota::new(8, 8);
        assert_eq!(std::iter::from_fn(|| small.take("ada").ok()).take(9).collect::<Vec<_>>().len(), 8);
    }
}
