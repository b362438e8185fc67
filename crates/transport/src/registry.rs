//! All connections of an endpoint: found by id and by the tag of their notices, and bounded in number and
//! bytes, for all peers together and for each of them.

mod shares;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use whimbrel_base::{ConnectionId, EndpointId};
use whimbrel_proto::notice::NoticeTag;
use whimbrel_proto::{CloseCode, Side};

pub(crate) use shares::{Figures, Limits};

use self::shares::Shares;
use crate::shared::Shared;

/// Connections that are looked at together while the endpoint has other things to do, too.
const COUNTED_TOGETHER: usize = 1024;

/// Connections by id, and by the tag of their notices.
pub(crate) struct Registry {
    limits: Limits,
    begun: Instant,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    accepted: Shares<Arc<Shared>>,
    dialled: HashMap<ConnectionId, Arc<Shared>>,
    tags: HashMap<NoticeTag, Weak<Shared>>,
}

/// What became of a connection that was to be added.
pub(crate) enum Added {
    /// It is registered.
    Yes,
    /// Its id is taken, by this one.
    Exists(Arc<Shared>),
    /// There is no room for it: its peer has its share, or all connections are in use.
    Full,
}

impl Registry {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, begun: Instant::now(), inner: Mutex::default() }
    }

    /// What counts of a connection now. One that rests goes on resting.
    pub(crate) fn figures(&self, shared: &Shared) -> Figures {
        Figures::of(shared, self.begun)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn find_accepted(&self, id: &ConnectionId) -> Option<Arc<Shared>> {
        self.lock().accepted.get(id).cloned()
    }

    pub(crate) fn find_tag(&self, tag: &NoticeTag) -> Option<Arc<Shared>> {
        self.lock().tags.get(tag)?.upgrade()
    }

    /// Adds an accepted connection. If there is no room, a detached one makes it: of the same peer if that
    /// has its share, else of anybody; those that the client never confirmed first, then the longest
    /// detached. Costs the same however many connections there are.
    pub(crate) fn add_accepted(&self, shared: &Arc<Shared>) -> Added {
        let (figures, tag) = (self.figures(shared), tag_of(shared));
        let (added, evicted) = {
            let mut inner = self.lock();
            match inner.accepted.get(&shared.id) {
                Some(other) => return Added::Exists(other.clone()),
                None => inner.make_room(&self.limits, shared, figures, tag),
            }
        };
        give_up(evicted);
        added
    }

    /// Takes note of what an accepted connection holds now, and whether it has a path. If its peer holds more
    /// than it may, that peer's connections are given up: first the longest detached, then those that hold
    /// most.
    pub(crate) fn note(&self, shared: &Arc<Shared>, figures: Figures) {
        let evicted = {
            let mut inner = self.lock();
            // It may have been evicted meanwhile.
            if !inner.accepted.get(&shared.id).is_some_and(|known| Arc::ptr_eq(known, shared)) {
                return;
            }
            inner.accepted.note(shared.id, figures);
            let mut evicted = Vec::new();
            while inner.accepted.bytes_of(&shared.peer()) > self.limits.max_bytes_per_peer {
                let Some(id) = inner.accepted.greediest_of(&shared.peer()) else { break };
                evicted.extend(inner.accepted.remove(&id));
            }
            evicted
        };
        give_up(evicted);
    }

    /// Whether a peer may have one more connection.
    pub(crate) fn has_share(&self, peer: &EndpointId) -> bool {
        self.lock().accepted.connections_of(peer) < self.limits.max_connections_per_peer
    }

    /// An accepted connection's peer has another key from now on, and its notices another tag.
    pub(crate) fn peer_changed(&self, shared: &Arc<Shared>) {
        let (figures, tag) = (self.figures(shared), tag_of(shared));
        let mut inner = self.lock();
        if inner.accepted.get(&shared.id).is_some_and(|known| Arc::ptr_eq(known, shared)) {
            inner.accepted.add(shared.id, shared.clone(), shared.peer(), figures);
            if let Some(tag) = tag {
                inner.tags.insert(tag, Arc::downgrade(shared));
            }
        }
    }

    pub(crate) fn add_dialled(&self, shared: &Arc<Shared>) {
        self.lock().dialled.insert(shared.id, shared.clone());
    }

    /// From now on notices find this connection.
    pub(crate) fn add_tag(&self, shared: &Arc<Shared>) {
        if let Some(tag) = tag_of(shared) {
            self.lock().tags.insert(tag, Arc::downgrade(shared));
        }
    }

    /// Forgets this connection, and no other that may have its id by now.
    pub(crate) fn remove(&self, shared: &Arc<Shared>) {
        let side = shared.lock().engine.side();
        let tag = tag_of(shared);
        let mut inner = self.lock();
        let is_this = |known: Option<&Arc<Shared>>| known.is_some_and(|known| Arc::ptr_eq(known, shared));
        match side {
            Side::Server if is_this(inner.accepted.get(&shared.id)) => {
                inner.accepted.remove(&shared.id);
            }
            Side::Client if is_this(inner.dialled.get(&shared.id)) => {
                inner.dialled.remove(&shared.id);
            }
            Side::Server | Side::Client => {}
        }
        if let Some(tag) = tag
            && inner.tags.get(&tag).is_some_and(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(shared)))
        {
            inner.tags.remove(&tag);
        }
    }

    pub(crate) fn accepted(&self) -> Vec<Arc<Shared>> {
        self.lock().accepted.all().cloned().collect()
    }

    pub(crate) fn dialled(&self) -> Vec<Arc<Shared>> {
        self.lock().dialled.values().cloned().collect()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Shared>> {
        let inner = self.lock();
        inner.accepted.all().chain(inner.dialled.values()).cloned().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        let inner = self.lock();
        inner.accepted.all().len() == 0 && inner.dialled.is_empty()
    }

    /// Counts what all accepted connections hold, for what their tasks have not noted, has those that rest go
    /// on whose time has come, and keeps what detached ones hold below its limit: the peer that holds most of
    /// it gives its longest detached one up. Cancel-safe.
    pub(crate) async fn keep_house(&self) {
        let now = Instant::now();
        for some in self.accepted().chunks(COUNTED_TOGETHER) {
            for shared in some {
                shared.revive_if_due(now);
                self.note(shared, self.figures(shared));
            }
            tokio::task::yield_now().await;
        }
        let evicted = {
            let mut inner = self.lock();
            // A connection that was read back has another tag than before.
            inner.tags.retain(|_, shared| shared.strong_count() > 0);
            let mut evicted = Vec::new();
            while inner.accepted.detached_bytes() > self.limits.max_detached_bytes {
                let Some(id) = inner.accepted.greediest_detached() else { break };
                evicted.extend(inner.accepted.remove(&id));
            }
            evicted
        };
        give_up(evicted);
    }
}

