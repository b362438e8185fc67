//! A service from before delegations were renewed and vouchers given: it ends a connection over what it does
//! not know.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_base::{Appointment, Delegation};
use whimbrel_names::protocol::{Decoder, Numbered, Reply, Request, Response, encode};
use whimbrel_names::{AskError, ErrorCode, NameResolver};
use whimbrel_transport::{Allow, CloseCode, Connection, ListenOptions, Stream};

/// A service of before.
#[derive(Clone)]
struct Older {
    /// What it does not know.
    is_newer: fn(&Request) -> bool,
    connections: Arc<AtomicUsize>,
    /// How often it was asked for devices, which it answers from the second time on.
    devices: Arc<AtomicUsize>,
}

impl Older {
    fn new(is_newer: fn(&Request) -> bool) -> Self {
        Self { is_newer, connections: Arc::default(), devices: Arc::default() }
    }

    /// Serves at this host, as long as the test runs.
    async fn serve(&self, host: &Host) {
        let mut listener = host.endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
        let this = self.clone();
        tokio::spawn(async move {
            while let Some(connection) = listener.accept().await {
                this.connections.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(this.clone().serve_connection(connection));
            }
        });
    }

    async fn serve_connection(self, connection: Connection) {
        while let Ok(stream) = connection.accept_stream().await {
            tokio::spawn(self.clone().answer(connection.clone(), stream));
        }
    }

    /// Answers lookups with "no such name", and ends the connection over anything newer.
    async fn answer(self, connection: Connection, mut stream: Stream) {
        let (mut decoder, mut piece) = (Decoder::<Numbered>::new(), [0; 4096]);
        loop {
            while let Some(Numbered { number: request, request: asked }) = decoder.next_message().unwrap() {
                if (self.is_newer)(&asked) {
                    connection.abort(CloseCode::PROTOCOL, "not exactly one message");
                    return;
                }
                let Some(response) = self.response(&asked) else { continue };
                let reply = Reply::Response { request, response };
                stream.write_all(&encode(&reply).unwrap()).await.unwrap();
            }
            match stream.read(&mut piece).await {
                Ok(read @ 1..) => decoder.push(&piece[..read]),
                _ => return,
            }
        }
    }

    fn response(&self, asked: &Request) -> Option<Response> {
        Some(match asked {
            Request::Devices { .. } if self.devices.fetch_add(1, Ordering::Relaxed) == 0 => return None,
            Request::Devices { .. } => Response::Devices { records: Vec::new(), more: None },
            Request::Proposals { .. } => Response::Proposals { proposals: Vec::new(), more: false },
            _ => {
                let code = ErrorCode::NotFound.number();
                Response::Error { code, message: "no such name".to_owned() }
            }
        })
    }
}

