//! HTTPS that ends in the proxy, with real curl and servers that speak TLS.
#![allow(clippy::unwrap_used)]

use crate::secure::{
    Authority, Key, SecureOrigin, Served, builder, client, client_of, curl, head_of, roots, self_signed,
};
use crate::support::{LIMIT, Serving, connect, field, has, proxy, proxy_of, read_head, status};
use rcgen::date_time_ymd;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::WebPkiClientVerifier;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use whimbrel_proxy::HttpProxy;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";

/// A proxy that intercepts these hosts, whose servers are verified by that authority.
fn intercepting(key: &Key, hosts: &[&str], authority: &Path) -> Serving {
    let interception = key.intercepts(hosts, authority);
    proxy_of(|_| {}, |upstream, settings| HttpProxy::intercepting(upstream, settings, interception))
}

/// The same for one port of this host.
fn for_port(key: &Key, port: u16, authority: &Path) -> Serving {
    intercepting(key, &[&format!("localhost:{port}")], authority)
}

fn content(size: usize) -> Vec<u8> {
    (0..size as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// A server with an object, of which it has ranges.
fn object(config: ServerConfig, content: Vec<u8>) -> SecureOrigin {
    SecureOrigin::start(config, move |head, stream| give(head, &content, stream))
}

fn give(head: &str, content: &[u8], stream: &mut Served) -> bool {
    let asked = field(head, "range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let (status, first, last) = match asked {
        Some((first, last)) => ("206 Partial Content", first.parse().unwrap(), last.parse().unwrap()),
        None => ("200 OK", 0, content.len() - 1),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nETag: \"a\"\r\nAccept-Ranges: bytes\r\nContent-Length: {}\r\n\
         Content-Range: bytes {first}-{last}/{}\r\n\r\n",
        last + 1 - first,
        content.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&content[first..=last])).is_ok()
}

#[test]
fn curl_loads_an_object_whose_tls_ends_in_the_proxy_and_ranges_of_it() {
    let (key, servers) = (Key::made_for(&["localhost"]), Authority::new());
    let content = content(1 << 20);
    let origin = object(servers.config("localhost"), content.clone());
    let proxy = for_port(&key, origin.port, &servers.file);
    let whole = curl(proxy.address, &key.certificate(), &[&origin.url("/a?b=c")]);
    assert_eq!(whole.code, Some(0), "{}", whole.error);
    assert!(whole.out == content, "other bytes: {} of them", whole.out.len());
    let part = curl(proxy.address, &key.certificate(), &["-i", "-r", "1000-1999", &origin.url("/")]);
    assert_eq!(part.code, Some(0), "{}", part.error);
    assert!(part.out.starts_with(b"HTTP/1.1 206 ") && part.out.ends_with(&content[1000..2000]));
    let seen = origin.seen();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen[0].starts_with("GET /a?b=c HTTP/1.1\r\n"), "{seen:?}");
    assert!(has(&seen[1], "range: bytes=1000-1999"), "{seen:?}");
    for head in &seen {
        assert!(has(head, &format!("host: localhost:{}", origin.port)), "{head}");
        // Nothing that differs from one user to the next.
        assert_eq!(field(head, "via"), Some("1.1 whimbrel"), "{head}");
    }
    // What is inside is asked by the proxy, and is no tunnel: two requests beside two of CONNECT.
    let stats = proxy.proxy.stats();
    assert_eq!((stats.requests, stats.tunnels), (4, 0));
}

#[test]
fn hosts_that_are_not_listed_keep_their_own_certificates() {
    let (key, servers) = (Key::made_for(&["*"]), Authority::new());
    let origin = SecureOrigin::saying(servers.config("localhost"), HELLO);
    for proxy in [
        proxy(|_| {}),
        intercepting(&key, &[], &servers.file),
        intercepting(&key, &["example.org", "*.localhost", "localhost", "*"], &servers.file),
    ] {
        // The last one has the host, and not the port.
        let seen = origin.seen().len();
        let own = curl(proxy.address, &servers.file, &[&origin.url("/")]);
        assert_eq!((own.code, &own.text()[..]), (Some(0), "hello\n"), "{}", own.error);
        assert_eq!(field(&origin.seen()[seen], "via"), None);
        let ours = curl(proxy.address, &key.certificate(), &[&origin.url("/")]);
        assert_eq!(ours.code, Some(60), "curl trusts the server: {}", ours.error);
        assert_eq!(proxy.proxy.stats().tunnels, 2);
    }
    // A listed host that the key was not made for: no browser would take what it signs.
    let other = Key::made_for(&["example.org"]);
    let proxy = for_port(&other, origin.port, &servers.file);
    let own = curl(proxy.address, &servers.file, &[&origin.url("/")]);
    assert_eq!((own.code, &own.text()[..]), (Some(0), "hello\n"), "{}", own.error);
}

