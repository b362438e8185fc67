//! Two sides of a stream in one process.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use whimbrel_base::{SecretKey, UnixTime};

use super::{Met, SyncError, answer, call, hear_anything, now};
use crate::wire::pack;
use crate::{Log, Op, Replica};

fn key(number: u8) -> SecretKey {
    SecretKey::from_bytes(&[number; 32])
}

/// The user's group, with device 2 in it.
fn group() -> Log {
    let mut log = Log::new(key(1).id());
    let name = "d2.ada@example.org".parse().unwrap();
    log.add_device(&key(1), key(2).id(), name, true, now()).unwrap();
    log
}

async fn meet(caller: &Arc<Replica>, answerer: &Arc<Replica>, keys: (u8, u8)) -> [Result<Met, SyncError>; 2] {
    let (one, other) = tokio::io::duplex(4096);
    let (one_key, other_key) = (key(keys.0), key(keys.1));
    let calling = call(caller.clone(), &one_key, other_key.id(), one);
    let answering = answer(answerer.clone(), &other_key, one_key.id(), other);
    let (called, answered) = tokio::join!(calling, answering);
    [called, answered]
}

#[tokio::test]
async fn a_new_device_gets_the_group_and_then_only_beats() {
    let (old, new) = (Replica::in_memory(group()), Replica::in_memory(Log::new(key(1).id())));
    let (old, new) = (Arc::new(old), Arc::new(new));
    let [called, answered] = meet(&new, &old, (2, 1)).await;
    let (called, answered) = (called.unwrap(), answered.unwrap());
    assert!(called.agree && answered.agree && called.entries == 1);
    assert_eq!((called.sent, called.received), (answered.received, answered.sent));
    new.with(|log| log.write(&key(2), vec![Op::Seen], now()).unwrap()).unwrap();
    let [called, answered] = meet(&old, &new, (1, 2)).await;
    assert!(called.unwrap().agree && answered.unwrap().agree);
    assert_eq!(old.with(|log| log.vector()).unwrap(), new.with(|log| log.vector()).unwrap());
    let [beat, _] = meet(&new, &old, (2, 1)).await;
    let beat = beat.unwrap();
    assert!(beat.agree && beat.sent < 48 && beat.received < 48, "{beat:?}");
}

#[tokio::test]
async fn a_stranger_or_a_removed_device_is_told_nothing() {
    let old = Arc::new(Replica::in_memory(group()));
    let stranger = Arc::new(Replica::in_memory(Log::new(key(1).id())));
    let [called, answered] = meet(&stranger, &old, (9, 1)).await;
    assert!(called.is_err() && matches!(answered, Err(SyncError::Stranger(id)) if id == key(9).id()));
    assert_eq!(stranger.with(|log| log.vector().entries()).unwrap(), 0);
    let [called, _] = meet(&old, &stranger, (1, 9)).await;
    assert!(matches!(called, Err(SyncError::Stranger(_))), "nor is one that is called");
    old.with(|log| log.remove_device(&key(1), key(2).id(), now()).unwrap()).unwrap();
    let [_, answered] = meet(&stranger, &old, (2, 1)).await;
    assert!(matches!(answered, Err(SyncError::Stranger(_))));
}

#[tokio::test]
async fn what_is_refused_is_reported_and_ends_the_meeting() {
    let mut ahead = group();
    let year = UnixTime::from_secs(now().as_secs() + 365 * 86_400);
    ahead.write(&key(1), vec![Op::Seen], year).unwrap();
    let (ahead, new) = (Arc::new(Replica::in_memory(ahead)), Replica::in_memory(group()));
    let [called, answered] = meet(&Arc::new(new), &ahead, (2, 1)).await;
    let called = called.unwrap();
    assert!(!called.agree && !answered.unwrap().agree);
    assert_eq!(called.refused.len(), 1, "{called:?}");
}

#[test]
fn bytes_that_are_no_message_do_no_harm() {
    for bytes in [&b""[..], b"x", &[0xff; 64], &[0x28, 0xb5, 0x2f, 0xfd, 0, 0, 0]] {
        hear_anything(bytes);
    }
    let update = group().missing(&Log::new(key(1).id()).vector());
    let good = pack(&super::Message::Give(update, group().vector())).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        hear_anything(&bad);
        hear_anything(&good[..at]);
    }
}
