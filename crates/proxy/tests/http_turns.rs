//! How many objects of one server come at the same time, and what does not count among them.
#![allow(clippy::unwrap_used)]

use crate::support::{self, LIMIT, Origin, Serving, body, connect, get, proxy, read_head, talk};
use std::collections::HashSet;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// Waits until it is so.
#[track_caller]
fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Asks for an object and leaves the answer.
fn ask(proxy: &Serving, url: &str) -> TcpStream {
    let mut client = connect(proxy.address);
    client.write_all(get(url, "").as_bytes()).unwrap();
    client
}

#[test]
fn of_many_objects_that_are_asked_for_at_once_six_come_at_a_time_over_connections_that_are_kept() {
    // Nothing rests here, however busy the machine is.
    let proxy = proxy(|settings| (settings.turn_rest, settings.turn_limit) = (3 * LIMIT, 3 * LIMIT));
    let (at_work, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let ports = Arc::new(Mutex::new(HashSet::new()));
    let (working, seen, noting) = (Arc::clone(&at_work), Arc::clone(&most), Arc::clone(&ports));
    let origin = Origin::start(move |head, _, stream| {
        noting.lock().unwrap().insert(stream.peer_addr().unwrap().port());
        let now = working.fetch_add(1, Ordering::SeqCst) + 1;
        seen.fetch_max(now, Ordering::SeqCst);
        // The first ones wait for each other.
        let end = Instant::now() + LIMIT;
        while seen.load(Ordering::SeqCst) < 6 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let path = head.split(' ').nth(1).unwrap();
        // Before its end is seen.
        working.fetch_sub(1, Ordering::SeqCst);
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len()).is_ok()
    });
    let clients: Vec<_> = (0..32)
        .map(|n| {
            let (address, url) = (proxy.address, origin.url(&format!("/{n}")));
            std::thread::spawn(move || assert_eq!(body(&talk(address, &get(&url, ""))), format!("/{n}")))
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(most.load(Ordering::SeqCst), 6);
    // Six, and some more where a kept one was not ready in time.
    let connections = ports.lock().unwrap().len();
    assert!(connections <= 16, "{connections} connections for 32 objects");
}

#[test]
fn objects_on_which_nothing_comes_hold_up_no_other() {
    let short = Duration::from_millis(200);
    let proxy = proxy(|settings| (settings.turn_rest, settings.turn_limit) = (short, 10 * LIMIT));
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    // Long polls, of which some have begun to answer.
    let origin = Origin::start(move |head, n, stream| {
        if head.starts_with("GET /short") {
            return stream.write_all(HELLO.as_bytes()).is_ok();
        }
        if n % 2 == 0 {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").unwrap();
        }
        while !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    });
    let polls: Vec<TcpStream> = (0..6).map(|_| ask(&proxy, &origin.url("/long"))).collect();
    wait_for("all polls are asked for", || origin.seen().len() == 6);
    assert_eq!(body(&talk(proxy.address, &get(&origin.url("/short"), ""))), "hello");
    is_over.store(true, Ordering::Relaxed);
    drop(polls);
}

#[test]
fn nothing_waits_for_longer_than_the_limit_for_objects_that_never_end() {
    let short = Duration::from_millis(200);
    let proxy = proxy(|settings| (settings.turn_rest, settings.turn_limit) = (10 * LIMIT, short));
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let origin = Origin::start(move |head, _, stream| {
        if head.starts_with("GET /short") {
            return stream.write_all(HELLO.as_bytes()).is_ok();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        while !over.load(Ordering::Relaxed) && stream.write_all(b"1\r\nx\r\n").is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    });
    let mut endless: Vec<TcpStream> = (0..6).map(|_| ask(&proxy, &origin.url("/endless"))).collect();
    for stream in &mut endless {
        assert!(read_head(stream).is_some());
    }
    assert_eq!(body(&talk(proxy.address, &get(&origin.url("/short"), ""))), "hello");
    is_over.store(true, Ordering::Relaxed);
}

#[test]
fn what_is_no_object_and_objects_of_other_servers_do_not_wait() {
    let proxy = proxy(|settings| {
        (settings.turns, settings.turn_rest, settings.turn_limit) = (1, 10 * LIMIT, 10 * LIMIT);
    });
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let origin = Origin::start(move |head, _, stream| {
        while head.starts_with("GET") && !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        stream.write_all(HELLO.as_bytes()).is_ok()
    });
    let first = ask(&proxy, &origin.url("/"));
    wait_for("the first one is asked for", || origin.seen().len() == 1);
    let second = ask(&proxy, &origin.url("/"));
    let post = format!("POST {} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", origin.url("/"));
    assert_eq!(body(&talk(proxy.address, &post)), "hello");
    let other = Origin::saying(HELLO);
    assert_eq!(body(&talk(proxy.address, &get(&other.url("/"), ""))), "hello");
    // The second one has not been asked for yet.
    assert_eq!(origin.seen().len(), 2);
    // A client that leaves gives its turn back.
    drop(first);
    wait_for("the second one is asked for", || origin.seen().len() == 3);
    is_over.store(true, Ordering::Relaxed);
    let mut second = second;
    assert_eq!(body(&support::rest(&mut second)), "hello");
}
