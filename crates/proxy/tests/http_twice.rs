//! Objects that are asked for over two networks, because the first does not bring them.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::networks::{Object, World};
use crate::support::{body, get};
use std::collections::HashMap;
use std::io::Write as _;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use whimbrel_lab::require;

/// Over each of two equal links a server is known to answer at once. What it thinks about it thinks about over
/// both.
#[test]
fn a_server_that_thinks_for_long_is_asked_twice_once_and_not_each_time() {
    if !require!() {
        return;
    }
    let world = World::new(&[(20, 20), (20, 20)], "");
    let known = Object::start(&world, 4 << 20);
    let _open = world.warm_up(&known);
    world.until_seen("each link has a rate", |path| path.down_best.is_some());
    let (quick, slow) = (Arc::<Mutex<HashMap<IpAddr, usize>>>::default(), Arc::new(AtomicUsize::new(0)));
    let (came, asked) = (Arc::clone(&quick), Arc::clone(&slow));
    let origin = world.origin(move |head, _, stream| {
        if head.contains("/slow") {
            asked.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_secs(2));
        } else {
            let from = stream.peer_addr().unwrap().ip();
            *came.lock().unwrap().entry(from).or_default() += 1;
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_ok()
    });
    let asks = |path: &str| assert_eq!(body(&world.talk(&get(&origin.url(path), ""))), "hello");
    let is_known = || quick.lock().unwrap().values().filter(|count| **count >= 16).count() == 2;
    for _ in 0..100 {
        if is_known() {
            break;
        }
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| asks("/quick")))));
    }
    assert!(is_known(), "{quick:?}");
    (0..5).for_each(|_| asks("/slow"));
    let slow = slow.load(Ordering::Relaxed);
    // By the end of the first the other network has been asked for a part of that time alone.
    assert!((5..=7).contains(&slow), "{slow}");
}
