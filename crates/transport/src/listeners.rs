//! Which names an endpoint answers to, whom it lets in, and who takes the connections.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;
use whimbrel_base::{EndpointId, Name};
use whimbrel_proto::CloseCode;

use crate::connection::Connection;

/// Connections that wait to be accepted.
const BACKLOG: usize = 1024;

/// Who may connect. Peers that may not are refused before anything of theirs reaches the application.
#[derive(Clone)]
pub enum Allow {
    /// Everybody who has a key.
    Any,
    /// These peers.
    Only(Arc<HashSet<EndpointId>>),
    /// Whoever passes the check; it must not block.
    Check(Arc<dyn Fn(EndpointId) -> bool + Send + Sync>),
}

impl Allow {
    /// Just these peers.
    pub fn only(peers: impl IntoIterator<Item = EndpointId>) -> Self {
        Self::Only(Arc::new(peers.into_iter().collect()))
    }

    fn admits(&self, peer: EndpointId) -> bool {
        match self {
            Self::Any => true,
            Self::Only(peers) => peers.contains(&peer),
            Self::Check(check) => check(peer),
        }
    }
}

impl fmt::Debug for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("Any"),
            Self::Only(peers) => f.debug_tuple("Only").field(peers).finish(),
            Self::Check(_) => f.write_str("Check(..)"),
        }
    }
}

struct Entry {
    allow: Allow,
    sender: mpsc::Sender<Connection>,
}

/// All listeners of an endpoint, by name; `None` answers connections without a name.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<HashMap<Option<Name>, Entry>>);

/// A place in a listener's queue.
pub(crate) struct Slot(mpsc::OwnedPermit<Connection>);

impl Slot {
    pub(crate) fn send(self, connection: Connection) {
        self.0.send(connection);
    }
}

impl Listeners {
    fn lock(&self) -> MutexGuard<'_, HashMap<Option<Name>, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a listener; `None` if the name is taken.
    pub(crate) fn add(&self, name: Option<Name>, allow: Allow) -> Option<mpsc::Receiver<Connection>> {
        let mut listeners = self.lock();
        if listeners.contains_key(&name) {
            return None;
        }
        let (sender, receiver) = mpsc::channel(BACKLOG);
        listeners.insert(name, Entry { allow, sender });
        Some(receiver)
    }

    pub(crate) fn remove(&self, name: &Option<Name>) {
        self.lock().remove(name);
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Whether `peer` may open a connection to `target`, and where it goes then.
    pub(crate) fn admit(
        &self,
        target: Option<&Name>,
        peer: EndpointId,
    ) -> Result<Slot, (CloseCode, &'static str)> {
        let listeners = self.lock();
        // A client that dialled by ticket may know no name: the only listener is meant then.
        let entry = match (listeners.get(&target.cloned()), target) {
            (Some(entry), _) => Some(entry),
            (None, None) if listeners.len() == 1 => listeners.values().next(),
            _ => listeners.get(&None),
        };
        let entry = entry.ok_or((CloseCode::NO_LISTENER, "nobody listens under this name"))?;
        if !entry.allow.admits(peer) {
            return Err((CloseCode::NOT_ALLOWED, "this key is not on the list of those allowed"));
        }
        let permit = entry.sender.clone().try_reserve_owned();
        permit.map(Slot).map_err(|_| (CloseCode::BUSY, "too many connections wait"))
    }
}
