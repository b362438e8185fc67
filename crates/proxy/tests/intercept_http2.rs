//! HTTP/2 where TLS ends in the proxy: with real curl, and with servers that speak it, and that don't.
#![allow(clippy::unwrap_used)]

use crate::http2::{self, Http2Origin};
use crate::secure::{self, Authority, Key, SecureOrigin, curl_of};
use crate::support::{LIMIT, Serving, connect, field, has, proxy_of};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_LENGTH, HOST};
use hyper::{Method, Request, Version};
use rustls::crypto::aws_lc_rs;
use sha2::{Digest as _, Sha256};
use std::io::{ErrorKind, Read, Write as _};
use std::path::Path;
use std::time::Duration;
use whimbrel_proxy::HttpProxy;

/// A proxy that intercepts one port of this host.
fn for_port(key: &Key, port: u16, authority: &Path) -> Serving {
    let interception = key.intercepts(&[&format!("localhost:{port}")], authority);
    proxy_of(|_| {}, |upstream, settings| HttpProxy::intercepting(upstream, settings, interception))
}

fn content(size: usize) -> Vec<u8> {
    (0..size as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn digest(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest(bytes).to_vec()
}

#[test]
fn curl_loads_an_object_over_http2_from_a_server_that_speaks_it_and_over_http1_from_the_same() {
    let (key, servers) = (Key::made_for(&["localhost"]), Authority::new());
    let content = content(4 << 20);
    let origin = Http2Origin::start(servers.config("localhost"), content.clone());
    let proxy = for_port(&key, origin.port, &servers.file);
    for (how, version) in [("--http2", "2"), ("--http1.1", "1.1")] {
        let got = curl_of(
            proxy.address,
            &key.certificate(),
            &[how, "-w", "%{http_version}", "-b", "a=b", &origin.url("/a?b=c")],
        );
        assert_eq!(got.code, Some(0), "{how}: {}", got.error);
        let (bytes, said) = got.out.split_at(content.len());
        assert_eq!((digest(bytes), said), (digest(&content), version.as_bytes()), "{how}");
    }
    let part = curl_of(proxy.address, &key.certificate(), &["--http2", "-r", "1000-1999", &origin.url("/")]);
    assert_eq!((part.code, &part.out[..]), (Some(0), &content[1000..2000]), "{}", part.error);
    let seen = origin.seen();
    assert_eq!(seen.len(), 3, "{seen:?}");
    for ((_, head), via) in seen.iter().zip(["2.0 whimbrel", "1.1 whimbrel", "2.0 whimbrel"]) {
        assert_eq!((head.version, &head.headers["via"]), (Version::HTTP_2, &via.parse().unwrap()));
        let authority = head.uri.authority().unwrap().as_str();
        assert_eq!(authority, format!("localhost:{}", origin.port));
        assert!(!head.headers.contains_key(HOST), "{head:?}");
    }
    let (_, first) = &seen[0];
    assert_eq!(first.uri.path_and_query().unwrap().as_str(), "/a?b=c");
    assert_eq!(first.headers["cookie"], "a=b");
}

#[test]
fn curl_speaks_http2_with_the_proxy_and_the_proxy_http1_with_a_server_that_has_no_other() {
    let (key, servers) = (Key::made_for(&["localhost"]), Authority::new());
    let content = content(1 << 20);
    let sent = content.clone();
    let origin = SecureOrigin::start(servers.config("localhost"), move |_, stream| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nConnection: x-secret\r\nX-Secret: 1\r\nContent-Length: {}\r\n\r\n",
            sent.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&sent)).is_ok()
    });
    let proxy = for_port(&key, origin.port, &servers.file);
    let args = ["--http2", "-w", "%{http_version}", "-H", "Cookie: a=b", &origin.url("/a")];
    let got = curl_of(proxy.address, &key.certificate(), &args);
    assert_eq!(got.code, Some(0), "{}", got.error);
    let (bytes, said) = got.out.split_at(content.len());
    assert_eq!((digest(bytes), said), (digest(&content), &b"2"[..]));
    let seen = origin.seen();
    assert!(seen.len() == 1 && seen[0].starts_with("GET /a HTTP/1.1\r\n"), "{seen:?}");
    assert!(has(&seen[0], &format!("host: localhost:{}", origin.port)), "{seen:?}");
    assert!(has(&seen[0], "cookie: a=b") && field(&seen[0], "via") == Some("2.0 whimbrel"), "{seen:?}");
    // What is of a connection of HTTP/1.1 goes no further.
    let head = curl_of(proxy.address, &key.certificate(), &["--http2", "-i", &origin.url("/")]);
    let head = head.text().split("\r\n\r\n").next().unwrap().to_lowercase();
    assert!(
        head.starts_with("http/2 200") && !head.contains("x-secret") && !head.contains("connection"),
        "{head}"
    );
}

