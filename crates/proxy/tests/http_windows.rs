//! What objects that come over two networks take together while nobody reads them. The memory of the process
//! is measured, so nothing else is tested in it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::networks::{Object, World, content};
use crate::support::{LIMIT, get, read_head, resident, status};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use whimbrel_lab::require;

const WINDOW: u64 = 8 << 20;
/// For all of them together: as much as four have.
const WINDOWS: u64 = 4 * WINDOW;
const CLIENTS: usize = 12;

#[test]
fn all_objects_together_hold_no_more_than_their_bound_and_arrive_right() {
    if !require!() {
        return;
    }
    let world = World::with(&[(2, 400), (2, 400)], "", |settings| {
        (settings.window, settings.windows, settings.turns) = (WINDOW, WINDOWS, 0);
    });
    // Each is larger than a window and what sockets hold.
    let object = Object::start(&world, 16 << 20);
    let _open = world.warm_up(&object);
    let before = resident();
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| world.connect()).collect();
    for client in &mut clients {
        client.write_all(get(&object.origin.url("/"), "").as_bytes()).unwrap();
        assert_eq!(status(&read_head(client).unwrap()), 200);
    }
    // Until no more comes: all is full.
    let sent = || object.by_source.lock().unwrap().values().sum::<usize>();
    let (mut last, mut since, end) = (0, Instant::now(), Instant::now() + 6 * LIMIT);
    while since.elapsed() < Duration::from_secs(5) {
        assert!(Instant::now() < end, "it never ends: {last} bytes");
        std::thread::sleep(Duration::from_millis(100));
        let now = sent();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    let held = resident().saturating_sub(before);
    assert!(last as u64 > WINDOWS, "{last} bytes were sent");
    assert!(held < WINDOWS + WINDOWS / 2, "{} MiB are held, of {} sent", held >> 20, last >> 20);
    // No object waits for another one's reader.
    let expected = content(object.size);
    for client in &mut clients {
        let (mut buffer, mut count) = (vec![0; 64 << 10], 0);
        while let Ok(n @ 1..) = client.read(&mut buffer) {
            assert!(expected[count..].starts_with(&buffer[..n]), "other bytes at {count}");
            count += n;
        }
        assert_eq!(count, object.size);
    }
}
