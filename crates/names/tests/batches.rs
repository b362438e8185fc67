//! Batches that a user's devices leave for each other, over real connections.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use crate::support::*;
use whimbrel_base::{Delegation, Record, SignedRecord, next_sequence};
use whimbrel_names::protocol::{Request, Response};
use whimbrel_names::{ErrorCode, LeftBatch, Limits, MAX_BATCH, MemoryStore};

const USER: &str = "ben@example.org";
const LAPTOP: &str = "laptop.ben@example.org";

fn given(to: &Host, user: &Host) -> Delegation {
    let end = now().saturating_add(Duration::from_secs(3600));
    Delegation::sign(name(LAPTOP), to.endpoint.id(), now(), end, &user.key).unwrap()
}

fn said(batches: &[LeftBatch]) -> Vec<(whimbrel_base::EndpointId, usize)> {
    batches.iter().map(|batch| (batch.by, batch.bytes.len())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_gets_what_another_left_that_is_gone_and_a_stranger_and_a_revoked_one_get_nothing() {
    let net = Net(181);
    let service = service(net, MemoryStore::new()).await;
    let (user, users) = named_host(net, 1, 1, &service).await;
    let (laptop, laptops) = named_host(net, 2, 2, &service).await;
    let (_mallory, mallorys) = named_host(net, 9, 9, &service).await;
    users.publish_record(record(USER, &user, None)).await.unwrap();
    let word = given(&laptop, &user);
    // Large ones, of which an answer carries one, and small ones.
    for size in [MAX_BATCH, MAX_BATCH - 1, 1, 2, 3] {
        let kept = users.leave_batch(None, vec![7; size]).await.unwrap();
        assert!(kept > Duration::from_secs(89 * 86_400), "{kept:?}");
    }
    let id = user.endpoint.id();
    user.endpoint.close(Duration::from_secs(5)).await;
    let all = laptops.batches(Some(&word), 0).await.unwrap();
    assert_eq!(said(&all), [(id, MAX_BATCH), (id, MAX_BATCH - 1), (id, 1), (id, 2), (id, 3)]);
    assert!(all.iter().all(|batch| batch.left > Duration::from_secs(89 * 86_400)));
    let behind = laptops.batches(Some(&word), all[2].number).await.unwrap();
    assert_eq!(said(&behind), said(&all[3..]));
    laptops.leave_batch(Some(&word), vec![8]).await.unwrap();

    // Somebody else, with the laptop's word and without.
    let refused = mallorys.batches(Some(&word), 0).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::NotTheUsers));
    let refused = mallorys.batches(None, 0).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::UserUnknown));
    let refused = mallorys.leave_batch(Some(&word), vec![1]).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::NotTheUsers));

    // Stolen: its user takes its name back, on another machine with the same key.
    let plain = record(LAPTOP, &laptop, None).record().clone();
    laptops
        .publish_record(SignedRecord::sign(plain, &laptop.key, Some(word.clone())).unwrap())
        .await
        .unwrap();
    let (again, users) = named_host(net, 3, 1, &service).await;
    let sequence = next_sequence(None, now().as_millis()) + 1;
    let revocation = Record::revocation(name(LAPTOP), again.endpoint.id(), sequence, now());
    users.revoke(SignedRecord::sign(revocation, &again.key, None).unwrap()).await.unwrap();
    let refused = laptops.batches(Some(&word), 0).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::Revoked));
    let refused = laptops.leave_batch(Some(&word), vec![9]).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::Revoked));
    let last = users.batches(None, all[4].number).await.unwrap();
    assert_eq!(said(&last), [(laptop.endpoint.id(), 1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_is_too_large_and_a_key_that_leaves_without_end_are_refused() {
    let net = Net(182);
    let mut limits = Limits::default();
    limits.turns.batches_per_hour = 3;
    let service = service_with(net, MemoryStore::new(), limits).await;
    let (user, users) = named_host(net, 1, 1, &service).await;
    users.publish_record(record(USER, &user, None)).await.unwrap();
    let mut raw = Raw::connect(&user, &service).await;
    let Response::Error { code, message } =
        raw.ask(Request::Leave { word: None, batch: vec![1; MAX_BATCH + 1] }).await
    else {
        panic!("it was taken");
    };
    assert_eq!((code, message.lines().count()), (ErrorCode::TooLarge.number(), 1), "{message}");
    for number in [1, 2] {
        users.leave_batch(None, vec![number]).await.unwrap();
    }
    let refused = users.leave_batch(None, vec![3]).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::TooOften));
    assert_eq!(users.batches(None, 0).await.unwrap().len(), 2);
}
