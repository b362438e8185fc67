//! Watchers hear of a record before it is stored.
use tokio::sync::watch as signal;

use super::watching::silent;
use super::*;
use crate::store::{Answer, Changes, Placed, Version};

/// A store whose disk takes as long as the test wants, and may fail.
struct Held {
    inner: MemoryStore,
    /// What is said of the entries that are being stored.
    verdict: signal::Receiver<Option<Result<(), StoreError>>>,
}

impl Store for Held {
    fn get<'a>(&'a self, name: &'a Name) -> Answer<'a, Option<Stored>> {
        self.inner.get(name)
    }

    fn place(&self, expected: Option<Version>, entry: Entry) -> Answer<'_, Placed> {
        let mut verdict = self.verdict.clone();
        Box::pin(async move {
            let Placed { version, .. } = self.inner.place(expected, entry).await?;
            let durable = Box::pin(async move {
                let verdict = verdict.wait_for(Option::is_some).await;
                verdict.map_err(|_| StoreError::Stopped)?.clone().unwrap_or(Ok(()))
            });
            Ok(Placed { version, durable })
        })
    }

    fn remove<'a>(&'a self, name: &'a Name, expected: Version) -> Answer<'a, ()> {
        self.inner.remove(name, expected)
    }

    fn owned_by<'a>(&'a self, owner: &'a EndpointId) -> Answer<'a, u64> {
        self.inner.owned_by(owner)
    }

    fn count(&self) -> Answer<'_, u64> {
        self.inner.count()
    }

    fn due(&self, now: UnixTime, limit: usize) -> Answer<'_, Vec<Name>> {
        self.inner.due(now, limit)
    }

    fn head(&self) -> Answer<'_, Cursor> {
        self.inner.head()
    }

    fn changes_since(&self, cursor: Cursor, limit: usize) -> Answer<'_, Changes> {
        self.inner.changes_since(cursor, limit)
    }

    fn changed_since(&self, cursor: Cursor) -> Answer<'_, ()> {
        self.inner.changed_since(cursor)
    }
}

/// A registry, and what decides when and how its store answers.
fn held() -> (Registry, signal::Sender<Option<Result<(), StoreError>>>) {
    let (decide, verdict) = signal::channel(Some(Ok(())));
    (Registry::new(Held { inner: MemoryStore::new(), verdict }, Admission::any(), Limits::default()), decide)
}

async fn publishing(
    registry: &Registry,
    record: &SignedRecord,
) -> tokio::task::JoinHandle<Result<UnixTime, NamesError>> {
    let (registry, record) = (registry.clone(), record.clone());
    tokio::spawn(async move { registry.take(&record, START).await })
}

#[tokio::test]
async fn watchers_hear_of_a_record_while_the_store_is_held_up() {
    let (registry, decide) = held();
    registry.take(&record(&key(1), USER, 1), START).await.unwrap();
    let mut watcher = registry.watch(&name(USER), key(5).id(), Some(1), START).await.unwrap();
    decide.send_replace(None);
    let second = record(&key(1), USER, 2);
    let publisher = publishing(&registry, &second).await;
    assert_eq!(watcher.next().await, second);
    // A further move does not wait for the disk either, and whoever asks is told the same.
    let third = record(&key(1), USER, 3);
    let further = publishing(&registry, &third).await;
    assert_eq!(watcher.next().await, third);
    assert_eq!(registry.found(USER, START).await, Ok(third));
    // The publishers are told when it is durable.
    assert!(!publisher.is_finished() && !further.is_finished());
    decide.send_replace(Some(Ok(())));
    assert_eq!(publisher.await.unwrap(), Ok(after(300)));
    assert_eq!(further.await.unwrap(), Ok(after(300)));
}

#[tokio::test]
async fn who_publishes_hears_that_it_could_not_be_stored_and_watchers_hear_of_nothing_older() {
    let (registry, decide) = held();
    registry.take(&record(&key(1), USER, 1), START).await.unwrap();
    let mut watcher = registry.watch(&name(USER), key(5).id(), Some(1), START).await.unwrap();
    decide.send_replace(Some(Err(StoreError::Stopped)));
    let second = record(&key(1), USER, 2);
    let refused = registry.take(&second, START).await;
    assert_eq!(refused, Err(NamesError::Unavailable(StoreError::Stopped)));
    assert_eq!(watcher.next().await, second);
    // It is said again once the store works, and is no news then.
    decide.send_replace(Some(Ok(())));
    registry.take(&second, START).await.unwrap();
    assert!(silent(&mut watcher).await);
    assert_eq!(watcher.seen(), Some(2));
}
