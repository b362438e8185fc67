//! The store survives the death of its process at any instant.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use whimbrel_base::{Name, Record, SecretKey, SignedRecord, UnixTime};
use whimbrel_names::store::Entry;
use whimbrel_names::{RedbStore, Store as _, StoreError};

const FILE: &str = "WHIMBREL_TEST_STORE";
const KILLS: u32 = 25;

fn entry(number: u64) -> Entry {
    let key = SecretKey::from_bytes(&[1; 32]);
    let record = Record {
        name: name(number),
        id: key.id(),
        addrs: vec!["192.0.2.1:4433".parse().unwrap()],
        sequence: number,
        expires: UnixTime::from_secs(1_700_000_000),
        lifetime: Duration::from_secs(60),
        revoked: false,
    };
    Entry {
        record: SignedRecord::sign(record, &key, None).unwrap(),
        granted: UnixTime::default(),
        expires: UnixTime::from_millis(number),
        held_until: UnixTime::from_millis(number),
        readers: whimbrel_names::Readers::Public,
    }
}

fn name(number: u64) -> Name {
    format!("user{number}@home").parse().unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap()
}

/// Not a test: what the test below runs as another process. Puts records and says which were acknowledged,
/// until it is killed.
#[test]
fn child() {
    let Some(file) = std::env::var_os(FILE) else {
        return;
    };
    let store = std::sync::Arc::new(RedbStore::open(file).unwrap());
    runtime().block_on(async {
        let first = store.count().await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        // Several at once, so that transactions are shared.
        for lane in 0..4 {
            let store = store.clone();
            tasks.spawn(async move {
                for number in (first + lane..).step_by(4) {
                    // After a kill a few numbers of this start may be there without having been acknowledged.
                    match store.put(None, entry(number)).await {
                        Ok(_) => {
                            let mut out = std::io::stdout().lock();
                            writeln!(out, "ack {number}").unwrap();
                            out.flush().unwrap();
                        }
                        Err(StoreError::Conflict) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        tasks.join_all().await;
    });
}

/// Runs the child, kills it after a while, and collects what it acknowledged.
fn run_and_kill(file: &Path, after: Duration) -> Vec<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::child", "--nocapture", "--test-threads=1"])
        .env(FILE, file)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let writes = Arc::new(AtomicBool::new(false));
    let reader = std::thread::spawn({
        let writes = writes.clone();
        move || {
            let (mut acked, mut line) = (Vec::new(), String::new());
            // A line cut off by the kill was not an acknowledgement.
            while out.read_line(&mut line).unwrap() > 0 && line.ends_with('\n') {
                // The harness prints on the same lines.
                if let Some((_, number)) = line.trim_end().split_once("ack ") {
                    acked.push(number.parse().unwrap());
                    writes.store(true, Ordering::SeqCst);
                }
                line.clear();
            }
            acked
        }
    });
    std::thread::sleep(after);
    // While it lives, nobody else opens the file.
    if writes.load(Ordering::SeqCst) {
        let error = RedbStore::open(file).unwrap_err();
        assert!(matches!(error, StoreError::Locked { .. }), "{error}");
    }
    // SIGKILL.
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

/// The first start, killed while it makes the file.
#[test]
fn a_store_killed_while_it_is_made_can_be_opened() {
    for round in 0..KILLS {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("names.redb");
        let acked = run_and_kill(&file, Duration::from_micros(u64::from(round) * 800));
        let store = RedbStore::open(&file).unwrap();
        runtime().block_on(async {
            for number in acked {
                assert!(store.get(&name(number)).await.unwrap().is_some());
            }
        });
    }
}

#[test]
fn every_acknowledged_record_survives_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("names.redb");
    let mut acked = Vec::new();
    let mut chance = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    for round in 0..KILLS {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let after = Duration::from_micros(20_000 + (chance >> 33) % 130_000);
        acked.extend(run_and_kill(&file, after));
        let store = RedbStore::open(&file).unwrap();
        runtime().block_on(async {
            // The newest of this round and before are what a lost commit would take.
            for number in acked.iter().rev().take(500) {
                let stored = store.get(&name(*number)).await.unwrap();
                let stored = stored.unwrap_or_else(|| panic!("round {round}: {number} was lost"));
                assert_eq!(stored.entry, entry(*number));
                stored.entry.record.verify().unwrap();
            }
        });
    }
    assert!(acked.len() > KILLS as usize, "the children hardly wrote: {}", acked.len());
    let store = RedbStore::open(&file).unwrap();
    runtime().block_on(async {
        for number in &acked {
            assert!(store.get(&name(*number)).await.unwrap().is_some(), "{number} was lost");
        }
        // The ways into the entries agree with them.
        let count = store.count().await.unwrap();
        let owner = SecretKey::from_bytes(&[1; 32]).id();
        assert_eq!(store.owned_by(&owner).await.unwrap(), count);
        let due = store.due(UnixTime::from_millis(u64::MAX), usize::MAX).await.unwrap();
        assert_eq!(due.len() as u64, count);
    });
}
