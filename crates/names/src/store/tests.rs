//! What every store must do, asked of each.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use whimbrel_base::{Record, SecretKey, SignedRecord};

use super::*;
use crate::readers::Reader;

pub(crate) fn key(seed: u8) -> SecretKey {
    SecretKey::from_bytes(&[seed; 32])
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub(crate) fn entry(owner: &SecretKey, text: &str, sequence: u64, held_until: u64) -> Entry {
    let record = Record {
        name: name(text),
        id: owner.id(),
        addrs: vec!["192.0.2.1:4433".parse().unwrap()],
        sequence,
        expires: UnixTime::from_secs(1000),
        lifetime: Duration::from_secs(60),
        revoked: false,
    };
    Entry {
        record: SignedRecord::sign(record, owner, None).unwrap(),
        granted: UnixTime::from_millis(7),
        expires: UnixTime::from_millis(held_until / 2),
        held_until: UnixTime::from_millis(held_until),
        readers: Readers::Public,
    }
}

async fn check_compare_and_set(store: &dyn Store) {
    let (alice, bob) = (key(1), key(2));
    let alice_name = name("alice@home");
    assert_eq!(store.get(&alice_name).await, Ok(None));
    let first = entry(&alice, "alice@home", 1, 100);
    let version = store.put(None, first.clone()).await.unwrap();
    let stored = store.get(&alice_name).await.unwrap().unwrap();
    assert_eq!(stored, Stored { version, entry: first });

    let second = entry(&bob, "alice@home", 2, 200);
    assert_eq!(store.put(None, second.clone()).await, Err(StoreError::Conflict));
    let old = version;
    let version = store.put(Some(old), second.clone()).await.unwrap();
    assert_ne!(version, old);
    assert_eq!(store.put(Some(old), second).await, Err(StoreError::Conflict));
    assert_eq!(store.remove(&alice_name, old).await, Err(StoreError::Conflict));
    assert_eq!(store.owned_by(&alice.id()).await, Ok(0));
    assert_eq!(store.owned_by(&bob.id()).await, Ok(1));

    store.remove(&alice_name, version).await.unwrap();
    assert_eq!(store.get(&alice_name).await, Ok(None));
    assert_eq!(store.remove(&alice_name, version).await, Err(StoreError::Conflict));
    assert_eq!(store.owned_by(&bob.id()).await, Ok(0));
    assert_eq!(store.count().await, Ok(0));
    let third = entry(&alice, "alice@home", 3, 100);
    assert_eq!(store.put(Some(version), third).await, Err(StoreError::Conflict));
}

async fn check_ways_in(store: &dyn Store) {
    let (alice, bob) = (key(1), key(2));
    for (owner, text, held_until) in [(&alice, "a@home", 300), (&alice, "b@home", 100), (&bob, "c@home", 200)]
    {
        store.put(None, entry(owner, text, 1, held_until)).await.unwrap();
    }
    assert_eq!(store.count().await, Ok(3));
    assert_eq!(store.owned_by(&alice.id()).await, Ok(2));
    assert_eq!(store.owned_by(&bob.id()).await, Ok(1));
    let due = async |now, limit| store.due(UnixTime::from_millis(now), limit).await.unwrap();
    assert!(due(99, 9).await.is_empty());
    assert_eq!(due(100, 9).await, [name("b@home")]);
    assert_eq!(due(999, 9).await, ["b@home", "c@home", "a@home"].map(name));
    assert_eq!(due(999, 2).await, ["b@home", "c@home"].map(name));
    // Put off.
    let stored = store.get(&name("b@home")).await.unwrap().unwrap();
    store.put(Some(stored.version), entry(&alice, "b@home", 2, 900)).await.unwrap();
    assert_eq!(due(500, 9).await, ["c@home", "a@home"].map(name));
    assert_eq!(store.count().await, Ok(3));
}

async fn check_feed(store: &dyn Store) {
    let alice = key(1);
    let start = store.head().await.unwrap();
    let waits = store.changed_since(start);
    let mut versions = Vec::new();
    for text in ["a@home", "b@home", "c@home"] {
        versions.push(store.put(None, entry(&alice, text, 1, 100)).await.unwrap());
    }
    waits.await.unwrap();
    let changes = store.changes_since(start, 2).await.unwrap();
    assert_eq!(changes.names, ["a@home", "b@home"].map(name));
    let rest = store.changes_since(changes.cursor, 2).await.unwrap();
    assert_eq!(rest.names, [name("c@home")]);
    assert_eq!(rest.cursor, store.head().await.unwrap());
    // Changed again: once is enough, and it is the newest.
    store.put(Some(versions[0]), entry(&alice, "a@home", 2, 100)).await.unwrap();
    let changes = store.changes_since(start, 9).await.unwrap();
    assert_eq!(changes.names, ["b@home", "c@home", "a@home"].map(name));
    let nothing = store.changes_since(changes.cursor, 9).await.unwrap();
    assert_eq!(nothing, Changes { names: vec![], cursor: changes.cursor });
    let waits = store.changed_since(changes.cursor);
    assert!(tokio::time::timeout(Duration::from_millis(20), waits).await.is_err());
}

async fn check_readers(store: &dyn Store) {
    let readers = Readers::Only(vec![Reader::Key(key(3).id()), Reader::User(name("bob@home"))]);
    let hidden = Entry { readers, ..entry(&key(1), "alice@home", 1, 100) };
    store.put(None, hidden.clone()).await.unwrap();
    store.put(None, entry(&key(1), "box.alice@home", 1, 100)).await.unwrap();
    assert_eq!(store.get(&name("alice@home")).await.unwrap().unwrap().entry, hidden);
    let names = store.names_of(&key(1).id()).await.unwrap();
    assert_eq!(names, ["alice@home", "box.alice@home"].map(name));
    assert_eq!(store.names_of(&key(2).id()).await, Ok(vec![]));
}

async fn check_invitations(store: &dyn Store) {
    let at = UnixTime::from_secs;
    let invitation = |text: Option<&str>, uses, expires| {
        let domain = text.map(|text| text.parse().unwrap());
        Invitation { domain, uses, expires: at(expires), used_by: vec![] }
    };
    let (alice, bob) = (key(1).id(), key(2).id());
    store.invite([1; 32], invitation(Some("home"), 1, 10), at(1)).await.unwrap();
    store.invite([2; 32], invitation(None, 1, 20), at(1)).await.unwrap();
    assert_eq!(store.redeem([9; 32], alice, at(2)).await, Ok(None));
    let home = Admitted { domain: "home".parse().ok() };
    assert_eq!(store.admissions(&alice).await, Ok(vec![]));
    for _ in 0..2 {
        assert_eq!(store.redeem([1; 32], alice, at(2)).await, Ok(Some(home.clone())));
    }
    assert_eq!(store.redeem([1; 32], bob, at(2)).await, Ok(None));
    assert_eq!(store.redeem([2; 32], bob, at(20)).await, Ok(None));
    assert_eq!(store.redeem([2; 32], alice, at(19)).await, Ok(Some(Admitted { domain: None })));
    let mut admissions = store.admissions(&alice).await.unwrap();
    admissions.sort_by_key(|admitted| admitted.domain.is_some());
    assert_eq!(admissions, [Admitted { domain: None }, home]);
    assert_eq!(store.admissions(&bob).await, Ok(vec![]));
    // What has ended is forgotten.
    store.invite([3; 32], invitation(None, 1, 40), at(30)).await.unwrap();
    assert_eq!(store.redeem([2; 32], alice, at(1)).await, Ok(None));
}

/// Of many who replace the same version at once, one succeeds.
async fn check_races(store: std::sync::Arc<dyn Store>) {
    let alice = key(1);
    let version = store.put(None, entry(&alice, "a@home", 0, 100)).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for sequence in 1..50 {
        let (store, entry) = (store.clone(), entry(&alice, "a@home", sequence, 100));
        tasks.spawn(async move { store.put(Some(version), entry).await });
    }
    let results = tasks.join_all().await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
}

macro_rules! stores {
    ($($store:ident: $make:expr;)*) => {$(
        mod $store {
            use super::*;

            #[tokio::test]
            async fn compare_and_set() {
                let (_kept, store) = $make;
                check_compare_and_set(&store).await;
            }

            #[tokio::test]
            async fn ways_in() {
                let (_kept, store) = $make;
                check_ways_in(&store).await;
            }

            #[tokio::test]
            async fn feed() {
                let (_kept, store) = $make;
                check_feed(&store).await;
            }

            #[tokio::test]
            async fn readers() {
                let (_kept, store) = $make;
                check_readers(&store).await;
            }

            #[tokio::test]
            async fn invitations() {
                let (_kept, store) = $make;
                check_invitations(&store).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn races() {
                let (_kept, store) = $make;
                check_races(std::sync::Arc::new(store)).await;
            }
        }
    )*};
}

stores! {
    memory: ((), MemoryStore::new());
    embedded: {
        let folder = tempfile::tempdir().unwrap();
        let store = RedbStore::open(folder.path().join("names.redb")).unwrap();
        (folder, store)
    };
}
