//! Connections that are put to sleep and woken elsewhere, over real sockets on loopback addresses.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use whimbrel_base::SecretKey;
use whimbrel_transport::{
    Allow, Class, CloseCode, Connection, ConnectionEvent, Endpoint, Events, Flow, FlowOptions, ListenOptions,
    Listener, ManualMonitor, Outcome, ResumeError, SendOptions, Stream, Suspended,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn ip(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 78, last])
}

/// `RUST_LOG=whimbrel=debug` shows what happens.
async fn endpoint(key: &SecretKey, last: u8) -> Endpoint {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
    let monitor = ManualMonitor::new([ip(last)]);
    Endpoint::builder().secret_key(key.clone()).monitor(monitor).bind().await.unwrap()
}

async fn listen(endpoint: &Endpoint) -> Listener {
    endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap()
}

/// A server that answers each number with the next one, and counts its connections.
async fn counting(server: &Endpoint) -> Arc<AtomicUsize> {
    let (mut listener, accepted) = (listen(server).await, Arc::new(AtomicUsize::new(0)));
    let count = accepted.clone();
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let mut stream = connection.accept_stream().await.unwrap();
                while let Ok(number) = stream.read_u64().await {
                    stream.write_u64(number + 1).await.unwrap();
                }
            });
        }
    });
    accepted
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("in time")
}

async fn next_number(stream: &mut Stream, number: u64) -> u64 {
    within(async {
        stream.write_u64(number).await.unwrap();
        stream.read_u64().await.unwrap()
    })
    .await
}

fn only_stream(connection: &Connection) -> Stream {
    let mut streams = connection.streams();
    assert_eq!(streams.len(), 1, "{streams:?}");
    streams.remove(0)
}

async fn told(events: &mut Events, wanted: &ConnectionEvent) {
    within(async { while events.next().await.expect("an open connection") != *wanted {} }).await;
}

/// The peer counts on, and notices nothing but that it waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_hops_through_four_endpoints() {
    let server = endpoint(&SecretKey::generate(), 1).await;
    let accepted = counting(&server).await;
    let key = SecretKey::generate();
    let mut at = endpoint(&key, 11).await;
    let mut connection = at.connect(server.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    let (id, mut number) = (connection.id(), 1);
    for hop in 12..15 {
        for _ in 0..10 {
            number = next_number(&mut stream, number).await;
        }
        // Under way when it sleeps: perhaps not sent, perhaps answered and not read.
        stream.write_u64(number).await.unwrap();
        let asleep = connection.suspend(Duration::from_secs(5)).await.unwrap();
        let gone = stream.read_u64().await.unwrap_err();
        assert!(gone.to_string().contains("suspended"), "{gone}");
        at.close(Duration::from_secs(5)).await;

        at = endpoint(&key, hop).await;
        connection = at.resume(&Suspended::from_bytes(asleep.into_bytes())).await.unwrap();
        assert_eq!(connection.id(), id);
        stream = only_stream(&connection);
        number = within(stream.read_u64()).await.unwrap();
    }
    assert_eq!(number, 34);
    assert_eq!(accepted.load(Ordering::Relaxed), 1);
}

