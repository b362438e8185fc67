//! What each peer's accepted connections hold, kept up to date one change at a time.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use whimbrel_base::{ConnectionId, EndpointId};

use crate::shared::Shared;

/// Bytes of one connection that make no difference.
const SMALLEST_STEP: u64 = 16 * 1024;

/// How much an endpoint keeps for its peers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) max_connections: usize,
    pub(crate) max_connections_per_peer: usize,
    pub(crate) max_bytes_per_peer: u64,
    pub(crate) max_detached_bytes: u64,
}

/// What counts of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Bytes in its buffers.
    bytes: u64,
    detached: Option<Detached>,
}

/// How a connection without a path stands; the least makes room first. The highest bit says that the client
/// has our answer to OPEN: otherwise it may have given up before we answered, and never come back. The rest
/// is since when, in microseconds since the registry began; its lowest bit is always set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Detached(NonZeroU64);

impl Detached {
    fn new(confirmed: bool, since: Instant, begun: Instant) -> Self {
        let passed = since.saturating_duration_since(begun).as_micros();
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        Self(NonZeroU64::MIN | (u64::from(confirmed) << 63) | passed.min(u64::MAX >> 1))
    }
}

impl Figures {
    /// The figures of a connection of a registry that `begun` then.
    pub(super) fn of(shared: &Shared, begun: Instant) -> Self {
        let state = shared.peek();
        let engine = &state.engine;
        let detached = |since| Detached::new(engine.is_confirmed(), since, begun);
        let in_carriers = state.paths.iter().map(|path| path.buffered()).sum::<u64>();
        Self { bytes: engine.buffered() + in_carriers, detached: engine.detached_since().map(detached) }
    }

    /// Whether the registry should know of it. Bytes come and go with each segment: they are told only when
    /// they have changed by an eighth.
    pub(crate) fn is_news_after(&self, told: &Self) -> bool {
        let step = (told.bytes / 8).max(SMALLEST_STEP);
        let is_empty = |figures: &Self| figures.bytes == 0;
        self.detached != told.detached
            || is_empty(self) != is_empty(told)
            || self.bytes.abs_diff(told.bytes) > step
    }

    fn detached_bytes(&self) -> u64 {
        if self.detached.is_some() { self.bytes } else { 0 }
    }
}

/// One peer's part. Each of its connections is in one of the three sets.
#[derive(Default)]
struct Share {
    bytes: u64,
    detached_bytes: u64,
    /// Those that have a path, with the bytes that they hold.
    attached: BTreeSet<(u64, ConnectionId)>,
    /// Those that have none, and hold no bytes.
    empty: BTreeSet<(Detached, ConnectionId)>,
    /// Those that have none, and hold any.
    laden: BTreeSet<(Detached, ConnectionId)>,
}

impl Share {
    fn count(&mut self, id: ConnectionId, figures: &Figures) {
        self.bytes += figures.bytes;
        self.detached_bytes += figures.detached_bytes();
        match figures.detached {
            None => self.attached.insert((figures.bytes, id)),
            Some(detached) => self.detached_like(figures).insert((detached, id)),
        };
    }

    fn discount(&mut self, id: ConnectionId, figures: &Figures) {
        self.bytes -= figures.bytes;
        self.detached_bytes -= figures.detached_bytes();
        match figures.detached {
            None => self.attached.remove(&(figures.bytes, id)),
            Some(detached) => self.detached_like(figures).remove(&(detached, id)),
        };
    }

    fn detached_like(&mut self, figures: &Figures) -> &mut BTreeSet<(Detached, ConnectionId)> {
        if figures.bytes > 0 { &mut self.laden } else { &mut self.empty }
    }

    fn connections(&self) -> usize {
        self.attached.len() + self.empty.len() + self.laden.len()
    }

    /// The detached connection that makes room first.
    fn first_detached(&self) -> Option<(Detached, ConnectionId)> {
        let firsts = [self.empty.first(), self.laden.first()];
        firsts.into_iter().flatten().min().copied()
    }
}

/// A connection, and what is counted of it.
struct Counted<T> {
    connection: T,
    /// There once for all of its connections.
    peer: Arc<EndpointId>,
    figures: Figures,
}

/// All connections by id, and all peers' parts.
pub(super) struct Shares<T> {
    connections: HashMap<ConnectionId, Counted<T>>,
    peers: HashMap<Arc<EndpointId>, Share>,
    /// Of each peer that has detached connections, the one that makes room first.
    detached: BTreeSet<(Detached, EndpointId)>,
    detached_bytes: u64,
    /// Peers whose detached connections hold any bytes, with how many.
    laden: BTreeSet<(u64, EndpointId)>,
}