/// What was added since delegations are renewed.
fn is_newer(asked: &Request) -> bool {
    matches!(
        asked,
        Request::Renew { .. }
            | Request::Renewed { .. }
            | Request::Vouch { .. }
            | Request::Proposals { .. }
            | Request::Devices { .. }
            | Request::Follow { .. }
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_service_is_asked_once_for_what_it_does_not_know_and_serves_on() {
    let net = Net(121);
    let old = host(net, 200, 200).await;
    let service = Older::new(is_newer);
    service.serve(&old).await;
    let laptop = host(net, 1, 1).await;
    let resolver = NameResolver::new(laptop.endpoint.clone(), old.endpoint.addr());
    let end = now().saturating_add(Duration::from_secs(60));
    let device = name("laptop.ada@example.org");
    let word = Delegation::sign(device.clone(), laptop.endpoint.id(), now(), end, &key(7)).unwrap();
    let start = Instant::now();
    let unsupported = AskError::Unsupported("renewal of delegations");
    assert_eq!(resolver.renewed(&word).await, Err(unsupported.clone()));
    assert_eq!(resolver.renew(&word).await, Err(unsupported));
    let domain = "example.org".parse().unwrap();
    assert_eq!(resolver.vouched(domain).await, Err(AskError::Unsupported("vouchers")));
    let unsupported = AskError::Unsupported("requests between users");
    assert_eq!(resolver.proposals(None).await, Err(unsupported));
    let unsupported = AskError::Unsupported("look-ups of a user's devices");
    assert_eq!(resolver.devices_of(&name("ada@example.org")).await, Err(unsupported));
    let found = resolver.lookup_record(&device).await.unwrap_err();
    assert_eq!(found.code(), Some(ErrorCode::NotFound));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(
        service.connections.load(Ordering::Relaxed),
        6,
        "one for each request that it does not know, and the last"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_service_that_says_no_news_of_requests_answers_on_and_what_was_under_way_is_asked_again() {
    let net = Net(168);
    let old = host(net, 200, 200).await;
    let service = Older::new(|asked| matches!(asked, Request::Follow { .. }));
    service.serve(&old).await;
    let laptop = host(net, 1, 1).await;
    let resolver = Arc::new(NameResolver::new(laptop.endpoint.clone(), old.endpoint.addr()));
    assert_eq!(resolver.proposals(None).await, Ok(Vec::new()));
    let asking = resolver.clone();
    let devices = tokio::spawn(async move { asking.devices_of(&name("ada@example.org")).await });
    until("it was asked for devices", || service.devices.load(Ordering::Relaxed) == 1).await;
    let news = resolver.proposal_news(None).await.map(drop);
    assert_eq!(news, Err(AskError::Unsupported("news of requests between users")));
    // The service has ended the connection over the news, and not over the devices.
    assert_eq!(devices.await.unwrap(), Ok(Vec::new()));
    assert_eq!(resolver.proposals(None).await, Ok(Vec::new()));
    assert_eq!(service.connections.load(Ordering::Relaxed), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_service_that_knows_no_appointments_answers_on_what_was_under_way() {
    let net = Net(174);
    let old = host(net, 200, 200).await;
    let is_newest = |asked: &Request| matches!(asked, Request::Appoint { .. } | Request::Appointed { .. });
    let service = Older::new(is_newest);
    service.serve(&old).await;
    let laptop = host(net, 1, 1).await;
    let resolver = Arc::new(NameResolver::new(laptop.endpoint.clone(), old.endpoint.addr()));
    let asking = resolver.clone();
    let devices = tokio::spawn(async move { asking.devices_of(&name("ada@example.org")).await });
    until("it was asked for devices", || service.devices.load(Ordering::Relaxed) == 1).await;
    let (device, unsupported) = (name("laptop.ada@example.org"), Err(AskError::Unsupported("appointments")));
    assert_eq!(resolver.appointment(&device, laptop.endpoint.id()).await.map(drop), unsupported);
    // The service has ended the connection over the appointment, and not over the devices.
    assert_eq!(devices.await.unwrap(), Ok(Vec::new()));
    assert_eq!(service.connections.load(Ordering::Relaxed), 2);
    let end = now().saturating_add(Duration::from_secs(60));
    let appointment = Appointment::sign(device, key(8).id(), now(), end, &laptop.key).unwrap();
    assert_eq!(resolver.leave_appointment(&appointment).await.map(drop), unsupported);
    assert_eq!(resolver.proposals(None).await, Ok(Vec::new()));
    assert_eq!(service.connections.load(Ordering::Relaxed), 3);
}

/// As [`is_newer`], of all that was added since appointments.
fn is_batch(asked: &Request) -> bool {
    matches!(asked, Request::Leave { .. } | Request::Fetch { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_service_that_keeps_no_batches_answers_on_what_was_under_way_and_is_asked_for_appointments()
{
    let net = Net(183);
    let old = host(net, 200, 200).await;
    let service = Older::new(is_batch);
    service.serve(&old).await;
    let laptop = host(net, 1, 1).await;
    let resolver = Arc::new(NameResolver::new(laptop.endpoint.clone(), old.endpoint.addr()));
    let asking = resolver.clone();
    let devices = tokio::spawn(async move { asking.devices_of(&name("ada@example.org")).await });
    until("it was asked for devices", || service.devices.load(Ordering::Relaxed) == 1).await;
    let unsupported = Err(AskError::Unsupported("batches for a user's devices"));
    assert_eq!(resolver.batches(None, 0).await.map(drop), unsupported);
    // The service has ended the connection over the batches, and not over the devices.
    assert_eq!(devices.await.unwrap(), Ok(Vec::new()));
    assert_eq!(service.connections.load(Ordering::Relaxed), 2);
    assert_eq!(resolver.leave_batch(None, vec![1]).await.map(drop), unsupported);
    let device = name("laptop.ada@example.org");
    assert_eq!(resolver.appointment(&device, laptop.endpoint.id()).await, Ok(None));
    assert_eq!(service.connections.load(Ordering::Relaxed), 3);
}