#[test]
fn nothing_is_said_to_a_server_whose_certificate_is_not_valid() {
    let (key, servers, others) = (Key::made_for(&["localhost"]), Authority::new(), Authority::new());
    let of_others = others.config("localhost");
    let another_name = servers.config("www.example.org");
    let expired = servers.config_with("localhost", |params| params.not_after = date_time_ymd(2024, 1, 1));
    let early = servers.config_with("localhost", |params| params.not_before = date_time_ymd(2999, 1, 1));
    for (config, what) in [
        (self_signed("localhost"), "self-signed"),
        (of_others, "others'"),
        (another_name, "another name"),
        (expired, "expired"),
        (early, "early"),
    ] {
        let origin = SecureOrigin::saying(config, HELLO);
        let proxy = for_port(&key, origin.port, &servers.file);
        for _ in 0..2 {
            let refused =
                curl(proxy.address, &key.certificate(), &["-w", "%{http_code}", &origin.url("/secret")]);
            assert_eq!(refused.code, Some(0), "{what}: {}", refused.error);
            let text = refused.text();
            assert!(text.contains("its certificate is refused") && text.ends_with("502"), "{what}: {text}");
        }
        assert_eq!(origin.seen(), [""; 0], "{what}");
    }
}

#[test]
fn a_request_inside_is_read_in_one_way_and_goes_to_the_tunnels_server_alone() {
    let (key, servers) = (Key::made_for(&["localhost"]), Authority::new());
    let origin = SecureOrigin::saying(servers.config("localhost"), HELLO);
    let proxy = for_port(&key, origin.port, &servers.file);
    let here = format!("localhost:{}", origin.port);
    let talk = |words: &str| {
        let mut inside = client(connect(proxy.address), ("localhost", origin.port), &key.certificate());
        inside.write_all(words.as_bytes()).unwrap();
        let mut all = Vec::new();
        // It ends with or without a word of TLS.
        let _ = inside.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    };
    let behind = format!("GET /behind HTTP/1.1\r\nHost: {here}\r\n\r\n");
    for (words, code) in [
        ("GET / HTTP/1.1\r\nHost: HERE\r\nHost: HERE\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: HERE\r\nHost: evil.example\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        ("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 421),
        ("GET https://evil.example/ HTTP/1.1\r\nHost: HERE\r\n\r\n", 421),
        ("GET http://HERE/ HTTP/1.1\r\nHost: HERE\r\n\r\n", 400),
        ("CONNECT HERE HTTP/1.1\r\nHost: HERE\r\n\r\n", 405),
        ("POST / HTTP/1.1\r\nHost: HERE\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        ("POST / HTTP/1.1\r\nHost: HERE\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
        ("GET / HTTP/1.1\r\nHost: HERE\r\nX: a\r\n folded\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost : HERE\r\n\r\n", 400),
    ] {
        let words = words.replace("HERE", &here) + &behind;
        let answer = talk(&words);
        assert_eq!(status(&answer), code, "{words}{answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "what is behind is answered: {words}{answer}");
    }
    assert_eq!(origin.seen(), [""; 0]);
    // A length beside an encoding is dropped, and the connection ends behind it.
    let both = format!(
        "POST / HTTP/1.1\r\nHost: {here}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n\
         {behind}"
    );
    let answer = talk(&both);
    assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{answer}");
    assert!(origin.seen().iter().all(|head| !head.contains("/behind")), "{:?}", origin.seen());
}

#[test]
fn a_client_that_does_not_trust_the_key_has_the_host_itself_from_then_on() {
    let (key, servers) = (Key::made_for(&["localhost"]), Authority::new());
    let origin = SecureOrigin::saying(servers.config("localhost"), HELLO);
    let proxy = for_port(&key, origin.port, &servers.file);
    let first = curl(proxy.address, &servers.file, &[&origin.url("/")]);
    assert_eq!(first.code, Some(60), "{}", first.error);
    let end = Instant::now() + LIMIT;
    // The proxy may hear of it after curl has ended.
    let next = loop {
        let next = curl(proxy.address, &servers.file, &[&origin.url("/")]);
        if next.code != Some(60) {
            break next;
        }
        assert!(Instant::now() < end, "it is intercepted for ever");
    };
    assert_eq!((next.code, &next.text()[..]), (Some(0), "hello\n"), "{}", next.error);
    assert_eq!(field(&origin.seen()[0], "via"), None);
}

#[test]
fn a_client_whose_tls_has_nothing_in_common_with_ours_has_the_host_itself_from_then_on() {
    let (key, servers) = (Key::made_for(&["localhost"]), Authority::new());
    let origin = SecureOrigin::saying(servers.config("localhost"), HELLO);
    let proxy = for_port(&key, origin.port, &servers.file);
    let end = Instant::now() + LIMIT;
    // The server does not know its one group either: what counts is that it is the server who says so.
    while proxy.proxy.stats().tunnels == 0 {
        let kx_groups = vec![aws_lc_rs::kx_group::MLKEM1024];
        let provider = CryptoProvider { kx_groups, ..aws_lc_rs::default_provider() };
        let to = ("localhost", origin.port);
        let mut odd = client_of(connect(proxy.address), to, &key.certificate(), provider);
        assert!(odd.write_all(b"GET").is_err(), "there is a common group");
        assert!(Instant::now() < end, "it is intercepted for ever");
    }
}

#[test]
fn a_server_that_asks_for_the_users_certificate_is_left_to_the_browser() {
    let (key, servers) = (Key::made_for(&["localhost"]), Authority::new());
    let provider = Arc::new(aws_lc_rs::default_provider());
    let asking = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(&servers.file)), provider);
    let asking = asking.allow_unauthenticated().build().unwrap();
    let (certificate, own) = servers.certificate("localhost", |_| {});
    let config =
        builder().with_client_cert_verifier(asking).with_single_cert(vec![certificate], own).unwrap();
    let origin = SecureOrigin::saying(config, HELLO);
    let proxy = for_port(&key, origin.port, &servers.file);
    for _ in 0..2 {
        let own = curl(proxy.address, &servers.file, &[&origin.url("/")]);
        assert_eq!((own.code, &own.text()[..]), (Some(0), "hello\n"), "{}", own.error);
    }
    assert!(origin.seen().iter().all(|head| field(head, "via").is_none()), "{:?}", origin.seen());
    assert_eq!(proxy.proxy.stats().tunnels, 2);
}

