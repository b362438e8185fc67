//! To which connection a request is bound, where it has to wait for one.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::networks::World;
use crate::support::{LIMIT, body, get, until};
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use whimbrel_lab::require;

/// No connection to this server comes about any more.
fn let_none_begin(world: &World, server: SocketAddr) {
    let drops = format!("tcp dport {} tcp flags & (syn | ack) == syn drop", server.port());
    let chain = format!("chain out {{ type filter hook output priority 0; {drops}; }}");
    world.client.nft(format!("table inet begins {{ {chain}; }}\n")).unwrap();
}

fn let_all_begin(world: &World) {
    world.client.nft("delete table inet begins\n").unwrap();
}

/// How many of the client's connections to this server are in this state.
fn connections(world: &World, server: SocketAddr, state: &str) -> usize {
    world.connections(server, state).len()
}

#[test]
fn a_request_takes_a_connection_that_becomes_idle_while_its_own_is_made_and_that_is_left_for_the_next() {
    if !require!() {
        return;
    }
    let world = World::new(&[(10, 20)], "");
    let (release, held) = mpsc::channel::<()>();
    let held = Mutex::new(held);
    let from = Arc::<Mutex<Vec<SocketAddr>>>::default();
    let noted = Arc::clone(&from);
    let origin = world.origin(move |head, _, stream| {
        noted.lock().unwrap().push(stream.peer_addr().unwrap());
        if head.contains("/held") {
            held.lock().unwrap().recv_timeout(LIMIT).unwrap();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_ok()
    });
    let asks = |path: &str| assert_eq!(body(&world.talk(&get(&origin.url(path), ""))), "hello");
    std::thread::scope(|scope| {
        scope.spawn(|| asks("/held"));
        until("the first is asked for", || from.lock().unwrap().len() == 1);
        let_none_begin(&world, origin.address);
        let second = scope.spawn(|| asks("/second"));
        until("a connection is made", || connections(&world, origin.address, "syn-sent") == 1);
        release.send(()).unwrap();
        second.join().unwrap();
    });
    let from = std::mem::take(&mut *from.lock().unwrap());
    assert!(from.len() == 2 && from[0] == from[1], "{from:?}");
    let_all_begin(&world);
    until("what was begun is there", || connections(&world, origin.address, "established") == 2);
}

/// Six requests have their turns at a server at once. Sixteen connections are left by those who go away, at
/// most, for four seconds each.
#[test]
fn connections_that_nobody_waits_for_any_more_are_few_and_are_given_up() {
    if !require!() {
        return;
    }
    let world = World::new(&[(10, 20)], "");
    let origin = world.origin(|_, _, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_ok()
    });
    let_none_begin(&world, origin.address);
    let begun = || connections(&world, origin.address, "syn-sent");
    let mut most = 0;
    for _ in 0..6 {
        let mut clients: Vec<_> = (0..6).map(|_| world.connect()).collect();
        for client in &mut clients {
            client.write_all(get(&origin.url("/"), "").as_bytes()).unwrap();
        }
        until("six are begun", || begun() >= 6);
        std::thread::sleep(Duration::from_millis(50));
        most = most.max(begun());
    }
    assert!((12..=6 + 16).contains(&most), "{most}");
    until("all are given up", || begun() == 0);
    let_all_begin(&world);
    assert_eq!(body(&world.talk(&get(&origin.url("/"), ""))), "hello");
}
