//! How much of an object is asked for first, to learn its size, where several networks lead to its server.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

#[path = "support/networks.rs"]
mod networks;
mod support;

use networks::{Object, World, content, range};
use std::io::Write as _;
use std::sync::{Arc, Mutex};
use support::{Origin, field, get};
use whimbrel_lab::require;

const SIZE: usize = 100_000;

/// A server with one object, and the ranges that it was asked for.
fn object(world: &World) -> (Origin, Arc<Mutex<Vec<String>>>) {
    let (content, asked) = (content(SIZE), Arc::<Mutex<Vec<String>>>::default());
    let noted = Arc::clone(&asked);
    let origin = world.origin(move |head, _, stream| {
        noted.lock().unwrap().push(field(head, "range").unwrap_or("all").to_owned());
        let (first, last) = range(head, content.len()).unwrap_or((0, content.len() - 1));
        let answer = format!(
            "HTTP/1.1 206 Partial Content\r\nETag: \"a\"\r\nContent-Range: bytes {first}-{last}/{SIZE}\r\n\
             Content-Length: {}\r\n\r\n",
            last + 1 - first,
        );
        stream.write_all(answer.as_bytes()).is_ok() && stream.write_all(&content[first..=last]).is_ok()
    });
    (origin, asked)
}

#[test]
fn an_object_that_comes_in_a_round_trip_of_its_far_network_is_asked_for_at_once_over_an_open_connection() {
    if !require!() {
        return;
    }
    // The nearer link brings 250 KB in a round trip. The other one is three times as far.
    let world = World::with(&[(50, 20), (150, 20)], "", |settings| settings.longest_first = 256 << 10);
    let known = Object::start(&world, 4 << 20);
    let _open = [world.warm_up(&known), world.warm_up(&known)];
    world.until_seen("each link has a rate", |path| path.down_best.is_some() && path.srtt_min_ms.is_some());
    let (origin, asked) = object(&world);
    let load = || {
        let answer = world.talk(&get(&origin.url("/"), ""));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{}", &answer[..answer.len().min(200)]);
        std::mem::take(&mut *asked.lock().unwrap())
    };
    // The window of a new connection has to grow first.
    let first = load();
    assert!(first.len() > 1 && first[0] == "bytes=0-8191", "{first:?}");
    // A connection may come back a moment after its object has come.
    let later: Vec<Vec<String>> = (0..8).map(|_| load()).collect();
    let is_all = |range: &str| {
        let last = range.strip_prefix("bytes=0-").and_then(|last| last.parse::<usize>().ok());
        last.is_some_and(|last| last >= SIZE - 1)
    };
    assert!(later.iter().any(|asked| asked.len() == 1 && is_all(&asked[0])), "{later:?}");
}
