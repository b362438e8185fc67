//! Servers of peers behind a gateway, by port and by TLS, with clients that mean well and others.
#![allow(clippy::unwrap_used)]

use crate::publishing_support::{
    LIMIT, Stage, client, client_hello, echo, free_port, hears, id, ip, is_broken_off, says, server,
    try_client, until, within,
};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use whimbrel_proxy::{Publication, PublishError, PublishSettings};

/// As TLS says that nobody has this name (RFC 8446, §6).
const UNRECOGNIZED_NAME: &[u8] = &[21, 3, 3, 0, 2, 2, 112];

fn as_it_is(_: &mut PublishSettings) {}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_reaches_a_server_by_a_port_and_both_ends_are_passed_on() {
    let at = free_port(1).await;
    let rule = at.to_string();
    let stage = Stage::new(1, &[(&rule, 1)], as_it_is).await;
    let peer = stage.peer(1, 2, echo().await).await;
    let offering = peer.publish(&at.port().to_string()).await.unwrap();
    assert_eq!(offering.at(), at.to_string());
    let mut client = client(ip(1, 9), at).await;
    let from = client.local_addr().unwrap();
    client.write_all(b"hello").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(hears(&mut client).await, b"hello and bye");
    let came = peer.came();
    assert_eq!((came[0].from, came[0].at, &came[0].to), (from, at, &Publication::Port(at.port())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clients_connection_goes_on_while_the_server_moves() {
    const SIZE: usize = 24 << 20;
    let bytes: Arc<Vec<u8>> =
        Arc::new((0..SIZE as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect());
    let sent = bytes.clone();
    let download = server(move |mut socket| {
        let sent = sent.clone();
        async move { drop(socket.write_all(&sent).await) }
    })
    .await;
    let at = free_port(2).await;
    let rule = at.to_string();
    let stage = Stage::new(2, &[(&rule, 1)], as_it_is).await;
    let peer = stage.peer(1, 2, download).await;
    let _offering = peer.publish(&at.port().to_string()).await.unwrap();
    let mut client = TcpStream::connect(at).await.unwrap();
    let mut got = Vec::with_capacity(SIZE);
    for (host, part) in (3..).zip(1..=4) {
        let mut piece = vec![0; SIZE / 4];
        within("the download goes on", client.read_exact(&mut piece)).await.unwrap();
        got.extend_from_slice(&piece);
        if part < 4 {
            peer.move_to(host);
        }
    }
    assert!(got == *bytes);
    assert_eq!(hears(&mut client).await, b"", "it ends where it ends");
    assert_eq!(peer.came().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_operator_did_not_give_to_a_key_it_does_not_publish() {
    let stage = Stage::new(3, &[("www.example.org", 1), ("2222-2223", 1)], as_it_is).await;
    let stranger = stage.peer(2, 2, echo().await).await;
    for what in ["www.example.org", "other.example.org", "2222", "80"] {
        let error = stranger.publish(what).await.unwrap_err();
        assert!(matches!(&error, PublishError::Refused(_)), "{error}");
        assert!(error.to_string().contains("not for this key"), "{error}");
        assert!(!error.to_string().contains(&id(1).to_string()), "nobody is told whose it is");
    }
    // What it tried leaves nothing behind.
    assert_eq!(says(stage.tls().await, &client_hello("www.example.org")).await, UNRECOGNIZED_NAME);
    let none = Stage::new(4, &[], as_it_is).await;
    let error = none.peer(1, 2, echo().await).await.publish("www.example.org").await.unwrap_err();
    assert!(error.to_string().contains("publishes nothing"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_is_taken_is_told_and_a_peer_publishes_no_more_than_its_share() {
    let taken = TcpListener::bind((ip(5, 1), 0)).await.unwrap();
    let at = taken.local_addr().unwrap();
    let rule = at.to_string();
    let stage = Stage::new(5, &[(&rule, 1), ("*.example.org", 1)], as_it_is).await;
    let peer = stage.peer(1, 2, echo().await).await;
    let error = peer.publish(&at.port().to_string()).await.unwrap_err();
    assert!(matches!(&error, PublishError::Failed(_)), "{error}");
    assert!(error.to_string().contains(&format!("cannot listen on port {}", at.port())), "{error}");
    let mut held = Vec::new();
    for n in 0..16 {
        held.push(peer.publish(&format!("h{n}.example.org")).await.unwrap());
    }
    let error = peer.publish("more.example.org").await.unwrap_err();
    assert!(error.to_string().contains("too much is published"), "{error}");
    held.pop();
    until("a place comes back", async || peer.publish("more.example.org").await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_published_ends_with_the_stream_that_asked_for_it() {
    let at = free_port(6).await;
    let rule = at.to_string();
    let stage = Stage::new(6, &[(&rule, 1), ("www.example.org", 1)], as_it_is).await;
    let tls = stage.tls().await;
    let peer = stage.peer(1, 2, echo().await).await;
    let port = peer.publish(&at.port().to_string()).await.unwrap();
    let host = peer.publish("www.example.org").await.unwrap();
    let mut open = TcpStream::connect(at).await.unwrap();
    open.write_all(b"still ").await.unwrap();
    until("the client is there", async || !peer.came().is_empty()).await;
    drop(host);
    until("the host is unknown", async || {
        says(tls, &client_hello("www.example.org")).await == UNRECOGNIZED_NAME
    })
    .await;
    drop(port);
    until("nobody listens", async || TcpStream::connect(at).await.is_err()).await;
    // Clients that are there already stay.
    open.write_all(b"here").await.unwrap();
    open.shutdown().await.unwrap();
    assert_eq!(hears(&mut open).await, b"still here and bye");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_program_of_the_same_key_takes_the_place_of_the_older_one() {
    let at = free_port(7).await;
    let rule = at.to_string();
    let stage = Stage::new(7, &[(&rule, 1)], as_it_is).await;
    let says_its_number = |number: &'static str| {
        server(move |mut socket| async move { drop(socket.write_all(number.as_bytes()).await) })
    };
    let older = stage.peer(1, 2, says_its_number("one").await).await;
    let newer = stage.peer(1, 3, says_its_number("two").await).await;
    let mut first = older.publish(&at.port().to_string()).await.unwrap();
    assert_eq!(hears(&mut TcpStream::connect(at).await.unwrap()).await, b"one");
    let _second = newer.publish(&at.port().to_string()).await.unwrap();
    let told = within("the older one is told", first.ended()).await;
    assert!(matches!(&told, PublishError::Refused(why) if why.contains("another program")), "{told}");
    assert_eq!(hears(&mut TcpStream::connect(at).await.unwrap()).await, b"two");
    drop(first);
    assert_eq!(
        hears(&mut TcpStream::connect(at).await.unwrap()).await,
        b"two",
        "the end of the older one is none"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_answer_breaks_its_clients_and_tls_is_told() {
    let at = free_port(8).await;
    let rule = at.to_string();
    let stage = Stage::new(8, &[(&rule, 1), ("www.example.org", 1)], as_it_is).await;
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let peer = stage.peer(1, 2, dead).await;
    let _port = peer.publish(&at.port().to_string()).await.unwrap();
    let _host = peer.publish("www.example.org").await.unwrap();
    is_broken_off(ip(8, 9), at).await;
    let internal_error = [21, 3, 3, 0, 2, 2, 80];
    assert_eq!(says(stage.tls().await, &client_hello("www.example.org")).await, internal_error);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_behind_the_gateway_is_a_break_for_the_client() {
    let half = server(|mut socket| async move {
        let _ = socket.write_all(b"half").await;
        let _ = socket.read_u8().await;
        socket2::SockRef::from(&socket).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    })
    .await;
    let at = free_port(9).await;
    let rule = at.to_string();
    let stage = Stage::new(9, &[(&rule, 1)], as_it_is).await;
    let peer = stage.peer(1, 2, half).await;
    let _offering = peer.publish(&at.port().to_string()).await.unwrap();
    let mut client = TcpStream::connect(at).await.unwrap();
    let mut word = [0; 4];
    within("it comes", client.read_exact(&mut word)).await.unwrap();
    assert_eq!(&word, b"half");
    // The whole connection of the peer breaks, which is what its program does to a stream that breaks.
    peer.connection.abort(whimbrel::CloseCode::application(7), "gone");
    let error = within("it breaks", client.read(&mut [0; 9])).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_goes_to_the_host_that_it_asks_for_byte_by_byte() {
    let heard = Arc::<Mutex<Vec<u8>>>::default();
    let hearing = heard.clone();
    let listens = server(move |mut socket| {
        let hearing = hearing.clone();
        async move {
            let mut all = Vec::new();
            let _ = socket.read_to_end(&mut all).await;
            hearing.lock().unwrap().extend_from_slice(&all);
            let _ = socket.write_all(b"yes").await;
        }
    })
    .await;
    let stage = Stage::new(10, &[("*.example.org", 1), ("other.example.net", 2)], as_it_is).await;
    let tls = stage.tls().await;
    let (peer, other) = (stage.peer(1, 2, listens).await, stage.peer(2, 3, echo().await).await);
    let _www = peer.publish("www.example.org").await.unwrap();
    let _net = other.publish("other.example.net").await.unwrap();
    let hello = client_hello("WWW.Example.org");
    let words = [&hello[..], &[23, 3, 3, 0, 2, 1, 2]].concat();
    let mut client = TcpStream::connect(tls).await.unwrap();
    // In pieces, so that it is there only with the last one.
    for piece in words.chunks(7) {
        client.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    client.shutdown().await.unwrap();
    assert_eq!(hears(&mut client).await, b"yes");
    assert_eq!(*heard.lock().unwrap(), words);
    let hello = client_hello("other.example.net");
    assert_eq!(says(tls, &hello).await, [&hello[..], b" and bye"].concat());
    for unknown in ["example.org", "a.example.org", "www.example.org.evil.net", "192.0.2.1", "a b"] {
        assert_eq!(says(tls, &client_hello(unknown)).await, UNRECOGNIZED_NAME, "{unknown}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_slow_or_speaks_no_tls_is_not_waited_for() {
    let stage = Stage::new(11, &[("www.example.org", 1)], as_it_is).await;
    let tls = stage.tls().await;
    let peer = stage.peer(1, 2, echo().await).await;
    let _www = peer.publish("www.example.org").await.unwrap();
    assert_eq!(says(tls, b"GET / HTTP/1.1\r\nHost: www.example.org\r\n\r\n").await, b"");
    assert_eq!(says(tls, b"").await, b"");
    // A hello without end, in records of one byte.
    let endless = [1, 0, 0x3f, 0].into_iter().chain([0; 4000]).flat_map(|byte| [22, 3, 1, 0, 1, byte]);
    let told = says(tls, &endless.collect::<Vec<u8>>()).await;
    assert!(told == UNRECOGNIZED_NAME || told.is_empty(), "{told:?}");
    let mut slow = TcpStream::connect(tls).await.unwrap();
    let hello = client_hello("www.example.org");
    let begun = std::time::Instant::now();
    for byte in hello.iter().cycle() {
        if slow.write_all(&[*byte]).await.is_err() {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "it is waited for for ever");
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    assert!(peer.came().is_empty(), "no server hears of them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_from_one_place_leaves_others_theirs() {
    let at = free_port(12).await;
    let rule = at.to_string();
    let set = |settings: &mut PublishSettings| (settings.source, settings.each, settings.all) = (3, 4, 100);
    let stage = Stage::new(12, &[(&rule, 1)], set).await;
    let tls = stage.tls().await;
    let peer = stage.peer(1, 2, echo().await).await;
    let _port = peer.publish(&at.port().to_string()).await.unwrap();
    let mut served = Vec::new();
    for host in [9, 9, 9, 20] {
        let mut client = client(ip(12, host), at).await;
        client.write_all(b"x").await.unwrap();
        served.push(client);
    }
    until("they are there", async || peer.came().len() == 4).await;
    // Three are there from one place, and four in all.
    for from in [9, 30] {
        is_broken_off(ip(12, from), at).await;
    }
    // Those who say nothing count as well, for as long as they are waited for.
    let mut silent = Vec::new();
    until("silent ones count", async || {
        silent.extend(try_client(ip(12, 40), tls).await);
        let Ok(mut further) = try_client(ip(12, 40), tls).await else { return true };
        let _ = further.write_all(&client_hello("unknown.example.org")).await;
        hears(&mut further).await != UNRECOGNIZED_NAME
    })
    .await;
    assert_eq!(says(tls, &client_hello("unknown.example.org")).await, UNRECOGNIZED_NAME, "from elsewhere");
    let mut one = served.pop().unwrap();
    one.shutdown().await.unwrap();
    assert_eq!(hears(&mut one).await, b"x and bye");
    drop(served);
    until("places come back", async || {
        let Ok(mut client) = try_client(ip(12, 9), at).await else { return false };
        let _ = client.write_all(b"again").await;
        let _ = client.shutdown().await;
        hears(&mut client).await == b"again and bye"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_on_which_nothing_moves_is_broken_after_its_limit() {
    let at = free_port(13).await;
    let rule = at.to_string();
    let set = |settings: &mut PublishSettings| settings.idle = std::time::Duration::from_secs(1);
    let stage = Stage::new(13, &[(&rule, 1)], set).await;
    let peer = stage.peer(1, 2, echo().await).await;
    let _port = peer.publish(&at.port().to_string()).await.unwrap();
    is_broken_off(ip(13, 9), at).await;
}
