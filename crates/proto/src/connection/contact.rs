//! Since when a connection is without paths, or without an answer.

use std::time::Instant;

#[derive(Debug, Clone, Copy)]
pub(super) struct Contact {
    detached_since: Option<Instant>,
    lost_since: Option<Instant>,
}

impl Contact {
    /// There is no path yet.
    pub(super) fn none(now: Instant) -> Self {
        Self { detached_since: Some(now), lost_since: Some(now) }
    }

    /// What it knows: since when no path is left, and since when nothing was heard.
    pub(super) fn moments(&self) -> [Option<Instant>; 2] {
        [self.detached_since, self.lost_since]
    }

    /// The one that knew this.
    pub(super) fn knowing([detached_since, lost_since]: [Option<Instant>; 2]) -> Self {
        Self { detached_since, lost_since }
    }

    /// A path was added; dialling is no contact.
    pub(super) fn attached(&mut self) {
        self.detached_since = None;
    }

    /// The peer answered on a path, or on one that was suspect.
    pub(super) fn made(&mut self) {
        self.lost_since = None;
    }

    /// Something came from the peer, on any path.
    pub(super) fn heard(&mut self, now: Instant) {
        if let Some(since) = &mut self.lost_since {
            *since = now;
        }
    }

    /// No path is left.
    pub(super) fn detached(&mut self, now: Instant) {
        self.detached_since.get_or_insert(now);
    }

    /// No path is left that works: what is suspect or about to end does not count, since its peer may be
    /// gone and nothing else would tell.
    pub(super) fn lost(&mut self, now: Instant) {
        self.lost_since.get_or_insert(now);
    }

    /// Since when no path is left; `None` while there is one.
    pub(super) fn detached_since(&self) -> Option<Instant> {
        self.detached_since
    }

    /// Since when nothing was heard from the peer and no path works; `None` while one does.
    pub(super) fn lost_since(&self) -> Option<Instant> {
        self.lost_since
    }
}
