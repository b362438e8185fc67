//! Many slow clients, and what they take. The memory of the process is measured, so nothing else is tested
//! in it.
#![allow(clippy::unwrap_used)]

use crate::support::{LIMIT, Origin, body, connect, get, proxy, resident, talk};
use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn five_thousand_slow_clients_hold_nobody_up() {
    // Both ends of each are in this process.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    assert!(limit.maximum.is_none_or(|most| most >= 11_000), "raise the hard limit of open files");
    // A busy machine may need a while to make so many.
    let patient = 10 * LIMIT;
    let (proxy, origin) = (proxy(|settings| settings.request_limit = patient), Origin::saying(HELLO));
    let before = resident();
    let mut slow: Vec<TcpStream> = (0..5000)
        .map(|_| {
            let mut stream = connect(proxy.address);
            stream.write_all(b"GET http://a/ HTTP/1.1\r\nHost: ").unwrap();
            stream
        })
        .collect();
    let end = Instant::now() + patient;
    while proxy.proxy.stats().connections < 5000 {
        assert!(Instant::now() < end, "{:?}", proxy.proxy.stats());
        std::thread::sleep(Duration::from_millis(10));
    }
    for stream in &mut slow {
        stream.write_all(b"x").unwrap();
    }
    assert_eq!(body(&talk(proxy.address, &get(&origin.url("/"), ""))), "hello");
    let grown = resident().saturating_sub(before);
    assert!(grown < 160 << 20, "{} KiB each", grown / 5000 / 1024);
}
