//! Who watches what on this server.

use std::sync::Arc;

use whimbrel_base::{EndpointId, Name, SignedRecord};

use super::subscriptions::{Subscription, Subscriptions};
use super::{Limits, access};
use crate::clock::now;
use crate::error::NamesError;
use crate::store::{Entry, Store};

/// The newest entry that was heard of.
type News = Option<Arc<Entry>>;

/// The connections that watch each name.
#[derive(Clone)]
pub(super) struct Watchers(Arc<Subscriptions<Name, News>>);

impl Watchers {
    pub(super) fn new(limits: Limits) -> Self {
        Self(Subscriptions::new(limits))
    }

    pub(super) fn watch(
        &self,
        store: Arc<dyn Store>,
        name: &Name,
        peer: EndpointId,
        after: Option<u64>,
    ) -> Result<Watcher, NamesError> {
        // What another watcher of the name heard long ago may have expired; the store knows what counts now.
        let subscription = self.0.subscribe(name.clone(), peer);
        let subscription = subscription.ok_or_else(|| NamesError::TooManyWatchers(name.clone()))?;
        Ok(Watcher { subscription, first: None, seen: after, store })
    }

    pub(super) fn watched(&self, name: &Name) -> bool {
        self.0.has_subscribers(name)
    }

    /// Tells those who watch the entry's name, if its record is news, or may be to others than before.
    pub(super) fn tell(&self, entry: &Entry) {
        let sequence = entry.sequence();
        self.0.tell(entry.name(), |newest| {
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

/// A watch of a name. Ends when it is dropped.
pub struct Watcher {
    subscription: Subscription<Name, News>,
    first: News,
    /// The highest sequence number that was given out, or that the peer said it had.
    seen: Option<u64>,
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
            self.first = self.subscription.next().await;
        }
    }

    /// The name that is watched.
    pub fn name(&self) -> &Name {
        self.subscription.topic()
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
        match access::may_read(&*self.store, self.subscription.peer(), entry, now()).await {
            Ok(may_read) => may_read,
            Err(error) => {
                tracing::warn!(%error, "a watcher gets nothing: it is not known whether it may");
                false
            }
        }
    }
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher")
            .field("name", self.name())
            .field("peer", self.subscription.peer())
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}
