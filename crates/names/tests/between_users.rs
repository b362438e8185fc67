//! Requests between users, and all that a user has, by resolvers over the wire.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use crate::support::*;
use whimbrel_base::Delegation;
use whimbrel_names::protocol::{Request, Response};
use whimbrel_names::{
    AskError, Decision, ErrorCode, MemoryStore, Proposal, ProposalId, ProposalNews, Reader, Readers,
    RedbStore, Wished,
};

const ADA: &str = "ada@example.org";
const BOB: &str = "bob@example.org";

fn to_ada(from: &Host, owner: &Host) -> Proposal {
    Proposal {
        wished: Wished::Friends { from: name(BOB) },
        to: name(ADA),
        owner: owner.endpoint.id(),
        by: from.endpoint.id(),
        made: now(),
        expires: now().saturating_add(Duration::from_secs(600)),
        word: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_waits_for_the_devices_of_its_user_also_while_the_service_is_restarted() {
    let net = Net(163);
    let folder = tempfile::tempdir().unwrap();
    let store = || RedbStore::open(folder.path().join("names.redb")).unwrap();
    let before = service(net, store()).await;
    let (ada, adas) = named_host(net, 1, 1, &before).await;
    let (bob, bobs) = named_host(net, 2, 2, &before).await;
    adas.publish_record(record(ADA, &ada, None)).await.unwrap();
    bobs.publish_record(record(BOB, &bob, None)).await.unwrap();
    let bytes = to_ada(&bob, &ada).sign(&bob.key).unwrap();
    let id = ProposalId::of(&bytes);
    bobs.propose(bytes).await.unwrap();
    before.shutdown(Duration::from_secs(5)).await;
    let after = service(net, store()).await;
    // A device of ada's that has never published anything.
    let (desk, desks) = named_host(net, 3, 3, &after).await;
    let end = now().saturating_add(Duration::from_secs(600));
    let word =
        Delegation::sign(name("desk.ada@example.org"), desk.endpoint.id(), now(), end, &ada.key).unwrap();
    let known = desks.proposals(Some(&word)).await.unwrap();
    assert_eq!(known.iter().map(|known| known.id).collect::<Vec<_>>(), [id]);
    let decision = Decision {
        about: id,
        accepted: true,
        by: desk.endpoint.id(),
        made: now(),
        word: Some(word.clone()),
        given: None,
    };
    desks.decide(decision.sign(&desk.key).unwrap()).await.unwrap();
    for (resolver, word) in [(&adas, None), (&bobs, None), (&desks, Some(&word))] {
        let known = resolver.proposals(word).await.unwrap();
        assert_eq!(known[0].decision.as_ref(), Some(&decision));
    }
    let late = Decision { accepted: false, by: ada.endpoint.id(), word: None, ..decision };
    let late = adas.decide(late.sign(&ada.key).unwrap()).await.unwrap_err();
    assert_eq!(late.code(), Some(ErrorCode::NoProposal));
    bobs.withdraw(id, None).await.unwrap();
    assert_eq!(bobs.proposals(None).await.unwrap(), []);
    let again = bobs.withdraw(ProposalId::of(b"another"), None).await.unwrap_err();
    assert_eq!(again.code(), Some(ErrorCode::NoProposal));
}

async fn heard(news: &mut ProposalNews) {
    tokio::time::timeout(PATIENCE, news.changed()).await.expect("nothing is heard").unwrap();
}

fn desk_of(owner: &Host, desk: &Host, lasts: Duration) -> Delegation {
    let end = now().saturating_add(lasts);
    Delegation::sign(name("desk.ada@example.org"), desk.endpoint.id(), now(), end, &owner.key).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_hear_of_a_request_and_of_its_answer_without_asking_and_strangers_do_not() {
    let net = Net(166);
    let service = service(net, MemoryStore::new()).await;
    let (ada, adas) = named_host(net, 1, 1, &service).await;
    let (bob, bobs) = named_host(net, 2, 2, &service).await;
    let (desk, desks) = named_host(net, 3, 3, &service).await;
    let (_eve, eves) = named_host(net, 4, 4, &service).await;
    adas.publish_record(record(ADA, &ada, None)).await.unwrap();
    bobs.publish_record(record(BOB, &bob, None)).await.unwrap();
    let word = desk_of(&ada, &desk, Duration::from_secs(600));
    // A word is of one key.
    let refused = eves.proposal_news(Some(&word)).await.unwrap_err();
    assert!(matches!(refused, AskError::Refused { .. }), "{refused:?}");
    let mut of_ada = adas.proposal_news(None).await.unwrap();
    let mut of_desk = desks.proposal_news(Some(&word)).await.unwrap();
    let mut of_bob = bobs.proposal_news(None).await.unwrap();
    let mut of_eve = eves.proposal_news(None).await.unwrap();
    assert_eq!(service.stats().watches, 4);
    let bytes = to_ada(&bob, &ada).sign(&bob.key).unwrap();
    let id = ProposalId::of(&bytes);
    bobs.propose(bytes).await.unwrap();
    for news in [&mut of_ada, &mut of_desk, &mut of_bob] {
        heard(news).await;
    }
    assert_eq!(desks.proposals(Some(&word)).await.unwrap()[0].id, id);
    let (by, word) = (desk.endpoint.id(), Some(word));
    let decision = Decision { about: id, accepted: true, by, made: now(), word, given: None };
    desks.decide(decision.sign(&desk.key).unwrap()).await.unwrap();
    for news in [&mut of_ada, &mut of_desk, &mut of_bob] {
        heard(news).await;
    }
    bobs.withdraw(id, None).await.unwrap();
    heard(&mut of_bob).await;
    let silent = tokio::time::timeout(Duration::from_millis(500), of_eve.changed()).await;
    assert!(silent.is_err(), "{silent:?}");
    drop((of_ada, of_desk, of_bob, of_eve));
    until("nobody follows", || service.stats().watches == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_speaks_for_its_user_no_longer_hears_nothing_more() {
    let net = Net(167);
    let service = service(net, MemoryStore::new()).await;
    let (ada, adas) = named_host(net, 1, 1, &service).await;
    let (bob, bobs) = named_host(net, 2, 2, &service).await;
    let (desk, desks) = named_host(net, 3, 3, &service).await;
    adas.publish_record(record(ADA, &ada, None)).await.unwrap();
    bobs.publish_record(record(BOB, &bob, None)).await.unwrap();
    // What a busy machine needs for the first connection is not taken from the word's time.
    assert!(desks.proposals(None).await.unwrap().is_empty());
    let word = desk_of(&ada, &desk, Duration::from_secs(10));
    let mut news = desks.proposal_news(Some(&word)).await.unwrap();
    while !word.is_expired(now()) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bobs.propose(to_ada(&bob, &ada).sign(&bob.key).unwrap()).await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, news.changed()).await.expect("it goes on");
    assert!(matches!(ended, Err(AskError::Unreachable(_))), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_asks_without_end_is_told_to_wait() {
    let net = Net(164);
    let service = service(net, MemoryStore::new()).await;
    let (ada, adas) = named_host(net, 1, 1, &service).await;
    let (bob, bobs) = named_host(net, 2, 2, &service).await;
    adas.publish_record(record(ADA, &ada, None)).await.unwrap();
    bobs.publish_record(record(BOB, &bob, None)).await.unwrap();
    let mut raw = Raw::connect(&bob, &service).await;
    let mut codes = Vec::new();
    // One is kept, the others are refused, and each takes a turn: twenty an hour.
    for _ in 0..25 {
        let proposal = to_ada(&bob, &ada).sign(&bob.key).unwrap();
        match raw.ask(Request::Propose { proposal }).await {
            Response::Accepted { .. } => codes.push(None),
            Response::Error { code, .. } => codes.push(ErrorCode::from_number(code)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(codes[0], None);
    assert_eq!(codes.last(), Some(&Some(ErrorCode::TooOften)), "{codes:?}");
    assert_eq!(adas.proposals(None).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_a_user_has_comes_in_one_look_up_with_addresses_and_hidden_names_do_not() {
    let net = Net(165);
    let service = service(net, MemoryStore::new()).await;
    let (ada, adas) = named_host(net, 1, 1, &service).await;
    let (_eve, eves) = named_host(net, 2, 2, &service).await;
    adas.publish_record(record(ADA, &ada, None)).await.unwrap();
    adas.publish_record(record("laptop.ada@example.org", &ada, None)).await.unwrap();
    let hidden = name("phone.ada@example.org");
    adas.set_readers(hidden.clone(), Readers::Only(vec![Reader::Key(ada.endpoint.id())])).unwrap();
    adas.publish_record(record(hidden.as_str(), &ada, None)).await.unwrap();
    let found = eves.devices_of(&name(ADA)).await.unwrap();
    let names: Vec<&str> = found.iter().map(|found| found.record().name.as_str()).collect();
    assert_eq!(names, [ADA, "laptop.ada@example.org"]);
    assert!(found.iter().all(|found| found.record().addrs == ada.endpoint.addr().addrs));
    // From then on it is known which key owns the names.
    assert_eq!(eves.known_peers().pins().unwrap().owner(&name(ADA)).unwrap().key, ada.endpoint.id());
    assert_eq!(adas.devices_of(&name(ADA)).await.unwrap().len(), 3);
    assert_eq!(eves.devices_of(&name(BOB)).await.unwrap(), []);
}
