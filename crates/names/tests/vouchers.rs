//! What a service says of a key to others: that it has a name of a domain.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::support::*;
use whimbrel_base::{Record, SignedRecord};
use whimbrel_names::{
    Admission, AskError, Domain, ErrorCode, Limits, MemoryStore, NameResolver, Reader, Readers, VOUCHED_FOR,
    Voucher,
};

const ADA: &str = "ada@example.org";

fn domain(text: &str) -> Domain {
    text.parse().unwrap()
}

async fn refused(resolver: &NameResolver, of: &str) -> Option<ErrorCode> {
    resolver.vouched(domain(of)).await.unwrap_err().code()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_a_name_is_vouched_for_whoever_reads_it_and_others_are_not() {
    let service = service_for(Net(161), MemoryStore::new(), Admission::any(), Limits::default()).await;
    let (ada, adas) = named_host(Net(161), 1, 1, &service).await;
    let (_eve, eves) = named_host(Net(161), 2, 2, &service).await;
    // Shown to nobody but itself.
    adas.set_readers(name(ADA), Readers::Only(vec![Reader::Key(ada.endpoint.id())])).unwrap();
    adas.publish_record(record(ADA, &ada, None)).await.unwrap();
    assert_eq!(refused(&adas, "example.org").await, Some(ErrorCode::NoName), "it has no key yet");
    service.vouch_with(key(200));

    let before = now();
    let bytes = adas.vouched(domain("example.org")).await.unwrap();
    let voucher = Voucher::verify(&bytes, service.endpoint().id()).unwrap();
    assert_eq!((voucher.id, voucher.domain.as_str()), (ada.endpoint.id(), "example.org"));
    let counts = voucher.expires.since(before);
    assert!(counts <= VOUCHED_FOR + PATIENCE && counts + PATIENCE >= VOUCHED_FOR, "{counts:?}");
    assert_eq!(refused(&adas, "example.com").await, Some(ErrorCode::NoName));
    assert_eq!(refused(&eves, "example.org").await, Some(ErrorCode::NoName));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gave_a_name_up_is_vouched_for_no_more() {
    let service = service_for(Net(162), MemoryStore::new(), Admission::any(), Limits::default()).await;
    service.vouch_with(key(200));
    let (ada, adas) = named_host(Net(162), 1, 1, &service).await;
    let published = record(ADA, &ada, None);
    let sequence = published.record().sequence + 1;
    adas.publish_record(published).await.unwrap();
    adas.vouched(domain("example.org")).await.unwrap();
    let revocation = Record::revocation(name(ADA), ada.endpoint.id(), sequence, now());
    adas.revoke(SignedRecord::sign(revocation, &ada.key, None).unwrap()).await.unwrap();
    let gone = adas.vouched(domain("example.org")).await;
    assert!(matches!(&gone, Err(AskError::Refused { code: Some(ErrorCode::NoName), .. })), "{gone:?}");
}