impl<T> Default for Shares<T> {
    fn default() -> Self {
        let (connections, peers) = (HashMap::new(), HashMap::new());
        Self { connections, peers, detached: BTreeSet::new(), detached_bytes: 0, laden: BTreeSet::new() }
    }
}

impl<T> Shares<T> {
    pub(super) fn add(&mut self, id: ConnectionId, connection: T, peer: EndpointId, figures: Figures) {
        self.remove(&id);
        let known = self.peers.get_key_value(&peer).map(|(known, _)| known.clone());
        let shared = known.unwrap_or_else(|| Arc::new(peer));
        self.connections.insert(id, Counted { connection, peer: shared.clone(), figures });
        self.peers.entry(shared).or_default();
        self.change(id, peer, None, Some(figures));
    }

    pub(super) fn get(&self, id: &ConnectionId) -> Option<&T> {
        self.connections.get(id).map(|counted| &counted.connection)
    }

    pub(super) fn all(&self) -> impl ExactSizeIterator<Item = &T> {
        self.connections.values().map(|counted| &counted.connection)
    }

    pub(super) fn note(&mut self, id: ConnectionId, figures: Figures) {
        let Some(counted) = self.connections.get_mut(&id) else { return };
        let (peer, before) = (*counted.peer, std::mem::replace(&mut counted.figures, figures));
        if before != figures {
            self.change(id, peer, Some(before), Some(figures));
        }
    }

    pub(super) fn remove(&mut self, id: &ConnectionId) -> Option<T> {
        let Counted { connection, peer, figures } = self.connections.remove(id)?;
        self.change(*id, *peer, Some(figures), None);
        if self.connections_of(&peer) == 0 {
            self.peers.remove(&peer);
        }
        Some(connection)
    }

    /// What a connection holds is no more what it was `before`, but what it is `now`.
    fn change(&mut self, id: ConnectionId, peer: EndpointId, before: Option<Figures>, now: Option<Figures>) {
        let Some(share) = self.peers.get_mut(&peer) else { return };
        let (held, was_first) = (share.detached_bytes, share.first_detached());
        before.iter().for_each(|before| share.discount(id, before));
        now.iter().for_each(|now| share.count(id, now));
        let (holds, is_first) = (share.detached_bytes, share.first_detached());
        if was_first != is_first {
            was_first.map(|(detached, _)| self.detached.remove(&(detached, peer)));
            is_first.map(|(detached, _)| self.detached.insert((detached, peer)));
        }
        if held != holds {
            self.detached_bytes = self.detached_bytes - held + holds;
            self.laden.remove(&(held, peer));
            if holds > 0 {
                self.laden.insert((holds, peer));
            }
        }
    }

    pub(super) fn connections_of(&self, peer: &EndpointId) -> usize {
        self.peers.get(peer).map_or(0, Share::connections)
    }

    pub(super) fn bytes_of(&self, peer: &EndpointId) -> u64 {
        self.peers.get(peer).map_or(0, |share| share.bytes)
    }

    pub(super) fn detached_bytes(&self) -> u64 {
        self.detached_bytes
    }

    /// The detached connection that makes room first.
    pub(super) fn first_detached(&self) -> Option<ConnectionId> {
        let (_, peer) = self.detached.first()?;
        self.first_detached_of(peer)
    }

    pub(super) fn first_detached_of(&self, peer: &EndpointId) -> Option<ConnectionId> {
        self.peers.get(peer)?.first_detached().map(|(_, id)| id)
    }

    /// The connection that a peer gives up when it holds too many bytes.
    pub(super) fn greediest_of(&self, peer: &EndpointId) -> Option<ConnectionId> {
        let share = self.peers.get(peer)?;
        let detached = share.laden.first().map(|(_, id)| *id);
        detached.or_else(|| share.attached.last().map(|(_, id)| *id))
    }

