//! Moves and records of names: what is published, and what news of a record do to an attempt under way.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use whimbrel_base::{Name, Record, SecretKey, SignedRecord, UnixTime};
use whimbrel_transport::{
    AddressMonitor, AddressSet, Allow, BoxFuture, Connection, Endpoint, ListenOptions, LocalAddress,
    ManualMonitor, ResolveError, Resolver, Watch, Watched,
};

const NAME: &str = "anna@example.org";
const LIMIT: Duration = Duration::from_secs(5);
/// How long a record takes to be stored.
const PUBLISHING: Duration = Duration::from_millis(100);

fn ip(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 78, last])
}

/// A name service of one name that the test has in hand.
struct Book {
    records: Watched<Option<SignedRecord>>,
    /// What publishers began to tell, and what was stored.
    begun: watch::Sender<u64>,
    published: mpsc::UnboundedSender<SignedRecord>,
    /// How long a further lookup takes, and whether one was answered.
    slow: Duration,
    lookups: AtomicUsize,
    answered: Arc<AtomicBool>,
}

impl Book {
    fn new(slow: Duration) -> (Arc<Self>, mpsc::UnboundedReceiver<SignedRecord>) {
        let (published, receiver) = mpsc::unbounded_channel();
        let book = Self {
            records: Watched::new(None),
            begun: watch::Sender::new(0),
            published,
            slow,
            lookups: AtomicUsize::new(0),
            answered: Arc::default(),
        };
        (Arc::new(book), receiver)
    }

    fn enter(&self, key: &SecretKey, sequence: u64, addrs: impl IntoIterator<Item = SocketAddr>) {
        let record = Record {
            name: NAME.parse().unwrap(),
            id: key.id(),
            addrs: addrs.into_iter().collect(),
            sequence: UnixTime::from(SystemTime::now()).as_millis() + sequence,
            expires: UnixTime::from(SystemTime::now()).saturating_add(Duration::from_secs(86_400)),
            lifetime: Duration::from_secs(600),
            revoked: false,
        };
        self.records.set(Some(SignedRecord::sign(record, key, None).unwrap()));
    }
}

impl Resolver for Book {
    fn lookup<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<SignedRecord, ResolveError>> {
        Box::pin(async {
            if self.lookups.fetch_add(1, Ordering::SeqCst) > 0 {
                tokio::time::sleep(self.slow).await;
                self.answered.store(true, Ordering::SeqCst);
            }
            self.records.current().ok_or(ResolveError::NotFound)
        })
    }

    fn watch(&self, _: &Name) -> Watch<Option<SignedRecord>> {
        self.records.watch()
    }

    fn publish(&self, record: SignedRecord) -> BoxFuture<'_, Result<(), ResolveError>> {
        Box::pin(async {
            self.begun.send_modify(|count| *count += 1);
            tokio::time::sleep(PUBLISHING).await;
            self.published.send(record).unwrap();
            Ok(())
        })
    }
}

async fn endpoint(key: &SecretKey, last: u8) -> (Endpoint, ManualMonitor) {
    let monitor = ManualMonitor::new([ip(last)]);
    (Endpoint::builder().secret_key(key.clone()).monitor(monitor.clone()).bind().await.unwrap(), monitor)
}

/// A server that echoes what comes on every stream.
async fn echo(key: &SecretKey, last: u8) -> (Endpoint, SocketAddr) {
    let (server, _) = endpoint(key, last).await;
    let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            while let Ok(stream) = connection.accept_stream().await {
                let (mut read, mut write) = stream.into_split();
                tokio::spawn(async move { tokio::io::copy(&mut read, &mut write).await });
            }
        }
    });
    let address = server.addr().addrs[0];
    (server, address)
}

async fn say(stream: &mut whimbrel_transport::Stream, what: &[u8]) {
    stream.write_all(what).await.unwrap();
    let mut back = vec![0; what.len()];
    tokio::time::timeout(LIMIT, stream.read_exact(&mut back)).await.expect("no echo").unwrap();
    assert_eq!(back, what);
}

async fn connect(client: &Endpoint) -> (Connection, whimbrel_transport::Stream) {
    let connection = client.connect(&NAME.parse::<Name>().unwrap()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    say(&mut stream, b"before").await;
    (connection, stream)
}

/// A client without any address asks for the record again. An address that comes meanwhile is used at once,
/// whether that question is ever answered or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_is_used_although_a_lookup_is_not_answered() {
    let (key, (book, _published)) = (SecretKey::generate(), Book::new(Duration::from_secs(60)));
    let (_server, address) = echo(&key, 1).await;
    book.enter(&key, 0, [address]);
    let (client, at) = endpoint(&SecretKey::generate(), 2).await;
    client.set_resolver(book.clone());
    let (_connection, mut stream) = connect(&client).await;
    at.set([]);
    while book.lookups.load(Ordering::SeqCst) < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    at.set([ip(3)]);
    // The resolver's own limit is 2 s.
    let soon = tokio::time::timeout(Duration::from_secs(1), say(&mut stream, b"after"));
    soon.await.expect("the lookup was waited for");
    assert!(!book.answered.load(Ordering::SeqCst));
}

