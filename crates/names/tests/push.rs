//! A service that dies between a push and the disk takes nothing back.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::future::{pending, ready};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use crate::support::*;
use whimbrel_base::{EndpointAddr, EndpointId, Name, UnixTime};
use whimbrel_names::store::{Answer, Changes, Cursor, Entry, Stored, Version};
use whimbrel_names::{NameResolver, Placed, RedbStore, Store};
use whimbrel_transport::Resolver as _;

const FILE: &str = "WHIMBREL_TEST_PUSH_STORE";
const HELD: &str = "WHIMBREL_TEST_PUSH_HELD";
const NET: Net = Net(121);

/// A store whose disk never answers, and keeps nothing of what it is given. Until the process ends it is
/// there, as in every store: somebody may begin to watch only then.
struct Held(RedbStore, Mutex<HashMap<Name, Stored>>);

impl Store for Held {
    fn get<'a>(&'a self, name: &'a Name) -> Answer<'a, Option<Stored>> {
        match self.1.lock().unwrap().get(name).cloned() {
            Some(placed) => Box::pin(ready(Ok(Some(placed)))),
            None => self.0.get(name),
        }
    }

    fn place(&self, expected: Option<Version>, entry: Entry) -> Answer<'_, Placed> {
        let version = Version(expected.map_or(1, |expected| expected.0 + 1));
        self.1.lock().unwrap().insert(entry.name().clone(), Stored { version, entry });
        Box::pin(async move { Ok(Placed { version, durable: Box::pin(pending()) }) })
    }

    fn remove<'a>(&'a self, name: &'a Name, expected: Version) -> Answer<'a, ()> {
        self.0.remove(name, expected)
    }

    fn owned_by<'a>(&'a self, owner: &'a EndpointId) -> Answer<'a, u64> {
        self.0.owned_by(owner)
    }

    fn count(&self) -> Answer<'_, u64> {
        self.0.count()
    }

    fn due(&self, now: UnixTime, limit: usize) -> Answer<'_, Vec<Name>> {
        self.0.due(now, limit)
    }

    fn head(&self) -> Answer<'_, Cursor> {
        self.0.head()
    }

    fn changes_since(&self, cursor: Cursor, limit: usize) -> Answer<'_, Changes> {
        self.0.changes_since(cursor, limit)
    }

    fn changed_since(&self, cursor: Cursor) -> Answer<'_, ()> {
        self.0.changed_since(cursor)
    }
}

/// Not a test: the name service that the test below runs as another process, until it is killed.
#[test]
fn child() {
    let Some(file) = std::env::var_os(FILE) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = RedbStore::open(file).unwrap();
        let service = match std::env::var_os(HELD) {
            Some(_) => service(NET, Held(store, Mutex::default())).await,
            None => service(NET, store).await,
        };
        println!("serves {}", service.addr().addrs.len());
        pending::<()>().await;
    });
}

/// A name service in a process of its own. Killed with SIGKILL when it is dropped.
struct Process(Child);

impl Process {
    fn start(file: &Path, held: bool) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "push::child", "--nocapture", "--test-threads=1"]).env(FILE, file);
        if held {
            command.env(HELD, "1");
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let serves = out.lines().map_while(Result::ok).any(|line| line.contains("serves"));
        assert!(serves, "the service did not start");
        Self(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

async fn resolver(host: &Host) -> NameResolver {
    let addr = EndpointAddr::new(key(200).id(), vec![std::net::SocketAddr::new(NET.ip(200), SERVICE_PORT)]);
    NameResolver::new(host.endpoint.clone(), addr)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_older_comes_after_a_kill_between_push_and_disk_and_the_record_is_said_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("names.redb");
    let (anna, ben) = (host(NET, 1, 1).await, host(NET, 2, 2).await);
    let (annas, bens) = (resolver(&anna).await, resolver(&ben).await);
    let of = name("anna@example.org");
    let mut news = bens.watch(&of);

    let first = Process::start(&file, false);
    let old = record("anna@example.org", &anna, None);
    annas.publish_record(old.clone()).await.unwrap();
    assert_eq!(next(&mut news).await, old);
    drop(first);

    let held = Process::start(&file, true);
    let new = record("anna@example.org", &anna, Some(old.record().sequence + 1));
    let publishing = tokio::spawn({
        let new = new.clone();
        async move {
            let result = annas.publish_record(new).await;
            (annas, result)
        }
    });
    assert_eq!(next(&mut news).await, new);
    assert!(!publishing.is_finished(), "acknowledged before it was stored");
    // Who published is away for a while: it can't say it again yet.
    anna.at.set([]);
    drop(held);

    let last = Process::start(&file, false);
    assert_eq!(bens.lookup_record(&of).await.unwrap(), new, "the newest that was seen counts");
    assert!(tokio::time::timeout(Duration::from_millis(300), news.changed()).await.is_err());
    // Others can only know what was stored.
    let caro = host(NET, 3, 3).await;
    let caros = resolver(&caro).await;
    assert_eq!(caros.lookup_record(&of).await.unwrap(), old);
    let mut hers = caros.watch(&of);
    assert_eq!(next(&mut hers).await, old);

    anna.at.set([NET.ip(4)]);
    assert_eq!(next(&mut hers).await, new);
    let (annas, _) = publishing.await.unwrap();
    annas.publish_record(new.clone()).await.unwrap();
    drop(last);
    // What was acknowledged is in the file.
    let store = RedbStore::open(&file).unwrap();
    assert_eq!(store.get(&of).await.unwrap().unwrap().entry.record, new);
}
