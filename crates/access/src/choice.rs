//! What a policy can choose between.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A path by its position in [`crate::Situation::paths`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PathId(pub u8);

impl PathId {
    /// The position in [`crate::Situation::paths`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "path {}", self.0 + 1)
    }
}

/// An open connection by the caller's number. Older connections have smaller numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConnectionId(pub u32);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0)
    }
}

/// The most paths that are considered at once; more have no number.
pub const MAX_PATHS: usize = 8;

/// The paths of one connection, in the order in which they are set up: one for a plain connection, more for
/// multipath.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PathList {
    len: u8,
    ids: [PathId; MAX_PATHS],
}

impl PathList {
    /// One path.
    pub const fn one(path: PathId) -> Self {
        let mut ids = [PathId(0); MAX_PATHS];
        ids[0] = path;
        Self { len: 1, ids }
    }

    /// Several paths in this order; those beyond [`MAX_PATHS`] are left out.
    pub fn from_slice(paths: &[PathId]) -> Self {
        let mut list = Self { len: 0, ids: [PathId(0); MAX_PATHS] };
        for (slot, &path) in list.ids.iter_mut().zip(paths) {
            *slot = path;
            list.len += 1;
        }
        list
    }

    /// The paths in order.
    pub fn as_slice(&self) -> &[PathId] {
        &self.ids[..usize::from(self.len)]
    }

    /// The path that is set up first. An empty list has none, and answers path 0.
    pub fn first(&self) -> PathId {
        self.ids[0]
    }

    /// More than one path: needs support by the server (MPTCP and its like).
    pub fn is_multipath(&self) -> bool {
        self.len > 1
    }
}

impl fmt::Debug for PathList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// A destination by its position in [`crate::Situation::destinations`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DestinationId(pub u16);

impl fmt::Display for DestinationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "destination {}", u32::from(self.0) + 1)
    }
}

/// One way to carry a unit of communication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Choice {
    /// Send it over an open connection, behind what is queued there already. It goes where that leads.
    Reuse(ConnectionId),
    /// Open a new connection.
    Open {
        /// The paths that it runs on.
        paths: PathList,
        /// Where it goes: an answer of the resolver that came by the first of the paths. `None` if the
        /// situation lists no destinations.
        destination: Option<DestinationId>,
    },
}

impl Choice {
    /// A new connection on one path, where no destinations are listed.
    pub const fn open(path: PathId) -> Self {
        Self::open_on(PathList::one(path))
    }

    /// A new connection on these paths, where no destinations are listed.
    pub const fn open_on(paths: PathList) -> Self {
        Self::Open { paths, destination: None }
    }

    /// A new connection on one path to a destination.
    pub const fn open_to(path: PathId, destination: DestinationId) -> Self {
        Self::Open { paths: PathList::one(path), destination: Some(destination) }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reuse(connection) => write!(f, "reuse {connection}"),
            Self::Open { paths, destination } => {
                write!(f, "open on ")?;
                for (n, path) in paths.as_slice().iter().enumerate() {
                    write!(f, "{}{path}", if n > 0 { " + " } else { "" })?;
                }
                match destination {
                    Some(destination) => write!(f, " to {destination}"),
                    None => Ok(()),
                }
            }
        }
    }
}