#[test]
fn what_is_no_tls_passes_through_a_listed_host_untouched() {
    let (key, servers) = (Key::made_for(&["localhost"]), Authority::new());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut echoed = stream.try_clone().unwrap();
            let _ = std::io::copy(&mut stream, &mut echoed);
        }
    });
    let proxy = for_port(&key, port, &servers.file);
    // The last is TLS for nobody in particular.
    for words in [&b"SSH-2.0-test\r\n"[..], b"G", b"\x16\x03\x01\x00\x05hello"] {
        let mut stream = connect(proxy.address);
        let asking = format!("CONNECT localhost:{port} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n");
        stream.write_all(asking.as_bytes()).unwrap();
        assert_eq!(status(&read_head(&mut stream).unwrap()), 200);
        stream.write_all(words).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert_eq!(back, words);
    }
}

#[test]
fn websocket_passes_through_tls_that_ends_in_the_proxy() {
    let (key, servers) = (Key::made_for(&["localhost"]), Authority::new());
    let origin = SecureOrigin::start(servers.config("localhost"), |_, stream| {
        let agreed = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        stream.write_all(agreed.as_bytes()).unwrap();
        let mut piece = [0; 5];
        while stream.read_exact(&mut piece).is_ok() {
            piece.reverse();
            stream.write_all(&piece).unwrap();
        }
        false
    });
    let proxy = for_port(&key, origin.port, &servers.file);
    let mut inside = client(connect(proxy.address), ("localhost", origin.port), &key.certificate());
    let asking = format!(
        "GET /chat HTTP/1.1\r\nHost: localhost:{}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n",
        origin.port
    );
    inside.write_all(asking.as_bytes()).unwrap();
    assert_eq!(status(&head_of(&mut inside).unwrap()), 101);
    for (words, back) in [(b"hello", b"olleh"), (b"abcde", b"edcba")] {
        inside.write_all(words).unwrap();
        let mut piece = [0; 5];
        inside.read_exact(&mut piece).unwrap();
        assert_eq!(&piece, back);
    }
}
