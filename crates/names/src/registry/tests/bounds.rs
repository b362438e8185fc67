//! Nobody uses the service up.
use super::*;
use crate::registry::followers::MOST_OF_A_PEER;

fn limited(change: impl FnOnce(&mut Limits)) -> Registry {
    let mut limits = Limits::default();
    change(&mut limits);
    Registry::new(MemoryStore::new(), Admission::any(), limits)
}

#[tokio::test]
async fn names_per_key() {
    let registry = limited(|limits| limits.names_per_key = 2);
    for text in ["a@home", "b@home"] {
        registry.take(&record(&key(1), text, 1), START).await.unwrap();
    }
    let third = registry.take(&record(&key(1), "c@home", 1), START).await;
    assert_eq!(third, Err(NamesError::TooManyNames(2)));
    // What it has, it may change; others may register.
    registry.take(&record(&key(1), "a@home", 2), START).await.unwrap();
    registry.take(&record(&key(2), "c@home", 1), START).await.unwrap();
}

#[tokio::test]
async fn names_altogether() {
    let registry = limited(|limits| limits.names = 1);
    registry.take(&record(&key(1), "a@home", 1), START).await.unwrap();
    let second = registry.take(&record(&key(2), "b@home", 1), START).await;
    assert_eq!(second, Err(NamesError::Full));
    registry.take(&record(&key(1), "a@home", 2), START).await.unwrap();
}

#[tokio::test]
async fn watchers() {
    for change in [
        (|limits| limits.watchers = 2) as fn(&mut Limits),
        |limits| limits.watchers_per_name = 2,
        |limits| limits.watchers_per_peer = 2,
    ] {
        let registry = limited(change);
        let watch = async || registry.watch(&name(USER), key(5).id(), None, START).await;
        let first = watch().await.unwrap();
        let _second = watch().await.unwrap();
        assert_eq!(watch().await.unwrap_err(), NamesError::TooManyWatchers(name(USER)));
        // A watch that ends makes room.
        drop(first);
        let _third = watch().await.unwrap();
        assert!(watch().await.is_err());
    }
}

#[tokio::test]
async fn followers_of_requests() {
    for change in [
        (|limits| limits.watchers = 2) as fn(&mut Limits),
        |limits| limits.watchers_per_name = 2,
        |limits| limits.watchers_per_peer = 2,
    ] {
        let registry = limited(change);
        let follow = async || registry.follow_proposals(key(5).id(), None, START).await;
        let first = follow().await.unwrap();
        let _second = follow().await.unwrap();
        assert_eq!(follow().await.unwrap_err(), NamesError::TooManyFollowers);
        // One that ends makes room.
        drop(first);
        let _third = follow().await.unwrap();
        assert!(follow().await.is_err());
    }
    // However much may be watched, a key follows no more than this.
    let registry = limited(|_| {});
    let mut all = Vec::new();
    while let Ok(follower) = registry.follow_proposals(key(5).id(), None, START).await {
        all.push(follower);
    }
    assert_eq!(all.len(), MOST_OF_A_PEER);
    registry.follow_proposals(key(6).id(), None, START).await.unwrap();
}

#[tokio::test]
async fn peers_do_not_take_each_others_watches() {
    let registry = limited(|limits| limits.watchers_per_peer = 1);
    let _one = registry.watch(&name(USER), key(5).id(), None, START).await.unwrap();
    let _other = registry.watch(&name(USER), key(6).id(), None, START).await.unwrap();
}
