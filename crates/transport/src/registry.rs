//! All connections of an endpoint, bounded in number and bytes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use whimbrel_base::ConnectionId;
use whimbrel_proto::CloseCode;
use whimbrel_proto::notice::NoticeTag;

use crate::shared::Shared;

/// Connections by id, and by the tag of their notices.
#[derive(Default)]
pub(crate) struct Registry {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    accepted: HashMap<ConnectionId, Arc<Shared>>,
    dialled: HashMap<ConnectionId, Arc<Shared>>,
    tags: HashMap<NoticeTag, Weak<Shared>>,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn find_accepted(&self, id: &ConnectionId) -> Option<Arc<Shared>> {
        self.lock().accepted.get(id).cloned()
    }

    pub(crate) fn find_tag(&self, tag: &NoticeTag) -> Option<Arc<Shared>> {
        self.lock().tags.get(tag)?.upgrade()
    }

    /// Adds an accepted connection; false if its id is taken.
    pub(crate) fn add_accepted(&self, shared: &Arc<Shared>) -> bool {
        use std::collections::hash_map::Entry;
        let mut inner = self.lock();
        match inner.accepted.entry(shared.id) {
            Entry::Occupied(_) => return false,
            Entry::Vacant(entry) => entry.insert(shared.clone()),
        };
        inner.add_tag(shared);
        true
    }

    pub(crate) fn add_dialled(&self, shared: &Arc<Shared>) {
        self.lock().dialled.insert(shared.id, shared.clone());
    }

    /// From now on notices find this connection.
    pub(crate) fn add_tag(&self, shared: &Arc<Shared>) {
        self.lock().add_tag(shared);
    }

    pub(crate) fn remove(&self, shared: &Shared) {
        let tag = shared.lock().engine.notice_key().map(|k| k.tag());
        let mut inner = self.lock();
        match shared.lock().engine.side() {
            whimbrel_proto::Side::Server => inner.accepted.remove(&shared.id),
            whimbrel_proto::Side::Client => inner.dialled.remove(&shared.id),
        };
        if let Some(tag) = tag {
            inner.tags.remove(&tag);
        }
    }

    pub(crate) fn accepted(&self) -> Vec<Arc<Shared>> {
        self.lock().accepted.values().cloned().collect()
    }

    pub(crate) fn dialled(&self) -> Vec<Arc<Shared>> {
        self.lock().dialled.values().cloned().collect()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Shared>> {
        let inner = self.lock();
        inner.accepted.values().chain(inner.dialled.values()).cloned().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        let inner = self.lock();
        inner.accepted.is_empty() && inner.dialled.is_empty()
    }

    /// Makes room for one more accepted connection. False if all are in use.
    pub(crate) fn make_room(&self, max_connections: usize) -> bool {
        let accepted = self.accepted();
        if accepted.len() < max_connections {
            return true;
        }
        let oldest = detached(accepted).into_iter().min_by_key(|(since, ..)| *since);
        let Some((_, _, shared)) = oldest else {
            return false;
        };
        self.evict(&shared);
        true
    }

    /// Keeps what detached connections hold below `max_bytes`, giving the longest detached up.
    pub(crate) fn bound_detached(&self, max_bytes: u64) {
        let mut detached = detached(self.accepted());
        detached.sort_by_key(|(since, ..)| std::cmp::Reverse(*since));
        let mut total = 0;
        for (_, bytes, shared) in detached {
            total += bytes;
            if total > max_bytes {
                self.evict(&shared);
            }
        }
    }

    fn evict(&self, shared: &Shared) {
        tracing::info!(connection = %shared.id, peer = %shared.peer.short(), "state given up to make room");
        shared.give_up(CloseCode::EVICTED, "given up to make room");
        self.remove(shared);
    }
}

impl Inner {
    fn add_tag(&mut self, shared: &Arc<Shared>) {
        if let Some(key) = shared.lock().engine.notice_key() {
            self.tags.insert(key.tag(), Arc::downgrade(shared));
        }
    }
}

fn detached(all: Vec<Arc<Shared>>) -> Vec<(Instant, u64, Arc<Shared>)> {
    all.into_iter()
        .filter_map(|shared| {
            let (since, bytes) = {
                let state = shared.lock();
                (state.engine.detached_since()?, state.engine.buffered())
            };
            Some((since, bytes, shared))
        })
        .collect()
}
