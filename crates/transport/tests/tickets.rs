//! Which peers a server remembers TLS sessions of, over real sockets.
#![allow(clippy::unwrap_used)]

mod raw;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use raw::{Answer, Identity, RawClient, segment_of};
use whimbrel_base::ConnectionId;
use whimbrel_proto::fuzzing::frame::{Frame, Open};
use whimbrel_proto::{CloseCode, Params, PathId};
use whimbrel_transport::{Allow, Endpoint, ListenOptions};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A valid OPEN.
fn open() -> Vec<u8> {
    let (connection, params) = (ConnectionId::random(), Params::default());
    segment_of(&Frame::Open(Open { connection, path: PathId(0), random: [3; 32], lost: Vec::new(), params }))
}

/// Sessions are remembered once their peer is let in. So strangers, each of whom gets tickets too, have nobody's
/// forgotten.
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
