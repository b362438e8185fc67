//! A service from before delegations were renewed and vouchers given: it ends a connection over what it does not know.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_base::Delegation;
use whimbrel_names::protocol::{Decoder, Numbered, Reply, Request, Response, encode};
use whimbrel_names::{AskError, ErrorCode, NameResolver};
use whimbrel_transport::{Allow, CloseCode, Connection, ListenOptions};

/// Answers lookups with "no such name", and ends the connection over anything newer.
async fn answer(connection: Connection) {
    let Ok(mut stream) = connection.accept_stream().await else { return };
    let (mut decoder, mut piece) = (Decoder::<Numbered>::new(), [0; 4096]);
    loop {
        while let Some(Numbered { number: request, request: asked }) = decoder.next_message().unwrap() {
            let is_newer = matches!(
                asked,
                Request::Renew { .. }
                    | Request::Renewed { .. }
                    | Request::Vouch { .. }
                    | Request::Proposals { .. }
                    | Request::Devices { .. }
            );
            if is_newer {
                connection.abort(CloseCode::PROTOCOL, "not exactly one message");
                return;
            }
            let code = ErrorCode::NotFound.number();
            let response = Response::Error { code, message: "no such name".to_owned() };
            let reply = Reply::Response { request, response };
            stream.write_all(&encode(&reply).unwrap()).await.unwrap();
        }
        match stream.read(&mut piece).await {
            Ok(read @ 1..) => decoder.push(&piece[..read]),
            _ => return,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_service_is_asked_once_for_what_it_does_not_know_and_serves_on() {
    let net = Net(121);
    let old = host(net, 200, 200).await;
    let mut listener = old.endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(answer(connection));
        }
    });
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
        connections.load(Ordering::Relaxed),
        6,
        "one for each request that it does not know, and the last"
    );
}
