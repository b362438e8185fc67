//! How a path began.

use whimbrel_base::EndpointId;

use super::First;

/// How a path began, and what that means until it is answered.
#[derive(Debug)]
pub(crate) struct Beginning {
    first: First,
    by_open: bool,
    /// The peer opened the path, and what was said of its carrier does not show that anything of ours
    /// arrives.
    unproven: bool,
    /// Not answered when a newer path was asked to carry the data instead.
    passed_over: bool,
    /// It leads elsewhere than one that was opening before it.
    apart: bool,
    /// Client: the key that the server has there, if the path was begun by TAKE_OVER.
    meets: Option<EndpointId>,
    /// What may be sent before the peer answered (bytes).
    early_limit: u64,
}

impl Beginning {
    pub(super) fn new(first: First, early_limit: u64) -> Self {
        Self {
            first,
            by_open: matches!(first, First::Open | First::Accept),
            unproven: matches!(first, First::Accept | First::Joined | First::Resumed | First::TakenOver),
            passed_over: false,
            apart: false,
            meets: None,
            early_limit,
        }
    }

    /// The frame that the path starts with, as long as it has not left.
    pub(crate) fn first(&self) -> First {
        self.first
    }

    /// The frame that the path starts with has left.
    pub(crate) fn started(&mut self) {
        self.first = First::Done;
    }

    /// The path was opened by OPEN, not by JOIN.
    pub(crate) fn is_by_open(&self) -> bool {
        self.by_open
    }

    pub(super) fn is_unproven(&self) -> bool {
        self.unproven
    }

    /// What this side sends arrives: the carrier's own handshake shows it.
    pub(crate) fn prove(&mut self) {
        self.unproven = false;
    }

    /// Whether a newer path was asked to carry the data in its place.
    pub(crate) fn is_passed_over(&self) -> bool {
        self.passed_over
    }

    pub(crate) fn set_passed_over(&mut self, passed_over: bool) {
        self.passed_over = passed_over;
    }

    /// Whether it leads elsewhere than one that was opening before it.
    pub(crate) fn is_apart(&self) -> bool {
        self.apart
    }

    pub(crate) fn lead_elsewhere(&mut self) {
        self.apart = true;
    }

    /// Client: the key that the server has there, if that may be another one.
    pub(crate) fn meets(&self) -> Option<EndpointId> {
        self.meets
    }

    pub(crate) fn set_meets(&mut self, server: Option<EndpointId>) {
        self.meets = server;
    }

    /// Bytes that may be sent before the peer answers, where so many were sent already.
    pub(super) fn early_room(&self, sent: u64) -> u64 {
        self.early_limit.saturating_sub(sent)
    }
}
