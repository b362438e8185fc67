//! The file survives what happens to files and processes.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use whimbrel_base::{EndpointId, SecretKey, UnixTime};

use redb::ReadableTable as _;

use super::{Store, StoreError};
use crate::{Log, Op, Replica};

/// Where the process that will be killed writes.
const VICTIM: &str = "WHIMBREL_DEVICES_VICTIM";

fn key() -> SecretKey {
    SecretKey::from_bytes(&[1; 32])
}

fn friend(number: u64) -> Op {
    let mut bytes = [9; 32];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    Op::AddFriend { friend: EndpointId::from_bytes(&bytes), name: None }
}

fn write(log: &mut Log, number: u64) {
    log.write(&key(), vec![friend(number)], UnixTime::from_secs(1_700_000_000 + number)).unwrap();
}

#[test]
fn what_was_saved_is_there_again_and_only_its_user_can_read_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group.redb");
    let (mut store, mut log) = Store::open(&path, key().id()).unwrap();
    for number in 0..5 {
        write(&mut log, number);
        store.save(&log).unwrap();
    }
    drop(store);
    let (_store, again) = Store::open(&path, key().id()).unwrap();
    assert_eq!((again.vector(), again.group()), (log.vector(), log.group()));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn a_look_changes_nothing_in_the_file_and_goes_on_beside_others_that_look() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group.redb");
    assert!(Store::look(&path, key().id()).unwrap().is_none(), "there is no file");
    let (mut store, mut log) = Store::open(&path, key().id()).unwrap();
    write(&mut log, 0);
    store.save(&log).unwrap();
    drop(store);
    let before = fs::read(&path).unwrap();
    let _other = redb::ReadOnlyDatabase::open(&path).unwrap();
    let looked = Store::look(&path, key().id()).unwrap().unwrap();
    assert_eq!((looked.vector(), looked.group()), (log.vector(), log.group()));
    assert!(fs::read(&path).unwrap() == before, "it was changed");
    let stranger = SecretKey::from_bytes(&[2; 32]).id();
    assert_eq!(Store::look(&path, stranger).unwrap_err(), StoreError::OtherUser(path));
}

#[test]
fn who_looks_waits_for_one_that_changes_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group.redb");
    let (mut store, mut log) = Store::open(&path, key().id()).unwrap();
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| Replica::in_file(&path, key().id()).look(Log::vector));
        // It may come later than this, and finds it closed then.
        std::thread::sleep(Duration::from_millis(100));
        write(&mut log, 0);
        store.save(&log).unwrap();
        drop(store);
        assert_eq!(looking.join().unwrap().unwrap(), log.vector());
    });
}

#[test]
fn a_file_whose_process_was_killed_is_mended_by_who_looks_at_it() {
    let folder = tempfile::tempdir().unwrap();
    let [path, left] = ["group.redb", "left.redb"].map(|name| folder.path().join(name));
    let (mut store, mut log) = Store::open(&path, key().id()).unwrap();
    write(&mut log, 0);
    store.save(&log).unwrap();
    // As it is while a process has it open for a change.
    fs::copy(&path, &left).unwrap();
    assert!(Store::look(&left, key().id()).unwrap().is_none(), "it was not closed");
    let looked = Replica::in_file(&left, key().id()).look(Log::vector).unwrap();
    assert_eq!(looked, log.vector());
    assert!(Store::look(&left, key().id()).unwrap().is_some(), "it is closed now");
}

/// Two histories of one author, behind entries that both have.
fn forked() -> Log {
    let mut log = Log::new(key().id());
    (0..3).for_each(|number| write(&mut log, number));
    let mut twin = log.clone();
    log.write(&key(), vec![friend(3), friend(4)], UnixTime::from_secs(1_700_000_100)).unwrap();
    write(&mut twin, 5);
    let report = log.take(twin.missing(&Log::new(key().id()).vector()), UnixTime::from_secs(1_700_000_100));
    assert_eq!(report.forked, [key().id()]);
    log
}

