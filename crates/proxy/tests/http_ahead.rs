//! Connections over another network that are opened before anything needs them.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::networks::{Object, World};
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
    let port = format!(":{}", server.port());
    let filter = ["-tnH", "state", "established", "dport", "=", &port];
    let output = world.client.command("ss").args(filter).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let local = text.lines().filter_map(|line| line.split_whitespace().nth(2));
    let mut found: Vec<String> = local.map(without_interface).collect();
    found.sort();
    found
}

/// `10.0.0.1%link0:80` is `10.0.0.1:80`.
fn without_interface(address: &str) -> String {
    let (host, port) = address.rsplit_once(':').unwrap();
    format!("{}:{port}", host.split('%').next().unwrap())
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
    // One request, and a connection over each network.
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
    assert_eq!((both.len(), origin.seen().len()), (2, 1), "{both:?}");
    assert!(both.contains(&first), "{both:?}, {first}");
    let ahead = both.iter().find(|one| **one != first).unwrap();

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
