//! Who watches what on this server.
//!
//! Each watched name has one place for its newest record, however many watch it; a watcher that is slow finds
//! the newest there. So watchers cost memory for themselves only, and nobody waits for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use whimbrel_base::{EndpointId, Name, SignedRecord};

use super::{Limits, access};
use crate::clock::now;
use crate::error::NamesError;
use crate::store::{Entry, Store};

pub(super) struct Watchers {
    limits: Limits,
    state: Mutex<State>,
}

/// The newest entry that was heard of.
type News = Option<Arc<Entry>>;

#[derive(Default)]
struct State {
    names: HashMap<Name, watch::Sender<News>>,
    per_peer: HashMap<EndpointId, usize>,
    total: usize,
}

impl Watchers {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    pub(super) fn watch(
        watchers: &Arc<Self>,
        store: Arc<dyn Store>,
        name: &Name,
        peer: EndpointId,
        after: Option<u64>,
    ) -> Result<Watcher, NamesError> {
        let mut state = watchers.state();
        let of_name = state.names.get(name).map_or(0, |news| news.receiver_count());
        let of_peer = state.per_peer.get(&peer).copied().unwrap_or(0);
        let limits = &watchers.limits;
        if of_name >= limits.watchers_per_name
            || of_peer >= limits.watchers_per_peer
            || state.total >= limits.watchers
        {
            return Err(NamesError::TooManyWatchers(name.clone()));
        }
        state.total += 1;
        *state.per_peer.entry(peer).or_default() += 1;
        let sender = state.names.entry(name.clone()).or_insert_with(|| watch::Sender::new(None));
        let mut news = sender.subscribe();
        // What another watcher's name heard long ago may have expired; the store knows what counts now.
        news.mark_unchanged();
        Ok(Watcher {
            news: Some(news),
            first: None,
            seen: after,
            name: name.clone(),
            peer,
            watchers: watchers.clone(),
            store,
        })
    }

    pub(super) fn watched(&self, name: &Name) -> bool {
        self.state().names.contains_key(name)
    }

    /// Tells those who watch the entry's name, if its record is news, or may be to others than before.
    pub(super) fn tell(&self, entry: &Entry) {
        let sequence = entry.sequence();
        if let Some(sender) = self.state().names.get(entry.name()) {
            sender.send_if_modified(|newest| {
                let news = newest.as_ref().is_none_or(|newest| {
                    newest.sequence() < sequence
                        || (newest.sequence() == sequence && newest.readers != entry.readers)
                });
                if news {
                    *newest = Some(Arc::new(entry.clone()));
                }
                news
            });
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A watch of a name. Ends when it is dropped.
pub struct Watcher {
    /// Always there until the drop.
    news: Option<watch::Receiver<News>>,
    first: News,
    /// The highest sequence number that was given out, or that the peer said it had.
    seen: Option<u64>,
    name: Name,
    peer: EndpointId,
    watchers: Arc<Watchers>,
    store: Arc<dyn Store>,
}

impl Watcher {
    /// The next record, newer than all before. Waits for it for as long as it takes.
    ///
    /// Can be cancelled at any point without missing a record.
    pub async fn next(&mut self) -> SignedRecord {
        loop {
            // Taken only behind the last wait.
            if let Some(entry) = self.first.clone() {
                let may_read = self.is_news(&entry) && self.may_read(&entry).await;
                self.first = None;
                if may_read {
                    self.seen = Some(entry.sequence());
                    return entry.record.clone();
                }
            }
            let Some(news) = &mut self.news else {
                return std::future::pending().await;
            };
            if news.changed().await.is_err() {
                // The sender outlives its receivers.
                return std::future::pending().await;
            }
            self.first = news.borrow_and_update().clone();
        }
    }

    /// The name that is watched.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The sequence number of the newest record that the watcher was given: to resume the watch elsewhere.
    pub fn seen(&self) -> Option<u64> {
        self.seen
    }

    pub(super) fn start_with(&mut self, entry: Entry) {
        self.first = Some(Arc::new(entry));
    }

    fn is_news(&self, entry: &Entry) -> bool {
        self.seen.is_none_or(|seen| seen < entry.sequence())
    }

    async fn may_read(&self, entry: &Entry) -> bool {
        match access::may_read(&*self.store, &self.peer, entry, now()).await {
            Ok(may_read) => may_read,
            Err(error) => {
                tracing::warn!(%error, "a watcher gets nothing: it is not known whether it may");
                false
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut state = self.watchers.state();
        self.news = None;
        state.total -= 1;
        if let Some(count) = state.per_peer.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                state.per_peer.remove(&self.peer);
            }
        }
        let unwatched = state.names.get(&self.name).is_some_and(|news| news.receiver_count() == 0);
        if unwatched {
            state.names.remove(&self.name);
        }
    }
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher")
            .field("name", &self.name)
            .field("peer", &self.peer)
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}
