//! Connections of a proxy: what is repeated and what is not, tunnels, limits, and whose connection is whose.
#![allow(clippy::unwrap_used)]

use crate::support::{
    self, LIMIT, Origin, body, connect, field, get, has, proxy, read_head, rest, status, talk,
};
use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// A server that answers once on each connection and then reads the next request without answering it.
fn answers_once() -> (Origin, Arc<AtomicUsize>) {
    let ports = Mutex::new(HashSet::new());
    let unanswered = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&unanswered);
    let origin = Origin::start(move |_, _, stream| {
        if !ports.lock().unwrap().insert(stream.peer_addr().unwrap().port()) {
            counting.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        stream.write_all(HELLO.as_bytes()).unwrap();
        true
    });
    (origin, unanswered)
}

fn post(url: &str) -> String {
    format!("POST {url} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab")
}

#[test]
fn what_does_no_harm_twice_is_asked_again_when_an_open_connection_dies_and_nothing_else_is() {
    let proxy = proxy(|_| {});
    let (origin, unanswered) = answers_once();
    assert_eq!(body(&talk(proxy.address, &get(&origin.url("/"), ""))), "hello");
    assert_eq!(body(&talk(proxy.address, &get(&origin.url("/"), ""))), "hello");
    assert_eq!((unanswered.load(Ordering::Relaxed), origin.seen().len()), (1, 3));
    // An answer is on its way back to the pool while the client reads it.
    std::thread::sleep(Duration::from_millis(100));
    let answer = talk(proxy.address, &post(&origin.url("/")));
    assert_eq!(status(&answer), 502, "{answer}");
    assert_eq!((unanswered.load(Ordering::Relaxed), origin.seen().len()), (2, 4));
    let delete = format!("DELETE {} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", origin.url("/"));
    assert_eq!(body(&talk(proxy.address, &delete)), "hello");
    assert_eq!(status(&talk(proxy.address, &delete)), 200);
}

#[test]
fn what_never_gets_an_answer_is_asked_twice_at_most() {
    let proxy = proxy(|_| {});
    let origin = Origin::start(|_, _, _| false);
    assert_eq!(status(&talk(proxy.address, &get(&origin.url("/"), ""))), 502);
    assert_eq!(origin.seen().len(), 2);
    assert_eq!(status(&talk(proxy.address, &post(&origin.url("/")))), 502);
    assert_eq!(origin.seen().len(), 3);
}

#[test]
fn an_answer_that_nobody_asked_for_is_given_to_nobody() {
    let proxy = proxy(|_| {});
    let origin = Origin::start(|_, _, stream| {
        let another = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
        stream.write_all(format!("{HELLO}{another}").as_bytes()).is_ok()
    });
    for asked in 1..=5 {
        let answer = talk(proxy.address, &get(&origin.url("/"), ""));
        assert_eq!((status(&answer), body(&answer), origin.seen().len()), (200, "hello", asked), "{answer}");
    }
}

#[test]
fn as_many_connections_as_clients_ask_over_at_once_are_kept_for_what_they_ask_next() {
    const CLIENTS: usize = 16;
    let proxy = proxy(|settings| settings.turns = 0);
    let (asked, ports) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(HashSet::new())));
    let (asking, noting) = (Arc::clone(&asked), Arc::clone(&ports));
    let origin = Origin::start(move |_, n, stream| {
        noting.lock().unwrap().insert(stream.peer_addr().unwrap().port());
        asking.fetch_add(1, Ordering::SeqCst);
        // None of a round is answered before all are asked, so that each has a connection of its own.
        let (all, end) = ((n / CLIENTS + 1) * CLIENTS, Instant::now() + LIMIT);
        while asking.load(Ordering::SeqCst) < all && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        stream.write_all(HELLO.as_bytes()).is_ok()
    });
    let url = origin.url("/");
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(proxy.address)).collect();
    for _ in 0..3 {
        for client in &mut clients {
            write!(client, "GET {url} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        }
        for client in &mut clients {
            let head = read_head(client).unwrap();
            let mut hello = [0; 5];
            client.read_exact(&mut hello).unwrap();
            assert_eq!((status(&head), &hello), (200, b"hello"));
        }
    }
    let connections = ports.lock().unwrap().len();
    assert_eq!((asked.load(Ordering::SeqCst), connections), (3 * CLIENTS, CLIENTS));
}

#[test]
fn a_connection_that_a_client_authenticated_carries_nothing_of_others() {
    let proxy = proxy(|_| {});
    let ports = Arc::new(Mutex::new(Vec::new()));
    let noting = Arc::clone(&ports);
    let origin = Origin::start(move |_, _, stream| {
        noting.lock().unwrap().push(stream.peer_addr().unwrap().port());
        stream.write_all(HELLO.as_bytes()).unwrap();
        true
    });
    for fields in ["", "Authorization: NTLM TlRM\r\n", "", "Authorization: Negotiate x\r\n", ""] {
        assert_eq!(body(&talk(proxy.address, &get(&origin.url("/"), fields))), "hello");
        std::thread::sleep(Duration::from_millis(50));
    }
    let ports = ports.lock().unwrap();
    assert!(ports[0] == ports[1] && ports[1] != ports[2], "{ports:?}");
    assert!(ports[2] == ports[3] && ports[3] != ports[4], "{ports:?}");
}

/// A TCP server that answers what it was sent, once it has heard all of it.
fn reverser() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut all = Vec::new();
                stream.read_to_end(&mut all).unwrap();
                all.reverse();
                stream.write_all(&all).unwrap();
            });
        }
    });
    address
}