#[test]
fn many_objects_at_once_share_connections_to_a_server_that_speaks_http2_and_arrive_right() {
    let (key, servers) = (Key::made_for(&["localhost"]), Authority::new());
    let content = content(300_000);
    let origin = Http2Origin::start(servers.config("localhost"), content.clone());
    let proxy = for_port(&key, origin.port, &servers.file);
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("object_#1");
    let args = ["--http2", "-Z", "-o", to.to_str().unwrap(), &origin.url("/[1-40]")];
    let got = curl_of(proxy.address, &key.certificate(), &args);
    assert_eq!(got.code, Some(0), "{}", got.error);
    for n in 1..=40 {
        let bytes = std::fs::read(folder.path().join(format!("object_{n}"))).unwrap();
        assert_eq!(digest(&bytes), digest(&content), "{n}");
    }
    assert_eq!(origin.seen().len(), 40);
    assert!(origin.connections() < 20, "each came on a connection of its own: {}", origin.connections());
}

#[test]
fn what_is_sent_over_http2_arrives_whole_and_comes_back() {
    let (key, servers) = (Key::made_for(&["localhost"]), Authority::new());
    let origin = Http2Origin::start(servers.config("localhost"), content(1));
    let proxy = for_port(&key, origin.port, &servers.file);
    let body = content(5 << 20);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("body");
    std::fs::write(&file, &body).unwrap();
    let from = format!("@{}", file.display());
    for how in ["--http2", "--http1.1"] {
        let args = [how, "--data-binary", &from, &origin.url("/")];
        let got = curl_of(proxy.address, &key.certificate(), &args);
        assert_eq!(got.code, Some(0), "{how}: {}", got.error);
        assert_eq!(digest(&got.out), digest(&body), "{how}");
    }
}

#[test]
fn no_request_of_http2_leads_to_another_host_or_has_another_length_than_it_says() {
    let (key, servers) = (Key::made_for(&["localhost"]), Authority::new());
    let origin = Http2Origin::start(servers.config("localhost"), content(10));
    let proxy = for_port(&key, origin.port, &servers.file);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(says_wrong_things(&proxy, &origin, &key.certificate()));
}

