//! Who is let in, by what is said when an endpoint listens; and whose names are.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use whimbrel::names::{Admission, Limits, MemoryStore, Service};
use whimbrel::{
    Allow, Builder, CloseCode, ConnectError, Endpoint, EndpointId, ListenError, ListenOptions, Listener,
    ManualMonitor, Registered, SecretKey, UserError, transport,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn at(net: u8, host: u8) -> ManualMonitor {
    ManualMonitor::new([IpAddr::from([127, 0, net, host])])
}

async fn endpoint(net: u8, host: u8, change: impl FnOnce(Builder) -> Builder) -> Endpoint {
    change(Endpoint::builder().identity(SecretKey::generate())).monitor(at(net, host)).bind().await.unwrap()
}

async fn service(net: u8) -> Service {
    let endpoint = transport::Endpoint::builder().monitor(at(net, 200)).bind().await.unwrap();
    Service::start(endpoint, MemoryStore::new(), Admission::any(), Limits::default()).await.unwrap()
}

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("not in time")
}

/// The code and the reason of a refusal.
fn refusal(error: ConnectError) -> (CloseCode, String) {
    match error {
        ConnectError::Refused { code, reason, .. } => (code, reason),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn nobody_is_let_in_unless_it_is_said() {
    let server = endpoint(171, 1, |builder| builder).await;
    let error = server.listen(ListenOptions::unnamed()).await.unwrap_err();
    assert!(matches!(error, ListenError::Nobody), "{error}");
    // Nor does the endpoint answer anybody now.
    let client = endpoint(171, 2, |builder| builder).await;
    let config = whimbrel::Config { connect_timeout: Duration::from_millis(500), ..Default::default() };
    let hasty = endpoint(171, 3, |builder| builder.config(config)).await;
    assert!(hasty.connect(server.addr()).await.is_err());

    let options = ListenOptions::unnamed().allow(Allow::only([client.id()]));
    let _listener = server.listen(options).await.unwrap();
    in_time(client.connect(server.addr())).await.unwrap();
    let (code, _) = refusal(in_time(hasty.connect(server.addr())).await.unwrap_err());
    assert_eq!(code, CloseCode::NOT_ALLOWED);
}

#[tokio::test]
async fn a_name_needs_a_service_and_a_key_that_lasts() {
    let net = 172;
    let alone = endpoint(net, 1, |builder| builder).await;
    let named = || ListenOptions::named("anna@example.org").allow(Allow::Any);
    let error = alone.listen(named()).await.unwrap_err();
    assert!(matches!(error, ListenError::NoResolver(_)), "{error}");
    drop(alone.listen(named().unpublished()).await.unwrap());

    let service = service(net).await;
    let fleeting = Endpoint::builder().names(service.addr()).monitor(at(net, 2)).bind().await.unwrap();
    let error = fleeting.listen(named()).await.unwrap_err();
    assert!(matches!(error, ListenError::FleetingKey(_)), "{error}");
    let error = fleeting.register_user("anna@example.org").await.unwrap_err();
    assert!(matches!(error, UserError::FleetingKey), "{error}");
    let of = "anna@example.org".parse().unwrap();
    assert!(fleeting.names().unwrap().lookup_record(&of).await.is_err(), "it was registered");

    // The same key after a restart, from its file.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("identity");
    for expected in [Registered::New, Registered::Already] {
        let again = Endpoint::builder().identity_file(&file).names(service.addr());
        let again = again.monitor(at(net, 3)).bind().await.unwrap();
        assert_eq!(again.register_user("anna@example.org").await.unwrap(), expected);
        again.close(PATIENCE).await;
    }
}

#[tokio::test]
async fn a_user_registers_delegates_and_revokes() {
    let net = 173;
    let service = service(net).await;
    let user = endpoint(net, 1, |builder| builder.names(service.addr())).await;
    let laptop = endpoint(net, 2, |builder| builder.names(service.addr())).await;
    let error = user.register_user("laptop.anna@example.org").await.unwrap_err();
    assert!(matches!(error, UserError::NotAUser(_)), "{error}");
    assert_eq!(user.register_user("anna@example.org").await.unwrap(), Registered::New);
    let error = laptop.register_user("anna@example.org").await.unwrap_err();
    assert!(matches!(error, UserError::Taken(_)), "{error}");

    let options = || ListenOptions::named("ssh.laptop.anna@example.org").allow(Allow::Any);
    let error = laptop.listen(options()).await.unwrap_err();
    assert!(matches!(error, ListenError::Publish { .. }), "{error}");
    let day = Duration::from_secs(86_400);
    let permission = user.delegate("laptop.anna@example.org", laptop.id(), day).unwrap();
    let listener = laptop.listen(options().delegation(Some(permission.clone()))).await.unwrap();
    let guest = endpoint(net, 3, |builder| builder.names(service.addr())).await;
    in_time(guest.connect("ssh.laptop.anna@example.org")).await.unwrap();
    drop(listener);

    user.revoke("laptop.anna@example.org").await.unwrap();
    let error = laptop.listen(options().delegation(Some(permission))).await.unwrap_err();
    assert!(matches!(error, ListenError::Publish { .. }), "{error}");
    let error = user.revoke("anna@example.org").await.unwrap_err();
    assert!(matches!(error, UserError::IsAUser(_)), "{error}");
}

/// A check that never ends keeps those waiting whom it is about, and nobody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_check_holds_up_nobody_else() {
    let net = 174;
    let server = endpoint(net, 1, |builder| builder).await;
    let slow = endpoint(net, 2, |builder| builder).await;
    let quick = endpoint(net, 3, |builder| builder).await;
    let (slow_id, begun) = (slow.id(), Arc::new(Notify::new()));
    let told = begun.clone();
    let allow = Allow::check(move |peer: EndpointId| {
        let told = told.clone();
        async move {
            if peer == slow_id {
                told.notify_one();
                std::future::pending::<()>().await;
            }
            true
        }
    });
    let mut listener = server.listen(ListenOptions::unnamed().allow(allow)).await.unwrap();
    let addr = server.addr();
    let waiting = tokio::spawn(async move { slow.connect(addr).await.map(drop) });
    in_time(begun.notified()).await;
    let connection = in_time(quick.connect(server.addr())).await.unwrap();
    assert_eq!(in_time(listener.accept()).await.unwrap().peer_id(), quick.id());
    // It can listen and close meanwhile, too.
    let other = ListenOptions::named("other@example.org").unpublished().allow(Allow::Any);
    drop(in_time(server.listen(other)).await.unwrap());
    let (code, _) = refusal(in_time(waiting).await.unwrap().unwrap_err());
    assert_eq!(code, CloseCode::BUSY);
    drop(connection);
}

/// Takes all that come in, and decides by their id.
fn doorman(mut listener: Listener, welcome: EndpointId, shown: Arc<AtomicUsize>) {
    tokio::spawn(async move {
        let mut guests = Vec::new();
        while let Some(incoming) = listener.incoming().await {
            shown.fetch_add(1, Ordering::Relaxed);
            assert!(incoming.remote().is_some());
            // As long as two carriers need to come in.
            tokio::time::sleep(Duration::from_millis(200)).await;
            if incoming.peer_id() == welcome {
                guests.extend(incoming.accept().await);
            } else {
                incoming.refuse(CloseCode::application(7), "we are closed");
            }
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_peer_is_shown_once_before_it_is_let_in_or_refused() {
    for (ask_first, host) in [(true, 1), (false, 11)] {
        let net = 175;
        let server = endpoint(net, host, |builder| builder).await;
        let friend = endpoint(net, host + 1, |builder| builder).await;
        let stranger = endpoint(net, host + 2, |builder| builder).await;
        let options = ListenOptions::unnamed().allow(Allow::Any);
        let options = if ask_first { options.ask_first() } else { options };
        let shown = Arc::new(AtomicUsize::new(0));
        doorman(server.listen(options).await.unwrap(), friend.id(), shown.clone());
        let connection = in_time(friend.connect(server.addr())).await.unwrap();
        let refused = in_time(async {
            match stranger.connect(server.addr()).await {
                Err(error) => refusal(error),
                // It was let in before it was shown.
                Ok(connection) => {
                    let end = connection.closed().await;
                    (end.code, end.reason)
                }
            }
        });
        assert_eq!(refused.await, (CloseCode::application(7), "we are closed".to_owned()));
        assert_eq!(shown.load(Ordering::Relaxed), 2, "ask first: {ask_first}");
        assert!(connection.close_reason().is_none());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_is_shown_and_dropped_is_refused() {
    let server = endpoint(176, 1, |builder| builder).await;
    let client = endpoint(176, 2, |builder| builder).await;
    let options = ListenOptions::unnamed().allow(Allow::Any).ask_first();
    let mut listener = server.listen(options).await.unwrap();
    tokio::spawn(async move { drop(listener.incoming().await) });
    let error = in_time(client.connect(server.addr())).await.unwrap_err();
    let ConnectError::Refused { code, reason, .. } = &error else { panic!("{error}") };
    assert_eq!(*code, CloseCode::NOT_ALLOWED);
    assert!(reason.contains("was asked"), "{error}");
    assert!(server.connections().is_empty());
}
