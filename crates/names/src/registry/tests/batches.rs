//! Batches that a user's devices leave for each other, over each store.

use super::*;
use crate::ErrorCode;
use crate::error::BatchRefusal;
use crate::registry::batches::BATCH_LIFETIME;
use crate::store::RedbStore;
use crate::store::batches::{Batch, MAX_BATCH, MAX_OF_DEVICE};

const PHONE: &str = "phone.user@example.org";

/// A registry with a user (key 1), and the word of the user's phone (key 3), which has never published
/// anything.
async fn with_user(registry: Registry) -> (Registry, Delegation) {
    registry.take(&record(&key(1), USER, 1), START).await.unwrap();
    (registry, delegation(&key(1), PHONE, &key(3), START))
}

/// The same over each store; the folder is the file's.
async fn each() -> Vec<(Option<tempfile::TempDir>, Registry, Delegation)> {
    let folder = tempfile::tempdir().unwrap();
    let file = RedbStore::open(folder.path().join("names.redb")).unwrap();
    let in_file = Registry::new(file, Admission::any(), Limits::default());
    let (in_memory, word) = with_user(registry()).await;
    let (in_file, _) = with_user(in_file).await;
    vec![(None, in_memory, word.clone()), (Some(folder), in_file, word)]
}

impl Registry {
    async fn put_batch(
        &self,
        by: u8,
        word: Option<&Delegation>,
        bytes: &[u8],
    ) -> Result<UnixTime, NamesError> {
        let word = word.map(Delegation::encode);
        self.leave_batch(key(by).id(), word.as_deref(), bytes.to_vec(), after(1)).await
    }