#[test]
fn a_log_that_split_is_there_again_with_its_proof() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group.redb");
    let (mut store, mut log) = Store::open(&path, key().id()).unwrap();
    write(&mut log, 0);
    store.save(&log).unwrap();
    let log = forked();
    store.save(&log).unwrap();
    drop(store);
    let (_store, again) = Store::open(&path, key().id()).unwrap();
    assert_eq!((again.vector(), again.group()), (log.vector(), log.group()));
    assert_eq!(again.forked().count(), 1);
    assert_eq!(again.lost().count(), 0);
}

#[test]
fn a_log_that_is_damaged_in_the_file_is_left_out_and_comes_back_while_the_others_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group.redb");
    let (mut store, mut log) = Store::open(&path, key().id()).unwrap();
    let device = SecretKey::from_bytes(&[2; 32]);
    let now = UnixTime::from_secs(1_700_000_000);
    log.add_device(&key(), device.id(), "d2.ada@example.org".parse().unwrap(), true, now).unwrap();
    log.write(&device, vec![friend(1)], now).unwrap();
    store.save(&log).unwrap();
    let txn = store.database.begin_write().unwrap();
    {
        let mut runs = txn.open_table(super::RUNS).unwrap();
        let row = (device.id(), 1);
        let packed = runs.get((row.0.as_bytes(), row.1)).unwrap().unwrap().value().to_vec();
        let mut run: crate::run::Run = super::unpack(&packed).unwrap();
        run.entries[0].1 = friend(2);
        runs.insert((row.0.as_bytes(), row.1), super::pack(&run).unwrap().as_slice()).unwrap();
    }
    txn.commit().unwrap();
    drop(store);
    let (mut store, mut again) = Store::open(&path, key().id()).unwrap();
    assert_eq!(again.lost().collect::<Vec<_>>(), [device.id()]);
    assert!(again.group().device(device.id()).is_some(), "the user's log is there");
    assert_eq!(again.write(&device, vec![friend(3)], now), Err(crate::WriteError::Lost));
    let update = log.missing(&again.vector());
    assert_eq!(again.take(update, now).entries, 1);
    again.write(&device, vec![friend(3)], now).unwrap();
    store.save(&again).unwrap();
    drop(store);
    let (_store, last) = Store::open(&path, key().id()).unwrap();
    assert_eq!((last.vector(), last.lost().count()), (again.vector(), 0));
}

#[test]
fn a_file_that_is_damaged_or_not_ours_is_told_and_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group.redb");
    drop(Store::open(&path, key().id()).unwrap());
    let other = SecretKey::from_bytes(&[2; 32]).id();
    assert_eq!(Store::open(&path, other).unwrap_err(), StoreError::OtherUser(path.clone()));
    fs::write(&path, b"this is no database").unwrap();
    assert!(matches!(Store::open(&path, key().id()).unwrap_err(), StoreError::Damaged(..)));
    assert_eq!(fs::read(&path).unwrap(), b"this is no database");
}

#[test]
fn commands_that_use_the_file_at_once_take_turns() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group.redb");
    std::thread::scope(|scope| {
        for number in 0..4 {
            let path = &path;
            scope.spawn(move || {
                Replica::in_file(path, key().id()).with(|log| write(log, number)).unwrap();
            });
        }
    });
    let friends = Replica::in_file(&path, key().id()).with(|log| log.group().friends().count()).unwrap();
    assert_eq!(friends, 4);
}

#[test]
fn what_was_saved_survives_kill_9_at_any_moment() {
    if let Some(path) = std::env::var_os(VICTIM) {
        return write_until_killed(Path::new(&path));
    }
    killed_again_and_again("what_was_saved_survives_kill_9_at_any_moment");
}

fn device() -> SecretKey {
    SecretKey::from_bytes(&[2; 32])
}

/// Writes, states and signs a checkpoint, which lets go of what was written; all of it is saved between.
fn compact_once(log: &mut Log, number: u64, mut save: impl FnMut(&Log)) {
    write(log, number);
    save(log);
    assert_eq!(log.compact(&key(), UnixTime::default()), Ok(true));
    save(log);
    assert!(log.acknowledge(&device(), later()));
    save(log);
    assert!(log.acknowledge(&key(), later()));
    save(log);
}

/// A time at which what was stated has settled.
fn later() -> UnixTime {
    UnixTime::from_secs(1_700_000_000)
}

