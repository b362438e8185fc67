//! A name service and endpoints on loopback addresses, each of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use whimbrel_base::{Name, Record, SecretKey, SignedRecord, UnixTime, next_sequence};
use whimbrel_names::protocol::{Decoder, Numbered, Reply, Request, Response, encode};
use whimbrel_names::{Admission, Limits, NameResolver, Service, Store};
use whimbrel_transport::{Connection, Endpoint, ManualMonitor, Stream, Watch};

/// The service's, and none that the system gives to outgoing connections: it must be free when the service
/// comes back.
pub const SERVICE_PORT: u16 = 4600;

pub const PATIENCE: Duration = Duration::from_secs(20);

/// Every test has a net of its own, so that they can run at once.
#[derive(Clone, Copy)]
pub struct Net(pub u8);

impl Net {
    pub fn ip(self, host: u8) -> IpAddr {
        IpAddr::from([127, 0, self.0, host])
    }
}

/// `RUST_LOG=whimbrel=debug` shows what happens.
pub fn log() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
}

pub fn key(seed: u8) -> SecretKey {
    SecretKey::from_bytes(&[seed; 32])
}

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub fn now() -> UnixTime {
    std::time::SystemTime::now().into()
}

/// An endpoint with its key, at an address of its own.
pub struct Host {
    pub key: SecretKey,
    pub endpoint: Endpoint,
    pub at: ManualMonitor,
}

pub async fn host(net: Net, last: u8, seed: u8) -> Host {
    log();
    let (key, at) = (key(seed), ManualMonitor::new([net.ip(last)]));
    let endpoint = Endpoint::builder().secret_key(key.clone()).monitor(at.clone()).bind().await.unwrap();
    Host { key, endpoint, at }
}

/// A name service, always at the same place, so that another one can take it over.
pub async fn service(net: Net, store: impl Store) -> Service {
    service_with(net, store, Limits::default()).await
}

/// As [`service`], with limits of its own.
pub async fn service_with(net: Net, store: impl Store, limits: Limits) -> Service {
    service_for(net, store, Admission::any(), limits).await
}

/// As [`service`], with a say in who may register.
pub async fn service_for(net: Net, store: impl Store, admission: Admission, limits: Limits) -> Service {
    log();
    let at = ManualMonitor::new([net.ip(200)]);
    let builder =
        Endpoint::builder().secret_key(key(200)).monitor(at).port(SERVICE_PORT).config(Service::config());
    let mut bound = builder.bind().await;
    // The sockets of the one before may need a moment to go.
    for _ in 0..500 {
        if bound.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        let at = ManualMonitor::new([net.ip(200)]);
        let builder =
            Endpoint::builder().secret_key(key(200)).monitor(at).port(SERVICE_PORT).config(Service::config());
        bound = builder.bind().await;
    }
    Service::start(bound.unwrap(), store, admission, limits).await.unwrap()
}

/// Waits until something is so.
pub async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let wait = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect(what);
}

/// As [`host`], with a resolver.
pub async fn named_host(net: Net, last: u8, seed: u8, service: &Service) -> (Host, Arc<NameResolver>) {
    let host = host(net, last, seed).await;
    let resolver = Arc::new(NameResolver::new(host.endpoint.clone(), service.addr()));
    host.endpoint.set_resolver(resolver.clone());
    (host, resolver)
}

pub fn record(name_of: &str, host: &Host, sequence: Option<u64>) -> SignedRecord {
    let record = Record {
        name: name(name_of),
        id: host.endpoint.id(),
        addrs: host.endpoint.addr().addrs,
        sequence: sequence.unwrap_or_else(|| next_sequence(None, now().as_millis())),
        expires: now().saturating_add(Duration::from_secs(86_400)),
        lifetime: Duration::from_secs(600),
        revoked: false,
    };
    SignedRecord::sign(record, &host.key, None).unwrap()
}

/// Speaks the protocol without the resolver's care.
pub struct Raw {
    stream: Stream,
    decoder: Decoder<Reply>,
    number: u64,
}

impl Raw {
    pub async fn connect(host: &Host, service: &Service) -> Self {
        let connection = host.endpoint.connect(service.addr()).await.unwrap();
        let stream = connection.open_stream().await.unwrap();
        Self { stream, decoder: Decoder::new(), number: 0 }
    }

    pub async fn send(&mut self, request: Request) -> u64 {
        self.number += 1;
        let message = encode(&Numbered { number: self.number, request }).unwrap();
        self.stream.write_all(&message).await.unwrap();
        self.number
    }

    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub fn connection(&self) -> Connection {
        self.stream.connection()
    }

    pub async fn reply(&mut self) -> Reply {
        let mut piece = [0; 4096];
        let read = async {
            loop {
                if let Some(reply) = self.decoder.next_message().unwrap() {
                    return reply;
                }
                let n = self.stream.read(&mut piece).await.unwrap();
                assert!(n > 0, "the service ended the stream");
                self.decoder.push(&piece[..n]);
            }
        };
        tokio::time::timeout(PATIENCE, read).await.unwrap()
    }

    pub async fn ask(&mut self, request: Request) -> Response {
        let number = self.send(request).await;
        match self.reply().await {
            Reply::Response { request, response } if request == number => response,
            other => panic!("{other:?}"),
        }
    }
}

/// Answers every stream with what comes in.
pub async fn echo(connection: Connection) {
    while let Ok(stream) = connection.accept_stream().await {
        tokio::spawn(async move {
            let (mut read, mut write) = stream.into_split();
            let _ = tokio::io::copy(&mut read, &mut write).await;
            let _ = write.shutdown().await;
        });
    }
}

pub async fn say(stream: &mut Stream, what: &[u8]) {
    stream.write_all(what).await.unwrap();
    let mut back = vec![0; what.len()];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut back)).await.expect("no echo in time").unwrap();
    assert_eq!(back, what);
}

/// The next record that a watch brings.
pub async fn next(watch: &mut Watch<Option<SignedRecord>>) -> SignedRecord {
    tokio::time::timeout(PATIENCE, watch.changed()).await.expect("no push in time").unwrap().unwrap()
}