/// The side that listened hops; its client is told, waits, and is called to the new place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_hops_and_its_client_follows() {
    let key = SecretKey::generate();
    let mut server = endpoint(&key, 21).await;
    let mut listener = listen(&server).await;
    let client = endpoint(&SecretKey::generate(), 31).await;
    let connection = client.connect(server.addr()).await.unwrap();
    let mut events = connection.events();
    let mut stream = connection.open_stream().await.unwrap();
    stream.write_u64(1).await.unwrap();
    let mut served = within(listener.accept()).await.unwrap();
    let mut its_stream = within(served.accept_stream()).await.unwrap();
    for hop in 22..25 {
        let number = within(its_stream.read_u64()).await.unwrap();
        its_stream.write_u64(number + 1).await.unwrap();
        let asleep = served.suspend(Duration::from_secs(5)).await.unwrap();
        told(&mut events, &ConnectionEvent::PeerSuspended).await;
        // Written while nobody is there.
        stream.write_u64(number + 1).await.unwrap();
        drop(listener);
        server.close(Duration::from_secs(5)).await;

        server = endpoint(&key, hop).await;
        listener = listen(&server).await;
        served = server.resume(&asleep).await.unwrap();
        its_stream = only_stream(&served);
        assert_eq!(within(stream.read_u64()).await.unwrap(), number + 1);
        told(&mut events, &ConnectionEvent::PeerResumed).await;
    }
    assert_eq!(within(its_stream.read_u64()).await.unwrap(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flows_are_there_after_waking_and_close_with_their_last_handle() {
    let server = endpoint(&SecretKey::generate(), 81).await;
    let mut listener = listen(&server).await;
    let key = SecretKey::generate();
    let client = endpoint(&key, 82).await;
    let connection = client.connect(server.addr()).await.unwrap();
    let accepted = within(listener.accept()).await.unwrap();
    let [kept, closed] = [Class::RELIABLE_SEQUENCED, Class::RELIABLE].map(FlowOptions::new);
    let kept = connection.open_flow(kept).await.unwrap();
    drop(connection.open_flow(closed).await.unwrap());
    kept.send("before", SendOptions::default()).await.unwrap();
    let asleep = connection.suspend(Duration::from_secs(5)).await.unwrap();
    client.close(Duration::from_secs(5)).await;

    let client = endpoint(&key, 83).await;
    let connection = client.resume(&asleep).await.unwrap();
    let flows = connection.flows();
    assert_eq!(flows.iter().map(Flow::id).collect::<Vec<_>>(), [kept.id()]);
    // Another handle of the same flow does not close it.
    drop(connection.flows());
    flows[0].send("after", SendOptions::default()).await.unwrap();
    for expected in ["before", "after"] {
        assert_eq!(within(accepted.recv_message()).await.unwrap().data, expected.as_bytes());
    }
    drop(flows);
    assert!(connection.flows().is_empty());
}

/// Those that arrived together are taken from the engine together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_the_application_did_not_take_come_after_waking_once_and_in_order() {
    let key = SecretKey::generate();
    let server = endpoint(&key, 95).await;
    let mut listener = listen(&server).await;
    let client = endpoint(&SecretKey::generate(), 96).await;
    let connection = client.connect(server.addr()).await.unwrap();
    let flow = connection.open_flow(FlowOptions::new(Class::RELIABLE_SEQUENCED)).await.unwrap();
    let served = within(listener.accept()).await.unwrap();
    for number in 0..200_u8 {
        flow.send([number; 100], SendOptions::default()).await.unwrap();
    }
    let all_came = async {
        while served.stats().messages.received < 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(all_came).await;
    for number in 0..10 {
        assert_eq!(within(served.recv_message()).await.unwrap().data, [number; 100]);
    }
    let asleep = served.suspend(PATIENCE).await.unwrap();
    assert!(within(served.recv_message()).await.is_err(), "it is in the snapshot, and nowhere else");
    drop(listener);
    server.close(Duration::from_secs(5)).await;

    let server = endpoint(&key, 97).await;
    let _listener = listen(&server).await;
    let served = server.resume(&asleep).await.unwrap();
    let told = flow.send([200; 100], SendOptions::default()).await.unwrap();
    for number in 10..=200 {
        assert_eq!(within(served.recv_message()).await.unwrap().data, [number; 100]);
    }
    assert_eq!(within(told).await, Outcome::Delivered);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_copies_the_first_goes_on_and_the_other_is_told() {
    let server = endpoint(&SecretKey::generate(), 41).await;
    counting(&server).await;
    let key = SecretKey::generate();
    let at = endpoint(&key, 42).await;
    let connection = at.connect(server.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    assert_eq!(next_number(&mut stream, 1).await, 2);
    let asleep = connection.suspend(Duration::from_secs(5)).await.unwrap();

    let first_at = endpoint(&key, 43).await;
    let first = first_at.resume(&asleep).await.unwrap();
    let mut stream = only_stream(&first);
    assert_eq!(next_number(&mut stream, 2).await, 3);
    let second_at = endpoint(&key, 44).await;
    let second = second_at.resume(&asleep).await.unwrap();
    let reason = within(second.closed()).await;
    assert_eq!(reason.code, CloseCode::SUPERSEDED, "{reason}");
    assert_eq!(next_number(&mut stream, 3).await, 4);
    // Asleep once more: this is newer than what the others have.
    let asleep_again = first.suspend(Duration::from_secs(5)).await.unwrap();
    let third = second_at.resume(&asleep_again).await.unwrap();
    assert_eq!(next_number(&mut only_stream(&third), 4).await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_server_that_was_superseded_is_told() {
    let key = SecretKey::generate();
    let server = endpoint(&key, 91).await;
    let mut listener = listen(&server).await;
    let client = endpoint(&SecretKey::generate(), 92).await;
    let connection = client.connect(server.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    stream.write_u64(1).await.unwrap();
    let served = within(listener.accept()).await.unwrap();
    let mut its_stream = within(served.accept_stream()).await.unwrap();
    assert_eq!(within(its_stream.read_u64()).await.unwrap(), 1);
    let asleep = served.suspend(Duration::from_secs(5)).await.unwrap();
    drop(listener);
    server.close(Duration::from_secs(5)).await;

    let first_at = endpoint(&key, 93).await;
    let first = first_at.resume(&asleep).await.unwrap();
    let mut its_stream = only_stream(&first);
    its_stream.write_u64(2).await.unwrap();
    assert_eq!(within(stream.read_u64()).await.unwrap(), 2);
    // It calls the client, which goes on with the first.
    let second_at = endpoint(&key, 94).await;
    let second = second_at.resume(&asleep).await.unwrap();
    let reason = within(second.closed()).await;
    assert_eq!(reason.code, CloseCode::SUPERSEDED, "{reason}");
    // The first one's calls, late or played again, are not held against it.
    tokio::time::sleep(Duration::from_millis(500)).await;
    its_stream.write_u64(3).await.unwrap();
    assert_eq!(within(stream.read_u64()).await.unwrap(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_its_owner_can_wake_a_connection_and_only_unchanged() {
    let server = endpoint(&SecretKey::generate(), 51).await;
    counting(&server).await;
    let at = endpoint(&SecretKey::generate(), 52).await;
    let connection = at.connect(server.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    assert_eq!(next_number(&mut stream, 1).await, 2);
    let asleep = connection.suspend(Duration::from_secs(5)).await.unwrap();
    let thief = endpoint(&SecretKey::generate(), 53).await;
    let refused = thief.resume(&asleep).await.unwrap_err();
    assert!(matches!(&refused, ResumeError::OtherOwner { owner, .. } if *owner == at.id()), "{refused}");
    let mut changed = asleep.as_bytes().to_vec();
    *changed.last_mut().unwrap() ^= 1;
    let refused = at.resume(&Suspended::from_bytes(changed)).await.unwrap_err();
    assert!(matches!(refused, ResumeError::Damaged), "{refused}");
    let refused = at.resume(&Suspended::from_bytes("nonsense")).await.unwrap_err();
    assert!(matches!(refused, ResumeError::NotSuspended), "{refused}");
    // Nothing of that has hurt it.
    let awake = at.resume(&asleep).await.unwrap();
    assert_eq!(next_number(&mut only_stream(&awake), 2).await, 3);
}
