//! What can happen to the file.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::AtomicBool;

use redb::StorageBackend;
use redb::backends::InMemoryBackend;
use whimbrel_base::EndpointId;

use super::*;
use crate::durable::change::InboxKey;
use crate::durable::wire::{Stamp, envelope};

fn limits() -> StateLimits {
    StateLimits::default()
}

fn id(seed: u8) -> EndpointId {
    whimbrel_base::SecretKey::from_bytes(&[seed; 32]).id()
}

async fn journal(store: &Store) -> u64 {
    let admit = || Ok(());
    let peer = Change::Peer { key: "desk".into(), target: None, id: Some(id(1)) };
    store.write(peer, admit).await.unwrap();
    let journal = Change::Journal { peer: "desk".into(), label: "readings".into(), id: 7 };
    let Done::Opened(number) = store.write(journal, admit).await.unwrap() else { panic!("it is new") };
    number
}

async fn append(
    store: &Store,
    ledger: &Mutex<Ledger>,
    journal: u64,
    data: &[u8],
) -> Result<Done, StateError> {
    let data = kept(data);
    let size = data.len();
    store.write(Change::Append { journal, data }, || lock(ledger).reserve(journal, size)).await
}

/// A message as it is kept.
fn kept(content: &[u8]) -> Vec<u8> {
    envelope(Stamp(5), content)
}

const ALL: Room = Room { from: 1, messages: 1000, bytes: 1 << 30 };

#[tokio::test]
async fn what_was_written_is_there_when_the_file_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let (store, ledger) = Store::open(folder.path(), limits()).unwrap();
    let number = journal(&store).await;
    for (at, text) in [b"one", b"two", b"six"].into_iter().enumerate() {
        assert_eq!(append(&store, &ledger, number, text).await, Ok(Done::Appended(at as u64 + 1)));
    }
    lock(&ledger).acknowledged(number, 1, None);
    store.tidy();
    let key = InboxKey { peer: id(2), label: "orders".into(), journal: 9 };
    let ack = Change::Ack { key: key.clone(), low: 4, number: 6, stamp: Stamp(5) };
    store.write(ack, || Ok(())).await.unwrap();
    drop((store, ledger));
    let (store, ledger) = Store::open(folder.path(), limits()).unwrap();
    let found = store.read(number, ALL).await.unwrap();
    assert_eq!(found, [(2, kept(b"two")), (3, kept(b"six"))]);
    let owed = lock(&ledger).owed("desk");
    assert_eq!((owed.messages, owed.bytes), (2, 2 * (256 + 3)));
    assert_eq!(lock(&ledger).opening, 2);
    lock(&ledger).offered(&key, 1).unwrap();
    assert_eq!(lock(&ledger).low(&key), Some((4, None)));
    assert_eq!(append(&store, &ledger, number, b"").await, Ok(Done::Appended(4)));
}

#[tokio::test]
async fn a_read_brings_as_much_as_there_is_room_for_and_one_in_any_case() {
    let folder = tempfile::tempdir().unwrap();
    let (store, ledger) = Store::open(folder.path(), limits()).unwrap();
    let number = journal(&store).await;
    for _ in 0..5 {
        append(&store, &ledger, number, &[0; 100]).await.unwrap();
    }
    let count = async |room| store.read(number, room).await.unwrap().len();
    assert_eq!(count(Room { bytes: 250, ..ALL }).await, 2);
    assert_eq!(count(Room { bytes: 1, from: 3, ..ALL }).await, 1);
    assert_eq!(count(Room { messages: 3, ..ALL }).await, 3);
    assert_eq!(count(Room { from: 5, ..ALL }).await, 1);
}

#[test]
fn the_file_is_for_its_user_alone_and_for_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("state");
    let (store, _) = Store::open(&directory, limits()).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&directory), mode(store.path())), (0o700, 0o600));
    let error = Store::open(&directory, limits()).err().unwrap();
    assert_eq!(error, StateError::InUse { file: store.path().to_owned() });
    assert!(error.to_string().contains("is open already"), "{error}");
    store.close();
    Store::open(&directory, limits()).unwrap();
}

#[test]
fn a_file_of_something_else_or_of_a_newer_format_says_so_and_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(FILE);
    for content in ["short", &"not a database ".repeat(1000)] {
        std::fs::write(&file, content).unwrap();
        let error = Store::open(folder.path(), limits()).err().unwrap();
        assert!(matches!(error, StateError::Damaged { .. }), "{error:?}");
        assert!(error.to_string().contains("move it aside"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), content);
    }
    std::fs::remove_file(&file).unwrap();
    drop(Store::open(folder.path(), limits()).unwrap());
    let database = Database::create(&file).unwrap();
    let txn = database.begin_write().unwrap();
    let meta = redb::TableDefinition::<&str, u64>::new("meta");
    txn.open_table(meta).unwrap().insert("format", 9).unwrap();
    txn.commit().unwrap();
    drop(database);
    let error = Store::open(folder.path(), limits()).err().unwrap();
    assert_eq!(error, StateError::Format { file, found: 9, expected: 1 });
}

