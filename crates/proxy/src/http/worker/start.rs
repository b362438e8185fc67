//! What a worker begins with: a connection that is to be had, or one that brings something already.

use crate::http::decided::{Decided, Route};
use crate::http::origins::Lease;
use crate::http::rooms::Room;
use crate::http::speaker::Coming;
use std::time::Duration;
use whimbrel_multiaccess::Candidate;

/// How a worker comes to its connection.
pub(in crate::http) enum Start {
    Decided(Decided),
    New(Candidate),
    /// It is there, and brings the first bytes of the object. What is behind these may be left to others.
    Begun {
        begun: Box<Begun>,
        leaves: bool,
    },
}

impl Start {
    /// As a part is to come.
    pub(in crate::http) fn by(route: Route) -> Self {
        Self::Decided(Decided::by(route))
    }

    /// The network.
    pub(super) fn network(&self) -> &str {
        match self {
            Self::Decided(decided) => decided.network(),
            Self::New(by) => by.interface.as_deref().unwrap_or_default(),
            Self::Begun { begun, .. } => begun.network(),
        }
    }

    /// How long all was to take that it was decided for.
    pub(super) fn foreseen(&self) -> Option<Duration> {
        let Self::Decided(decided) = self else { return None };
        decided.foreseen()
    }

    /// How a new connection is made that goes this way.
    pub(in crate::http) fn candidate(&self) -> Option<&Candidate> {
        match self {
            Self::Decided(decided) => decided.routes.first().and_then(|route| route.by.as_ref()),
            Self::New(by) => Some(by),
            Self::Begun { begun, .. } => begun.lease.by(),
        }
    }
}

/// The first bytes of an object, which have begun to come.
pub(in crate::http) struct Begun {
    pub(in crate::http) body: Coming,
    /// The connection that they come on.
    pub(in crate::http) lease: Lease,
    pub(in crate::http) room: Option<Room>,
    /// How many they are.
    pub(in crate::http) length: u64,
}

impl Begun {
    /// The network of its connection; it has no name where nobody chose it.
    pub(in crate::http) fn network(&self) -> &str {
        self.lease.by().and_then(|by| by.interface.as_deref()).unwrap_or_default()
    }

    /// Whether it comes on the connection of this route, and that carries one thing after the other.
    pub(in crate::http) fn is_on(&self, route: &Route) -> bool {
        let on = self.lease.on().filter(|_| !self.lease.is_shared());
        on.is_some_and(|on| route.way.reuse == Some(on.id))
    }
}
