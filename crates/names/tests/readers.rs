//! A record that not everybody may look up, and a service that says more or less than it should.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use crate::support::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_base::{Record, SecretKey, SignedRecord};
use whimbrel_names::protocol::{Decoder, Numbered, Reply, Request, Response, encode};
use whimbrel_names::{AskError, ErrorCode, MemoryStore, NameResolver, Reader, Readers, RedbStore};
use whimbrel_transport::{Allow, ListenOptions, Resolver as _};

/// As long as `hidden@example.org`, and nobody has it.
const NOBODY: &str = "nobody@example.org";
const HIDDEN: &str = "hidden@example.org";

/// The bytes of all that the service says to these requests, with `name` in them.
async fn answers(host: &Host, service: &whimbrel_names::Service, of: &str) -> Vec<Vec<u8>> {
    let mut raw = Raw::connect(host, service).await;
    let mut said = Vec::new();
    for request in [
        Request::Lookup { name: name(of) },
        Request::Heartbeat { names: vec![name(of)] },
        Request::Watch { name: name(of), after: None },
        Request::Unwatch { watch: 3 },
    ] {
        raw.send(request).await;
        let bytes = encode(&raw.reply().await).unwrap();
        // As if it were asked of the other name, which is as long.
        let at: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(of.as_bytes())).collect();
        let mut bytes = bytes;
        at.iter().for_each(|at| bytes[*at..at + of.len()].copy_from_slice(NOBODY.as_bytes()));
        said.push(bytes);
    }
    said
}

/// A key that is not among the readers gets, byte for byte, what it gets for a name that nobody has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hidden_name_looks_like_one_that_nobody_has() {
    let net = Net(151);
    let service = service(net, MemoryStore::new()).await;
    let (anna, annas) = named_host(net, 1, 1, &service).await;
    let (ben, bens) = named_host(net, 2, 2, &service).await;
    let eve = host(net, 3, 3).await;
    annas.set_readers(name(HIDDEN), Readers::Only(vec![Reader::Key(ben.key.id())])).unwrap();
    let hidden = record(HIDDEN, &anna, None);
    annas.publish_record(hidden.clone()).await.unwrap();

    assert_eq!(bens.lookup_record(&name(HIDDEN)).await.unwrap(), hidden);
    assert_eq!(next(&mut bens.watch(&name(HIDDEN))).await, hidden);
    let (of_hidden, of_nobody) =
        (answers(&eve, &service, HIDDEN).await, answers(&eve, &service, NOBODY).await);
    assert_eq!(of_hidden, of_nobody);
    assert!(String::from_utf8_lossy(&of_hidden[0]).contains("is not registered here"), "{of_hidden:?}");
    // A sign of life leaves it hidden.
    annas.publish_record(hidden).await.unwrap();
    assert_eq!(answers(&eve, &service, HIDDEN).await, of_nobody);
}

/// Nor does its endpoint's id lead anybody else to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hidden_endpoint_is_found_by_its_readers_alone() {
    let net = Net(156);
    let service = service(net, MemoryStore::new()).await;
    let (anna, annas) = named_host(net, 1, 1, &service).await;
    let (ben, bens) = named_host(net, 2, 2, &service).await;
    let (_, eves) = named_host(net, 3, 3, &service).await;
    annas.set_readers(name(HIDDEN), Readers::Only(vec![Reader::Key(ben.key.id())])).unwrap();
    let hidden = record(HIDDEN, &anna, None);
    annas.publish_record(hidden.clone()).await.unwrap();
    assert_eq!(bens.find_endpoint(anna.key.id()).await.unwrap().addrs, hidden.record().addrs);
    let error = eves.find_endpoint(anna.key.id()).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotFound), "{error}");
    let nobody = eves.find_endpoint(key(99).id()).await.unwrap_err();
    let without_id = |error: AskError, of| error.to_string().replace(&SecretKey::id(&of).to_string(), "");
    assert_eq!(without_id(error, anna.key.clone()), without_id(nobody, key(99)));
}

