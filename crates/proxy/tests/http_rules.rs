//! What a proxy passes on, changes and refuses, by raw bytes on real sockets.
#![allow(clippy::unwrap_used)]

use crate::support::{Origin, body, connect, field, get, has, proxy, read_head, rest, status, talk};
use std::io::Write as _;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn a_request_goes_on_without_what_belongs_to_its_connection_and_with_the_host_of_its_target() {
    let (proxy, origin) = (proxy(|_| {}), Origin::saying(HELLO));
    let url = origin.url("/a?b=c");
    let answer = talk(
        proxy.address,
        &format!(
            "GET {url} HTTP/1.1\r\nHost: elsewhere.example\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\n\
             X-Theirs: 2\r\nCookie: a=b\r\nProxy-Authorization: Basic eDp5\r\nProxy-Connection: close\r\n\
             Keep-Alive: 5\r\nTE: trailers\r\nUpgrade: h2c\r\nVia: 1.0 before\r\n\r\n"
        ),
    );
    assert_eq!((status(&answer), body(&answer)), (200, "hello"), "{answer}");
    assert!(field(&answer, "via").unwrap().starts_with("1.1 whimbrel-"), "{answer}");
    let seen = &origin.seen()[0];
    assert!(seen.starts_with("GET /a?b=c HTTP/1.1\r\n"), "{seen}");
    assert!(has(seen, &format!("host: {}", origin.address)), "{seen}");
    assert!(has(seen, "x-theirs: 2") && has(seen, "cookie: a=b") && has(seen, "via: 1.0 before"), "{seen}");
    assert_eq!(seen.to_lowercase().matches("\r\nvia: ").count(), 2, "{seen}");
    for gone in
        ["x-mine", "proxy-authorization", "proxy-connection", "keep-alive", "te", "upgrade", "connection"]
    {
        assert_eq!(field(seen, gone), None, "{seen}");
    }
}

#[test]
fn an_answer_goes_on_without_what_belongs_to_its_connection() {
    let origin = Origin::saying(
        "HTTP/1.1 203 Mostly\r\nContent-Length: 5\r\nConnection: X-Mine\r\nX-Mine: 1\r\nX-Theirs: 2\r\n\
         Keep-Alive: timeout=5\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nProxy-Authenticate: Basic\r\n\r\nhello",
    );
    let answer = talk(proxy(|_| {}).address, &get(&origin.url("/"), ""));
    assert!(answer.starts_with("HTTP/1.1 203 Mostly\r\n"), "{answer}");
    assert!(
        has(&answer, "x-theirs: 2") && has(&answer, "set-cookie: a=1") && has(&answer, "set-cookie: b=2")
    );
    for gone in ["x-mine", "keep-alive", "proxy-authenticate"] {
        assert_eq!(field(&answer, gone), None, "{answer}");
    }
}

