//! Tunnels of the HTTP proxy are sessions where there is a gateway that keeps them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::SocketAddr;
use std::sync::Arc;

use crate::sessions_support::{Device, On, Server, Stage, endpoint, hand, random, within};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use whimbrel::{Allow, ListenOptions};
use whimbrel_proxy::{
    Destination, Gateway, HttpProxy, HttpSettings, Outcome, Standing, Takers, Upstream as _,
};

const MIB: usize = 1024 * 1024;

/// A program behind the HTTP proxy of a device, in a tunnel that it was granted. It said this behind its
/// request.
async fn tunnel(device: &Device, to: SocketAddr, early: &[u8]) -> TcpStream {
    let streams = Arc::new(On(device.connection.clone()));
    let gateway = Gateway::new(streams).with_sessions(device.takers.clone());
    let proxy = HttpProxy::new(Arc::new(gateway), HttpSettings::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut program = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    tokio::spawn(async move { proxy.serve(listener).await });
    let request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").into_bytes();
    program.write_all(&[&request[..], early].concat()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within("an answer comes", program.read_u8()).await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
    program
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_moves_to_another_device_and_what_was_said_behind_connect_is_not_lost() {
    let stage = Stage::new(190).await;
    let (phone, desk) = (stage.device(2, &[]).await, stage.device(3, &[]).await);
    let file = random(1, 6 * MIB);
    // It is not over before it moves.
    let server = Server::up_to(file.clone(), 3 * MIB).await;
    let mut old = tunnel(&phone, server.address, b"early").await;
    server.wait_for(5).await;
    assert_eq!(server.heard(), b"early");
    let mut first = vec![0; MIB];
    within("bytes come", old.read_exact(&mut first)).await.unwrap();
    let id = phone.sessions.list().await.unwrap()[0].id;
    phone.hand_off(id, &desk).await;
    // It reads on while the session moves, as fast as it can.
    let reading = tokio::spawn(async move {
        let mut rest = Vec::new();
        let looks_whole = within("an end comes", old.read_to_end(&mut rest)).await.is_ok();
        (rest, looks_whole)
    });
    let mut new = desk.take(id).await;
    server.open.send_replace(file.len());
    let (second, is_whole) = new.rest().await;
    assert!(is_whole, "the server ended in order");
    let (rest, looks_whole) = reading.await.unwrap();
    assert!(!looks_whole, "half a file must not look like a whole one");
    first.extend_from_slice(&rest);
    assert_eq!(new.offset, first.len() as u64);
    assert_eq!(first.len() + second.len(), file.len(), "bytes were lost, or came twice");
    assert_eq!(Sha256::digest([first, second].concat()), Sha256::digest(&*file));
    assert_eq!(new.outcome().await, Outcome::Ended);
    assert_eq!((server.connections(), server.heard()), (1, b"early".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_that_does_not_move_ends_in_order_in_both_directions() {
    let stage = Stage::new(191).await;
    let phone = stage.device(2, &[]).await;
    let file = random(2, MIB);
    let server = Server::new(file.clone()).await;
    let mut program = tunnel(&phone, server.address, b"").await;
    program.write_all(b"words").await.unwrap();
    program.shutdown().await.unwrap();
    let mut all = Vec::new();
    within("an end comes", program.read_to_end(&mut all)).await.unwrap();
    assert!(all == *file && server.end().await);
    assert_eq!(server.heard(), b"words");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_with_tls_in_it_stays_on_its_device() {
    let stage = Stage::new(192).await;
    let desk = stage.device(3, &[]).await;
    let phone = stage.device(2, &[desk.id()]).await;
    let server = Server::up_to(random(3, 9), 0).await;
    // The beginning of a handshake record.
    let _program = tunnel(&phone, server.address, b"\x16\x03\x01\x02\x00").await;
    server.wait_for(5).await;
    let own = phone.sessions.list().await.unwrap();
    assert_eq!((own.len(), own[0].standing), (1, Standing::Fixed));
    assert!(desk.sessions.list().await.unwrap().is_empty(), "it is shown to its device alone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_program_left_before_the_answer_is_given_up_in_words() {
    let (gate, phone) = (endpoint(193, 1).await.0, endpoint(193, 2).await.0);
    let mut listener = gate.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let connecting = phone.connect(gate.ticket(None));
    let connected = async { tokio::join!(connecting, listener.accept()) };
    let (own, other) = within("the phone connects", connected).await;
    let (own, other) = (own.unwrap(), other.unwrap());
    let gateway = Gateway::new(Arc::new(On(own))).with_sessions(Takers::new([]));
    let to: Destination = "127.0.0.1:9".parse().unwrap();
    let mut opening = gateway.session(&to).unwrap();
    // A gateway that takes its time to connect.
    let asked = async {
        let mut stream = other.accept_stream().await.unwrap();
        stream.read_u8().await.unwrap();
        stream
    };
    let mut asked = tokio::select! {
        _ = &mut opening => panic!("nobody has answered"),
        asked = within("it asks", asked) => asked,
    };
    drop(opening);
    let mut rest = Vec::new();
    within("an end comes", asked.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.ends_with(&[hand::BROKEN, 0, 0]), "it would be held: {rest:?}");
}
