//! A network that comes while an object is passed on, which came over the only one that there was.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::networks::{Object, World, content};
use crate::support::{LIMIT, field};
use sha2::{Digest as _, Sha256};
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use whimbrel_lab::require;
use whimbrel_multiaccess::protocol::Answer;

/// So large that it lasts for twenty seconds over one link: the manager is asked several times meanwhile.
const SIZE: usize = 48 << 20;

/// Two links, of which the manager has known the first one, and the second one is away.
fn with_one_link() -> (World, Object, Vec<TcpStream>) {
    let world = World::new(&[(10, 20), (10, 20)], "");
    let known = Object::start(&world, 4 << 20);
    // A manager at rest may look too late at what came first.
    let open = vec![world.fill(0, &known), world.fill(0, &known)];
    world.until_seen("the first link has a rate", |path| {
        path.interface != "link0" || (path.srtt_min_ms.is_some() && path.down_best.is_some())
    });
    // Watches first: the manager tells of a change once.
    let mut watcher = world.watch();
    world.links[1].end(&world.client).set_up(false).unwrap();
    let alone = async move {
        loop {
            let answer: Answer = serde_json::from_str(&watcher.next().await.unwrap()).unwrap();
            if answer.paths.is_some_and(|paths| paths.iter().all(|path| path.interface != "link1")) {
                return;
            }
        }
    };
    world.runtime.block_on(async move { tokio::time::timeout(LIMIT, alone).await.unwrap() });
    (world, known, open)
}

/// Downloads an object, in the beginning of which the second link comes and is used by another program.
fn download(world: &World, known: &Object, object: &Object) {
    let mut open = None;
    object.download(world, |count| {
        if count > 2 << 20 && open.is_none() {
            world.client.restore("link1").unwrap();
            open = Some(world.fill(1, known));
            world.until_seen("each link has a round trip", |path| path.srtt_min_ms.is_some());
        }
    });
    assert!(open.is_some());
}

#[test]
fn a_network_that_comes_while_an_object_is_passed_on_carries_its_share_of_the_rest() {
    if !require!() {
        return;
    }
    let (world, known, _open) = with_one_link();
    let object = Object::start(&world, SIZE);
    download(&world, &known, &object);
    let seen = object.origin.seen();
    assert!(field(&seen[0], "range").is_none(), "there was nothing to choose: {}", seen[0]);
    let last = format!("bytes={}-{}", SIZE - 1, SIZE - 1);
    assert_eq!(field(&seen[1], "range"), Some(&last[..]), "it has to show first that it has ranges");
    assert!(object.share(1) > 0.1, "{} of it over the network that came: {seen:?}", object.share(1));
}

/// An object that comes whole to the first request. These are the answers to those after it; the last one is
/// that to all further ones.
fn whole_once(world: &World, then: &'static [&'static str]) -> Object {
    let whole = content(SIZE);
    let digest = Sha256::digest(&whole).to_vec();
    let origin = world.origin(move |_, n, stream| {
        if n > 0 {
            let answer =
                format!("HTTP/1.1 {}\r\nContent-Length: 0\r\n\r\n", then[(n - 1).min(then.len() - 1)]);
            return stream.write_all(answer.as_bytes()).is_ok();
        }
        let head = format!(
            "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nAccept-Ranges: bytes\r\nContent-Length: {}\r\n\r\n",
            whole.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&whole)).is_ok()
    });
    Object { origin, digest, size: SIZE, by_source: Arc::default() }
}

#[test]
fn an_object_that_its_server_gives_once_alone_comes_to_its_end_where_another_network_comes() {
    if !require!() {
        return;
    }
    let (world, known, _open) = with_one_link();
    let object = whole_once(&world, &["403 Forbidden"]);
    download(&world, &known, &object);
    let seen = object.origin.seen();
    assert_eq!(seen.len(), 2, "it was asked once whether it has ranges: {seen:?}");
}

#[test]
fn a_server_that_has_no_time_to_say_whether_it_has_ranges_is_asked_again_later() {
    if !require!() {
        return;
    }
    let (world, known, _open) = with_one_link();
    let object = whole_once(&world, &["503 Service Unavailable", "403 Forbidden"]);
    download(&world, &known, &object);
    let seen = object.origin.seen();
    assert_eq!(seen.len(), 3, "not after that: {seen:?}");
    let last = format!("bytes={}-{}", SIZE - 1, SIZE - 1);
    assert!(seen[1..].iter().all(|head| field(head, "range") == Some(&last[..])), "{seen:?}");
}
