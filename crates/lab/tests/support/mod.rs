//! What several of the lab's tests need.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use whimbrel_lab::{Host, Lab, Link, LinkSpec};

pub(crate) const A: &str = "10.0.1.1";
pub(crate) const B: &str = "10.0.1.2";

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Two hosts, 10.0.1.1 and 10.0.1.2 (fd00:1::1 and fd00:1::2), on one link.
pub(crate) struct Pair {
    _lab: Lab,
    pub(crate) a: Host,
    pub(crate) b: Host,
    pub(crate) link: Link,
}

pub(crate) fn pair(spec: LinkSpec) -> Pair {
    let lab = Lab::new().unwrap();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let link = lab.link(&a, &b, spec).unwrap();
    for (host, number) in [(&a, 1), (&b, 2)] {
        link.end(host).add_address(&format!("10.0.1.{number}/24")).unwrap();
        link.end(host).add_address(&format!("fd00:1::{number}/64")).unwrap();
    }
    Pair { _lab: lab, a, b, link }
}

/// Answers every datagram until the test ends.
pub(crate) fn udp_echo(host: &Host, address: &str) -> SocketAddr {
    let socket = host.run(|| UdpSocket::bind(address)).unwrap();
    let bound = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    bound
}

pub(crate) fn udp_client(host: &Host, bind: &str, server: SocketAddr) -> UdpSocket {
    let socket = host.run(|| UdpSocket::bind((bind, 0))).unwrap();
    socket.connect(server).unwrap();
    socket
}

/// One round trip; `None` if no answer comes in time.
pub(crate) fn round_trip(socket: &UdpSocket, limit: Duration) -> Option<Duration> {
    socket.set_read_timeout(Some(limit)).unwrap();
    let payload = fastrand::u64(..).to_ne_bytes();
    let began = Instant::now();
    socket.send(&payload).ok()?;
    loop {
        let mut answer = [0; 8];
        socket.recv(&mut answer).ok()?;
        if answer == payload {
            return Some(began.elapsed());
        }
    }
}

pub(crate) fn median_round_trip(socket: &UdpSocket, count: usize) -> Duration {
    let trips = (0..count).map(|_| round_trip(socket, ms(2000)).unwrap());
    let mut times: Vec<_> = trips.collect();
    times.sort();
    times[count / 2]
}

/// Takes whatever any number of connections send.
pub(crate) fn tcp_sink(host: &Host, address: &str) -> SocketAddr {
    let listener = host.run(|| TcpListener::bind(address)).unwrap();
    let bound = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut buffer = vec![0; 256 << 10];
                while stream.read(&mut buffer).is_ok_and(|length| length > 0) {}
            });
        }
    });
    bound
}

/// Answers whatever any number of connections send.
pub(crate) fn tcp_echo(host: &Host, address: &str) -> SocketAddr {
    let listener = host.run(|| TcpListener::bind(address)).unwrap();
    let bound = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || std::io::copy(&mut stream.try_clone().unwrap(), &mut stream));
        }
    });
    bound
}

pub(crate) fn connect(host: &Host, server: SocketAddr) -> std::io::Result<TcpStream> {
    host.run(|| TcpStream::connect_timeout(&server, ms(3000)))
}

/// Whether the other side still echoes.
pub(crate) fn echoes(stream: &mut TcpStream, limit: Duration) -> bool {
    stream.set_read_timeout(Some(limit)).unwrap();
    let mut answer = [0; 4];
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut answer).is_ok() && &answer == b"ping"
}

/// Sends as fast as TCP allows until the time is over; says how much it sent.
pub(crate) fn flood(mut stream: TcpStream, time: Duration) -> u64 {
    let block = vec![7; 128 << 10];
    let (began, mut sent) = (Instant::now(), 0);
    while began.elapsed() < time {
        sent += stream.write(&block).unwrap() as u64;
    }
    sent
}
