//! What is known of an object that can be asked for in ranges.

use super::budget::Budget;
use super::origins::Origins;
use super::recent::Recent;
use super::validator::Validator;
use crate::Destination;
use hyper::http::request::Parts;
use std::sync::Arc;
use std::time::Duration;
use whimbrel_multiaccess::Candidate;

/// An object that can be asked for again in ranges.
#[derive(Clone)]
pub(super) struct Object(pub(super) Arc<Described>);

/// What makes an object.
pub(super) struct Described {
    pub(super) origins: Arc<Origins>,
    pub(super) to: Destination,
    /// The request for all of it, as it goes to the server.
    pub(super) head: Parts,
    pub(super) validator: Validator,
    pub(super) total: u64,
    pub(super) window: u64,
    pub(super) budget: Arc<Budget>,
    /// Servers that turn out to have no ranges, or none that can be put together.
    pub(super) without_ranges: Arc<Recent<()>>,
    /// Whether several connections may fetch it.
    pub(super) may_split: bool,
    pub(super) stall: Duration,
    /// What the first part of an object of the server takes, and half of that more.
    pub(super) usual: Duration,
    /// When the first part of one of the server's objects is late.
    pub(super) late: Duration,
}

impl Object {
    pub(super) fn new(of: Described) -> Self {
        Self(Arc::new(of))
    }

    /// A connection that was made this way broke.
    pub(super) fn path_failed(&self, by: &Candidate) {
        self.0.origins.failed_meanwhile(&self.0.to, by);
    }

    /// Whether there is memory to put parts of it together.
    pub(super) fn has_room(&self) -> bool {
        self.0.budget.has(self.0.window)
    }

    pub(super) fn total(&self) -> u64 {
        self.0.total
    }

    pub(super) fn stall(&self) -> Duration {
        self.0.stall
    }
}
