//! The service and its resolver over real connections.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use crate::support::*;
use whimbrel_base::{Delegation, Record, SignedRecord};
use whimbrel_names::protocol::{MAX_MESSAGE, Reply, Request, Response};
use whimbrel_names::{ErrorCode, MemoryStore};
use whimbrel_transport::{Allow, CloseCode, ListenOptions, Resolver};

fn refusal(response: Response) -> ErrorCode {
    match response {
        Response::Error { code, message } => {
            assert!(!message.is_empty());
            ErrorCode::from_number(code).unwrap()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_published_is_found_and_pushed() {
    let net = Net(101);
    let service = service(net, MemoryStore::new()).await;
    let (anna, publishing) = named_host(net, 1, 1, &service).await;
    let (_ben, asking) = named_host(net, 2, 2, &service).await;
    let anna_name = name("anna@example.org");

    let missing = asking.lookup_record(&anna_name).await.unwrap_err();
    assert_eq!(missing.code(), Some(ErrorCode::NotFound));
    let mut news = asking.watch(&anna_name);
    assert!(news.current().is_none());

    let first = record("anna@example.org", &anna, None);
    let holds = publishing.publish_record(first.clone()).await.unwrap();
    assert!(holds > Duration::from_secs(590), "{holds:?}");
    assert_eq!(asking.lookup_record(&anna_name).await.unwrap(), first);
    assert_eq!(next(&mut news).await, first);

    anna.at.set([net.ip(3)]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let second = record("anna@example.org", &anna, None);
    assert_ne!(first.record().addrs, second.record().addrs);
    publishing.publish_record(second.clone()).await.unwrap();
    assert_eq!(next(&mut news).await, second);

    // A second receiver has the newest at once, and the watch is the same one.
    let mut again = asking.watch(&anna_name);
    assert_eq!(next(&mut again).await, second);
    assert_eq!(service.stats().watches, 1);

    drop((news, again));
    until("the watch ends", || service.stats().watches == 0).await;

    let sequence = second.record().sequence + 1;
    let revocation = Record::revocation(anna_name.clone(), anna.endpoint.id(), sequence, now());
    publishing.revoke(SignedRecord::sign(revocation, &anna.key, None).unwrap()).await.unwrap();
    let gone = asking.lookup_record(&anna_name).await.unwrap_err();
    assert_eq!(gone.code(), Some(ErrorCode::Revoked));
    println!("{:?}", service.stats());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_refused_with_a_code() {
    let net = Net(102);
    let service = service(net, MemoryStore::new()).await;
    let (anna, ben) = (host(net, 1, 1).await, host(net, 2, 2).await);
    let mut raw = Raw::connect(&anna, &service).await;
    let good = record("anna@example.org", &anna, None);
    let publish = |record: &SignedRecord| Request::Publish { record: record.encode().to_vec() };

    let mut forged = good.encode().to_vec();
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(refusal(raw.ask(Request::Publish { record: forged }).await), ErrorCode::Forged);
    let oversized = Request::Publish { record: vec![1; 3000] };
    assert_eq!(refusal(raw.ask(oversized).await), ErrorCode::TooLarge);
    let garbage = Request::Publish { record: vec![7; 100] };
    assert_eq!(refusal(raw.ask(garbage).await), ErrorCode::Malformed);
    let bens = record("ben@example.org", &ben, None);
    assert_eq!(refusal(raw.ask(publish(&bens)).await), ErrorCode::NotYours);

    assert!(matches!(raw.ask(publish(&good)).await, Response::Accepted { .. }));
    let stale = record("anna@example.org", &anna, Some(good.record().sequence - 1));
    assert_eq!(refusal(raw.ask(publish(&stale)).await), ErrorCode::Stale);
    let far = record("anna@example.org", &anna, Some(u64::MAX));
    assert_eq!(refusal(raw.ask(publish(&far)).await), ErrorCode::SequenceTooHigh);
    // Refusals changed nothing.
    let looked_up = raw.ask(Request::Lookup { name: name("anna@example.org") }).await;
    assert!(matches!(looked_up, Response::Record { record, .. } if record == good.encode()));

    // A heartbeat by republishing, and one by name.
    assert!(matches!(raw.ask(publish(&good)).await, Response::Accepted { .. }));
    let names = vec![name("anna@example.org"), name("nobody@example.org")];
    let heard = raw.ask(Request::Heartbeat { names }).await;
    assert_eq!(heard, Response::Heard { codes: vec![0, ErrorCode::NotFound.number()] });

    // Another key can't take the name.
    let mut other = Raw::connect(&ben, &service).await;
    let snatched = record("anna@example.org", &ben, None);
    assert_eq!(refusal(other.ask(publish(&snatched)).await), ErrorCode::NameTaken);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_breaks_the_protocol_is_told_and_put_off() {
    let net = Net(103);
    let service = service(net, MemoryStore::new()).await;
    let anna = host(net, 1, 1).await;
    let mut raw = Raw::connect(&anna, &service).await;
    let size = u32::try_from(MAX_MESSAGE + 1).unwrap();
    raw.send_bytes(&size.to_be_bytes()).await;
    let reason = tokio::time::timeout(PATIENCE, raw.connection().closed()).await.unwrap();
    assert_eq!(reason.code, CloseCode::PROTOCOL);
    assert!(reason.reason.contains("16385 bytes"), "{reason}");
    assert_eq!(service.stats().broken, 1);

    // Others are served.
    let mut raw = Raw::connect(&anna, &service).await;
    let nobody = raw.ask(Request::Lookup { name: name("nobody@example.org") }).await;
    assert_eq!(refusal(nobody), ErrorCode::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_are_under_way_at_once_and_all_are_answered() {
    let net = Net(104);
    let service = service(net, MemoryStore::new()).await;
    let anna = host(net, 1, 1).await;
    let mut raw = Raw::connect(&anna, &service).await;
    let mut open = std::collections::HashSet::new();
    for _ in 0..500 {
        open.insert(raw.send(Request::Lookup { name: name("nobody@example.org") }).await);
    }
    while !open.is_empty() {
        match raw.reply().await {
            Reply::Response { request, .. } => assert!(open.remove(&request)),
            other => panic!("{other:?}"),
        }
    }
    // A watch and its end, on the bare protocol.
    let publish = Request::Publish { record: record("anna@example.org", &anna, None).encode().to_vec() };
    let watch = raw.send(Request::Watch { name: name("anna@example.org"), after: None }).await;
    assert_eq!(raw.reply().await, Reply::Response { request: watch, response: Response::Watching });
    let published = raw.send(publish).await;
    let both = [raw.reply().await, raw.reply().await];
    assert!(both.iter().any(|r| matches!(r, Reply::Update { watch: of, .. } if *of == watch)), "{both:?}");
    assert!(both.iter().any(|r| matches!(r, Reply::Response { request, .. } if *request == published)));
    assert_eq!(raw.ask(Request::Unwatch { watch }).await, Response::Unwatched);
    assert_eq!(service.stats().watches, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_needs_its_users_word() {
    let net = Net(105);
    let service = service(net, MemoryStore::new()).await;
    let (user, users_names) = named_host(net, 1, 1, &service).await;
    let (laptop, _) = named_host(net, 2, 2, &service).await;
    let (client, _) = named_host(net, 3, 3, &service).await;
    users_names.publish(record("anna@example.org", &user, None)).await.unwrap();

    let ssh = name("ssh.laptop.anna@example.org");
    let refused = laptop.endpoint.listen(ListenOptions::named(&ssh).allow(Allow::Any)).await.unwrap_err();
    assert!(refused.to_string().contains("needs the signature"), "{refused}");

    let device = name("laptop.anna@example.org");
    let (issued, ends) = (now(), now().saturating_add(Duration::from_secs(3600)));
    let delegation = Delegation::sign(device, laptop.endpoint.id(), issued, ends, &user.key).unwrap();
    let options = ListenOptions::named(&ssh).allow(Allow::Any).delegation(Some(delegation));
    let mut listener = laptop.endpoint.listen(options).await.unwrap();
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            tokio::spawn(echo(connection));
        }
    });
    let connection = client.endpoint.connect(&ssh).await.unwrap();
    assert_eq!(connection.peer_id(), laptop.endpoint.id());
    say(&mut connection.open_stream().await.unwrap(), b"by name").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_knows_for_how_long_its_users_name_is_held() {
    let net = Net(107);
    let day = Duration::from_secs(86_400);
    let limits = whimbrel_names::Limits { user_grace: 3 * day, ..Default::default() };
    let service = service_with(net, MemoryStore::new(), limits).await;
    let (anna, names) = named_host(net, 1, 1, &service).await;
    let user = name("anna@example.org");
    assert_eq!(names.lease(&user), None);
    names.publish(record("anna@example.org", &anna, None)).await.unwrap();
    let own = names.lease(&user).unwrap();
    assert!(own > 3 * day && own <= 3 * day + Duration::from_secs(600), "{own:?}");
    // A device's record says it too.
    names.publish(record("laptop.anna@example.org", &anna, None)).await.unwrap();
    let lease = names.lease(&user).unwrap();
    // Told in whole seconds, from the moment of the answer.
    assert!(lease > 2 * day && lease <= 3 * day + Duration::from_secs(600), "{lease:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_released_resolver_lets_its_endpoint_close() {
    let net = Net(106);
    let service = service(net, MemoryStore::new()).await;
    let (anna, names) = named_host(net, 1, 1, &service).await;
    names.publish(record("anna@example.org", &anna, None)).await.unwrap();
    anna.endpoint.close(Duration::from_secs(2)).await;
    until("the service sees the end", || service.stats().connections == 0).await;
    let closed = names.lookup_record(&name("anna@example.org")).await.unwrap_err();
    println!("{closed}");
}
