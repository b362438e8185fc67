//! Both sides asleep at once, found again by name.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel::names::{Admission, Limits, MemoryStore, Service};
use whimbrel::{Allow, Endpoint, ListenOptions, Listener, ManualMonitor, SecretKey, transport};

const NAME: &str = "counter.ada@example.org";
const PATIENCE: Duration = Duration::from_secs(5);

fn at(host: u8) -> ManualMonitor {
    ManualMonitor::new([IpAddr::from([127, 0, 179, host])])
}

async fn endpoint(key: &SecretKey, service: &Service, host: u8) -> Endpoint {
    let builder = Endpoint::builder().identity(key.clone()).names(service.addr()).monitor(at(host));
    builder.bind().await.unwrap()
}

async fn listen(server: &Endpoint) -> Listener {
    server.listen(ListenOptions::named(NAME).allow(Allow::Any)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_sleep_at_once_and_find_each_other_by_name_on_other_hosts() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
    let own = transport::Endpoint::builder().monitor(at(200)).bind().await.unwrap();
    let service = Service::start(own, MemoryStore::new(), Admission::any(), Limits::default()).await.unwrap();
    let (ada, bob) = (SecretKey::generate(), SecretKey::generate());
    let mut server = endpoint(&ada, &service, 1).await;
    server.register_user("ada@example.org").await.unwrap();
    let mut listener = listen(&server).await;
    let mut client = endpoint(&bob, &service, 101).await;
    let mut ours = client.connect(NAME).await.unwrap();
    let mut stream = ours.open_stream().await.unwrap();
    stream.write_u64(1).await.unwrap();
    let mut theirs = listener.accept().await.unwrap();
    let mut its_stream = theirs.accept_stream().await.unwrap();
    for (host, client_wakes_first) in [(2, true), (3, false), (4, true)] {
        let number = its_stream.read_u64().await.unwrap();
        its_stream.write_u64(number + 1).await.unwrap();
        let (one, other) = tokio::join!(ours.suspend(PATIENCE), theirs.suspend(PATIENCE));
        let (our_bytes, their_bytes) = (one.unwrap(), other.unwrap());
        drop(listener);
        tokio::join!(client.close(PATIENCE), server.close(PATIENCE));

        client = endpoint(&bob, &service, 100 + host).await;
        if client_wakes_first {
            ours = client.resume(&our_bytes).await.unwrap();
            // It looks for the server where that no longer is.
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        server = endpoint(&ada, &service, host).await;
        theirs = server.resume(&their_bytes).await.unwrap();
        // Its name tells where it is: a client that comes then finds it awake.
        listener = listen(&server).await;
        if !client_wakes_first {
            ours = client.resume(&our_bytes).await.unwrap();
        }
        stream = ours.streams().pop().unwrap();
        its_stream = theirs.streams().pop().unwrap();
        let limit = Duration::from_secs(30);
        let answer = tokio::time::timeout(limit, stream.read_u64()).await.expect("in time").unwrap();
        assert_eq!(answer, number + 1);
        stream.write_u64(answer).await.unwrap();
    }
    assert_eq!(its_stream.read_u64().await.unwrap(), 4);
}
