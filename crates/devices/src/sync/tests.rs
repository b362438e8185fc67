//! Two sides of a stream in one process.
#![allow(clippy::unwrap_used)]

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::Instant;
use whimbrel_base::{SecretKey, UnixTime};

use super::{Message, Met, PATIENCE, SyncError, answer, call, decode, hear_anything, now};
use crate::wire::{WireError, pack};
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
    let calling = call(caller.clone(), key(keys.1).id(), one);
    let answering = answer(answerer.clone(), key(keys.0).id(), other);
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

/// One direction of a link over which a kilobyte passes in a second.
async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    let mut some = [0; 1024];
    while let Ok(count @ 1..) = from.read(&mut some).await {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if to.write_all(&some[..count]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_long_message_passes_over_a_slow_link() {
    let mut log = group();
    let friends = (0..2000_u16).map(|number| {
        let mut seed = [9; 32];
        seed[..2].copy_from_slice(&number.to_be_bytes());
        Op::AddFriend { friend: SecretKey::from_bytes(&seed).id(), name: None }
    });
    log.write(&key(1), friends.collect(), now()).unwrap();
    let old = Arc::new(Replica::in_memory(log));
    let new = Arc::new(Replica::in_memory(Log::new(key(1).id())));
    let (one, near) = tokio::io::duplex(1024);
    let (other, far) = tokio::io::duplex(1024);
    let ((from_one, to_one), (from_other, to_other)) = (tokio::io::split(near), tokio::io::split(far));
    tokio::spawn(carry(from_one, to_other));
    tokio::spawn(carry(from_other, to_one));
    let began = Instant::now();
    let calling = call(old.clone(), key(2).id(), one);
    let answering = answer(new.clone(), key(1).id(), other);
    let (called, answered) = tokio::join!(calling, answering);
    assert!(called.unwrap().agree && answered.unwrap().agree);
    assert!(began.elapsed() > PATIENCE, "it took {:?}: the link was not slow", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_device_that_says_nothing_or_stops_within_a_message_is_not_waited_for() {
    let old = Arc::new(Replica::in_memory(group()));
    // Nothing; a part of a length; a message of 256 bytes of which one comes.
    for said in [&b""[..], &[0, 0], &[0, 0, 1, 0, 7]] {
        let (one, mut other) = tokio::io::duplex(1024);
        other.write_all(said).await.unwrap();
        let began = Instant::now();
        let called = call(old.clone(), key(2).id(), one).await;
        assert!(is_late(&called), "{said:?}: {called:?}");
        assert!(began.elapsed() < 2 * PATIENCE, "{said:?}: {:?}", began.elapsed());
    }
}

fn is_late(called: &Result<Met, SyncError>) -> bool {
    matches!(called, Err(SyncError::Io(error)) if error.kind() == io::ErrorKind::TimedOut)
}

#[tokio::test(start_paused = true)]
async fn a_device_that_sends_a_message_byte_by_byte_is_not_waited_for() {
    let old = Arc::new(Replica::in_memory(group()));
    let (one, mut other) = tokio::io::duplex(1024);
    // Of 64 KiB a byte each second, until nobody reads.
    tokio::spawn(async move {
        other.write_all(&[0, 1, 0, 0]).await.unwrap();
        while other.write_all(&[7]).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let began = Instant::now();
    let called = call(old, key(2).id(), one).await;
    assert!(is_late(&called), "{called:?}");
    assert!(began.elapsed() < 2 * PATIENCE, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_meeting_that_brings_nothing_new_writes_nothing_to_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["one.redb", "other.redb"].map(|name| folder.path().join(name));
    let log = group();
    let replicas = files.each_ref().map(|file| Arc::new(Replica::in_file(file, key(1).id())));
    for replica in &replicas {
        replica.with(|known| *known = log.clone()).unwrap();
    }
    // This device has more: only the other one's file changes.
    replicas[0].with(|log| log.write(&key(1), vec![Op::Seen], now()).unwrap()).unwrap();
    let bytes = || files.each_ref().map(|file| std::fs::read(file).unwrap());
    let first = bytes();
    let [called, answered] = meet(&replicas[0], &replicas[1], (1, 2)).await;
    assert!(called.unwrap().agree && answered.unwrap().entries == 1);
    let second = bytes();
    assert!(second[0] == first[0] && second[1] != first[1], "what it gives is written where it is new");
    let [called, answered] = meet(&replicas[1], &replicas[0], (2, 1)).await;
    assert!(called.unwrap().agree && answered.unwrap().agree);
    assert!(bytes() == second, "there was nothing to write");
}

/// A device's copy in a file, which signs.
fn signing(folder: &tempfile::TempDir, number: u8) -> Arc<Replica> {
    let file = folder.path().join(format!("{number}.redb"));
    Arc::new(Replica::in_file(&file, key(1).id()).signing(key(number)))
}

#[tokio::test]
async fn what_many_entries_come_to_is_stated_signed_and_closed_as_devices_meet() {
    let folder = tempfile::tempdir().unwrap();
    let (user, device) = (signing(&folder, 1), signing(&folder, 2));
    let fill = |log: &mut Log| {
        *log = group();
        log.write(&key(1), vec![Op::Seen; crate::ENTRIES_TO_CHECKPOINT], now()).unwrap();
        // The machine with the user's key did so long ago what it does by itself.
        assert!(log.is_checkpoint_due(UnixTime::default()));
        assert_eq!(log.compact(&key(1), UnixTime::default()), Ok(true));
        assert!(!log.is_checkpoint_due(UnixTime::default()));
    };
    user.with(fill).unwrap();
    let [called, answered] = meet(&device, &user, (2, 1)).await;
    assert!(called.unwrap().agree && answered.unwrap().agree);
    for replica in [&user, &device] {
        let (length, group) = replica.look(|log| (log.len(), log.group().clone())).unwrap();
        assert_eq!(length, 1, "that there is the device is left");
        assert!(group.device(key(2).id()).is_some());
    }
    // They go on, and so does a device that comes new.
    device.with(|log| log.write(&key(2), vec![Op::Seen], now()).unwrap()).unwrap();
    let name = "d3.ada@example.org".parse().unwrap();
    user.with(|log| log.add_device(&key(1), key(3).id(), name, false, now()).unwrap()).unwrap();
    let [called, _] = meet(&user, &device, (1, 2)).await;
    assert!(called.unwrap().agree);
    let new = signing(&folder, 3);
    let [called, _] = meet(&new, &user, (3, 1)).await;
    assert!(called.unwrap().agree);
    assert_eq!(new.look(Log::vector).unwrap(), device.look(Log::vector).unwrap());
}

#[test]
fn a_message_without_checkpoints_has_the_bytes_of_before_and_one_with_them_comes_back() {
    let mut log = group();
    let plain = Message::Give(log.missing(&Log::new(key(1).id()).vector()), log.vector());
    assert_eq!(plain.packed().unwrap(), pack(&plain).unwrap());
    assert_eq!(log.compact(&key(1), now()), Ok(true));
    let give = Message::Give(log.missing(&group().vector()), log.vector());
    let packed = give.packed().unwrap();
    assert_eq!(decode(&packed).unwrap(), give);
    let have = Message::Have(log.vector());
    assert_eq!(decode(&have.packed().unwrap()).unwrap(), have);
    for at in 0..packed.len() {
        let mut bad = packed.clone();
        bad[at] ^= 1;
        hear_anything(&bad);
        hear_anything(&packed[..at]);
    }
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
    let good = pack(&Message::Give(update, group().vector())).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        hear_anything(&bad);
        hear_anything(&good[..at]);
    }
}

#[test]
fn an_update_with_a_snapshot_is_refused_and_said_to_be_one() {
    let snapshot = pack(&(Message::WithSnapshot, vec![7_u8; 100])).unwrap();
    assert_eq!(decode(&snapshot), Err(WireError::Snapshot));
}

#[tokio::test]
async fn a_device_whose_key_wrote_two_histories_is_told_nothing() {
    let backup = Arc::new(Replica::in_memory(group()));
    let (old, twin) = (Arc::new(Replica::in_memory(group())), Arc::new(Replica::in_memory(group())));
    let history = old.with(|log| log.clone()).unwrap();
    for (replica, name) in [(&backup, "one"), (&twin, "two")] {
        let whom = crate::Subject::Device(key(2).id());
        let call = Op::Call { whom, name: name.parse().unwrap() };
        replica.with(|log| *log = history.clone()).unwrap();
        replica.with(|log| log.write(&key(2), vec![call], now()).unwrap()).unwrap();
    }
    let [called, _] = meet(&backup, &old, (2, 1)).await;
    assert!(called.unwrap().agree);
    let [_, answered] = meet(&twin, &old, (2, 1)).await;
    assert!(matches!(answered, Err(SyncError::Stranger(id)) if id == key(2).id()));
    let forked = |replica: &Replica| replica.with(|log| log.forked().collect::<Vec<_>>()).unwrap();
    assert_eq!((forked(&old), forked(&twin)), (vec![key(2).id()], vec![key(2).id()]), "it gets the proof");
    let [called, answered] = meet(&backup, &old, (2, 1)).await;
    assert!(called.is_err() && matches!(answered, Err(SyncError::Stranger(id)) if id == key(2).id()));
    old.with(|log| {
        assert!(!log.group().is_trusted(key(2).id()) && log.group().device(key(2).id()).is_some())
    })
    .unwrap();
}
