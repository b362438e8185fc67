//! The two-step download of an object over HTTPS that ends in the proxy, over two networks.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::http2::Http2Origin;
use crate::networks::{Object, content, range};
use crate::secure::{Authority, Key, SecureOrigin, client, head_of};
use crate::shop::{self, SHOP};
use crate::support::{field, has, status};
use hyper::Version;
use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use whimbrel_lab::require;

#[test]
fn an_object_over_https_comes_in_two_steps_over_both_networks_and_arrives_right() {
    if !require!() {
        return;
    }
    let (key, servers) = (Key::made_for(&[SHOP]), Authority::new());
    let world = shop::intercepted(&key, &servers);
    let large = Object::start(&world, 4 << 20);
    let _open = world.warm_up(&large);
    // So large that a network which comes in late has its part of it.
    let whole = content(8 << 20);
    let expected = whole.clone();
    let sources: Arc<Mutex<HashSet<IpAddr>>> = Arc::default();
    let asking_from = Arc::clone(&sources);
    let origin = SecureOrigin::on(shop::door(&world), servers.config(SHOP), move |head, stream| {
        asking_from.lock().unwrap().extend(stream.sock.peer_addr().map(|from| from.ip()));
        let (first, last) = range(head, whole.len()).unwrap_or((0, whole.len() - 1));
        let status = if field(head, "range").is_some() { "206 Partial Content" } else { "200 OK" };
        let head = format!(
            "HTTP/1.1 {status}\r\nETag: \"a\"\r\nAccept-Ranges: bytes\r\nContent-Length: {}\r\n\
             Content-Range: bytes {first}-{last}/{}\r\n\r\n",
            last + 1 - first,
            whole.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&whole[first..=last])).is_ok()
    });
    let mut inside = client(world.connect(), (SHOP, 443), &key.certificate());
    let asking = format!("GET /a HTTP/1.1\r\nHost: {SHOP}\r\nCookie: a=b\r\nConnection: close\r\n\r\n");
    inside.write_all(asking.as_bytes()).unwrap();
    let head = head_of(&mut inside).unwrap();
    assert!(status(&head) == 200 && has(&head, &format!("content-length: {}", expected.len())), "{head}");
    let mut all = Vec::new();
    inside.read_to_end(&mut all).unwrap();
    assert!(all == expected, "other bytes: {} of them", all.len());
    let seen = origin.seen();
    assert_eq!(field(&seen[0], "range"), Some("bytes=0-8191"), "{seen:?}");
    assert!(seen.len() > 1, "{seen:?}");
    for head in &seen {
        assert!(head.starts_with("GET /a HTTP/1.1\r\n") && has(head, "cookie: a=b"), "{head}");
        assert!(has(head, &format!("host: {SHOP}")), "{head}");
    }
    assert!(seen[1..].iter().all(|head| has(head, "if-range: \"a\"")), "{seen:?}");
    assert_eq!(sources.lock().unwrap().len(), 2, "one network alone was asked: {seen:?}");
}

#[test]
fn an_object_comes_over_http2_in_two_steps_over_both_networks_and_arrives_right() {
    if !require!() {
        return;
    }
    let (key, servers) = (Key::made_for(&[SHOP]), Authority::new());
    let world = shop::intercepted(&key, &servers);
    let large = Object::start(&world, 4 << 20);
    let _open = world.warm_up(&large);
    let whole = content(8 << 20);
    let origin = Http2Origin::on(shop::door(&world), servers.config(SHOP), whole.clone());
    let mut inside = client(world.connect(), (SHOP, 443), &key.certificate());
    let asking = format!("GET /a HTTP/1.1\r\nHost: {SHOP}\r\nConnection: close\r\n\r\n");
    inside.write_all(asking.as_bytes()).unwrap();
    let head = head_of(&mut inside).unwrap();
    assert!(status(&head) == 200 && has(&head, &format!("content-length: {}", whole.len())), "{head}");
    let mut all = Vec::new();
    inside.read_to_end(&mut all).unwrap();
    assert!(all == whole, "other bytes: {} of them", all.len());
    let seen = origin.seen();
    assert_eq!(seen[0].1.headers["range"], "bytes=0-8191");
    assert!(seen.iter().all(|(_, head)| head.version == Version::HTTP_2), "{seen:?}");
    assert!(seen[1..].iter().all(|(_, head)| head.headers["if-range"] == "\"a\""), "{seen:?}");
    let sources: HashSet<IpAddr> = seen.iter().map(|(from, _)| *from).collect();
    assert_eq!(sources.len(), 2, "one network alone was asked: {seen:?}");
}
