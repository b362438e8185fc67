//! What each peer's accepted connections hold, kept up to date one change at a time.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use whimbrel_base::{ConnectionId, EndpointId};

use crate::shared::Shared;

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

/// How a connection without a path stands; the least makes room first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Detached {
    /// The client has our answer to OPEN. Otherwise it may have given up before we answered, and never come back.
    confirmed: bool,
    since: Instant,
}

impl Figures {
    /// The connection's figures now.
    pub(crate) fn of(shared: &Shared) -> Self {
        let state = shared.lock();
        let engine = &state.engine;
        let detached = |since| Detached { confirmed: engine.is_confirmed(), since };
        let in_carriers = state.paths.iter().map(|path| path.buffered()).sum::<u64>();
        Self { bytes: engine.buffered() + in_carriers, detached: engine.detached_since().map(detached) }
    }

    fn detached_bytes(&self) -> u64 {
        if self.detached.is_some() { self.bytes } else { 0 }
    }
}

/// One peer's part.
#[derive(Default)]
struct Share {
    connections: BTreeSet<ConnectionId>,
    bytes: u64,
    detached_bytes: u64,
    detached: BTreeSet<(Detached, ConnectionId)>,
}

/// All peers' parts.
#[derive(Default)]
pub(super) struct Shares {
    connections: HashMap<ConnectionId, (EndpointId, Figures)>,
    peers: HashMap<EndpointId, Share>,
    detached: BTreeSet<(Detached, ConnectionId)>,
    detached_bytes: u64,
}

impl Shares {
    pub(super) fn add(&mut self, id: ConnectionId, peer: EndpointId, figures: Figures) {
        self.remove(&id);
        self.connections.insert(id, (peer, figures));
        self.peers.entry(peer).or_default().connections.insert(id);
        self.count(id, peer, figures);
    }

    pub(super) fn note(&mut self, id: ConnectionId, figures: Figures) {
        let Some((peer, known)) = self.connections.get_mut(&id) else { return };
        let (peer, before) = (*peer, std::mem::replace(known, figures));
        if before != figures {
            self.discount(id, peer, before);
            self.count(id, peer, figures);
        }
    }

    pub(super) fn remove(&mut self, id: &ConnectionId) {
        let Some((peer, figures)) = self.connections.remove(id) else { return };
        self.discount(*id, peer, figures);
        if let Some(share) = self.peers.get_mut(&peer) {
            share.connections.remove(id);
            if share.connections.is_empty() {
                self.peers.remove(&peer);
            }
        }
    }

    fn count(&mut self, id: ConnectionId, peer: EndpointId, figures: Figures) {
        let Some(share) = self.peers.get_mut(&peer) else { return };
        share.bytes += figures.bytes;
        share.detached_bytes += figures.detached_bytes();
        self.detached_bytes += figures.detached_bytes();
        if let Some(detached) = figures.detached {
            share.detached.insert((detached, id));
            self.detached.insert((detached, id));
        }
    }

    fn discount(&mut self, id: ConnectionId, peer: EndpointId, figures: Figures) {
        let Some(share) = self.peers.get_mut(&peer) else { return };
        share.bytes -= figures.bytes;
        share.detached_bytes -= figures.detached_bytes();
        self.detached_bytes -= figures.detached_bytes();
        if let Some(detached) = figures.detached {
            share.detached.remove(&(detached, id));
            self.detached.remove(&(detached, id));
        }
    }

    pub(super) fn connections_of(&self, peer: &EndpointId) -> usize {
        self.peers.get(peer).map_or(0, |share| share.connections.len())
    }

    pub(super) fn bytes_of(&self, peer: &EndpointId) -> u64 {
        self.peers.get(peer).map_or(0, |share| share.bytes)
    }

    pub(super) fn detached_bytes(&self) -> u64 {
        self.detached_bytes
    }

    /// The detached connection that makes room first.
    pub(super) fn first_detached(&self) -> Option<ConnectionId> {
        self.detached.first().map(|(_, id)| *id)
    }

    pub(super) fn first_detached_of(&self, peer: &EndpointId) -> Option<ConnectionId> {
        self.peers.get(peer)?.detached.first().map(|(_, id)| *id)
    }

    /// The connection that a peer gives up when it holds too many bytes. Looks at all of that peer's connections.
    pub(super) fn greediest_of(&self, peer: &EndpointId) -> Option<ConnectionId> {
        let share = self.peers.get(peer)?;
        let bytes = |id: &ConnectionId| self.connections.get(id).map_or(0, |(_, figures)| figures.bytes);
        let detached = share.detached.iter().map(|(_, id)| *id).find(|id| bytes(id) > 0);
        detached.or_else(|| share.connections.iter().copied().max_by_key(bytes))
    }

    /// The connection that is given up when all detached ones hold too many bytes. Looks at all peers.
    pub(super) fn greediest_detached(&self) -> Option<ConnectionId> {
        let greediest = self.peers.values().max_by_key(|share| share.detached_bytes)?;
        let bytes = |id: &ConnectionId| self.connections.get(id).map_or(0, |(_, figures)| figures.bytes);
        greediest.detached.iter().map(|(_, id)| *id).find(|id| bytes(id) > 0)
    }
}