fn with_device(log: &mut Log) {
    let now = UnixTime::from_secs(1_700_000_000);
    log.add_device(&key(), device().id(), "d2.ada@example.org".parse().unwrap(), true, now).unwrap();
}

fn rows(store: &Store) -> usize {
    let txn = store.database.begin_write().unwrap();
    txn.open_table(super::RUNS).unwrap().iter().unwrap().count()
}

#[test]
fn a_checkpoint_takes_the_place_of_its_entries_in_the_file_and_is_there_again_open_and_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group.redb");
    let (mut store, mut log) = Store::open(&path, key().id()).unwrap();
    with_device(&mut log);
    for number in 0..3 {
        let mut seen = Vec::new();
        compact_once(&mut log, number, |log| {
            store.save(log).unwrap();
            seen.push(rows(&store));
        });
        assert_eq!(seen.last(), Some(&0), "{seen:?}");
        assert!(seen[0] > 0);
    }
    log.write(&device(), vec![friend(7)], UnixTime::from_secs(1_700_000_100)).unwrap();
    assert_eq!(log.compact(&key(), UnixTime::default()), Ok(true));
    assert!(log.acknowledge(&key(), later()));
    store.save(&log).unwrap();
    drop(store);
    let (mut store, mut again) = Store::open(&path, key().id()).unwrap();
    assert_eq!((again.vector(), again.group()), (log.vector(), log.group()));
    assert_eq!(again.waited_for(), [device().id()].into());
    assert!(again.acknowledge(&device(), later()));
    store.save(&again).unwrap();
    assert_eq!((rows(&store), again.group()), (0, log.group()));
    // A base that is not what was signed is found.
    let txn = store.database.begin_write().unwrap();
    {
        let mut table = txn.open_table(super::SNAPSHOTS).unwrap();
        let packed = table.get(super::CLOSED).unwrap().unwrap().value().to_vec();
        let mut closed: crate::checkpoint::Closed = super::unpack(&packed).unwrap();
        closed.base.entries.pop();
        table.insert(super::CLOSED, super::pack(&closed).unwrap().as_slice()).unwrap();
    }
    txn.commit().unwrap();
    drop(store);
    assert!(matches!(Store::open(&path, key().id()).unwrap_err(), StoreError::Damaged(..)));
}

#[test]
fn what_is_let_go_for_a_checkpoint_survives_kill_9_at_any_moment() {
    if let Some(path) = std::env::var_os(VICTIM) {
        let (mut store, mut log) = Store::open(Path::new(&path), key().id()).unwrap();
        if log.is_empty() {
            with_device(&mut log);
        }
        let first = log.group().friends().count() as u64;
        for number in first..first + 100_000 {
            compact_once(&mut log, number % crate::MAX_FRIENDS as u64, |log| store.save(log).unwrap());
            println!("saved {number}");
        }
        return;
    }
    let there = killed_again_and_again("what_is_let_go_for_a_checkpoint_survives_kill_9_at_any_moment");
    assert!(there.checkpoints().closed.is_some());
}

/// Runs a test of this module that saves until it is killed, some times; returns what it left.
fn killed_again_and_again(test: &str) -> Log {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group.redb");
    let (mut seen, mut left) = (0, Log::new(key().id()));
    for round in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([format!("store::tests::{test}").as_str(), "--exact", "--nocapture"])
            .env(VICTIM, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut told = || lines.find_map(|line| line.unwrap().strip_prefix("saved ")?.parse::<u64>().ok());
        seen = (0..3 + round).filter_map(|_| told()).last().unwrap();
        std::thread::sleep(Duration::from_millis(round * 3));
        child.kill().unwrap();
        child.wait().unwrap();
        let (_store, log) = Store::open(&path, key().id()).unwrap();
        let there = log.group().friends().count() as u64;
        assert!(there > seen, "{there} of at least {} are there", seen + 1);
        left = log;
    }
    assert!(seen > 8);
    left
}

fn write_until_killed(path: &Path) {
    let (mut store, mut log) = Store::open(path, key().id()).unwrap();
    let first = log.group().friends().count() as u64;
    for number in first..first + 100_000 {
        write(&mut log, number % crate::MAX_FRIENDS as u64);
        store.save(&log).unwrap();
        println!("saved {number}");
    }
}
