//! Which peers a server remembers TLS sessions of, over real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::raw::{Answer, Identity, RawClient, segment_of};
use whimbrel_base::ConnectionId;
use whimbrel_proto::fuzzing::frame::{Frame, Open};
use whimbrel_proto::{CloseCode, Params, PathId};
use whimbrel_transport::{Allow, Endpoint, ListenOptions, Listener, ManualMonitor};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A valid OPEN.
fn open() -> Vec<u8> {
    let (connection, params) = (ConnectionId::random(), Params::default());
    segment_of(&Frame::Open(Open { connection, path: PathId(0), random: [3; 32], lost: Vec::new(), params }))
}

/// Sessions are remembered once their peer is let in. So strangers, each of whom gets tickets too, have
/// nobody's forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_remembered_of_those_who_are_let_in_alone() {
    let (friend, stranger) = (Identity::with_tickets(), Identity::with_tickets());
    let server = Endpoint::builder().ip(HERE).bind().await.unwrap();
    let options = ListenOptions::unnamed().allow(Allow::only([friend.key.id()]));
    let mut listener = server.listen(options).await.unwrap();
    let at = SocketAddr::new(HERE, server.port());
    let peers = tokio::task::spawn_blocking(move || {
        let client = RawClient::open(&friend, at, server.id());
        for _ in 0..2 {
            assert!(friend.dial(at).unwrap().is_resumed(), "its session is forgotten");
            let mut path = stranger.dial(at).unwrap();
            assert!(!path.is_resumed(), "the session of somebody who was refused is kept");
            path.send(&open()).unwrap();
            assert_eq!(path.answer().unwrap(), Answer::Refused(CloseCode::NOT_ALLOWED));
        }
        (client, server)
    });
    let accepted = listener.accept().await.unwrap();
    drop(peers.await.unwrap());
    drop(accepted);
}

/// An endpoint with a key of its own, at an address of its own.
async fn endpoint(last: u8) -> Endpoint {
    Endpoint::builder().monitor(ManualMonitor::new([ip(last)])).bind().await.unwrap()
}

fn ip(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 79, last])
}

async fn listen(endpoint: &Endpoint) -> Listener {
    endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap()
}

/// Whether the server knows a ticket of this client.
async fn is_resumed(client: &Arc<Identity>, at: SocketAddr) -> bool {
    let client = client.clone();
    tokio::task::spawn_blocking(move || client.dial(at).unwrap().is_resumed()).await.unwrap()
}

/// Tickets are the old identity: the next owner of a connection, under another key, shakes hands in full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_of_the_key_before_is_worth_nothing_at_the_next_owner() {
    const LIMIT: Duration = Duration::from_secs(10);
    let (old, next, client) = (endpoint(201).await, endpoint(202).await, endpoint(203).await);
    let mut listener = listen(&old).await;
    let connection = client.connect(old.addr()).await.unwrap();
    let served = listener.accept().await.unwrap();
    let friend = Arc::new(Identity::with_tickets());
    let (known, at, id) = (friend.clone(), SocketAddr::new(ip(201), old.port()), old.id());
    drop(tokio::task::spawn_blocking(move || RawClient::open(&known, at, id)).await.unwrap());
    assert!(is_resumed(&friend, at).await, "its tickets are of no use where it has them from");

    let asleep = served.suspend_for(next.id(), LIMIT).await.unwrap();
    drop(listener);
    old.close(Duration::from_secs(1)).await;
    let _listener = listen(&next).await;
    let here = next.resume(&asleep).await.unwrap();
    let followed = async {
        while connection.peer_id() != next.id() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(2 * LIMIT, followed).await.expect("the client goes on with the next owner");
    assert!(!is_resumed(&friend, SocketAddr::new(ip(202), next.port())).await, "tickets went to another key");
    assert_eq!(here.close_reason(), None);
}