async fn says_wrong_things(proxy: &Serving, origin: &Http2Origin, authority: &Path) {
    let port = origin.port;
    let mut client = http2::client(connect(proxy.address), ("localhost", port), authority).await;
    let here = format!("https://localhost:{port}/");
    let request =
        |method: Method, target: &str| Request::builder().method(method).uri(target).version(Version::HTTP_2);
    let none = || Full::new(Bytes::new());
    let evil_host = request(Method::GET, &here).header(HOST, "evil.example").body(none()).unwrap();
    let evil_target = request(Method::GET, "https://evil.example/").body(none()).unwrap();
    let plain = request(Method::GET, &format!("http://localhost:{port}/")).body(none()).unwrap();
    let tunnel = request(Method::CONNECT, &format!("localhost:{port}")).body(none()).unwrap();
    let good = request(Method::GET, &here).header(HOST, format!("localhost:{port}")).body(none()).unwrap();
    for (what, request, status) in [
        ("another host in Host", evil_host, 421),
        ("another host in the target", evil_target, 421),
        ("another scheme", plain, 400),
        ("a tunnel", tunnel, 405),
        ("the same host twice", good, 200),
    ] {
        let answer = tokio::time::timeout(LIMIT, client.send_request(request)).await.unwrap();
        assert_eq!(answer.unwrap().status(), status, "{what}");
    }
    assert_eq!(origin.seen().len(), 1, "only the last one went on");
    // A body that is shorter than it says, and one that is longer.
    for length in ["9", "3"] {
        let wrong = request(Method::POST, &here).header(CONTENT_LENGTH, length);
        let wrong = wrong.body(Full::new(Bytes::from_static(b"hello"))).unwrap();
        let mut client = http2::client(connect(proxy.address), ("localhost", port), authority).await;
        let answer = tokio::time::timeout(LIMIT, client.send_request(wrong)).await.unwrap();
        let is_taken = answer.as_ref().is_ok_and(|answer| answer.status().is_success());
        assert!(!is_taken, "{length}: {answer:?}");
    }
}

/// A frame of HTTP/2 (RFC 9113, §4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Reads one: its kind, its stream, and what it carries.
fn read_frame(from: &mut impl Read) -> std::io::Result<(u8, u32, Vec<u8>)> {
    let mut header = [0; 9];
    from.read_exact(&mut header)?;
    let [a, b, c, kind, _, stream @ ..] = header;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    from.read_exact(&mut payload)?;
    Ok((kind, u32::from_be_bytes(stream), payload))
}

#[test]
fn who_takes_back_one_request_after_the_other_loses_the_connection_and_asks_no_server_anything() {
    let (key, servers) = (Key::made_for(&["localhost"]), Authority::new());
    let origin = Http2Origin::start(servers.config("localhost"), content(10));
    let proxy = for_port(&key, origin.port, &servers.file);
    let host = format!("localhost:{}", origin.port);
    let mut inside = secure::client_speaking(
        connect(proxy.address),
        ("localhost", origin.port),
        &key.certificate(),
        aws_lc_rs::default_provider(),
        &[b"h2", b"http/1.1"],
    );
    let mut words = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    words.extend(frame(4, 0, 0, &[]));
    // `:method GET`, `:scheme https`, `:path /` and a literal `:authority` (RFC 7541, appendix A).
    let mut head = vec![0x82, 0x87, 0x84, 0x01, host.len() as u8];
    head.extend(host.as_bytes());
    for n in 0..100 {
        // A request, and RST_STREAM with CANCEL: all of it comes before the first one is looked at.
        words.extend(frame(1, 0x05, 2 * n + 1, &head));
        words.extend(frame(3, 0, 2 * n + 1, &8u32.to_be_bytes()));
    }
    inside.write_all(&words).unwrap();
    inside.flush().unwrap();
    // GOAWAY with ENHANCE_YOUR_CALM, among whatever else.
    let reason = loop {
        let (kind, _, payload) = read_frame(&mut inside).unwrap();
        if kind == 7 {
            break payload[4..8].to_vec();
        }
    };
    assert_eq!(reason, 11u32.to_be_bytes());
    assert!(origin.seen().is_empty(), "{:?}", origin.seen());
    let got = curl_of(proxy.address, &key.certificate(), &["--http2", &origin.url("/")]);
    assert_eq!((got.code, got.out), (Some(0), content(10)), "{}", got.error);
}

