//! Servers that send crumbs. The memory of the process is measured, so nothing else is tested in it.
#![allow(clippy::unwrap_used)]

use crate::support::{Origin, connect, field, get, proxy, read_head, resident};
use std::io::{Read as _, Write as _};
use std::time::Duration;

const TOTAL: usize = 64 << 20;
const FIELDS: &str = "ETag: \"a\"\r\nAccept-Ranges: bytes";

/// Breaks off after one byte, and then gives what follows as it is told.
fn crumbs(then: impl Fn(usize, &mut std::net::TcpStream) + Send + Sync + 'static) -> Origin {
    Origin::start(move |head, n, stream| {
        if n == 0 {
            write!(stream, "HTTP/1.1 200 OK\r\n{FIELDS}\r\nContent-Length: {TOTAL}\r\n\r\nx").unwrap();
            return false;
        }
        let range = field(head, "range").unwrap().strip_prefix("bytes=").unwrap();
        then(range.split_once('-').unwrap().0.parse().unwrap(), stream);
        false
    })
}

#[test]
fn a_server_that_sends_single_bytes_costs_neither_memory_nor_one_connection_after_the_other() {
    let proxy = proxy(|_| {});
    // Chunks of one byte, to a client that rests.
    let chunks = crumbs(|first, stream| {
        let last = TOTAL - 1;
        let _ = write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\n{FIELDS}\r\nContent-Range: bytes {first}-{last}/{TOTAL}\r\n\
             Transfer-Encoding: chunked\r\n\r\n"
        );
        let many = "1\r\nx\r\n".repeat(10_000);
        while stream.write_all(many.as_bytes()).is_ok() {}
    });
    let before = resident();
    let mut client = connect(proxy.address);
    client.write_all(get(&chunks.url("/"), "").as_bytes()).unwrap();
    read_head(&mut client).unwrap();
    std::thread::sleep(Duration::from_secs(10));
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 20, "{} KiB more", grown >> 10);
    let mut some = vec![0; 1 << 20];
    client.read_exact(&mut some).unwrap();
    assert!(some.iter().all(|byte| *byte == b'x'));
    drop(client);
    // Parts of one byte.
    let parts = crumbs(|first, stream| {
        let range = format!("Content-Range: bytes {first}-{first}/{TOTAL}");
        let _ = write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\n{FIELDS}\r\n{range}\r\nContent-Length: 1\r\n\r\nx"
        );
    });
    let mut client = connect(proxy.address);
    client.write_all(get(&parts.url("/"), "").as_bytes()).unwrap();
    read_head(&mut client).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let asked = parts.seen().len();
    assert!((2..10).contains(&asked), "it was asked {asked} times");
}
