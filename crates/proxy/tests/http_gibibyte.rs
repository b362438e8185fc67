//! Large bodies, and what they take. The memory of the process is measured, so nothing else is tested in it.
#![allow(clippy::unwrap_used)]

use crate::support::{Origin, connect, get, has, proxy, read_head, resident, rest};
use std::io::{Read as _, Write as _};
use std::time::Duration;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn bodies_of_a_gibibyte_pass_both_ways_in_bounded_memory() {
    const SIZE: usize = 1 << 30;
    const CHUNK: usize = 1 << 20;
    let origin = Origin::start(|head, _, stream| {
        let mut buffer = vec![7; CHUNK];
        if head.starts_with("GET") {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n").unwrap();
            for _ in 0..SIZE / CHUNK {
                stream.write_all(&buffer).unwrap();
            }
        } else {
            for _ in 0..SIZE / CHUNK {
                stream.read_exact(&mut buffer).unwrap();
            }
            stream.write_all(HELLO.as_bytes()).unwrap();
        }
        false
    });
    let proxy = proxy(|_| {});
    let url = origin.url("/");
    let before = resident();
    let mut most = 0;
    let mut client = connect(proxy.address);
    write!(client, "PUT {url} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {SIZE}\r\n\r\n")
        .unwrap();
    let chunk = vec![7; CHUNK];
    for _ in 0..SIZE / CHUNK {
        client.write_all(&chunk).unwrap();
        most = most.max(resident());
    }
    assert!(rest(&mut client).ends_with("hello"));
    let mut client = connect(proxy.address);
    client.write_all(get(&url, "").as_bytes()).unwrap();
    let head = read_head(&mut client).unwrap();
    assert!(has(&head, &format!("content-length: {SIZE}")), "{head}");
    // A reader that rests does not make the proxy read on.
    std::thread::sleep(Duration::from_secs(1));
    most = most.max(resident());
    let (mut count, mut buffer) = (0, vec![0; CHUNK]);
    loop {
        match client.read(&mut buffer).unwrap() {
            0 => break,
            n => count += n,
        }
        most = most.max(resident());
    }
    assert_eq!(count, SIZE);
    assert!(most.saturating_sub(before) < 32 << 20, "{} KiB more", most.saturating_sub(before) >> 10);
}
