//! Who may register user names, and how much of anything one key or one address gets.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use crate::support::*;
use whimbrel_base::{Record, SignedRecord};
use whimbrel_names::protocol::{Reply, Request, Response};
use whimbrel_names::{Admission, AskError, ErrorCode, Limits, MemoryStore, NameResolver, RedbStore, Terms};

const ADA: &str = "ada@example.org";

async fn register(resolver: &NameResolver, name: &str, host: &Host) -> Result<Duration, AskError> {
    resolver.publish_record(record(name, host, None)).await
}

fn refused<T: std::fmt::Debug>(result: Result<T, AskError>) -> ErrorCode {
    result.unwrap_err().code().unwrap()
}

fn once(domain: Option<&str>) -> Terms {
    Terms { domain: domain.map(|text| text.parse().unwrap()), uses: 1, valid: Duration::from_secs(3600) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_rule_nobody_new_registers_and_lookups_stay_possible() {
    let net = Net(141);
    let admission = Admission::invited().allow(key(1).id().to_string().parse().unwrap());
    let service = service_for(net, MemoryStore::new(), admission, Limits::default()).await;
    let (ada, adas) = named_host(net, 1, 1, &service).await;
    let (eve, eves) = named_host(net, 2, 2, &service).await;
    register(&adas, ADA, &ada).await.unwrap();
    // The owner's devices need no rule of their own.
    register(&adas, "laptop.ada@example.org", &ada).await.unwrap();
    assert_eq!(refused(register(&eves, "eve@example.org", &eve).await), ErrorCode::NotAdmitted);
    assert_eq!(eves.lookup_record(&name(ADA)).await.unwrap().record().id, ada.key.id());
}

/// A stranger cannot find out by trying which user names there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_register_is_refused_alike_whether_the_name_is_taken_or_not() {
    let net = Net(142);
    let admission = Admission::invited().allow("@example.org".parse().unwrap());
    let service = service_for(net, MemoryStore::new(), admission, Limits::default()).await;
    let (ada, adas) = named_host(net, 1, 1, &service).await;
    let (eve, eves) = named_host(net, 2, 2, &service).await;
    register(&adas, ADA, &ada).await.unwrap();
    assert_eq!(refused(register(&adas, "ada@example.com", &ada).await), ErrorCode::NotAdmitted);
    // Of the domain everybody may, and hears that a name is taken.
    assert_eq!(refused(register(&eves, ADA, &eve).await), ErrorCode::NameTaken);
    service.shutdown(Duration::from_secs(10)).await;

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("names.redb");
    let net = Net(143);
    let store = RedbStore::open(&file).unwrap();
    let open = service_for(net, store, Admission::any(), Limits::default()).await;
    let (ada, adas) = named_host(net, 1, 1, &open).await;
    register(&adas, ADA, &ada).await.unwrap();
    ada.endpoint.close(Duration::from_secs(2)).await;
    open.shutdown(Duration::from_secs(10)).await;
    let store = RedbStore::open(&file).unwrap();
    let closed = service_for(net, store, Admission::invited(), Limits::default()).await;
    let (eve, eves) = named_host(net, 2, 2, &closed).await;
    for user in [ADA, "nobody@example.org"] {
        let refused = register(&eves, user, &eve).await.unwrap_err();
        let expected = format!("does not let this key register {user};");
        assert!(refused.to_string().contains(&expected), "{refused}");
        assert_eq!(refused.code(), Some(ErrorCode::NotAdmitted));
    }
}

/// The same with the name of a device, which only the user's key can give.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_of_a_user_is_refused_alike_whether_there_is_such_a_user_or_not() {
    let net = Net(148);
    let admission = Admission::invited().allow(key(1).id().to_string().parse().unwrap());
    let service = service_for(net, MemoryStore::new(), admission, Limits::default()).await;
    let (ada, adas) = named_host(net, 1, 1, &service).await;
    let (eve, eves) = named_host(net, 2, 2, &service).await;
    register(&adas, ADA, &ada).await.unwrap();
    let attempt = async |user: &str| {
        let text = format!("laptop.{user}");
        let refused = register(&eves, &text, &eve).await.unwrap_err();
        let revoked = Record::revocation(name(&text), eve.key.id(), now().as_millis(), now());
        let revoked = SignedRecord::sign(revoked, &eve.key, None).unwrap();
        let kept = eves.revoke(revoked).await.unwrap_err();
        [refused, kept].map(|error| (error.code(), error.to_string().replace(user, "USER")))
    };
    let (taken, free) = (attempt(ADA).await, attempt("nobody@example.org").await);
    assert_eq!(taken, free);
    assert!(taken.iter().all(|(code, _)| *code == Some(ErrorCode::NotTheUsers)), "{taken:?}");
    // Who could register the user is told that this is to be done first.
    let ours = register(&adas, "laptop.nobody@example.org", &ada).await;
    assert_eq!(refused(ours), ErrorCode::UserUnknown);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invitation_admits_one_key_for_its_domain_and_survives_a_restart() {
    let net = Net(144);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("names.redb");
    let start = async || {
        let store = RedbStore::open(&file).unwrap();
        service_for(net, store, Admission::invited().operator(key(9).id()), Limits::default()).await
    };
    let service = start().await;
    let (_operator, operators) = named_host(net, 9, 9, &service).await;
    let (ben, bens) = named_host(net, 2, 2, &service).await;
    let (eve, eves) = named_host(net, 3, 3, &service).await;
    assert_eq!(refused(eves.invite(once(None)).await), ErrorCode::NotOperator);
    let none = Terms { uses: 0, ..once(None) };
    assert_eq!(refused(operators.invite(none).await), ErrorCode::BadTerms);
    let code = operators.invite(once(Some("example.org"))).await.unwrap();

    assert_eq!(refused(register(&bens, "ben@example.org", &ben).await), ErrorCode::NotAdmitted);
    assert_eq!(refused(bens.redeem("yyyy-yyyy-yyyy-yyyy").await), ErrorCode::BadInvitation);
    assert_eq!(bens.redeem(&code.to_uppercase()).await.unwrap().unwrap().as_str(), "example.org");
    // Its answer may have been lost: the same key may ask again, another one may not.
    assert!(bens.redeem(&code).await.is_ok());
    assert_eq!(refused(eves.redeem(&code).await), ErrorCode::BadInvitation);
    assert_eq!(refused(register(&eves, "eve@example.org", &eve).await), ErrorCode::NotAdmitted);
    service.shutdown(Duration::from_secs(10)).await;

    let service = start().await;
    assert_eq!(refused(eves.redeem(&code).await), ErrorCode::BadInvitation);
    assert_eq!(refused(register(&bens, "ben@example.com", &ben).await), ErrorCode::NotAdmitted);
    register(&bens, "ben@example.org", &ben).await.unwrap();
    drop(service);
    // Who reads the file finds no code in it.
    let bytes = std::fs::read(&file).unwrap();
    let plain = code.replace('-', "");
    for text in [code.as_bytes(), plain.as_bytes()] {
        assert!(!bytes.windows(text.len()).any(|window| window == text));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guessing_invitations_is_limited() {
    let net = Net(145);
    let admission = Admission::invited().operator(key(9).id());
    let service = service_for(net, MemoryStore::new(), admission, Limits::default()).await;
    let (_operator, operators) = named_host(net, 9, 9, &service).await;
    let code = operators.invite(once(None)).await.unwrap();
    let (_eve, eves) = named_host(net, 3, 3, &service).await;
    for guess in 0..10 {
        assert_eq!(refused(eves.redeem(&format!("guess-{guess}")).await), ErrorCode::BadInvitation);
    }
    assert_eq!(refused(eves.redeem(&code).await), ErrorCode::TooOften);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_registers_so_many_names_an_hour_whatever_keys_it_uses() {
    let net = Net(146);
    let limits = Limits { new_names_per_hour: 2, ..Limits::default() };
    let service = service_with(net, MemoryStore::new(), limits).await;
    for (seed, expected) in [(1, None), (2, None), (3, Some(ErrorCode::TooOften))] {
        let (host, names) = named_host(net, 1, seed, &service).await;
        let result = register(&names, &format!("user{seed}@example.org"), &host).await;
        assert_eq!(result.err().and_then(|error| error.code()), expected);
        if expected.is_none() {
            // What it has, it may change.
            register(&names, &format!("user{seed}@example.org"), &host).await.unwrap();
        }
    }
    let (ben, bens) = named_host(net, 2, 4, &service).await;
    register(&bens, "ben@example.org", &ben).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_requests_waits_and_others_are_served() {
    let net = Net(147);
    let limits = Limits { requests_per_second: 1, ..Limits::default() };
    let service = service_with(net, MemoryStore::new(), limits).await;
    let (eve, ben) = (host(net, 3, 3).await, host(net, 2, 2).await);
    let mut flood = Raw::connect(&eve, &service).await;
    let lookup = || Request::Lookup { name: name("nobody@example.org") };
    for _ in 0..100 {
        flood.send(lookup()).await;
    }
    // Ten at once, and one a second from then on.
    for _ in 0..10 {
        assert!(matches!(flood.reply().await, Reply::Response { .. }));
    }
    let mut other = Raw::connect(&ben, &service).await;
    assert!(matches!(other.ask(lookup()).await, Response::Error { code: 30, .. }));
    let requests = service.stats().requests;
    assert!(requests < 50, "{requests} requests were looked at");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_with_many_keys_from_one_address_waits_and_others_are_served() {
    let net = Net(149);
    let limits = Limits { requests_per_address: 1, ..Limits::default() };
    let service = service_with(net, MemoryStore::new(), limits).await;
    let lookup = || Request::Lookup { name: name("nobody@example.org") };
    let mut flood = Vec::new();
    for seed in 10..20 {
        let host = host(net, 3, seed).await;
        let mut raw = Raw::connect(&host, &service).await;
        for _ in 0..10 {
            raw.send(lookup()).await;
        }
        flood.push((host, raw));
    }
    // Ten at once, of all keys together, and one a second from then on.
    until("the flood is looked at", || service.stats().requests >= 10).await;
    let ben = host(net, 2, 2).await;
    let mut other = Raw::connect(&ben, &service).await;
    for _ in 0..5 {
        assert!(matches!(other.ask(lookup()).await, Response::Error { code: 30, .. }));
    }
    let requests = service.stats().requests;
    assert!(requests < 50, "{requests} requests were looked at");
}