fn tunnel(to: std::net::SocketAddr, proxy: std::net::SocketAddr, early: &[u8]) -> TcpStream {
    let mut client = connect(proxy);
    let mut words = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").into_bytes();
    words.extend_from_slice(early);
    client.write_all(&words).unwrap();
    let head = read_head(&mut client).unwrap();
    assert_eq!(status(&head), 200, "{head}");
    assert!(
        field(&head, "content-length").is_none() && field(&head, "transfer-encoding").is_none(),
        "{head}"
    );
    client
}

#[test]
fn a_tunnel_passes_all_bytes_and_each_half_ends_for_itself() {
    let proxy = proxy(|_| {});
    // What is said before the answer comes is not lost.
    let mut client = tunnel(reverser(), proxy.address, b"early ");
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    client.write_all(&large).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    client.read_to_end(&mut back).unwrap();
    back.reverse();
    assert!(back == [b"early ", &large[..]].concat());
    assert_eq!(proxy.proxy.stats().tunnels, 1);
}

#[test]
fn what_follows_a_tunnel_that_was_refused_is_no_request() {
    let proxy = proxy(|_| {});
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let origin = Origin::saying(HELLO);
    let words = format!("CONNECT {closed} HTTP/1.1\r\nHost: a\r\n\r\n{}", get(&origin.url("/"), ""));
    let answer = talk(proxy.address, &words);
    assert_eq!(status(&answer), 502, "{answer}");
    assert!(answer.contains("refused") && has(&answer, "connection: close"), "{answer}");
    // It was meant for somebody else, and may be anything.
    assert!(!answer.contains("hello") && origin.seen().is_empty(), "{answer}");
}

#[test]
fn a_tunnel_that_breaks_breaks_for_the_client_too() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    let breaking = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.write_all(b"half").unwrap();
        // The client has it, as it says, and then comes the break.
        stream.read_exact(&mut [0]).unwrap();
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    });
    let proxy = proxy(|_| {});
    let mut client = tunnel(server, proxy.address, b"");
    let mut half = [0; 4];
    client.read_exact(&mut half).unwrap();
    client.write_all(b"x").unwrap();
    breaking.join().unwrap();
    let error = client.read(&mut half).unwrap_err();
    assert_eq!((&half, error.kind()), (b"half", std::io::ErrorKind::ConnectionReset));
}

#[test]
fn an_upload_may_last_longer_than_an_answer() {
    let limit = Duration::from_millis(600);
    let proxy = proxy(|settings| settings.answer_limit = limit);
    let origin = Origin::start(|_, _, stream| {
        stream.read_exact(&mut [0; 10]).unwrap();
        stream.write_all(HELLO.as_bytes()).unwrap();
        false
    });
    let mut client = connect(proxy.address);
    let url = origin.url("/");
    write!(client, "PUT {url} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 10\r\n\r\n")
        .unwrap();
    for _ in 0..10 {
        client.write_all(b"x").unwrap();
        std::thread::sleep(limit / 4);
    }
    assert_eq!(body(&rest(&mut client)), "hello");
}

#[test]
fn what_is_idle_or_slow_is_closed() {
    let short = Duration::from_millis(300);
    let proxy = proxy(|settings| {
        settings.request_limit = short;
        settings.idle_limit = short;
        settings.tunnel_limit = short;
        settings.answer_limit = short;
    });
    let ends = |mut stream: TcpStream| {
        let began = Instant::now();
        rest(&mut stream);
        assert!(began.elapsed() < LIMIT);
    };
    ends(connect(proxy.address));
    let mut slow = connect(proxy.address);
    slow.write_all(b"GET http://a/ HTTP/1.1\r\nHost:").unwrap();
    ends(slow);
    ends(tunnel(reverser(), proxy.address, b"x"));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut upload = connect(proxy.address);
    let url = format!("http://{}/", silent.local_addr().unwrap());
    write!(upload, "POST {url} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab").unwrap();
    ends(upload);
    // It takes connections and never answers. The limit of idle connections is another one.
    let proxy = support::proxy(|settings| settings.answer_limit = short);
    let never = Origin::start(|_, _, _| {
        std::thread::sleep(LIMIT);
        false
    });
    assert_eq!(status(&talk(proxy.address, &get(&never.url("/"), ""))), 504);
}

