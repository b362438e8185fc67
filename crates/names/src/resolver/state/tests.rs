//! What is said to the service, and what follows its answers.
use whimbrel_base::{Record, SecretKey, UnixTime};

use super::*;
use crate::protocol::Decoder;

fn core() -> Core {
    Core::new(Handle::current(), KnownPeers::in_memory(), SecretKey::from_bytes(&[9; 32]).id())
}

/// What is to be written now.
fn said(core: &Core) -> Vec<Numbered> {
    let mut bytes = Vec::new();
    core.fill(&mut bytes);
    let mut decoder = Decoder::new();
    decoder.push(&bytes);
    std::iter::from_fn(|| decoder.next_message().unwrap()).collect()
}

/// A record of key 1 that counts now.
fn record(name: &str) -> SignedRecord {
    ending(name, now().saturating_add(Duration::from_secs(3600)))
}

fn ending(name: &str, expires: UnixTime) -> SignedRecord {
    let key = SecretKey::from_bytes(&[1; 32]);
    let unsigned = Record {
        name: name.parse().unwrap(),
        id: key.id(),
        addrs: vec!["192.0.2.1:4433".parse().unwrap()],
        sequence: 1,
        expires,
        lifetime: Duration::from_secs(300),
        revoked: false,
    };
    SignedRecord::sign(unsigned, &key, None).unwrap()
}

#[tokio::test]
async fn readers_that_change_while_a_record_is_under_way_are_told_once_it_is_taken_in() {
    let core = core();
    let record = record("ada@example.org");
    let request = core.state().published.want(record.clone());
    let _answer = core.state().ask(request.clone()).unwrap();
    let first = said(&core);
    assert_eq!(first.iter().map(|said| &said.request).collect::<Vec<_>>(), [&request]);
    core.set_readers(record.record().name.clone(), Readers::Only(vec![]), false).unwrap();
    // The service takes requests in their order, but answers them in any.
    assert!(said(&core).is_empty());
    let response = Response::Accepted { seconds: 300 };
    core.take(Reply::Response { request: first[0].number, response }).await;
    let hidden = Request::Register { record: record.encode().to_vec(), readers: Readers::Only(vec![]) };
    assert_eq!(said(&core).into_iter().map(|said| said.request).collect::<Vec<_>>(), [hidden]);
}

#[tokio::test]
async fn readers_that_change_before_a_record_is_written_are_written_with_it() {
    let core = core();
    let record = record("ada@example.org");
    let request = core.state().published.want(record.clone());
    let _answer = core.state().ask(request).unwrap();
    core.set_readers(record.record().name.clone(), Readers::Only(vec![]), false).unwrap();
    let hidden = Request::Register { record: record.encode().to_vec(), readers: Readers::Only(vec![]) };
    assert_eq!(said(&core).into_iter().map(|said| said.request).collect::<Vec<_>>(), [hidden]);
}

#[tokio::test]
async fn what_has_ended_is_not_said_again() {
    let core = core();
    for (name, expires, is_said) in [
        ("old@example.org", UnixTime::from_millis(now().as_millis() - 1), false),
        ("ada@example.org", now().saturating_add(Duration::from_secs(3600)), true),
    ] {
        let _request = core.state().published.want(ending(name, expires));
        assert_eq!(core.is_wanted(), Some(is_said), "{name}");
    }
    core.begin_session();
    assert_eq!(said(&core).len(), 1);
}
