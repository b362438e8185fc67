//! What can happen to the file.
#![allow(clippy::unwrap_used)]

use std::io;
use std::sync::Condvar;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::StorageBackend;
use redb::backends::InMemoryBackend;

use super::*;
use crate::store::tests::{entry, key, name};

fn file() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("names.redb");
    (folder, file)
}

#[tokio::test]
async fn survives_closing() {
    let (_folder, file) = file();
    let alice = key(1);
    let store = RedbStore::open(&file).unwrap();
    let version = store.put(None, entry(&alice, "alice@home", 1, 100)).await.unwrap();
    let head = store.head().await.unwrap();
    drop(store);
    let store = RedbStore::open(&file).unwrap();
    let stored = store.get(&name("alice@home")).await.unwrap().unwrap();
    assert_eq!(stored.version, version);
    assert_eq!(stored.entry, entry(&alice, "alice@home", 1, 100));
    // Versions go on where they were.
    let next = store.put(None, entry(&alice, "bob@home", 1, 100)).await.unwrap();
    assert!(next > version);
    store.changed_since(head).await.unwrap();
}

#[test]
fn a_file_in_use_says_so() {
    let (_folder, file) = file();
    let _store = RedbStore::open(&file).unwrap();
    let error = RedbStore::open(&file).unwrap_err();
    assert_eq!(error, StoreError::Locked { file: file.clone() });
    assert!(error.to_string().contains(file.to_str().unwrap()));
}

/// As after a service was stopped: the task that asked is gone, the thread that reads for it is not.
#[tokio::test]
async fn a_file_is_free_once_its_store_is_dropped_although_somebody_was_reading() {
    let (_folder, file) = file();
    let store = RedbStore::open(&file).unwrap();
    let (started, starting) = std::sync::mpsc::channel();
    let reading = tokio::spawn(store.read(move |_| {
        started.send(()).unwrap();
        // Long enough for the file to be opened again meanwhile, were it free too early.
        std::thread::sleep(std::time::Duration::from_millis(100));
        Ok(())
    }));
    let queued = tokio::spawn(store.read(tables::count));
    tokio::task::spawn_blocking(move || starting.recv()).await.unwrap().unwrap();
    reading.abort();
    queued.abort();
    drop(store);
    RedbStore::open(&file).unwrap();
}

#[test]
fn another_kind_of_file_says_so() {
    let (_folder, file) = file();
    for content in ["short", &"not a database ".repeat(1000)] {
        std::fs::write(&file, content).unwrap();
        let error = RedbStore::open(&file).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(file.to_str().unwrap()) && text.contains("move it aside"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), content, "left alone");
    }
}

#[test]
fn another_programs_database_is_left_alone() {
    let (_folder, file) = file();
    let database = Database::create(&file).unwrap();
    let txn = database.begin_write().unwrap();
    txn.open_table(redb::TableDefinition::<u64, u64>::new("other")).unwrap();
    txn.commit().unwrap();
    drop(database);
    assert!(matches!(RedbStore::open(&file), Err(StoreError::Corrupt { .. })));
}

#[test]
fn a_newer_format_says_so() {
    let (_folder, file) = file();
    drop(RedbStore::open(&file).unwrap());
    let database = Database::create(&file).unwrap();
    let txn = database.begin_write().unwrap();
    let meta = redb::TableDefinition::<&str, u64>::new("meta");
    txn.open_table(meta).unwrap().insert("format", 9).unwrap();
    txn.commit().unwrap();
    drop(database);
    let error = RedbStore::open(&file).unwrap_err();
    assert_eq!(error, StoreError::Format { file, found: 9, expected: 1 });
}

/// Nothing but the file is left, and its making did not touch another's.
#[test]
fn a_new_file_is_made_alone() {
    let (folder, file) = file();
    drop(RedbStore::open(&file).unwrap());
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(files.len(), 1);
    drop(RedbStore::open(&file).unwrap());
}

#[test]
fn a_missing_folder_says_so() {
    let (folder, _) = file();
    let file = folder.path().join("nowhere").join("names.redb");
    let error = RedbStore::open(&file).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error:?}");
}