/// News of more addresses don't throw a path away that was opened to one of them and is being answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_being_answered_outlives_a_new_record_with_its_address() {
    let (key, (book, _published)) = (SecretKey::generate(), Book::new(Duration::ZERO));
    let (_server, address) = echo(&key, 11).await;
    let way = TcpListener::bind((ip(12), 0)).await.unwrap();
    let by_way = way.local_addr().unwrap();
    let (sender, mut dialled) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = way.accept().await.unwrap();
            let sender = sender.clone();
            tokio::spawn(async move {
                // With its first flight here, the client has its connection and waits for the answer.
                let Ok(1..) = client.peek(&mut [0]).await else { return };
                sender.send(()).unwrap();
                let mut server = TcpStream::connect(address).await.unwrap();
                tokio::time::sleep(Duration::from_millis(10)).await;
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    book.enter(&key, 0, [by_way]);
    let (client, at) = endpoint(&SecretKey::generate(), 13).await;
    client.set_resolver(book.clone());
    let (_connection, mut stream) = connect(&client).await;
    dialled.recv().await.unwrap();
    // The server has told its own address meanwhile; the record is newer.
    book.enter(&key, 1, [by_way]);
    tokio::time::sleep(Duration::from_millis(100)).await;
    for turn in 2..20 {
        at.set([ip(20 + turn)]);
        tokio::time::timeout(LIMIT, dialled.recv()).await.expect("not dialled again").unwrap();
        let start = Instant::now();
        book.enter(&key, turn.into(), [by_way, SocketAddr::new(ip(15), turn.into())]);
        say(&mut stream, b"after").await;
        if start.elapsed() < Duration::from_millis(45) {
            assert!(dialled.try_recv().is_err(), "dialled once more");
            return;
        }
        // An answer that late is rightly not waited for. This machine is busy: once more.
        while dialled.try_recv().is_ok() {}
    }
    panic!("never answered in time");
}

/// Addresses that the test sets, of a host that has further ones.
struct Host(Arc<Watched<Arc<AddressSet>>>);

impl Host {
    fn set(ips: &[&str]) -> Arc<AddressSet> {
        let addresses = ips.iter().map(|ip| LocalAddress { ip: ip.parse().unwrap(), interface: None });
        Arc::new(AddressSet { addresses: addresses.collect(), ..AddressSet::default() })
    }
}

impl AddressMonitor for Host {
    fn watch(&self) -> Watch<Arc<AddressSet>> {
        self.0.watch()
    }
}

/// Between two networks a host has its loopback address only, which is no news for anybody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loopback_addresses_do_not_replace_a_record_between_two_networks() {
    let addresses = Arc::new(Watched::new(Host::set(&["127.0.0.1", "192.0.2.1"])));
    let server = Endpoint::builder()
        .secret_key(SecretKey::generate())
        .monitor(Host(addresses.clone()))
        .bind()
        .await
        .unwrap();
    let (book, mut published) = Book::new(Duration::ZERO);
    server.set_resolver(book);
    let _listener = server.listen(ListenOptions::named(NAME).allow(Allow::Any)).await.unwrap();
    let mut seen = Vec::new();
    for ips in [&["127.0.0.1"][..], &["127.0.0.1", "192.0.2.2"]] {
        tokio::time::sleep(Duration::from_millis(50)).await;
        addresses.set(Host::set(ips));
    }
    let is_last = |record: &SignedRecord| record.record().addrs[0].ip() == IpAddr::from([192, 0, 2, 2]);
    while !seen.last().is_some_and(is_last) {
        seen.push(tokio::time::timeout(LIMIT, published.recv()).await.expect("not published").unwrap());
    }
    let ips: Vec<String> = seen.iter().map(|record| record.record().addrs[0].ip().to_string()).collect();
    assert_eq!(ips, ["192.0.2.1", "192.0.2.2"]);
}

/// Something else changes on the host while a new record is on its way, but not its address: the record still
/// goes out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_is_published_although_other_news_come_meanwhile() {
    let (book, mut published) = Book::new(Duration::ZERO);
    let (server, at) = endpoint(&SecretKey::generate(), 1).await;
    server.set_resolver(book.clone());
    let mut begun = book.begun.subscribe();
    let _listener = server.listen(ListenOptions::named(NAME).allow(Allow::Any)).await.unwrap();
    let first = published.recv().await.unwrap();
    assert_eq!(first.record().addrs[0].ip(), ip(1));
    at.set([ip(2)]);
    tokio::time::timeout(LIMIT, begun.wait_for(|count| *count >= 2)).await.expect("not told").unwrap();
    at.wake();
    let second = tokio::time::timeout(LIMIT, published.recv()).await.expect("never published").unwrap();
    assert_eq!(second.record().addrs[0].ip(), ip(2));
}