    /// The connection that is given up when all detached ones hold too many bytes.
    pub(super) fn greediest_detached(&self) -> Option<ConnectionId> {
        let (_, greediest) = self.laden.last()?;
        self.peers.get(greediest)?.laden.first().map(|(_, id)| *id)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use whimbrel_base::SecretKey;

    use super::*;

    /// Of a connection that holds so many bytes, and was detached so long after the registry began, if it
    /// was.
    fn holding(bytes: u64, detached: Option<(bool, Duration)>) -> Figures {
        let begun = Instant::now();
        let detached = detached.map(|(confirmed, since)| Detached::new(confirmed, begun + since, begun));
        Figures { bytes, detached }
    }

    #[test]
    fn the_longest_detached_that_holds_anything_makes_room_then_who_holds_most() {
        let (mut shares, peer) = (Shares::default(), SecretKey::generate().id());
        let at = |second| Some((true, Duration::from_secs(second)));
        let ids: Vec<_> = (0..5).map(|_| ConnectionId::random()).collect();
        let held = [(7, None), (0, at(1)), (9, at(3)), (1, at(2)), (30, None)];
        for (id, (bytes, detached)) in ids.iter().zip(held) {
            shares.add(*id, (), peer, holding(bytes, detached));
        }
        assert_eq!(shares.greediest_detached(), Some(ids[3]));
        assert_eq!(shares.first_detached(), Some(ids[1]));
        shares.note(ids[0], holding(50, None));
        shares.note(ids[3], holding(0, at(2)));
        let mut order = Vec::new();
        while let Some(id) = shares.greediest_of(&peer) {
            order.push(ids.iter().position(|known| *known == id).unwrap());
            shares.remove(&id);
        }
        assert_eq!(order, [2, 0, 4]);
        assert_eq!(
            shares.first_detached(),
            Some(ids[1]),
            "it holds nothing, so that giving it up helps nobody"
        );
        assert_eq!(shares.first_detached_of(&peer), shares.first_detached());
        shares.remove(&ids[1]);
        shares.remove(&ids[3]);
        assert_eq!(
            (shares.connections_of(&peer), shares.bytes_of(&peer), shares.detached_bytes()),
            (0, 0, 0)
        );
        assert!(shares.detached.is_empty() && shares.laden.is_empty() && shares.peers.is_empty());
    }

    #[test]
    fn of_all_peers_the_one_makes_room_whose_connection_is_detached_longest() {
        let mut shares = Shares::default();
        let at = |second| Some((true, Duration::from_secs(second)));
        let peers = [(); 2].map(|()| SecretKey::generate().id());
        let ids: Vec<_> = (0..4).map(|_| ConnectionId::random()).collect();
        for (n, (id, second)) in ids.iter().zip([4, 3, 2, 1]).enumerate() {
            shares.add(*id, (), peers[n % 2], holding(n as u64 % 2, at(second)));
        }
        shares.note(ids[3], holding(1, None));
        for first in [2, 1, 0] {
            assert_eq!(shares.first_detached(), Some(ids[first]));
            shares.remove(&ids[first]);
        }
        assert_eq!(shares.first_detached(), None, "the last has a path");
    }

    /// The time to give up one connection of a peer that holds too much, and to count another one in.
    fn time_to_evict(connections: u64) -> Duration {
        const EVICTED: u32 = 1000;
        let (mut shares, peer) = (Shares::default(), SecretKey::generate().id());
        for n in 0..connections {
            shares.add(ConnectionId::random(), (), peer, holding(n, None));
        }
        let new: Vec<_> = (0..EVICTED).map(|_| ConnectionId::random()).collect();
        let began = Instant::now();
        for id in new {
            let greediest = shares.greediest_of(&peer).unwrap();
            shares.remove(&greediest);
            shares.add(id, (), peer, holding(1, None));
        }
        began.elapsed() / EVICTED
    }

    /// Looking at each connection would make it a hundred times more expensive.
    #[test]
    fn what_a_greedy_peer_gives_up_is_found_as_fast_among_many_connections() {
        let (few, many) = (time_to_evict(100), time_to_evict(20_000));
        println!("found in {few:?} among 100, in {many:?} among 20000");
        assert!(many < few * 5 + Duration::from_micros(10), "{few:?}, {many:?}");
    }

    #[test]
    fn small_changes_of_what_a_connection_holds_are_not_told() {
        let told = holding(1 << 20, None);
        assert!(!holding((1 << 20) + 100_000, None).is_news_after(&told));
        assert!(holding((1 << 20) + 200_000, None).is_news_after(&told));
        assert!(holding(1 << 20, Some((true, Duration::ZERO))).is_news_after(&told));
        assert!(holding(1, None).is_news_after(&holding(0, None)));
        assert!(holding(0, None).is_news_after(&holding(1, None)));
    }
}
