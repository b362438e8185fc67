#![allow(clippy::unwrap_used)]

use whimbrel_base::{Delegation, MAX_RECORD_BYTES, Record, SecretKey};

use super::*;
use crate::readers::Readers;
use crate::store::MemoryStore;

mod ahead;
mod appointed;
mod appointments;
mod batches;
mod bounds;
mod devices;
mod lifetimes;
mod mail;
mod proposals;
mod readers;
mod renewals;
mod standing;
mod users;
mod watching;

/// 2023-11-14.
const START: UnixTime = UnixTime::from_secs(1_700_000_000);
const LIFETIME: Duration = Duration::from_secs(300);
const USER: &str = "user@example.org";
const LAPTOP: &str = "laptop.user@example.org";
const SSH: &str = "ssh.laptop.user@example.org";

fn key(seed: u8) -> SecretKey {
    SecretKey::from_bytes(&[seed; 32])
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn after(secs: u64) -> UnixTime {
    START.saturating_add(Duration::from_secs(secs))
}

fn registry() -> Registry {
    Registry::new(MemoryStore::new(), Admission::any(), Limits::default())
}

/// When a record was signed: small numbers stand for records of the start.
fn signed_at(sequence: u64) -> UnixTime {
    UnixTime::from_millis(sequence).max(START)
}

fn unsigned(key: &SecretKey, text: &str, sequence: u64) -> Record {
    Record {
        name: name(text),
        id: key.id(),
        addrs: vec!["192.0.2.1:4433".parse().unwrap()],
        sequence,
        expires: signed_at(sequence).saturating_add(Duration::from_secs(7 * 86_400)),
        lifetime: LIFETIME,
        revoked: false,
    }
}

fn record(key: &SecretKey, text: &str, sequence: u64) -> SignedRecord {
    SignedRecord::sign(unsigned(key, text, sequence), key, None).unwrap()
}

fn delegation(user: &SecretKey, text: &str, to: &SecretKey, issued: UnixTime) -> Delegation {
    let expires = issued.saturating_add(Duration::from_secs(365 * 86_400));
    Delegation::sign(name(text), to.id(), issued, expires, user).unwrap()
}

fn delegated(key: &SecretKey, text: &str, sequence: u64, word: &Delegation) -> SignedRecord {
    SignedRecord::sign(unsigned(key, text, sequence), key, Some(word.clone())).unwrap()
}

fn revocation(key: &SecretKey, text: &str, sequence: u64) -> SignedRecord {
    let record = Record::revocation(name(text), key.id(), sequence, signed_at(sequence));
    SignedRecord::sign(record, key, None).unwrap()
}

impl Registry {
    /// Publishes as the endpoint that the record is about.
    async fn take(&self, record: &SignedRecord, now: UnixTime) -> Result<UnixTime, NamesError> {
        self.publish(record.record().id, record.encode(), now).await
    }

    async fn found(&self, text: &str, now: UnixTime) -> Result<SignedRecord, NamesError> {
        self.lookup(&name(text), key(77).id(), now).await.map(|found| found.record)
    }
}

#[tokio::test]
async fn what_is_published_is_found() {
    let registry = registry();
    let first = record(&key(1), USER, 1);
    assert_eq!(registry.found(USER, START).await, Err(NamesError::NotFound(name(USER))));
    assert_eq!(registry.take(&first, START).await, Ok(after(300)));
    let found = registry.lookup(&name(USER), key(77).id(), START).await.unwrap();
    assert_eq!(found, Found { record: first, expires: after(300) });
    let second = record(&key(1), USER, 2);
    registry.take(&second, START).await.unwrap();
    assert_eq!(registry.found(USER, START).await, Ok(second));
}

#[tokio::test]
async fn forged_record_is_refused() {
    let registry = registry();
    let (alice, mallory) = (key(1), key(9));
    let good = record(&alice, USER, 1);
    // Any bit of the signature, and any change that leaves a well-formed record.
    let mut bytes = good.encode().to_vec();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let refused = registry.publish(alice.id(), &bytes, START).await.unwrap_err();
    assert_eq!(refused.code(), crate::ErrorCode::Forged);
    // A record about alice, signed by mallory.
    let mut bytes = good.encode().to_vec();
    let content = bytes.len() - 64;
    let signature = mallory.sign(&bytes[..content]);
    bytes[content..].copy_from_slice(&signature.to_bytes());
    let refused = registry.publish(alice.id(), &bytes, START).await.unwrap_err();
    assert_eq!(refused.code(), crate::ErrorCode::Forged);
    assert_eq!(registry.found(USER, START).await, Err(NamesError::NotFound(name(USER))));
    let refused = registry.publish(alice.id(), b"nonsense", START).await.unwrap_err();
    assert_eq!(refused.code(), crate::ErrorCode::Malformed);
}

/// Nobody brings back a record that an endpoint made once, even where it would be new.
#[tokio::test]
async fn replayed_record_is_refused() {
    let registry = registry();
    let good = record(&key(1), USER, 1);
    let refused = registry.publish(key(9).id(), good.encode(), START).await;
    assert_eq!(refused, Err(NamesError::NotYours(key(1).id())));
}

#[tokio::test]
async fn stale_sequence_is_refused() {
    let registry = registry();
    let newest = record(&key(1), USER, 5);
    registry.take(&newest, START).await.unwrap();
    let stale = Err(NamesError::Stale { name: name(USER), current: 5 });
    assert_eq!(registry.take(&record(&key(1), USER, 4), START).await, stale);
    // The same number with other content.
    let mut other = unsigned(&key(1), USER, 5);
    other.addrs.clear();
    let other = SignedRecord::sign(other, &key(1), None).unwrap();
    assert_eq!(registry.take(&other, START).await, stale);
    assert_eq!(registry.found(USER, START).await, Ok(newest.clone()));
    // The same bytes are a sign of life.
    assert_eq!(registry.take(&newest, after(100)).await, Ok(after(400)));
}

#[tokio::test]
async fn sequences_of_the_far_future_are_refused() {
    let registry = registry();
    let limit = after(86_400).as_millis();
    let refused = registry.take(&record(&key(1), USER, limit + 1), START).await;
    assert_eq!(refused, Err(NamesError::SequenceTooHigh(name(USER))));
    registry.take(&record(&key(1), USER, limit), START).await.unwrap();
}

#[tokio::test]
async fn oversized_record_is_refused() {
    let registry = registry();
    let bytes = vec![1; MAX_RECORD_BYTES + 1];
    let refused = registry.publish(key(1).id(), &bytes, START).await;
    let (size, limit) = (bytes.len(), MAX_RECORD_BYTES);
    assert_eq!(refused, Err(NamesError::TooLarge { size, limit }));
}

#[tokio::test]
async fn second_key_cannot_take_a_name() {
    let registry = registry();
    let first = record(&key(1), USER, 1);
    registry.take(&first, START).await.unwrap();
    let taken = Err(NamesError::NameTaken(name(USER)));
    assert_eq!(registry.take(&record(&key(2), USER, 2), START).await, taken);
    assert_eq!(registry.take(&revocation(&key(2), USER, 2), START).await, taken);
    assert_eq!(registry.heartbeat(&name(USER), key(2).id(), START).await, taken);
    assert_eq!(registry.found(USER, START).await, Ok(first));
}

/// Of many keys that register a name at once, one gets it.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_gets_the_name() {
    let registry = registry();
    let mut tasks = tokio::task::JoinSet::new();
    for seed in 1..40 {
        let registry = registry.clone();
        tasks.spawn(async move { registry.take(&record(&key(seed), USER, 1), START).await });
    }
    let results = tasks.join_all().await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    assert!(results.contains(&Err(NamesError::NameTaken(name(USER)))));
}