#[test]
fn what_is_no_request_for_a_proxy_is_refused_with_what_to_do() {
    let proxy = proxy(|_| {});
    for (words, code, says) in [
        ("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 200, "this is an HTTP proxy"),
        ("GET /x HTTP/1.1\r\nHost: a\r\n\r\n", 400, "set it as the HTTP proxy"),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400, "set it as the HTTP proxy"),
        ("GET https://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "CONNECT"),
        ("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "ftp:// is not spoken here"),
        ("GET http://u:p@a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "leave them out"),
        ("GET http://a:99999/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, ""),
        ("GET http://a/ HTTP/1.1\r\n\r\n", 400, "no Host"),
        ("GET http://a/ HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400, "several Host"),
        ("CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n", 400, "HOST:PORT"),
        ("CONNECT a:0 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "port"),
        ("CONNECT a:443 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab", 400, "no body"),
        ("TRACE http://a/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", 400, "no body"),
        ("OPTIONS http://a/ HTTP/1.1\r\nHost: a\r\nMax-Forwards: -1\r\n\r\n", 400, "no number"),
    ] {
        let answer = talk(proxy.address, words);
        assert_eq!(status(&answer), code, "{words}{answer}");
        assert!(answer.contains(says), "{words}{answer}");
    }
}

#[test]
fn no_request_can_be_read_in_two_ways() {
    let (proxy, origin) = (proxy(|_| {}), Origin::saying(HELLO));
    let url = origin.url("/");
    for (what, codes) in [
        ("Content-Length: 5\r\nContent-Length: 6\r\n", &[400][..]),
        ("Content-Length: +5\r\n", &[400]),
        ("Content-Length: 5, 6\r\n", &[400]),
        ("Content-Length: -1\r\n", &[400]),
        ("Transfer-Encoding: gzip, chunked\r\n", &[501]),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", &[501]),
        ("Transfer-Encoding: chunked, identity\r\n", &[400, 501]),
        ("Transfer-Encoding: xchunked\r\n", &[400, 501]),
        ("Transfer-Encoding : chunked\r\n", &[400]),
        ("Transfer-Encoding:\x0bchunked\r\n", &[400, 501]),
        ("X: a\r\n folded\r\n", &[400]),
        ("X: a\rContent-Length: 5\r\n", &[400]),
        ("X: a\0b\r\n", &[400]),
        ("X Y: a\r\n", &[400]),
        (": a\r\n", &[400]),
    ] {
        let words =
            format!("POST {url} HTTP/1.1\r\nHost: a\r\n{what}\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n");
        let answer = talk(proxy.address, &words);
        assert!(codes.contains(&status(&answer)), "{what:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{what:?}: {answer}");
    }
    let old = format!("POST {url} HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    assert_eq!(status(&talk(proxy.address, &old)), 400);
    assert!(origin.seen().is_empty(), "{:?}", origin.seen());
}

#[test]
fn a_length_beside_an_encoding_is_dropped_and_the_connection_ends() {
    let origin = Origin::start(|_, _, stream| {
        // The chunks, up to the last one.
        let mut chunks = String::new();
        while !chunks.ends_with("0\r\n\r\n") {
            chunks.push_str(&read_line(stream));
        }
        assert_eq!(chunks, "3\r\nabc\r\n0\r\n\r\n");
        stream.write_all(HELLO.as_bytes()).unwrap();
        true
    });
    let url = origin.url("/");
    let words = format!(
        "POST {url} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n\
         3\r\nabc\r\n0\r\n\r\nGET {url}smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    );
    let answer = talk(proxy(|_| {}).address, &words);
    assert_eq!(status(&answer), 200, "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    let seen = origin.seen();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(has(&seen[0], "transfer-encoding: chunked") && field(&seen[0], "content-length").is_none());
}

fn read_line(stream: &mut std::net::TcpStream) -> String {
    use std::io::Read as _;
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\n") {
        stream.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

#[test]
fn answers_that_can_be_read_in_two_ways_are_not_passed_on() {
    let proxy = proxy(|_| {});
    for what in [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\n folded\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
        "SSH-2.0-OpenSSH_9\r\n",
        "",
    ] {
        let origin = Origin::start(move |_, _, stream| {
            stream.write_all(what.as_bytes()).unwrap();
            false
        });
        let answer = talk(proxy.address, &get(&origin.url("/"), ""));
        assert_eq!(status(&answer), 502, "{what:?}: {answer}");
    }
    // A head without an end is not kept without an end.
    let endless = Origin::start(|_, _, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream.write_all(&[b'x'; 1000]).is_ok() {}
        false
    });
    assert_eq!(status(&talk(proxy.address, &get(&endless.url("/"), ""))), 502);
}

#[test]
fn bodies_are_framed_anew_and_end_where_they_end() {
    let proxy = proxy(|_| {});
    let ask = |answer: &'static str, method: &str, version: &str| {
        let origin = Origin::saying(answer);
        let words =
            format!("{method} {} HTTP/{version}\r\nHost: a\r\nConnection: close\r\n\r\n", origin.url("/"));
        talk(proxy.address, &words)
    };
    let chunked =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\nX: trailer\r\n\r\n";
    let answer = ask(chunked, "GET", "1.1");
    assert!(has(&answer, "transfer-encoding: chunked"), "{answer}");
    assert!(body(&answer).ends_with("0\r\n\r\n") && !answer.contains("trailer"), "{answer}");
    let answer = ask(chunked, "GET", "1.0");
    assert_eq!((field(&answer, "transfer-encoding"), body(&answer)), (None, "hello"), "{answer}");
    let to_the_end = ask("HTTP/1.0 200 OK\r\n\r\nhello", "GET", "1.1");
    assert!(to_the_end.starts_with("HTTP/1.1 200 OK\r\n") && to_the_end.contains("5\r\nhello\r\n0\r\n\r\n"));
    let head = ask("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", "HEAD", "1.1");
    assert!(has(&head, "content-length: 100") && body(&head).is_empty(), "{head}");
    let head = ask("HTTP/1.1 200 OK\r\n\r\n", "HEAD", "1.1");
    assert_eq!((field(&head, "content-length"), body(&head)), (None, ""), "{head}");
    let same = ask("HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nContent-Length: 100\r\n\r\n", "GET", "1.1");
    assert!(
        same.starts_with("HTTP/1.1 304") && has(&same, "etag: \"a\"") && body(&same).is_empty(),
        "{same}"
    );
    let none = ask("HTTP/1.1 204 No Content\r\nX-Content-Length: 0\r\n\r\n", "GET", "1.1");
    assert!(none.starts_with("HTTP/1.1 204") && body(&none).is_empty(), "{none}");
    let twice = ask("HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello", "GET", "1.1");
    assert!(has(&twice, "content-length: 5") && body(&twice) == "hello", "{twice}");
}

#[test]
fn a_body_that_breaks_off_breaks_off_for_the_client_too() {
    let proxy = proxy(|_| {});
    for what in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ] {
        let origin = Origin::start(move |_, _, stream| {
            stream.write_all(what.as_bytes()).unwrap();
            false
        });
        let answer = talk(proxy.address, &get(&origin.url("/"), ""));
        assert_eq!(status(&answer), 200, "{answer}");
        let is_chunked = what.contains("chunked");
        assert_eq!(field(&answer, "content-length"), (!is_chunked).then_some("10"), "{answer}");
        assert!(!answer.ends_with("0\r\n\r\n") && body(&answer).len() < 11, "{answer}");
        // Where nothing says how long it is, the connection does not end as if that were all.
        let mut old = connect(proxy.address);
        write!(old, "GET {} HTTP/1.0\r\nHost: a\r\n\r\n", origin.url("/")).unwrap();
        let mut got = Vec::new();
        let error = std::io::Read::read_to_end(&mut old, &mut got).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

#[test]
fn what_follows_an_upgrade_that_was_refused_is_no_request() {
    let (proxy, origin) = (proxy(|_| {}), Origin::saying(HELLO));
    let (url, inner) = (origin.url("/chat"), get(&origin.url("/smuggled"), ""));
    let ask = "Connection: Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Key: k\r\n";
    let answer = talk(proxy.address, &format!("GET {url} HTTP/1.1\r\nHost: a\r\n{ask}\r\n{inner}"));
    assert_eq!((status(&answer), body(&answer)), (200, "hello"), "{answer}");
    assert!(has(&answer, "connection: close"), "{answer}");
    assert_eq!(origin.seen().len(), 1);
}

#[test]
fn a_request_that_leads_to_the_proxy_itself_ends() {
    let proxy = proxy(|_| {});
    let answer = talk(proxy.address, &get(&format!("http://{}/x", proxy.address), ""));
    // The proxy is a server for itself, which is asked for a page by its path.
    assert_eq!(status(&answer), 400, "{answer}");
    // One that resends what it gets comes back with the proxy's own name in it.
    let there = proxy.address;
    let mirror = Origin::start(move |head, n, stream| {
        assert!(n < 2, "it goes round and round");
        let via = field(head, "via").unwrap();
        let me = stream.local_addr().unwrap();
        let again = talk(there, &get(&format!("http://{me}/"), &format!("Via: {via}\r\n")));
        stream.write_all(again.as_bytes()).unwrap();
        false
    });
    let answer = talk(proxy.address, &get(&mirror.url("/"), ""));
    assert_eq!(status(&answer), 508, "{answer}");
    assert!(answer.contains("it leads to itself"), "{answer}");
    assert_eq!(mirror.seen().len(), 1);
}

#[test]
fn max_forwards_counts_down_and_ends_here() {
    let (proxy, origin) = (proxy(|_| {}), Origin::saying(HELLO));
    let ask = |method: &str, left: &str| {
        let url = origin.url("/");
        let secret = "Cookie: secret\r\nAuthorization: Basic secret\r\nX: y\r\n";
        let words = format!(
            "{method} {url} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nMax-Forwards: {left}\r\n{secret}\r\n"
        );
        talk(proxy.address, &words)
    };
    assert_eq!(body(&ask("OPTIONS", "2")), "hello");
    assert!(has(&origin.seen()[0], "max-forwards: 1"));
    // It means something for these methods alone.
    assert_eq!(body(&ask("GET", "0")), "hello");
    assert!(has(&origin.seen()[1], "max-forwards: 0"));
    let options = ask("OPTIONS", "0");
    assert!(status(&options) == 200 && field(&options, "allow").is_some(), "{options}");
    let trace = ask("TRACE", "0");
    assert!(has(&trace, "content-type: message/http") && trace.contains("x: y\r\n"), "{trace}");
    assert!(!trace.contains("secret"), "{trace}");
    assert_eq!(origin.seen().len(), 2);
}

#[test]
fn requests_on_one_connection_are_answered_in_order_over_one_connection_to_the_server() {
    let origin = Origin::start(|head, _, stream| {
        let port = stream.peer_addr().unwrap().port();
        let text = format!("{} from {port};", head.split(' ').nth(1).unwrap());
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len()).unwrap();
        true
    });
    let proxy = proxy(|_| {});
    let mut client = connect(proxy.address);
    for n in 0..3 {
        write!(client, "GET {} HTTP/1.1\r\nHost: a\r\n\r\n", origin.url(&format!("/page{n}"))).unwrap();
    }
    write!(client, "{}", get(&origin.url("/page3"), "")).unwrap();
    let all = rest(&mut client);
    let found = |n: usize| all.split_once(&format!("/page{n} from ")).unwrap_or_else(|| panic!("{all}"));
    let order: Vec<_> = (0..4).map(|n| found(n).0.len()).collect();
    assert!(order.is_sorted(), "{all}");
    let ports: Vec<_> = (0..4).map(|n| found(n).1.split(';').next().unwrap()).collect();
    assert!(ports.iter().all(|port| *port == ports[0]), "{ports:?}");
}

#[test]
fn what_a_client_asks_for_by_ranges_and_conditions_is_passed_on_untouched() {
    let origin = Origin::saying(
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 2-4/9\r\nContent-Length: 3\r\n\r\nllo",
    );
    let proxy = proxy(|_| {});
    let fields =
        "Range: bytes=2-4\r\nIf-Range: \"a\"\r\nIf-Modified-Since: Tue, 03 Mar 2026 12:00:00 GMT\r\n";
    let answer = talk(proxy.address, &get(&origin.url("/"), fields));
    assert!(status(&answer) == 206 && has(&answer, "content-range: bytes 2-4/9"), "{answer}");
    let seen = &origin.seen()[0];
    assert!(has(seen, "range: bytes=2-4") && has(seen, "if-range: \"a\""), "{seen}");
    assert!(has(seen, "if-modified-since: Tue, 03 Mar 2026 12:00:00 GMT"), "{seen}");
}

#[test]
fn websocket_passes_through_and_other_upgrades_are_not_asked_for() {
    let origin = Origin::start(|head, _, stream| {
        assert!(has(head, "connection: upgrade") && has(head, "upgrade: websocket"), "{head}");
        let agreed = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
                      Sec-WebSocket-Accept: yes\r\n\r\nfirst ";
        stream.write_all(agreed.as_bytes()).unwrap();
        let mut word = [0; 4];
        std::io::Read::read_exact(stream, &mut word).unwrap();
        stream.write_all(&word).unwrap();
        false
    });
    let proxy = proxy(|_| {});
    let mut client = connect(proxy.address);
    let url = origin.url("/chat");
    let ask = "Connection: Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Key: k\r\n";
    write!(client, "GET {url} HTTP/1.1\r\nHost: a\r\n{ask}\r\n").unwrap();
    let head = read_head(&mut client).unwrap();
    assert!(status(&head) == 101 && has(&head, "upgrade: websocket"), "{head}");
    assert!(has(&head, "sec-websocket-accept: yes"), "{head}");
    client.write_all(b"ping").unwrap();
    assert_eq!(rest(&mut client), "first ping");
}