/// Whatever is done to the bytes: an error, or messages as they were, and no panic gets out.
#[tokio::test]
async fn damaged_files_give_errors_or_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let (store, ledger) = Store::open(folder.path(), limits()).unwrap();
    let number = journal(&store).await;
    let message = |at: u64| format!("message {at}").repeat(9).into_bytes();
    for at in 1..=50 {
        append(&store, &ledger, number, &message(at)).await.unwrap();
    }
    drop((store, ledger));
    let file = folder.path().join(FILE);
    let good = std::fs::read(&file).unwrap();
    let mut refused = 0;
    for step in 0..60 {
        let mut bytes = good.clone();
        match step {
            0..5 => bytes.truncate([1, 320, 4096, good.len() / 2, good.len() - 1][step]),
            _ => {
                let at = (step * 7919 * 13) % bytes.len();
                let end = (at + 64).min(bytes.len());
                bytes[at..end].fill(0xa5);
            }
        }
        std::fs::write(&file, &bytes).unwrap();
        match Store::open(folder.path(), limits()) {
            Ok((store, _)) => match store.read(number, ALL).await {
                // The content of a message has no checksum but that of its page.
                Ok(found) => assert!(found.iter().all(|(at, data)| data.len() == kept(&message(*at)).len())),
                Err(error) => assert!(matches!(error, StateError::Damaged { .. } | StateError::Io { .. })),
            },
            Err(error) => {
                refused += 1;
                let clear = matches!(error, StateError::Damaged { .. } | StateError::Format { .. });
                assert!(clear || matches!(error, StateError::Io { .. }), "{error:?}");
            }
        }
    }
    assert!(refused >= 5, "only {refused} damages were noticed when the file was opened");
}

/// A disk that can be full.
#[derive(Debug, Clone, Default)]
struct Disk {
    memory: Arc<InMemoryBackend>,
    is_full: Arc<AtomicBool>,
}

impl Disk {
    fn check(&self) -> std::io::Result<()> {
        let full = self.is_full.load(Ordering::Relaxed);
        if full { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, std::io::Error> {
        self.memory.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), std::io::Error> {
        self.memory.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), std::io::Error> {
        self.check()?;
        self.memory.set_len(len)
    }

    fn sync_data(&self) -> Result<(), std::io::Error> {
        self.check()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        self.check()?;
        self.memory.write(offset, data)
    }
}

#[tokio::test]
async fn a_full_disk_refuses_messages_and_takes_them_again_once_it_has_room() {
    let disk = Disk::default();
    let opened = disk.clone();
    let open = move |_: &Path| Database::builder().create_with_backend(opened.clone());
    let (store, ledger) = Store::open_with("nowhere".into(), Box::new(open), limits()).unwrap();
    let number = journal(&store).await;
    append(&store, &ledger, number, b"before").await.unwrap();
    disk.is_full.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        let error = append(&store, &ledger, number, &[1; 100_000]).await.unwrap_err();
        assert!(matches!(error, StateError::DiskFull { .. } | StateError::Io { .. }), "{error:?}");
        assert_eq!(lock(&ledger).owed("desk").messages, 1, "nothing is owed that was refused");
    }
    disk.is_full.store(false, Ordering::Relaxed);
    let Done::Appended(last) = append(&store, &ledger, number, b"after").await.unwrap() else { panic!() };
    let found = store.read(number, ALL).await.unwrap();
    assert_eq!(found.first().map(|(at, data)| (*at, &data[..])), Some((1, &kept(b"before")[..])));
    assert_eq!(found.last(), Some(&(last, kept(b"after"))));
    assert_eq!(found.len() as u64, lock(&ledger).owed("desk").messages, "the ledger says what the file has");
}

#[tokio::test]
async fn a_forgotten_peer_takes_its_messages_along_and_its_number_is_not_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let (store, ledger) = Store::open(folder.path(), limits()).unwrap();
    let number = journal(&store).await;
    append(&store, &ledger, number, b"lost").await.unwrap();
    store.write(Change::Forget { peer: "desk".into() }, || Ok(())).await.unwrap();
    let late = store.write(Change::Append { journal: number, data: Vec::new() }, || Ok(())).await;
    assert_eq!(late, Err(StateError::Forgotten));
    assert_eq!(store.read(number, ALL).await.unwrap(), []);
    assert!(journal(&store).await > number);
}

#[tokio::test]
async fn of_many_journals_with_one_label_the_one_acknowledged_longest_ago_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let (store, ledger) = Store::open(folder.path(), limits()).unwrap();
    let key = |journal| InboxKey { peer: id(1), label: "readings".into(), journal };
    let ack = async |journal| {
        store.write(Change::Ack { key: key(journal), low: 0, number: 1, stamp: Stamp(5) }, || Ok(())).await
    };
    for journal in 0..8 {
        ack(journal).await.unwrap();
    }
    ack(0).await.unwrap();
    let Ok(Done::Marked { evicted, .. }) = ack(8).await else { panic!("it is marked") };
    assert_eq!(evicted, Some(key(1)));
    drop(store);
    lock(&ledger).offered(&key(0), 1).unwrap();
    assert_eq!(lock(&ledger).low(&key(0)), Some((1, Some(Stamp(5)))));
    lock(&ledger).offered(&key(1), 1).unwrap();
    assert_eq!(lock(&ledger).low(&key(1)), Some((0, None)));
}
