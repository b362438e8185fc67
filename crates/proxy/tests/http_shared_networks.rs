//! Two networks that many objects and many servers share: turns on each of them, and what one server does
//! that must not count for others.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::networks::{Object, World, content, range};
use crate::support::{LIMIT, Origin, body, field, get, read_head, status};
use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use whimbrel_lab::require;

const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const TAG: &str = "ETag: \"a\"\r\nAccept-Ranges: bytes";

/// Requests that are being answered, the most there were, and from where they came.
#[derive(Default)]
struct Counts {
    now: usize,
    most: usize,
    sources: HashSet<IpAddr>,
}

impl Counts {
    fn begins(&mut self, from: IpAddr) {
        self.now += 1;
        self.most = self.most.max(self.now);
        self.sources.insert(from);
    }
}

/// Answers with the bytes that are asked for. `before_the_end` is called before the last of them goes.
fn answer(stream: &mut TcpStream, head: &str, content: &[u8], before_the_end: impl FnOnce()) -> bool {
    let total = content.len();
    let (first, last) = range(head, total).unwrap_or((0, total - 1));
    let status = if field(head, "range").is_some() { "206 Partial Content" } else { "200 OK" };
    let length = last + 1 - first;
    let head = format!(
        "HTTP/1.1 {status}\r\n{TAG}\r\nContent-Length: {length}\r\nContent-Range: bytes {first}-{last}/{total}\r\n\r\n"
    );
    let begun = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&content[first..last]));
    before_the_end();
    begun.and_then(|()| stream.write_all(&content[last..=last])).is_ok()
}

#[test]
fn many_objects_in_parts_over_two_networks_have_turns_on_both_and_arrive_right() {
    if !require!() {
        return;
    }
    // Nothing rests here, however busy the machine is.
    let world = World::with(&[(10, 20), (20, 20)], "", |settings| {
        (settings.turn_rest, settings.turn_limit) = (3 * LIMIT, 3 * LIMIT);
        settings.stall = LIMIT;
    });
    let warm = Object::start(&world, 4 << 20);
    let _open = world.warm_up(&warm);
    let (counts, whole) = (Arc::new(Mutex::new(Counts::default())), Arc::new(content(100_000)));
    let (counting, sending) = (Arc::clone(&counts), Arc::clone(&whole));
    let origin = world.origin(move |head, _, stream| {
        let from = stream.peer_addr().unwrap().ip();
        counting.lock().unwrap().begins(from);
        answer(stream, head, &sending, || counting.lock().unwrap().now -= 1)
    });
    let mut clients: Vec<TcpStream> = (0..32).map(|_| world.connect()).collect();
    for client in &mut clients {
        client.write_all(get(&origin.url("/"), "").as_bytes()).unwrap();
    }
    for client in &mut clients {
        let head = read_head(client).unwrap();
        assert_eq!(status(&head), 200, "{head}");
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert!(got == *whole, "{} bytes", got.len());
    }
    // A first part and a rest of each, at least; over both networks.
    assert!(origin.seen().len() >= 64, "{}", origin.seen().len());
    let counts = counts.lock().unwrap();
    assert!(counts.sources.len() == 2 && counts.most <= 12, "{} from {:?}", counts.most, counts.sources);
}

#[test]
fn a_slow_network_gets_no_more_of_many_objects_than_it_can_carry() {
    if !require!() {
        return;
    }
    // The near network answers ten times sooner, and carries a tenth.
    let world = World::new(&[(5, 4), (50, 40)], "");
    let large = Object::start(&world, 4 << 20);
    let _open = world.warm_up_to(&[4, 40], &large);
    let object = Object::start(&world, 100_000);
    let mut clients: Vec<TcpStream> = (0..24).map(|_| world.connect()).collect();
    for client in &mut clients {
        client.write_all(get(&object.origin.url("/"), "").as_bytes()).unwrap();
    }
    let expected = content(object.size);
    for client in &mut clients {
        assert_eq!(status(&read_head(client).unwrap()), 200);
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert!(got == expected, "{} bytes", got.len());
    }
    let (near, far) = (object.share(0), object.share(1));
    // If each had half of it, as one alone would: more than half.
    assert!(near < 0.4 * (near + far), "{near} objects' worth over the slow one, {far} over the fast one");
}

/// The address that the next object of this server is asked for from.
fn asked_from(world: &World, server: &Origin, sources: &Mutex<Vec<IpAddr>>) -> IpAddr {
    assert_eq!(body(&world.talk(&get(&server.url("/"), ""))), "hello");
    *sources.lock().unwrap().last().unwrap()
}

#[test]
fn what_one_server_does_keeps_nobody_from_using_the_network_for_others() {
    if !require!() {
        return;
    }
    let world = World::new(&[(5, 50), (60, 50)], "[policy]\nname = \"eaf\"");
    let warm = Object::start(&world, 4 << 20);
    let _open = world.warm_up(&warm);
    let sources: Arc<Mutex<Vec<IpAddr>>> = Arc::default();
    let noting = Arc::clone(&sources);
    let good = world.origin(move |_, _, stream| {
        noting.lock().unwrap().push(stream.peer_addr().unwrap().ip());
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_ok()
    });
    assert_eq!(asked_from(&world, &good, &sources), NEAR);
    let at = |host: u8| IpAddr::V4(Ipv4Addr::new(10, 9, 9, host));
    // Three places that reset every connection, before an answer or in the middle of it, and three that
    // refuse.
    for host in 11..14 {
        let resetting = world.origin_at(at(host), move |_, _, stream| {
            if host == 12 {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").unwrap();
            }
            socket2::SockRef::from(&*stream).set_linger(Some(Duration::ZERO)).unwrap();
            false
        });
        world.talk(&get(&resetting.url("/"), ""));
        assert!(!resetting.seen().is_empty());
        let closed = world.server.run(|| TcpListener::bind((at(host), 0)).unwrap().local_addr().unwrap());
        assert_eq!(status(&world.talk(&get(&format!("http://{closed}/"), ""))), 502);
    }
    assert_eq!(asked_from(&world, &good, &sources), NEAR);
    // One that falls silent over this network alone: its object comes over the other one in the end.
    let whole = content(200_000);
    let expected = whole.clone();
    let silent = world.origin_at(at(14), move |head, _, stream| {
        if stream.peer_addr().unwrap().ip() != NEAR {
            return answer(stream, head, &whole, || {});
        }
        let begun = format!("HTTP/1.1 200 OK\r\n{TAG}\r\nContent-Length: {}\r\n\r\n", whole.len());
        stream.write_all(begun.as_bytes()).and_then(|()| stream.write_all(&whole[..5000])).unwrap();
        std::thread::sleep(3 * LIMIT);
        false
    });
    let mut client = world.connect();
    client.write_all(get(&silent.url("/"), "").as_bytes()).unwrap();
    assert_eq!(status(&read_head(&mut client).unwrap()), 200);
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert!(got == expected, "{} bytes", got.len());
    assert_eq!(asked_from(&world, &good, &sources), NEAR);
}