impl Inner {
    fn make_room(
        &mut self,
        limits: &Limits,
        shared: &Arc<Shared>,
        figures: Figures,
        tag: Option<NoticeTag>,
    ) -> (Added, Option<Arc<Shared>>) {
        let victim = if self.accepted.connections_of(&shared.peer()) >= limits.max_connections_per_peer {
            Some(self.accepted.first_detached_of(&shared.peer()))
        } else if self.accepted.all().len() >= limits.max_connections {
            Some(self.accepted.first_detached())
        } else {
            None
        };
        let evicted = match victim {
            Some(None) => return (Added::Full, None),
            Some(Some(victim)) => self.accepted.remove(&victim),
            None => None,
        };
        self.accepted.add(shared.id, shared.clone(), shared.peer(), figures);
        if let Some(tag) = tag {
            self.tags.insert(tag, Arc::downgrade(shared));
        }
        (Added::Yes, evicted)
    }
}

fn tag_of(shared: &Shared) -> Option<NoticeTag> {
    shared.lock().engine.notice_key().map(|key| key.tag())
}

/// Ends connections that are registered no more. Their tasks take their tags out.
fn give_up(evicted: impl IntoIterator<Item = Arc<Shared>>) {
    for shared in evicted {
        tracing::info!(connection = %shared.id, peer = %shared.peer().short(), "state given up to make room");
        shared.give_up(CloseCode::EVICTED, "given up to make room");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
