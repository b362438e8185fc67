//! Connections that are opened before anything needs them: over another network, and beside the first one.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::networks::{Object, World, range};
use crate::support::{LIMIT, Origin, body, get, status};
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use whimbrel_lab::require;
use whimbrel_multiaccess::protocol::Answer;

/// A server that says hello, and where its clients' requests come from.
fn server(world: &World) -> (Origin, Arc<Mutex<Vec<SocketAddr>>>) {
    let from: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
    let noting = Arc::clone(&from);
    let origin = world.origin(move |_, _, stream| {
        noting.lock().unwrap().push(stream.peer_addr().unwrap());
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_ok()
    });
    (origin, from)
}

/// The client's sides of the connections to this server that are open.
fn open(world: &World, server: SocketAddr) -> Vec<String> {
    world.connections(server, "established")
}

fn asks(world: &World, origin: &Origin) {
    let answer = world.talk(&get(&origin.url("/"), ""));
    assert_eq!((status(&answer), body(&answer)), (200, "hello"), "{answer}");
}

#[test]
fn a_connection_over_the_other_network_is_opened_ahead_and_carries_what_comes_when_the_first_is_lost() {
    if !require!() {
        return;
    }
    let world = World::new(&[(10, 20), (12, 20)], "");
    // Of both networks something is known.
    let object = Object::start(&world, 4 << 20);
    let _open = world.warm_up(&object);
    let (origin, from) = server(&world);
    asks(&world, &origin);
    let first = from.lock().unwrap()[0].to_string();
    // One request, and a connection over each network, with one more beside the first.
    let end = Instant::now() + LIMIT;
    let both = loop {
        let both = open(&world, origin.address);
        if ["10.0.0.1:", "10.0.1.1:"].iter().all(|by| both.iter().any(|one| one.starts_with(by))) {
            // A way that was tried beside a slow one is given up by then.
            std::thread::sleep(Duration::from_secs(2));
            if open(&world, origin.address) == both {
                break both;
            }
        }
        assert!(Instant::now() < end, "nothing is opened ahead: {both:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!((both.len(), origin.seen().len()), (3, 1), "{both:?}");
    assert!(both.contains(&first), "{both:?}, {first}");
    let network = &first[..first.rfind(':').unwrap()];
    let ahead = both.iter().find(|one| !one.starts_with(network)).unwrap();

    // The network of the first request goes.
    let lost = if first.starts_with("10.0.0.1:") { 0 } else { 1 };
    world.links[lost].end(&world.client).set_up(false).unwrap();
    let mut watcher = world.watch();
    let name = format!("link{lost}");
    world.runtime.block_on(async move {
        let gone = async {
            loop {
                let answer: Answer = serde_json::from_str(&watcher.next().await.unwrap()).unwrap();
                if answer.paths.is_some_and(|paths| paths.iter().all(|path| path.interface != name)) {
                    return;
                }
            }
        };
        assert!(tokio::time::timeout(LIMIT, gone).await.is_ok(), "the manager does not notice");
    });
    asks(&world, &origin);
    assert_eq!(from.lock().unwrap()[1].to_string(), *ahead, "it is the one that was open");
}

/// The first part ends only when the rest was asked for.
#[test]
fn the_rest_of_a_servers_first_object_is_asked_for_over_a_connection_beside_the_first() {
    if !require!() {
        return;
    }
    const SIZE: usize = 20_000;
    let world = World::new(&[(10, 20), (100, 20)], "");
    let _open = world.warm_up(&Object::start(&world, 4 << 20));
    let from = Arc::<Mutex<Vec<SocketAddr>>>::default();
    let text: String = (b'a'..=b'z').cycle().take(SIZE).map(char::from).collect();
    let (noted, content) = (Arc::clone(&from), text.clone().into_bytes());
    let origin = world.origin(move |head, _, stream| {
        let (first, last) = range(head, SIZE).unwrap();
        let length = last + 1 - first;
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\nETag: \"a\"\r\nContent-Range: bytes {first}-{last}/{SIZE}\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        noted.lock().unwrap().push(stream.peer_addr().unwrap());
        if first > 0 {
            return stream.write_all(&[head.as_bytes(), &content[first..=last]].concat()).is_ok();
        }
        // The other connection is there by then.
        std::thread::sleep(Duration::from_millis(300));
        let half = length / 2;
        let is_sent = stream.write_all(&[head.as_bytes(), &content[..half]].concat()).is_ok();
        let end = Instant::now() + LIMIT;
        while noted.lock().unwrap().len() < 2 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        is_sent && stream.write_all(&content[half..length]).is_ok()
    });
    let answer = world.talk(&get(&origin.url("/"), ""));
    assert_eq!((status(&answer), body(&answer)), (200, &text[..]));
    let from = from.lock().unwrap();
    let is_beside = from.len() == 2 && from[0].ip() == from[1].ip() && from[0] != from[1];
    assert!(is_beside, "{from:?}");
}