#[test]
fn the_time_for_a_head_begins_anew_with_each_request_and_does_not_run_while_one_is_answered() {
    let limit = Duration::from_secs(2);
    let proxy = proxy(|settings| settings.request_limit = limit);
    let origin = Origin::start(move |_, n, stream| {
        if n == 0 {
            std::thread::sleep(limit + limit / 2);
        }
        stream.write_all(HELLO.as_bytes()).is_ok()
    });
    let (mut client, url) = (connect(proxy.address), origin.url("/"));
    for _ in 0..2 {
        write!(client, "GET {url} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let (head, mut hello) = (read_head(&mut client).unwrap(), [0; 5]);
        client.read_exact(&mut hello).unwrap();
        assert_eq!((status(&head), &hello), (200, b"hello"));
    }
    client.write_all(b"GET http://a/ HTTP/1.1\r\nHost:").unwrap();
    let began = Instant::now();
    rest(&mut client);
    assert!(began.elapsed() < LIMIT);
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let (proxy, origin) = (proxy(|_| {}), Origin::saying(HELLO));
    let large = format!("X: {}\r\n", "x".repeat(100_000));
    let answer = talk_as_far_as_it_goes(proxy.address, &get(&origin.url("/"), &large));
    assert!(answer.is_empty() || status(&answer) == 431, "{answer}");
    let many: String = (0..200).map(|n| format!("X{n}: x\r\n")).collect();
    let answer = talk_as_far_as_it_goes(proxy.address, &get(&origin.url("/"), &many));
    assert!(answer.is_empty() || status(&answer) == 431, "{answer}");
    assert!(origin.seen().is_empty());
}

/// The other side may hang up before all is said.
fn talk_as_far_as_it_goes(to: std::net::SocketAddr, words: &str) -> String {
    let mut stream = connect(to);
    let _ = stream.write_all(words.as_bytes());
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn connections_beyond_the_limit_wait_for_a_place() {
    let (proxy, origin) = (proxy(|settings| settings.connections = 2), Origin::saying(HELLO));
    let first = connect(proxy.address);
    let _second = connect(proxy.address);
    let address = proxy.address;
    let url = origin.url("/");
    let third = std::thread::spawn(move || talk(address, &get(&url, "")));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!third.is_finished() && origin.seen().is_empty());
    drop(first);
    assert_eq!(body(&third.join().unwrap()), "hello");
}

/// A server that has these bytes, speaks of ranges, and hangs up after `cut` bytes of the first answer.
fn cuts(content: Arc<Vec<u8>>, cut: usize, tag_again: &'static str) -> Origin {
    Origin::start(move |head, n, stream| {
        let total = content.len();
        if n == 0 {
            let fields = format!("ETag: \"a\"\r\nAccept-Ranges: bytes\r\nContent-Length: {total}");
            write!(stream, "HTTP/1.1 200 OK\r\n{fields}\r\n\r\n").unwrap();
            stream.write_all(&content[..cut]).unwrap();
            return false;
        }
        assert_eq!(field(head, "if-range"), Some("\"a\""), "{head}");
        let range = field(head, "range").unwrap().strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let (first, last): (usize, usize) = (range.0.parse().unwrap(), range.1.parse().unwrap());
        assert!(first <= cut, "bytes {first} to {last} are asked for after {cut}");
        let fields = format!("ETag: {tag_again}\r\nContent-Range: bytes {first}-{last}/{total}");
        write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\n{fields}\r\nContent-Length: {}\r\n\r\n",
            last + 1 - first
        )
        .unwrap();
        stream.write_all(&content[first..=last]).unwrap();
        true
    })
}

#[test]
fn an_object_whose_connection_breaks_goes_on_from_where_it_stopped_unless_it_changed() {
    let proxy = proxy(|_| {});
    let content: Arc<Vec<u8>> = Arc::new((0..600_000_u32).map(|n| b'a' + (n % 23) as u8).collect());
    let origin = cuts(Arc::clone(&content), 200_000, "\"a\"");
    let answer = talk(proxy.address, &get(&origin.url("/"), ""));
    assert!(body(&answer).as_bytes() == &content[..], "{} bytes", body(&answer).len());
    assert_eq!(origin.seen().len(), 2);
    for changed in ["\"b\"", "W/\"a\""] {
        let origin = cuts(Arc::clone(&content), 200_000, changed);
        let answer = talk(proxy.address, &get(&origin.url("/"), ""));
        let got = body(&answer).as_bytes();
        assert!(got.len() <= 200_000 && content.starts_with(got), "{} bytes", got.len());
        assert!(!got.is_empty() && origin.seen().len() == 2, "{} bytes, {:?}", got.len(), origin.seen());
    }
}