/// Whatever is done to the bytes: an error or right answers, and no panic gets out.
#[tokio::test]
async fn damaged_files_give_errors_or_right_answers() {
    let (_folder, file) = file();
    let store = RedbStore::open(&file).unwrap();
    let names: Vec<_> = (0..50).map(|n| format!("user{n}@home")).collect();
    for text in &names {
        store.put(None, entry(&key(1), text, 1, 100)).await.unwrap();
    }
    drop(store);
    let good = std::fs::read(&file).unwrap();
    let mut damages: Vec<Vec<u8>> =
        [1, 320, 4096, good.len() / 2, good.len() - 1].map(|length| good[..length].to_vec()).into();
    for step in 0..40 {
        let mut bytes = good.clone();
        let at = (step * 7919 * 13) % bytes.len();
        let end = (at + 64).min(bytes.len());
        bytes[at..end].fill(0xa5);
        damages.push(bytes);
    }
    for bytes in damages {
        std::fs::write(&file, bytes).unwrap();
        let Ok(store) = RedbStore::open(&file) else {
            continue;
        };
        for text in &names {
            if let Ok(Some(stored)) = store.get(&name(text)).await {
                assert_eq!(stored.entry.name().as_str(), text);
            }
        }
        let _ = store.put(None, entry(&key(1), "new@home", 1, 100)).await;
    }
}

/// A disk that can be full, and one that can hang.
#[derive(Debug, Clone)]
struct Disk {
    content: Arc<InMemoryBackend>,
    full: Arc<AtomicBool>,
    hangs: Arc<(Mutex<bool>, Condvar)>,
}

impl Disk {
    fn new() -> Self {
        let content = Arc::new(InMemoryBackend::new());
        Self { content, full: Arc::default(), hangs: Arc::default() }
    }

    fn store(&self) -> RedbStore {
        let opened = self.clone();
        let open = move |_: &Path| Database::builder().create_with_backend(opened.clone());
        RedbStore::open_with("names.redb".into(), Box::new(open)).unwrap()
    }

    /// From now on, until it is false again, nothing is written.
    fn hang(&self, hangs: bool) {
        *self.hangs.0.lock().unwrap() = hangs;
        self.hangs.1.notify_all();
    }

    fn wait(&self) {
        let (hangs, changed) = &*self.hangs;
        drop(changed.wait_while(hangs.lock().unwrap(), |hangs| *hangs).unwrap());
    }