    /// All that a key gets, page by page.
    async fn all_batches(
        &self,
        by: u8,
        word: Option<&Delegation>,
        now: UnixTime,
    ) -> Result<Vec<Batch>, NamesError> {
        let (word, mut all) = (word.map(Delegation::encode), Vec::<Batch>::new());
        loop {
            let last = all.last().map_or(0, |last| last.number);
            let page = self.batches(key(by).id(), word.as_deref(), last, now).await?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }
}

fn said(batches: &[Batch]) -> Vec<(EndpointId, &[u8])> {
    batches.iter().map(|batch| (batch.by, batch.bytes.as_slice())).collect()
}

#[tokio::test]
async fn what_a_device_leaves_the_others_get_in_order_once_and_until_it_ends() {
    for (_folder, registry, word) in each().await {
        let end = after(1).saturating_add(BATCH_LIFETIME);
        assert_eq!(registry.all_batches(1, None, after(1)).await, Ok(Vec::new()));
        assert_eq!(registry.put_batch(1, None, b"one").await, Ok(end));
        assert_eq!(registry.put_batch(3, Some(&word), b"two").await, Ok(end));
        // It was not heard that it was taken.
        assert_eq!(registry.put_batch(3, Some(&word), b"two").await, Ok(end));
        let (user, phone) = (key(1).id(), key(3).id());
        let known = registry.all_batches(3, Some(&word), after(2)).await.unwrap();
        assert_eq!(said(&known), [(user, &b"one"[..]), (phone, &b"two"[..])]);
        assert_eq!(registry.all_batches(1, None, after(2)).await, Ok(known.clone()));
        // Only what is new.
        let behind = registry.batches(user, None, known[0].number, after(2)).await.unwrap();
        assert_eq!(behind, known[1..]);
        registry.sweep(after(2)).await.unwrap();
        assert_eq!(registry.all_batches(1, None, after(2)).await.map(|all| all.len()), Ok(2));
        assert_eq!(registry.all_batches(1, None, end).await, Ok(Vec::new()));
    }
}

#[tokio::test]
async fn strangers_and_those_whose_word_was_taken_back_neither_leave_nor_get_anything() {
    for (_folder, registry, word) in each().await {
        registry.put_batch(1, None, b"one").await.unwrap();
        let no_user = Err(NamesError::from(BatchRefusal::NoUser));
        assert_eq!(registry.put_batch(9, None, b"x").await, no_user);
        assert_eq!(registry.all_batches(9, None, after(2)).await.map(drop), no_user.clone().map(drop));
        // A user of another name has another mailbox.
        registry.take(&record(&key(8), "other@example.org", 1), START).await.unwrap();
        assert_eq!(registry.all_batches(8, None, after(2)).await, Ok(Vec::new()));
        // With the word of another, of another user, of a service, and a forged one.
        let of_service = delegation(&key(1), "web.phone.user@example.org", &key(9), START);
        let of_other = delegation(&key(8), "phone.user@example.org", &key(9), START);
        for word in [&word, &of_service, &of_other] {
            let not_the_users = Err(ErrorCode::NotTheUsers);
            let left = registry.put_batch(9, Some(word), b"x").await;
            assert_eq!(left.map(drop).map_err(|error| error.code()), not_the_users);
            let got = registry.all_batches(9, Some(word), after(2)).await;
            assert_eq!(got.map(drop).map_err(|error| error.code()), not_the_users);
        }
        let mut forged = word.encode();
        *forged.last_mut().unwrap() ^= 1;
        let got = registry.batches(key(3).id(), Some(&forged), 0, after(2)).await;
        assert_eq!(got.map(drop).map_err(|error| error.code()), Err(ErrorCode::Forged));
        // The phone was stolen.
        assert_eq!(registry.all_batches(3, Some(&word), after(2)).await.map(|all| all.len()), Ok(1));
        registry.take(&delegated(&key(3), PHONE, 1, &word), after(9)).await.unwrap();
        registry.take(&revocation(&key(1), PHONE, 2), after(10)).await.unwrap();
        let revoked = NamesError::Revoked(name(PHONE));
        let word = word.encode();
        let left = registry.leave_batch(key(3).id(), Some(&word), b"x".to_vec(), after(11)).await;
        assert_eq!(left, Err(revoked.clone()));
        assert_eq!(registry.batches(key(3).id(), Some(&word), 0, after(11)).await, Err(revoked));
        let known = registry.all_batches(1, None, after(11)).await.unwrap();
        assert_eq!(said(&known), [(key(1).id(), &b"one"[..])]);
    }
}

#[tokio::test]
async fn batches_are_bounded_each_and_a_flood_displaces_nothing_of_others() {
    for (_folder, registry, word) in each().await {
        for size in [0, MAX_BATCH + 1] {
            let refused = registry.put_batch(1, None, &vec![1; size]).await;
            assert_eq!(refused, Err(BatchRefusal::Size(size).into()));
        }
        registry.put_batch(1, None, b"one").await.unwrap();
        for number in 0..MAX_OF_DEVICE as u8 + 5 {
            let mut batch = vec![0; MAX_BATCH];
            batch[0] = number;
            registry.put_batch(3, Some(&word), &batch).await.unwrap();
        }
        let known = registry.all_batches(1, None, after(2)).await.unwrap();
        assert_eq!(known.len(), 1 + MAX_OF_DEVICE);
        assert_eq!((known[0].bytes.as_slice(), known[1].bytes[0]), (&b"one"[..], 5));
        assert!(known.is_sorted_by_key(|batch| batch.number));
    }
}

#[tokio::test]
async fn batches_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let store = RedbStore::open(folder.path().join("names.redb")).unwrap();
        Registry::new(store, Admission::any(), Limits::default())
    };
    let (registry, _) = with_user(open()).await;
    registry.put_batch(1, None, b"one").await.unwrap();
    let known = registry.all_batches(1, None, after(2)).await;
    drop(registry);
    let registry = open();
    assert_eq!(registry.all_batches(1, None, after(2)).await, known);
    registry.sweep(after(1).saturating_add(BATCH_LIFETIME)).await.unwrap();
    assert_eq!(registry.store.batches(&key(1).id(), 0, START).await, Ok(Vec::new()));
}
