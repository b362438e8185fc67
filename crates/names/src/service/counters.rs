//! What the service has done.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of a service since it started; those that say so are of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceStats {
    /// Connections, now.
    pub connections: u64,
    /// Connections that were accepted.
    pub connected: u64,
    /// Watches, now.
    pub watches: u64,
    /// Requests of every kind.
    pub requests: u64,
    /// Requests that were answered with an error.
    pub refused: u64,
    /// Records taken in, heartbeats by republishing among them.
    pub published: u64,
    /// Lookups.
    pub lookups: u64,
    /// Records pushed to watchers.
    pub pushes: u64,
    /// Peers that broke the protocol.
    pub broken: u64,
    /// Meeting slots that are open, now.
    pub meetings: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    connections: AtomicU64,
    connected: AtomicU64,
    watches: AtomicU64,
    requests: AtomicU64,
    refused: AtomicU64,
    published: AtomicU64,
    lookups: AtomicU64,
    pushes: AtomicU64,
    broken: AtomicU64,
}

/// Counts something for as long as it lives.
pub(super) struct Counted<'a>(&'a AtomicU64);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn counted(counter: &AtomicU64) -> Counted<'_> {
    counter.fetch_add(1, Relaxed);
    Counted(counter)
}

impl Counters {
    pub(super) fn connection(&self) -> Counted<'_> {
        counted(&self.connections)
    }

    pub(super) fn watch(&self) -> Counted<'_> {
        counted(&self.watches)
    }

    pub(super) fn connected(&self) {
        self.connected.fetch_add(1, Relaxed);
    }

    pub(super) fn request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub(super) fn published(&self) {
        self.published.fetch_add(1, Relaxed);
    }

    pub(super) fn lookup(&self) {
        self.lookups.fetch_add(1, Relaxed);
    }

    pub(super) fn pushed(&self) {
        self.pushes.fetch_add(1, Relaxed);
    }

    pub(super) fn broken(&self) {
        self.broken.fetch_add(1, Relaxed);
    }

    pub(super) fn read(&self) -> ServiceStats {
        ServiceStats {
            connections: self.connections.load(Relaxed),
            connected: self.connected.load(Relaxed),
            watches: self.watches.load(Relaxed),
            requests: self.requests.load(Relaxed),
            refused: self.refused.load(Relaxed),
            published: self.published.load(Relaxed),
            lookups: self.lookups.load(Relaxed),
            pushes: self.pushes.load(Relaxed),
            broken: self.broken.load(Relaxed),
            meetings: 0,
        }
    }
}