#[test]
fn a_head_that_never_ends_does_not_keep_a_connection_of_http2_open() {
    let (key, servers) = (Key::made_for(&["localhost"]), Authority::new());
    let origin = Http2Origin::start(servers.config("localhost"), content(10));
    let interception = key.intercepts(&[&format!("localhost:{}", origin.port)], &servers.file);
    let proxy = proxy_of(
        |settings| settings.request_limit = Duration::from_secs(3),
        |upstream, settings| HttpProxy::intercepting(upstream, settings, interception),
    );
    let mut inside = secure::client_speaking(
        connect(proxy.address),
        ("localhost", origin.port),
        &key.certificate(),
        aws_lc_rs::default_provider(),
        &[b"h2", b"http/1.1"],
    );
    let mut words = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    words.extend(frame(4, 0, 0, &[]));
    // END_STREAM, and no END_HEADERS.
    words.extend(frame(1, 0x01, 1, &[0x82]));
    inside.write_all(&words).unwrap();
    inside.flush().unwrap();
    // However it ends: it does before this client has waited for too long.
    let ended = inside.read_to_end(&mut Vec::new());
    let is_open =
        ended.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
    assert!(!is_open && origin.seen().is_empty(), "it is open still");
}

#[test]
fn an_answer_that_its_server_takes_back_without_an_error_does_not_look_whole() {
    let (key, servers) = (Key::made_for(&["localhost"]), Authority::new());
    let mut config = servers.config("localhost");
    config.alpn_protocols = vec![b"h2".to_vec()];
    let origin = SecureOrigin::start(config, |_, stream| {
        // Behind `PRI * HTTP/2.0`, which was read as a head.
        let mut words = [0; 6];
        if stream.read_exact(&mut words).is_err() || words != *b"SM\r\n\r\n" {
            return false;
        }
        let mut says = frame(4, 0, 0, &[]);
        while let Ok((kind, number, _)) = read_frame(stream) {
            if kind != 1 {
                continue;
            }
            // `:status 200`, a part of the body, and RST_STREAM with NO_ERROR.
            says.extend(frame(1, 0x04, number, &[0x88]));
            says.extend(frame(0, 0, number, b"hello"));
            says.extend(frame(3, 0, number, &0u32.to_be_bytes()));
            if stream.write_all(&says).and_then(|()| stream.flush()).is_err() {
                return false;
            }
            says.clear();
        }
        false
    });
    let proxy = for_port(&key, origin.port, &servers.file);
    for how in ["--http2", "--http1.1"] {
        let got = curl_of(proxy.address, &key.certificate(), &[how, &origin.url("/")]);
        // 28 is curl's own limit.
        assert!(!matches!(got.code, None | Some(0 | 28)), "{how}: {:?}, {:?}", got.code, got.text());
        assert!(b"hello".starts_with(&got.out), "{how}: {:?}", got.text());
    }
}

#[test]
fn websocket_is_asked_for_over_http1_of_a_server_that_would_rather_speak_http2() {
    let (key, servers) = (Key::made_for(&["localhost"]), Authority::new());
    let mut config = servers.config("localhost");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let origin = SecureOrigin::start(config, |_, stream| {
        if stream.conn.alpn_protocol() != Some(&b"http/1.1"[..]) {
            return false;
        }
        let agreed = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        stream.write_all(agreed.as_bytes()).unwrap();
        let mut words = [0; 4];
        stream.read_exact(&mut words).unwrap();
        stream.write_all(&words).and_then(|()| stream.flush()).unwrap();
        false
    });
    let proxy = for_port(&key, origin.port, &servers.file);
    let mut inside = secure::client(connect(proxy.address), ("localhost", origin.port), &key.certificate());
    let asking = format!(
        "GET /chat HTTP/1.1\r\nHost: localhost:{}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n",
        origin.port
    );
    inside.write_all(asking.as_bytes()).unwrap();
    let head = secure::head_of(&mut inside).unwrap();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    inside.write_all(b"ping").unwrap();
    let mut words = [0; 4];
    inside.read_exact(&mut words).unwrap();
    assert_eq!(&words, b"ping");
}
