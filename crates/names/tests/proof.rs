//! A client that wants proof of a domain takes nothing from a service without it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use crate::support::*;
use whimbrel_base::EndpointId;
use whimbrel_names::{AskError, DomainProof, MemoryStore, ProofError};
use whimbrel_transport::{BoxFuture, Resolver as _};

/// The owner of example.org wants this service; others said nothing.
struct ExampleOrg(EndpointId);

impl DomainProof for ExampleOrg {
    fn prove<'a>(&'a self, domain: &'a str, service: EndpointId) -> BoxFuture<'a, Result<(), ProofError>> {
        let is_proved = domain == "example.org" && service == self.0;
        let missing = ProofError::Missing { domain: domain.to_owned(), service };
        Box::pin(std::future::ready(if is_proved { Ok(()) } else { Err(missing) }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_unproved_is_found_watched_remembered_or_published() {
    let net = Net(158);
    let service = service(net, MemoryStore::new()).await;
    let (anna, annas) = named_host(net, 1, 1, &service).await;
    let (ben, bens) = named_host(net, 2, 2, &service).await;
    bens.require_proof(ExampleOrg(service.addr().id));
    let (proved, unproved) = ("anna@example.org", "anna@example.net");
    let mut watches = [proved, unproved].map(|of| bens.watch(&name(of)));
    for of in [proved, unproved] {
        annas.publish_record(record(of, &anna, None)).await.unwrap();
    }
    assert_eq!(next(&mut watches[0]).await.record().name, name(proved));
    bens.lookup_record(&name(proved)).await.unwrap();
    let silent = tokio::time::timeout(Duration::from_millis(300), watches[1].changed()).await;
    assert!(silent.is_err(), "{silent:?}");
    let error = bens.lookup_record(&name(unproved)).await.unwrap_err();
    assert!(matches!(error, AskError::Unproven(ProofError::Missing { .. })), "{error}");
    let pins = bens.known_peers().pins().unwrap();
    assert!(pins.owner(&name(proved)).is_some() && pins.owner(&name(unproved)).is_none());

    let error = bens.publish_record(record("ben@example.net", &ben, None)).await.unwrap_err();
    assert!(matches!(error, AskError::Unproven(_)), "{error}");
    assert!(annas.lookup_record(&name("ben@example.net")).await.is_err());
    bens.publish_record(record("ben@example.org", &ben, None)).await.unwrap();
}
