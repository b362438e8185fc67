//! The gateway between real endpoints, and ordinary servers behind it.
#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;
use whimbrel::{Allow, Connection, Endpoint, ListenOptions, ManualMonitor};
use whimbrel_access::Intents;
use whimbrel_proxy::{
    Answer, Destination, Gateway, GatewayServer, Guard, Opening, Quota, Reached, Request, Rules, Served,
    Status, Streams, Upstream, UpstreamError,
};

const LIMIT: Duration = Duration::from_secs(20);

fn at(net: u8, host: u8) -> ManualMonitor {
    ManualMonitor::new([IpAddr::from([127, 0, net, host])])
}

async fn endpoint(net: u8, host: u8) -> Endpoint {
    Endpoint::builder().monitor(at(net, host)).bind().await.unwrap()
}

/// A gateway that lets one client in, to loopback, and that client's connection.
async fn stage(net: u8, each: usize) -> (Connection, [Endpoint; 2]) {
    let (connection, endpoints, _) = staged(net, each).await;
    (connection, endpoints)
}

/// The same with the gateway, which can be asked what it has done.
async fn staged(net: u8, each: usize) -> (Connection, [Endpoint; 2], GatewayServer) {
    let (server, client) = (endpoint(net, 1).await, endpoint(net, 2).await);
    let options = ListenOptions::unnamed().allow(Allow::only([client.id()]));
    let mut listener = server.listen(options).await.unwrap();
    let rules = Rules::new(vec!["127.0.0.0/8".parse().unwrap()], false);
    let gateway = GatewayServer::new(Guard::new(rules), Quota::new(each, 100));
    let (ticket, told) = (server.ticket(None), gateway.clone());
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            let gateway = gateway.clone();
            tokio::spawn(async move {
                while let Ok(stream) = connection.accept_stream().await {
                    let gateway = gateway.clone();
                    tokio::spawn(async move {
                        let Ok(Served::Joined(mut stream, mut joined)) = gateway.serve(stream).await else {
                            return;
                        };
                        let _ = tokio::io::copy_bidirectional(&mut stream, &mut joined.socket).await;
                    });
                }
            });
        }
    });
    (client.connect(ticket).await.unwrap(), [server, client], told)
}

struct On(Connection);

impl Streams for On {
    fn open(&self) -> Opening<'_> {
        Box::pin(async { self.0.open_stream().await.map_err(|error| error.to_string()) })
    }
}

async fn reach(through: &Connection, to: SocketAddr) -> Result<Reached, UpstreamError> {
    let to: Destination = to.to_string().parse().unwrap();
    let gateway = Gateway::new(Arc::new(On(through.clone())));
    timeout(LIMIT, gateway.reach(&to, &Intents::default())).await.unwrap()
}

