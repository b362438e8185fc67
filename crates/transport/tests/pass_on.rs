//! Endpoints that are passed on: another one goes on with their sockets and connections.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::raw::{Answer, Identity, RawClient, segment_of};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use whimbrel_base::{ConnectionId, SecretKey};
use whimbrel_proto::fuzzing::frame::{Frame, Open};
use whimbrel_proto::{Params, PathId};
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, Connection, Endpoint, ListenOptions, Listener, ManualMonitor, Stream,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn ip(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 79, last])
}

/// `RUST_LOG=whimbrel=debug` shows what happens.
async fn endpoint(key: &SecretKey, last: u8, carriers: Carriers) -> Endpoint {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
    let builder = Endpoint::builder().secret_key(key.clone()).monitor(ManualMonitor::new([ip(last)]));
    builder.carriers(carriers).bind().await.unwrap()
}

async fn listen(endpoint: &Endpoint) -> Listener {
    endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap()
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("in time")
}

/// There and back.
async fn carries(one: &mut Stream, other: &mut Stream, number: u64) {
    within(async {
        one.write_u64(number).await.unwrap();
        assert_eq!(other.read_u64().await.unwrap(), number);
        other.write_u64(number + 1).await.unwrap();
        assert_eq!(one.read_u64().await.unwrap(), number + 1);
    })
    .await;
}

fn only_stream(connection: &Connection) -> Stream {
    let mut streams = connection.streams();
    assert_eq!(streams.len(), 1, "{streams:?}");
    streams.remove(0)
}