/// Readers may change while the record stays: with each change, lookups and watches follow it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_may_change_while_a_name_is_published() {
    let net = Net(157);
    let service = service(net, MemoryStore::new()).await;
    let (anna, annas) = named_host(net, 1, 1, &service).await;
    let (ben, bens) = named_host(net, 2, 2, &service).await;
    let shown_to = |readers| annas.set_readers(name(HIDDEN), Readers::Only(readers)).unwrap();
    let bens_key = Reader::Key(ben.key.id());
    shown_to(vec![]);
    let hidden = record(HIDDEN, &anna, None);
    annas.publish_record(hidden.clone()).await.unwrap();
    let mut watch = bens.watch(&name(HIDDEN));
    let error = bens.lookup_record(&name(HIDDEN)).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::NotFound), "{error}");

    shown_to(vec![bens_key.clone()]);
    assert_eq!(next(&mut watch).await, hidden);
    assert_eq!(bens.lookup_record(&name(HIDDEN)).await.unwrap(), hidden);
    // However quickly they change, and in whatever order the service takes that in, the last one counts.
    for _ in 0..200 {
        shown_to(vec![]);
        shown_to(vec![bens_key.clone()]);
    }
    shown_to(vec![]);
    let start = std::time::Instant::now();
    let mut since = None;
    while since.is_none_or(|since: std::time::Instant| since.elapsed() < Duration::from_millis(300)) {
        assert!(start.elapsed() < PATIENCE, "the name is still shown");
        match bens.lookup_record(&name(HIDDEN)).await {
            Ok(_) => since = None,
            Err(_) => drop(since.get_or_insert_with(std::time::Instant::now)),
        }
    }
    // The watch hears nothing of where it goes now.
    let moved = record(HIDDEN, &anna, Some(hidden.record().sequence + 1));
    annas.publish_record(moved).await.unwrap();
    let more = tokio::time::timeout(Duration::from_millis(300), watch.changed()).await;
    assert!(more.is_err(), "{more:?}");
}

/// What is published again to a service that forgot everything is as hidden as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hidden_name_stays_hidden_when_the_service_is_reset() {
    let net = Net(152);
    let first = service(net, MemoryStore::new()).await;
    let (anna, annas) = named_host(net, 1, 1, &first).await;
    let (ben, bens) = named_host(net, 2, 2, &first).await;
    annas.set_readers(name(HIDDEN), Readers::Only(vec![Reader::Key(ben.key.id())])).unwrap();
    let hidden = record(HIDDEN, &anna, None);
    annas.publish_record(hidden.clone()).await.unwrap();
    let mut news = bens.watch(&name(HIDDEN));
    assert_eq!(next(&mut news).await, hidden);
    drop(first);
    let second = service(net, MemoryStore::new()).await;
    until("the record is there again", || second.stats().published > 0).await;
    assert_eq!(bens.lookup_record(&name(HIDDEN)).await.unwrap(), hidden);
    let eve = host(net, 3, 3).await;
    assert_eq!(answers(&eve, &second, HIDDEN).await, answers(&eve, &second, NOBODY).await);
}

#[test]
fn the_store_is_readable_by_its_owner_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("names.redb");
    let mode = || std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    drop(RedbStore::open(&file).unwrap());
    assert_eq!(mode(), 0o600);
    // One that an older program made.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    drop(RedbStore::open(&file).unwrap());
    assert_eq!(mode(), 0o600);
}

/// A name service that answers every lookup with one record, well signed.
async fn impostor(net: Net, says: SignedRecord) -> Host {
    let host = host(net, 200, 200).await;
    let mut listener = host.endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            let says = says.clone();
            tokio::spawn(async move {
                let mut stream = connection.accept_stream().await.unwrap();
                let (mut decoder, mut piece) = (Decoder::<Numbered>::new(), [0; 4096]);
                loop {
                    while let Some(Numbered { number, .. }) = decoder.next_message().unwrap() {
                        let response = Response::Record { record: says.encode().to_vec(), seconds: 600 };
                        let reply = encode(&Reply::Response { request: number, response }).unwrap();
                        stream.write_all(&reply).await.unwrap();
                    }
                    match stream.read(&mut piece).await {
                        Ok(n) if n > 0 => decoder.push(&piece[..n]),
                        _ => return,
                    }
                }
            });
        }
    });
    host
}

/// A service that kept an old record, or made its endpoint sign one for ever, gets nobody there by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_serves_a_record_beyond_its_end_is_refused() {
    let day = Duration::from_secs(86_400);
    for (number, (ends, says)) in [
        (now().saturating_add(day), None),
        (now(), Some("let it end")),
        (now().saturating_add(9 * day), Some("later than any record")),
    ]
    .into_iter()
    .enumerate()
    {
        let net = Net(153 + number as u8);
        let anna = host(net, 1, 1).await;
        let mut old = record("anna@example.org", &anna, None).record().clone();
        old = Record { expires: ends, ..old };
        let old = SignedRecord::sign(old, &anna.key, None).unwrap();
        let service = impostor(net, old).await;
        let ben = host(net, 2, 2).await;
        let resolver = NameResolver::new(ben.endpoint.clone(), service.endpoint.addr());
        let found = resolver.lookup_record(&name("anna@example.org")).await;
        match says {
            None => assert!(found.is_ok(), "{found:?}"),
            Some(says) => {
                let refused = found.unwrap_err();
                assert!(matches!(&refused, AskError::Invalid(why) if why.contains(says)), "{refused}");
            }
        }
    }
}