    fn check(&self) -> Result<(), io::Error> {
        if self.full.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, io::Error> {
        self.content.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.content.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.check()?;
        self.content.set_len(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.wait();
        self.check()?;
        self.content.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.wait();
        self.check()?;
        self.content.write(offset, data)
    }
}

#[tokio::test]
async fn a_full_disk_loses_nothing_and_is_got_over() {
    let disk = Disk::new();
    let store = disk.store();
    let alice = key(1);
    store.put(None, entry(&alice, "before@home", 1, 100)).await.unwrap();

    disk.full.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        let put = store.put(None, entry(&alice, "meanwhile@home", 1, 100)).await;
        assert_eq!(put, Err(StoreError::Full { file: "names.redb".into() }));
    }

    disk.full.store(false, Ordering::SeqCst);
    store.put(None, entry(&alice, "after@home", 1, 100)).await.unwrap();
    for text in ["before@home", "after@home"] {
        assert!(store.get(&name(text)).await.unwrap().is_some(), "{text}");
    }
    assert_eq!(store.get(&name("meanwhile@home")).await, Ok(None));
}

/// How long a test waits for what must not happen.
const SHORT: std::time::Duration = std::time::Duration::from_millis(50);

#[tokio::test]
async fn changes_have_their_turn_while_the_disk_hangs() {
    let disk = Disk::new();
    let store = disk.store();
    let (alice, bob) = (key(1), key(2));
    let start = store.put(None, entry(&alice, "alice@home", 1, 100)).await.unwrap();

    disk.hang(true);
    let mut second = store.place(Some(start), entry(&alice, "alice@home", 2, 100)).await.unwrap();
    // Who decided on what was there before comes too late; who saw the new one goes on with it.
    let late = store.place(Some(start), entry(&bob, "alice@home", 2, 100)).await.map(drop);
    assert_eq!(late, Err(StoreError::Conflict));
    let seen = store.get(&name("alice@home")).await.unwrap().unwrap();
    assert_eq!((seen.version, seen.entry), (second.version, entry(&alice, "alice@home", 2, 100)));
    let third = store.place(Some(second.version), entry(&alice, "alice@home", 3, 100)).await.unwrap();
    let new = store.place(None, entry(&bob, "bob@home", 1, 100)).await.unwrap();
    // Nothing is durable, or said to be.
    assert!(tokio::time::timeout(SHORT, &mut second.durable).await.is_err());
    assert_eq!(store.count().await, Ok(1));
    disk.hang(false);

    for durable in [second.durable, third.durable, new.durable] {
        durable.await.unwrap();
    }
    drop(store);
    let store = disk.store();
    let stored = store.get(&name("alice@home")).await.unwrap().unwrap();
    assert_eq!((stored.version, stored.entry), (third.version, entry(&alice, "alice@home", 3, 100)));
    assert!(store.get(&name("bob@home")).await.unwrap().is_some());
}

#[tokio::test]
async fn what_was_placed_on_what_could_not_be_stored_falls_too() {
    let disk = Disk::new();
    let store = disk.store();
    let alice = key(1);
    let start = store.put(None, entry(&alice, "alice@home", 1, 100)).await.unwrap();

    disk.hang(true);
    // The writer is busy with the first one, so that the second is in the transaction after it.
    let first = store.place(Some(start), entry(&alice, "alice@home", 2, 100)).await.unwrap();
    tokio::time::sleep(SHORT).await;
    let second = store.place(Some(first.version), entry(&alice, "alice@home", 3, 100)).await.unwrap();
    disk.full.store(true, Ordering::SeqCst);
    disk.hang(false);
    assert_eq!(first.durable.await, Err(StoreError::Full { file: "names.redb".into() }));
    disk.full.store(false, Ordering::SeqCst);
    assert!(second.durable.await.is_err());

    let stored = store.get(&name("alice@home")).await.unwrap().unwrap();
    assert_eq!(stored.entry, entry(&alice, "alice@home", 1, 100), "what was there before is there again");
    store.put(Some(stored.version), entry(&alice, "alice@home", 4, 100)).await.unwrap();
}

#[tokio::test]
async fn while_the_disk_hangs_only_so_many_changes_are_kept() {
    let disk = Disk::new();
    let store = disk.store();
    let alice = key(1);
    disk.hang(true);
    let mut placed = Vec::new();
    let limit = QUEUE + 256 + 1;
    for number in 0..limit {
        let place = store.place(None, entry(&alice, &format!("user{number}@home"), 1, 100));
        match tokio::time::timeout(SHORT, place).await {
            Ok(one) => placed.push(one.unwrap()),
            Err(_) => break,
        }
    }
    assert!((QUEUE..limit).contains(&placed.len()), "{}", placed.len());
    disk.hang(false);
    for one in placed {
        one.durable.await.unwrap();
    }
}

/// As a file that a program wrote which did not know which names are whose user's.
#[tokio::test]
async fn the_names_of_users_in_a_file_of_before_are_found() {
    const META: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("meta");
    const USERS: redb::TableDefinition<'_, (&[u8; 32], &str), ()> = redb::TableDefinition::new("users");
    let (_folder, file) = file();
    let alice = key(1);
    let store = RedbStore::open(&file).unwrap();
    for text in ["alice@home", "laptop.alice@home", "bob@home"] {
        store.put(None, entry(&alice, text, 1, 100)).await.unwrap();
    }
    drop(store);
    let database = Database::open(&file).unwrap();
    let txn = database.begin_write().unwrap();
    txn.delete_table(USERS).unwrap();
    txn.open_table(META).unwrap().remove("users").unwrap();
    txn.commit().unwrap();
    drop(database);
    let store = RedbStore::open(&file).unwrap();
    let of_alice = ["alice@home", "laptop.alice@home"].map(name);
    let user = name("alice@home");
    assert_eq!(store.names_under(&user, None, 10).await.unwrap(), of_alice);
    assert_eq!(store.names_under(&user, None, 1).await.unwrap(), of_alice[..1]);
    assert_eq!(store.names_under(&user, Some(&of_alice[0]), 10).await.unwrap(), of_alice[1..]);
    // What was removed is under nobody.
    let version = store.get(&of_alice[1]).await.unwrap().unwrap().version;
    store.remove(&of_alice[1], version).await.unwrap();
    assert_eq!(store.names_under(&user, None, 10).await.unwrap(), of_alice[..1]);
}