/// A server with a client, and a connection of its own to another server.
async fn passed_on_with(carriers: Carriers, last: u8) {
    let key = SecretKey::generate();
    let mut at = endpoint(&key, last, carriers).await;
    let address = at.addr();
    let mut listener = listen(&at).await;
    let client = endpoint(&SecretKey::generate(), last + 1, carriers).await;
    let other = endpoint(&SecretKey::generate(), last + 2, carriers).await;
    let mut others = listen(&other).await;

    let connection = within(client.connect(address.clone())).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    let mut served = within(listener.accept()).await.unwrap();
    let mut its_stream = within(served.accept_stream()).await.unwrap();
    let mut dialled = within(at.connect(other.addr())).await.unwrap();
    let mut dialled_stream = dialled.open_stream().await.unwrap();
    let accepted = within(others.accept()).await.unwrap();
    let mut accepted_stream = within(accepted.accept_stream()).await.unwrap();
    carries(&mut stream, &mut its_stream, 1).await;
    carries(&mut dialled_stream, &mut accepted_stream, 5).await;

    for number in [10, 20] {
        let leaving = at.stop_listening().unwrap();
        // One that comes meanwhile waits.
        let newcomer = endpoint(&SecretKey::generate(), last + 3, carriers).await;
        let to = address.clone();
        let coming = tokio::spawn(async move { newcomer.connect(to).await.map(|came| (newcomer, came)) });
        tokio::time::sleep(Duration::from_millis(50)).await;
        // Under way when it is passed on.
        stream.write_u64(number).await.unwrap();
        its_stream.write_u64(number + 1).await.unwrap();
        dialled_stream.write_u64(number + 2).await.unwrap();
        let passed_on = leaving.pass_on(&[served.clone(), dialled.clone()]).await;
        let ids: Vec<_> = passed_on.connections.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [served.id(), dialled.id()]);
        drop((its_stream, served, dialled_stream, dialled, listener));

        let begun = Instant::now();
        let builder = Endpoint::builder().secret_key(key.clone()).monitor(ManualMonitor::new([ip(last)]));
        let builder = builder.sockets(passed_on.sockets.unwrap()).sessions(passed_on.sessions);
        at = builder.carriers(carriers).bind().await.unwrap();
        assert_eq!(at.addr(), address);
        let asleep: Vec<_> = passed_on.connections.into_iter().map(|(_, asleep)| asleep).collect();
        let waking = at.wake(&asleep).unwrap();
        listener = listen(&at).await;
        let mut awake = waking.begin().unwrap();
        (dialled, served) = (awake.pop().unwrap(), awake.pop().unwrap());
        (its_stream, dialled_stream) = (only_stream(&served), only_stream(&dialled));
        assert_eq!(within(its_stream.read_u64()).await.unwrap(), number);
        assert_eq!(within(stream.read_u64()).await.unwrap(), number + 1);
        assert_eq!(within(accepted_stream.read_u64()).await.unwrap(), number + 2);
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        carries(&mut stream, &mut its_stream, number).await;
        carries(&mut dialled_stream, &mut accepted_stream, number).await;
        let (_newcomer, came) = within(coming).await.unwrap().expect("nobody is turned away");
        let guest = within(listener.accept()).await.unwrap();
        assert_eq!(guest.id(), came.id());
    }
    assert_eq!(connection.close_reason(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_is_passed_on_with_all_its_connections() {
    tokio::join!(
        passed_on_with(Carriers::Only(CarrierKind::Tcp), 10),
        passed_on_with(Carriers::Only(CarrierKind::Quic), 20),
        passed_on_with(Carriers::Auto, 30)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_woken_and_dropped_before_it_begins_changes_nothing() {
    let key = SecretKey::generate();
    let at = endpoint(&key, 41, Carriers::Auto).await;
    let mut listener = listen(&at).await;
    let client = endpoint(&SecretKey::generate(), 42, Carriers::Auto).await;
    let connection = client.connect(at.addr()).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    let served = within(listener.accept()).await.unwrap();
    let mut its_stream = within(served.accept_stream()).await.unwrap();
    carries(&mut stream, &mut its_stream, 1).await;
    let passed_on = at.stop_listening().unwrap().pass_on(&[served]).await;
    let asleep: Vec<_> = passed_on.connections.into_iter().map(|(_, asleep)| asleep).collect();

    let elsewhere = endpoint(&key, 43, Carriers::Auto).await;
    drop(elsewhere.wake(&asleep).unwrap());
    assert!(elsewhere.connections().is_empty());
    // All or nothing.
    let broken = whimbrel_transport::Suspended::from_bytes([0; 100]);
    elsewhere.wake(&[asleep[0].clone(), broken]).unwrap_err();
    assert!(elsewhere.connections().is_empty());

    let builder = Endpoint::builder().secret_key(key.clone()).monitor(ManualMonitor::new([ip(41)]));
    let at = builder.sockets(passed_on.sockets.unwrap()).bind().await.unwrap();
    let awake = at.wake(&asleep).unwrap().begin().unwrap();
    carries(&mut stream, &mut only_stream(&awake[0]), 2).await;
}

/// A first flight that opens a connection, sent as early data: whether the server took it so.
async fn opens_early(client: &Arc<Identity>, at: SocketAddr) -> bool {
    let client = client.clone();
    let dialled = tokio::task::spawn_blocking(move || {
        let (connection, params) = (ConnectionId::random(), Params::default());
        let open = Open { connection, path: PathId(0), random: [3; 32], lost: Vec::new(), params };
        let mut path = client.dial_early(at, &segment_of(&Frame::Open(open))).unwrap();
        assert!(path.is_resumed(), "the ticket is not known");
        let verdict = path.verdict().unwrap();
        assert_eq!(path.answer().unwrap(), Answer::Accepted);
        path.was_early() && verdict == 1
    });
    within(dialled).await.unwrap()
}

/// A ticket is good for one handshake: the endpoint that leaves takes no first flight any more before its
/// sessions go over, and the next one takes those that came meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_from_before_is_taken_early_by_the_endpoint_that_goes_on_and_by_no_other() {
    let (key, carriers) = (SecretKey::generate(), Carriers::Only(CarrierKind::Tcp));
    let old = endpoint(&key, 51, carriers).await;
    let (to, id) = (SocketAddr::new(ip(51), old.port()), old.id());
    let mut listener = listen(&old).await;
    let client = Arc::new(Identity::with_tickets());
    let known = client.clone();
    let first = tokio::task::spawn_blocking(move || RawClient::open(&known, to, id));
    let mut accepted = vec![within(listener.accept()).await.unwrap()];
    let first = within(first).await.unwrap();
    assert!(opens_early(&client, to).await, "early data works while nobody leaves");
    accepted.push(within(listener.accept()).await.unwrap());

    let leaving = old.stop_listening().unwrap();
    let comer = client.clone();
    let coming = tokio::spawn(async move { opens_early(&comer, to).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let passed_on = leaving.pass_on(&[]).await;
    assert!(!coming.is_finished(), "the endpoint that leaves took a first flight");
    drop((first, accepted, listener, old));

    let builder = Endpoint::builder().secret_key(key).monitor(ManualMonitor::new([ip(51)]));
    let builder = builder.sockets(passed_on.sockets.unwrap()).sessions(passed_on.sessions);
    let new = builder.carriers(carriers).bind().await.unwrap();
    let mut listener = listen(&new).await;
    assert!(within(coming).await.unwrap(), "its ticket is not known where the endpoint goes on");
    assert_eq!(within(listener.accept()).await.unwrap().peer_id(), client.key.id());
}
