//! The file survives what happens to files and processes.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use whimbrel_base::{EndpointId, SecretKey, UnixTime};

use super::{Store, StoreError};
use crate::{Hybrid, Log, Op, Replica};

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
fn a_snapshot_and_what_it_may_have_to_give_up_are_there_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group.redb");
    let (mut store, mut log) = Store::open(&path, key().id()).unwrap();
    let name = "d0.ada@example.org".parse().unwrap();
    let start = UnixTime::from_secs(1_700_000_000);
    log.write(&key(), vec![Op::AddDevice { device: key().id(), name, trusted: true }], start).unwrap();
    for round in 0..3 {
        for number in 0..4 {
            write(&mut log, 10 * round + number);
            store.save(&log).unwrap();
        }
        assert!(log.compact(&key(), 1, Hybrid::MAX));
        store.save(&log).unwrap();
        write(&mut log, 10 * round + 9);
        store.save(&log).unwrap();
        drop(store);
        let again;
        (store, again) = Store::open(&path, key().id()).unwrap();
        assert_eq!((again.vector(), again.group()), (log.vector(), log.group()));
        assert_eq!(again.kept().vector(), log.kept().vector());
        assert!(again.len() < 3);
        log = again;
    }
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
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("group.redb");
    let mut seen = 0;
    for round in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["store::tests::what_was_saved_survives_kill_9_at_any_moment", "--exact", "--nocapture"])
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
    }
    assert!(seen > 8);
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
