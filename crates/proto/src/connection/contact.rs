//! Since when a connection is without paths, or without an answer.

use std::time::Instant;

#[derive(Debug)]
pub(super) struct Contact {
    detached_since: Option<Instant>,
    lost_since: Option<Instant>,
}

impl Contact {
    /// There is no path yet.
    pub(super) fn none(now: Instant) -> Self {
        Self { detached_since: Some(now), lost_since: Some(now) }
    }

    /// A path was added; dialling is no contact.
    pub(super) fn attached(&mut self) {
        self.detached_since = None;
    }

    /// The peer was heard on a path.
    pub(super) fn made(&mut self) {
        self.lost_since = None;
    }

    /// What is left now that a path was lost: any path, one on which the peer was heard.
    pub(super) fn path_lost(&mut self, now: Instant, any: bool, heard: bool) {
        if !any {
            self.detached_since.get_or_insert(now);
        }
        if !heard {
            self.lost_since.get_or_insert(now);
        }
    }

    /// Since when no path is left; `None` while there is one.
    pub(super) fn detached_since(&self) -> Option<Instant> {
        self.detached_since
    }

    /// Since when no path is there on which the peer was heard.
    pub(super) fn lost_since(&self) -> Option<Instant> {
        self.lost_since
    }
}
