//! Servers of peers behind a gateway, told apart by the host of HTTP requests.
#![allow(clippy::unwrap_used)]

use crate::publishing_support::{LIMIT, Peer, Stage, hears, server, until, within};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use whimbrel_proxy::Offering;

/// A server, and the heads of the requests that it got.
struct Site {
    at: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Site {
    /// Answers each request with this name. What comes with a length or in chunks is read.
    async fn start(name: &'static str) -> Self {
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let seeing = heads.clone();
        let at = server(move |socket| {
            let seeing = seeing.clone();
            async move { serve(name, socket, &seeing).await }
        })
        .await;
        Self { at, heads }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

async fn serve(name: &str, socket: TcpStream, seen: &Mutex<Vec<String>>) {
    let mut socket = BufReader::new(socket);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if socket.read_line(&mut head).await.unwrap_or_default() == 0 {
                return;
            }
        }
        seen.lock().unwrap().push(head.clone());
        let lower = head.to_ascii_lowercase();
        if lower.contains("upgrade: websocket") {
            let agreed =
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
            socket.write_all(agreed).await.unwrap();
            // From here on it says what it hears.
            let mut byte = [0; 1];
            while socket.read_exact(&mut byte).await.is_ok() && socket.write_all(&byte).await.is_ok() {}
            return;
        }
        if let Some(length) = lower.split("content-length: ").nth(1) {
            let length: usize = length.lines().next().unwrap().parse().unwrap();
            socket.read_exact(&mut vec![0; length]).await.unwrap();
        } else if lower.contains("transfer-encoding: chunked") {
            let mut body = String::new();
            while !body.ends_with("0\r\n\r\n") && socket.read_line(&mut body).await.unwrap() > 0 {}
        }
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len());
        if socket.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Two hosts of two keys, and where clients come.
struct Two {
    sites: [Site; 2],
    http: SocketAddr,
    _held: (Stage, [Peer; 2], [Offering; 2]),
}

async fn two(net: u8) -> Two {
    let stage = Stage::new(net, &[("a.example.org", 1), ("b.example.org", 2)], |_| {}).await;
    let sites = [Site::start("site a").await, Site::start("site b").await];
    let peers = [stage.peer(1, 2, sites[0].at).await, stage.peer(2, 3, sites[1].at).await];
    let offerings = [
        peers[0].publish("http://a.example.org").await.unwrap(),
        peers[1].publish("http://b.example.org").await.unwrap(),
    ];
    Two { sites, http: stage.http().await, _held: (stage, peers, offerings) }
}

/// What is answered to this, on a connection that the gateway ends behind it.
async fn asked(to: SocketAddr, words: &str) -> String {
    let mut client = TcpStream::connect(to).await.unwrap();
    // It may be turned away before it has said all.
    let _ = client.write_all(words.as_bytes()).await;
    String::from_utf8_lossy(&hears(&mut client).await).into_owned()
}

/// The next answer on a connection.
async fn answer(client: &mut BufReader<TcpStream>) -> String {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(within("a line comes", client.read_line(&mut head)).await.unwrap() > 0, "{head}");
    }
    let length = head.to_ascii_lowercase().split("content-length: ").nth(1).map(str::to_owned);
    let length = length.map_or(0, |length| length.lines().next().unwrap().parse().unwrap());
    let mut body = vec![0; length];
    within("a body comes", client.read_exact(&mut body)).await.unwrap();
    head + &String::from_utf8(body).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_go_to_the_host_that_they_name_and_say_where_the_client_is() {
    let two = two(40).await;
    for (host, site) in [("a.example.org", "site a"), ("B.Example.ORG.:8080", "site b")] {
        let words = format!(
            "GET /x HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: 1.2.3.4\r\nConnection: close\r\n\r\n"
        );
        let told = asked(two.http, &words).await;
        assert!(told.starts_with("HTTP/1.1 200") && told.ends_with(site), "{told}");
    }
    let head = two.sites[0].heads().join("").to_ascii_lowercase();
    assert!(head.starts_with("get /x http/1.1\r\n") && head.contains("host: a.example.org\r\n"), "{head}");
    assert!(head.contains("x-forwarded-for: 127.0.0.1\r\n") && !head.contains("1.2.3.4"), "{head}");
    assert!(two.sites[1].heads().join("").contains("B.Example.ORG.:8080"), "as the client wrote it");
    let absolute = "GET http://a.example.org/y HTTP/1.1\r\nHost: a.example.org\r\nConnection: close\r\n\r\n";
    assert!(asked(two.http, absolute).await.ends_with("site a"));
    assert!(two.sites[0].heads()[1].starts_with("GET /y HTTP/1.1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_published_nowhere_has_a_plain_page_and_so_has_a_server_that_is_away() {
    let two = two(41).await;
    for (host, status) in [("c.example.org", "404"), ("example.org", "404"), ("127.0.0.1", "404")] {
        let told = asked(two.http, &format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert!(told.starts_with(&format!("HTTP/1.1 {status}")), "{told}");
        assert!(
            told.contains("text/plain") && told.to_ascii_lowercase().contains("connection: close"),
            "{told}"
        );
    }
    for wrong in ["GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.0\r\n\r\n", "nonsense\r\n\r\n"] {
        let told = asked(two.http, wrong).await;
        assert!(told.lines().next().is_some_and(|line| line.contains(" 400 ")), "{wrong}: {told}");
    }
    assert!(
        asked(two.http, "CONNECT a.example.org:80 HTTP/1.1\r\nHost: a.example.org:80\r\n\r\n")
            .await
            .contains(" 405")
    );
    let stage = Stage::new(42, &[("a.example.org", 1)], |_| {}).await;
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let peer = stage.peer(1, 2, dead).await;
    let _offering = peer.publish("http://a.example.org").await.unwrap();
    let told = asked(stage.http().await, "GET / HTTP/1.1\r\nHost: a.example.org\r\n\r\n").await;
    assert!(told.starts_with("HTTP/1.1 502") && !told.contains("127.0.0.1"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_for_one_host_and_a_request_for_another_one_on_it_is_refused() {
    let two = two(43).await;
    let mut client = BufReader::new(TcpStream::connect(two.http).await.unwrap());
    for n in 0..3 {
        let request = format!("GET /{n} HTTP/1.1\r\nHost: a.example.org\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        assert!(answer(&mut client).await.ends_with("site a"));
    }
    client.write_all(b"GET /n HTTP/1.1\r\nHost: b.example.org\r\n\r\n").await.unwrap();
    assert!(answer(&mut client).await.starts_with("HTTP/1.1 421"));
    assert_eq!(hears(client.get_mut()).await, b"", "and nothing more is answered");
    assert_eq!(two.sites[0].heads().len(), 3);
    assert_eq!(two.sites[1].heads().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_smuggled_to_a_server_in_the_body_of_another() {
    let two = two(44).await;
    let hidden = "GET /hidden HTTP/1.1\r\nHost: b.example.org\r\n\r\n";
    let begin = "POST /seen HTTP/1.1\r\nHost: a.example.org\r\n";
    let length = hidden.len();
    for fields in [
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n\r\n0\r\n\r\n"),
        format!("Content-Length: 0\r\nContent-Length: {length}\r\n\r\n"),
        format!("Content-Length: 0, {length}\r\n\r\n"),
        format!("Content-Length: +{length}\r\n\r\n"),
        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n".to_owned(),
        "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n".to_owned(),
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n".to_owned(),
        " Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "Host: b.example.org\r\n\r\n".to_owned(),
        "Connection: host\r\n\r\n".to_owned(),
        "Connection: upgrade\r\nUpgrade: h2c\r\n\r\n".to_owned(),
    ] {
        let told = asked(two.http, &format!("{begin}{fields}{hidden}")).await;
        assert!(!told.contains("site b"), "{fields:?}: {told}");
        assert!(!told.is_empty(), "{fields:?}");
    }
    // In a body it is a body.
    let body = format!("{begin}Content-Length: {length}\r\nConnection: close\r\n\r\n{hidden}");
    assert!(asked(two.http, &body).await.ends_with("site a"));
    assert!(two.sites[1].heads().is_empty(), "{:?}", two.sites[1].heads());
    let all = two.sites[0].heads();
    assert!(
        all.iter().all(|head| head.starts_with("POST /seen ") && !head.contains("b.example.org")),
        "{all:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_is_slow_or_too_large_is_not_waited_for() {
    let two = two(45).await;
    let large = format!("GET / HTTP/1.1\r\nHost: a.example.org\r\nX: {}\r\n\r\n", "x".repeat(20 << 10));
    let told = asked(two.http, &large).await;
    assert!(told.starts_with("HTTP/1.1 431") || told.is_empty(), "{told}");
    let mut slow = TcpStream::connect(two.http).await.unwrap();
    let begun = Instant::now();
    slow.write_all(b"GET / HTTP/1.1\r\nHost: a.example.org\r\n").await.unwrap();
    while slow.write_all(b"X: y\r\n").await.is_ok() {
        assert!(begun.elapsed() < LIMIT, "it is waited for for ever");
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    let mut silent = TcpStream::connect(two.http).await.unwrap();
    hears(&mut silent).await;
    assert!(two.sites[0].heads().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn websocket_passes_and_a_body_of_any_size_too() {
    let two = two(46).await;
    let mut client = BufReader::new(TcpStream::connect(two.http).await.unwrap());
    let ask = "GET /s HTTP/1.1\r\nHost: a.example.org\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    client.write_all(ask.as_bytes()).await.unwrap();
    assert!(answer(&mut client).await.starts_with("HTTP/1.1 101"));
    client.write_all(b"GET /hidden HTTP/1.1\r\nHost: b.example.org\r\n\r\n").await.unwrap();
    let mut echoed = [0; 11];
    within("it comes back", client.read_exact(&mut echoed)).await.unwrap();
    assert_eq!(&echoed, b"GET /hidden");
    assert!(two.sites[1].heads().is_empty());
    let mut client = BufReader::new(TcpStream::connect(two.http).await.unwrap());
    let begin = format!("PUT /f HTTP/1.1\r\nHost: b.example.org\r\nContent-Length: {}\r\n\r\n", 3 << 20);
    client.write_all(begin.as_bytes()).await.unwrap();
    client.write_all(&vec![7; 3 << 20]).await.unwrap();
    assert!(answer(&mut client).await.ends_with("site b"));
    until("it was heard", async || two.sites[1].heads().len() == 1).await;
}
