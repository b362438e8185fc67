//! The public face: names, tickets and addresses in every form that a program may have them in.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use whimbrel::names::{Admission, Limits, MemoryStore, Service};
use whimbrel::{
    Allow, BindError, ConnectError, Connection, Endpoint, ListenError, ListenOptions, ManualMonitor,
    SecretKey, ServiceAddress, TargetError, Ticket, transport,
};

fn at(net: u8, host: u8) -> ManualMonitor {
    ManualMonitor::new([IpAddr::from([127, 0, net, host])])
}

/// `RUST_LOG=whimbrel=debug` shows what happens.
fn log() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
}

async fn service(net: u8) -> Service {
    log();
    let endpoint = transport::Endpoint::builder().monitor(at(net, 200)).bind().await.unwrap();
    Service::start(endpoint, MemoryStore::new(), Admission::any(), Limits::default()).await.unwrap()
}

async fn greet(connection: &Connection) {
    let mut stream = connection.open_stream().await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut back = String::new();
    stream.read_to_string(&mut back).await.unwrap();
    assert_eq!(back, "hello");
}

fn echo(mut listener: whimbrel::Listener) {
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            tokio::spawn(async move {
                while let Ok(stream) = connection.accept_stream().await {
                    let (mut read, mut write) = stream.into_split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                }
            });
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_may_be_written_in_many_ways() {
    let net = 161;
    let service = service(net).await;
    let addr = service.addr();
    let key = SecretKey::generate();
    let builder = Endpoint::builder().identity(key.clone()).names(Ticket::from(addr.clone()));
    let server = builder.monitor(at(net, 1)).bind().await.unwrap();
    assert_eq!(server.id(), key.id());
    echo(server.listen(ListenOptions::named("anna@example.org").allow(Allow::Any)).await.unwrap());

    let text = format!("{}@{}", addr.id, addr.addrs[0]);
    let client = Endpoint::builder().names(text).monitor(at(net, 2)).bind().await.unwrap();
    let name: whimbrel::Name = "anna@example.org".parse().unwrap();
    greet(&client.connect("anna@example.org").await.unwrap()).await;
    greet(&client.connect(" Anna@Example.org\n").await.unwrap()).await;
    greet(&client.connect(&name).await.unwrap()).await;
    greet(&client.connect(server.ticket(Some(name.clone()))).await.unwrap()).await;
    greet(&client.connect(server.ticket(None).to_string()).await.unwrap()).await;
    greet(&client.connect(server.addr()).await.unwrap()).await;
    greet(&client.connect_early(name).await.unwrap()).await;
    greet(&client.connect(key.id()).await.unwrap()).await;
    greet(&client.connect(key.id().to_string()).await.unwrap()).await;
    let nobody = SecretKey::generate().id();
    let wrong = client.connect(nobody).await.unwrap_err();
    assert!(matches!(wrong, ConnectError::NoAddress(id) if id == nobody), "{wrong}");
    assert!(client.names().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_said() {
    let net = 162;
    let wrong = Endpoint::builder().names("names.example.org").monitor(at(net, 1)).bind().await.unwrap_err();
    assert!(matches!(wrong, BindError::Names(_)), "{wrong}");

    let endpoint = Endpoint::builder().monitor(at(net, 1)).bind().await.unwrap();
    let wrong = endpoint.connect("no name").await.unwrap_err();
    assert!(matches!(wrong, ConnectError::Target(TargetError::Name { .. })), "{wrong}");
    let wrong = endpoint.connect("whimbrel:nobody").await.unwrap_err();
    assert!(matches!(wrong, ConnectError::Target(TargetError::Ticket(_))), "{wrong}");
    let wrong = endpoint.connect("anna@example.org").await.unwrap_err();
    assert!(matches!(wrong, ConnectError::NoResolver(_)), "{wrong}");
    let wrong = endpoint.listen(ListenOptions::named("anna").allow(Allow::Any)).await.unwrap_err();
    assert!(matches!(wrong, ListenError::Name(_)), "{wrong}");

    let service = service(net).await;
    let lasting = || Endpoint::builder().identity(SecretKey::generate()).names(service.addr());
    let named = lasting().monitor(at(net, 2)).bind().await.unwrap();
    let wrong = named.connect("anna@example.org").await.unwrap_err();
    assert!(matches!(wrong, ConnectError::NotFound(_)), "{wrong}");

    let options = ListenOptions::named("anna@example.org").allow(Allow::only([]));
    let listener = named.listen(options).await.unwrap();
    let other = lasting().monitor(at(net, 3)).bind().await.unwrap();
    // It is shown to those who may connect.
    let wrong = other.connect("anna@example.org").await.unwrap_err();
    assert!(matches!(wrong, ConnectError::NotFound(_)), "{wrong}");
    let names = named.names().unwrap();
    names.set_readers("anna@example.org".parse().unwrap(), whimbrel::names::Readers::Public).unwrap();
    drop(listener);
    let options = ListenOptions::named("anna@example.org").allow(Allow::only([]));
    let _listener = named.listen(options).await.unwrap();
    let wrong = other.connect("anna@example.org").await.unwrap_err();
    assert!(matches!(wrong, ConnectError::Refused { .. }), "{wrong}");
    let wrong = other.listen(ListenOptions::named("anna@example.org").allow(Allow::Any)).await.unwrap_err();
    assert!(wrong.to_string().contains("belongs to another key"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_outlives_the_endpoints_handles_and_still_follows_the_name() {
    let net = 163;
    let service = service(net).await;
    let server_at = at(net, 1);
    let server = Endpoint::builder().identity(SecretKey::generate()).names(service.addr());
    let server = server.monitor(server_at.clone()).bind().await.unwrap();
    echo(server.listen(ListenOptions::named("anna@example.org").allow(Allow::Any)).await.unwrap());
    let client_at = at(net, 2);
    let client = Endpoint::builder().names(service.addr()).monitor(client_at.clone()).bind().await.unwrap();
    let connection = client.connect("anna@example.org").await.unwrap();
    drop(client);
    for round in 0..5u8 {
        client_at.set([IpAddr::from([127, 0, net, 10 + round])]);
        server_at.set([IpAddr::from([127, 0, net, 20 + round])]);
        tokio::time::timeout(Duration::from_secs(10), greet(&connection)).await.expect("lost");
    }
    drop(connection);
    let wait = async {
        // The client's own watch ends with its connection.
        while service.stats().watches > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), wait).await.expect("the watch goes on");
    let _: ServiceAddress = service.addr().into();
}
