//! All connections of an endpoint, bounded in number and bytes.

use std::cmp::Reverse;
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

    /// Makes room for one more accepted connection: who never confirmed ours goes first, then the longest
    /// detached. False if all are in use.
    pub(crate) fn make_room(&self, max_connections: usize) -> bool {
        let accepted = self.accepted();
        if accepted.len() < max_connections {
            return true;
        }
        let Some(Detached { shared, .. }) = detached(accepted).into_iter().min_by_key(Detached::worth) else {
            return false;
        };
        self.evict(&shared);
        true
    }

    /// Keeps what detached connections hold below `max_bytes`, giving the longest detached up.
    pub(crate) fn bound_detached(&self, max_bytes: u64) {
        let mut detached = detached(self.accepted());
        detached.sort_by_key(|detached| Reverse(detached.worth()));
        let mut total = 0;
        for Detached { bytes, shared, .. } in detached {
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

/// A connection without a path.
struct Detached {
    /// The client has our answer to OPEN. Else it may have given up before we answered, and never come back.
    confirmed: bool,
    since: Instant,
    bytes: u64,
    shared: Arc<Shared>,
}

impl Detached {
    /// Whoever has the least of it makes room first.
    fn worth(&self) -> (bool, Instant) {
        (self.confirmed, self.since)
    }
}

fn detached(all: Vec<Arc<Shared>>) -> Vec<Detached> {
    all.into_iter()
        .filter_map(|shared| {
            let state = shared.lock();
            let (confirmed, bytes) = (state.engine.is_confirmed(), state.engine.buffered());
            let since = state.engine.detached_since()?;
            drop(state);
            Some(Detached { confirmed, since, bytes, shared })
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use whimbrel_base::SecretKey;
    use whimbrel_proto::{Config, Connection as Engine, FirstFlight, PathId, segment};

    use super::*;

    const PATH: PathId = PathId(0);

    fn carry(from: &mut Engine, to: &mut Engine, now: Instant) {
        let mut wire = Vec::new();
        while from.poll_transmit(now, PATH, &mut wire) {}
        let mut rest = &wire[..];
        while let Some((body, used)) = segment::split(rest).unwrap() {
            to.handle_segment(now, PATH, body).unwrap();
            rest = &rest[used..];
        }
    }

    /// A connection that was accepted at `now` and has lost its path, before or after the client
    /// confirmed it.
    fn detached_at(now: Instant, confirmed: bool) -> Arc<Shared> {
        let (client, server) = (SecretKey::generate().id(), SecretKey::generate().id());
        let id = ConnectionId::random();
        let mut dialling = Engine::client(Config::default(), id, client, server, [1; 32], now);
        dialling.open_path(now, None, u64::MAX).unwrap();
        let mut wire = Vec::new();
        assert!(dialling.poll_transmit(now, PATH, &mut wire));
        let (body, _) = segment::split(&wire).unwrap().unwrap();
        let Ok(FirstFlight::Open(open)) = FirstFlight::decode(body) else { panic!("no OPEN") };
        let mut accepted = Engine::server(Config::default(), &open, server, client, [2; 32], now);
        accepted.handle_segment(now, PATH, body).unwrap();
        carry(&mut accepted, &mut dialling, now);
        if confirmed {
            let late = now + Duration::from_secs(1);
            dialling.handle_timeout(late);
            carry(&mut dialling, &mut accepted, late);
        }
        assert_eq!(accepted.is_confirmed(), confirmed);
        accepted.path_lost(now, PATH);
        Shared::new(accepted, Vec::new(), Arc::default(), Arc::default())
    }

    #[test]
    fn whoever_never_confirmed_makes_room_first_then_the_longest_detached() {
        let registry = Registry::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let kept = [(10, true), (40, true), (30, false), (20, true)];
        let kept = kept.map(|(seconds, confirmed)| detached_at(at(seconds), confirmed));
        for shared in &kept {
            assert!(registry.add_accepted(shared));
        }
        let mut order = Vec::new();
        for left in (0..kept.len()).rev() {
            assert!(registry.make_room(left + 1));
            let gone =
                kept.iter().position(|s| registry.find_accepted(&s.id).is_none() && !order.contains(&s.id));
            order.push(kept[gone.unwrap()].id);
        }
        assert_eq!(order, [2, 0, 3, 1].map(|index: usize| kept[index].id));
    }
}