/// Answers each connection with what it read, once its end has come, and a word more.
async fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut all = Vec::new();
                if socket.read_to_end(&mut all).await.is_ok() {
                    let _ = socket.write_all(&[&all[..], b" and bye"].concat()).await;
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordinary_server_is_reached_through_the_gateway_and_both_ends_are_passed_on() {
    let (connection, _endpoints) = stage(181, 10).await;
    let to = server().await;
    let mut reached = reach(&connection, to).await.unwrap();
    assert_eq!(reached.by, format!("through the gateway, to {to}"));
    reached.stream.write_all(b"hello").await.unwrap();
    reached.stream.shutdown().await.unwrap();
    let mut all = String::new();
    timeout(LIMIT, reached.stream.read_to_string(&mut all)).await.unwrap().unwrap();
    assert_eq!(all, "hello and bye");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_gateway_has_connected_and_declined_is_counted() {
    let (connection, _endpoints, gateway) = staged(187, 10).await;
    // It counts once it has answered, so what it tells may be a moment older than what its client knows.
    let is_told = async |wanted: (u64, u64, u64)| {
        let begun = std::time::Instant::now();
        loop {
            let told = gateway.stats();
            if (told.open, told.connected, told.declined) == wanted {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "{told:?} and not {wanted:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    is_told((0, 0, 0)).await;
    let mut reached = reach(&connection, server().await).await.unwrap();
    is_told((1, 1, 0)).await;
    assert!(reach(&connection, "10.0.0.1:80".parse().unwrap()).await.is_err());
    is_told((1, 1, 1)).await;
    reached.stream.shutdown().await.unwrap();
    timeout(LIMIT, reached.stream.read_to_end(&mut Vec::new())).await.unwrap().unwrap();
    is_told((0, 1, 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_gateway_does_not_reach_is_told_as_what_it_is() {
    let (connection, _endpoints) = stage(182, 10).await;
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = reach(&connection, dead).await.err().unwrap();
    assert!(
        matches!(&error, UpstreamError::Unreachable { source, .. }
            if source.kind() == std::io::ErrorKind::ConnectionRefused),
        "{error}"
    );
    for (inside, what) in
        [("10.0.0.1:80", "private"), ("169.254.169.254:80", "secrets"), ("192.0.2.1:25", "mail")]
    {
        let error = reach(&connection, inside.parse().unwrap()).await.err().unwrap();
        assert!(matches!(&error, UpstreamError::Refused { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_has_no_more_connections_than_its_quota_and_slow_requests_count() {
    let (connection, _endpoints) = stage(183, 3).await;
    let to = server().await;
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(reach(&connection, to).await.unwrap());
    }
    // A stream that never says what it wants.
    let mut slow = connection.open_stream().await.unwrap();
    slow.write_all(&[1]).await.unwrap();
    let full = async || {
        let refused = reach(&connection, to).await.err()?;
        assert!(refused.to_string().contains("3 connections are open for this key"), "{refused}");
        Some(())
    };
    let begun = std::time::Instant::now();
    while full().await.is_none() {
        assert!(begun.elapsed() < LIMIT, "the slow stream does not count");
    }
    drop(slow);
    held.clear();
    while reach(&connection, to).await.is_err() {
        assert!(begun.elapsed() < LIMIT, "places do not come back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What the gateway answers to bytes.
async fn answer(connection: &Connection, says: &[u8]) -> Answer {
    let mut stream = connection.open_stream().await.unwrap();
    stream.write_all(says).await.unwrap();
    // It fails where the gateway has seen enough, has answered and takes no more.
    let _ = stream.shutdown().await;
    let mut all = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut all)).await.unwrap().unwrap();
    Answer::decode(&all).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_no_request_are_answered_with_what_is_wrong_and_reach_nothing() {
    let (connection, _endpoints) = stage(184, 10).await;
    let request = Request { to: server().await.to_string().parse().unwrap() }.encode();
    for wrong in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[2, 0, 0, 0],
        &[1, 0, 0, 80],
        &[1, 1, b'A', 0, 80],
        &[1, 3, b'a', b'\r', b'\n', 0, 80],
        &[],
        &request[..request.len() - 1],
    ] {
        let said = answer(&connection, wrong).await;
        assert_eq!(said.status, Status::NotUnderstood, "{wrong:?}: {}", said.text);
    }
    let version = answer(&connection, b"SSH-2.0-x\r\n").await.text;
    assert!(version.contains("version 83") && version.contains("this is version 1"), "{version}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_is_not_let_in_even_with_the_ticket() {
    let (_connection, [server, _client]) = stage(185, 10).await;
    let stranger = endpoint(185, 3).await;
    let refused = timeout(LIMIT, stranger.connect(server.ticket(None))).await.unwrap();
    assert!(matches!(refused, Err(whimbrel::ConnectError::Refused { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_is_no_gateway_is_told_from_one() {
    let (server, client) = (endpoint(186, 1).await, endpoint(186, 2).await);
    let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let ticket = server.ticket(None);
    tokio::spawn(async move {
        let connection = listener.accept().await.unwrap();
        for says in [&b"SSH-2.0-OpenSSH_9.6\r\n"[..], b""] {
            let mut stream = connection.accept_stream().await.unwrap();
            let _ = stream.write_all(says).await;
            let _ = stream.shutdown().await;
        }
        connection.closed().await;
    });
    let connection = client.connect(ticket).await.unwrap();
    for says in ["does not answer as a gateway", "is it a gateway?"] {
        let error = reach(&connection, "192.0.2.1:80".parse().unwrap()).await.err().unwrap();
        assert!(error.to_string().contains(says), "{error}");
    }
}
