//! Watches miss nothing.
use super::*;

/// Whether nothing comes.
pub(super) async fn silent(watcher: &mut Watcher) -> bool {
    tokio::time::timeout(Duration::from_millis(20), watcher.next()).await.is_err()
}

async fn watch(registry: &Registry, after: Option<u64>) -> Watcher {
    registry.watch(&name(USER), key(5).id(), after, START).await.unwrap()
}

async fn take(registry: &Registry, sequence: u64) -> SignedRecord {
    let record = record(&key(1), USER, sequence);
    registry.take(&record, START).await.unwrap();
    record
}

#[tokio::test]
async fn a_watcher_gets_what_is_there_and_what_comes() {
    let registry = registry();
    let first = take(&registry, 1).await;
    let mut watcher = watch(&registry, None).await;
    assert_eq!(watcher.next().await, first);
    assert!(silent(&mut watcher).await);
    let second = take(&registry, 2).await;
    assert_eq!(watcher.next().await, second);
    let revoked = revocation(&key(1), USER, 3);
    registry.take(&revoked, START).await.unwrap();
    assert_eq!(watcher.next().await, revoked);
    assert_eq!(watcher.seen(), Some(3));
}

#[tokio::test]
async fn a_name_can_be_awaited() {
    let registry = registry();
    let mut watcher = watch(&registry, None).await;
    assert!(silent(&mut watcher).await);
    let first = take(&registry, 1).await;
    assert_eq!(watcher.next().await, first);
}

#[tokio::test]
async fn watch_resumes_without_missing_an_update() {
    let registry = registry();
    take(&registry, 1).await;
    let mut watcher = watch(&registry, None).await;
    watcher.next().await;
    let seen = watcher.seen();
    drop(watcher);
    // Nobody listens while this is published.
    let missed = take(&registry, 2).await;
    let mut watcher = watch(&registry, seen).await;
    assert_eq!(watcher.next().await, missed);
    drop(watcher);
    // Nothing new: nothing comes twice.
    let mut watcher = watch(&registry, Some(2)).await;
    assert!(silent(&mut watcher).await);
    let third = take(&registry, 3).await;
    assert_eq!(watcher.next().await, third);
}

/// However watching, publishing and giving up fall together, the newest record arrives.
#[tokio::test(flavor = "multi_thread")]
async fn the_newest_record_always_arrives() {
    const LAST: u64 = 300;
    let registry = registry();
    let publisher = tokio::spawn({
        let registry = registry.clone();
        async move {
            for sequence in 1..=LAST {
                take(&registry, sequence).await;
                tokio::task::yield_now().await;
            }
        }
    });
    let mut watchers = tokio::task::JoinSet::new();
    for patience in 1..20 {
        let registry = registry.clone();
        watchers.spawn(async move {
            let mut seen = None;
            // Resumes after every few records, as a connection that breaks often.
            while seen != Some(LAST) {
                let mut watcher = watch(&registry, seen).await;
                for _ in 0..patience {
                    let got = watcher.next().await.record().sequence;
                    assert!(Some(got) > seen, "{got} after {seen:?}");
                    seen = Some(got);
                    if got == LAST {
                        break;
                    }
                }
            }
        });
    }
    publisher.await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), watchers.join_all()).await.unwrap();
}

#[tokio::test]
async fn a_slow_watcher_gets_the_newest() {
    let registry = registry();
    let mut watcher = watch(&registry, None).await;
    for sequence in 1..100 {
        take(&registry, sequence).await;
    }
    assert_eq!(watcher.next().await, take(&registry, 99).await);
    assert!(silent(&mut watcher).await);
}

#[tokio::test]
async fn a_heartbeat_is_no_news() {
    let registry = registry();
    take(&registry, 1).await;
    let mut watcher = watch(&registry, Some(1)).await;
    registry.heartbeat(&name(USER), key(1).id(), after(200)).await.unwrap();
    assert!(silent(&mut watcher).await);
}

/// Two servers on one store: what one takes in, the other's watchers hear.
#[tokio::test]
async fn watchers_hear_of_other_servers() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let here = Registry::with_store(store.clone(), Admission::any(), Limits::default());
    let there = Registry::with_store(store, Admission::any(), Limits::default());
    let mut watcher = watch(&here, None).await;
    let follower = tokio::spawn({
        let here = here.clone();
        async move { here.follow_from(&mut Cursor::default()).await }
    });
    let first = take(&there, 1).await;
    assert_eq!(watcher.next().await, first);
    let second = take(&there, 2).await;
    assert_eq!(watcher.next().await, second);
    follower.abort();
}
