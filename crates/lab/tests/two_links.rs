//! A host with two links: each address has a way of its own, and the kernel's MPTCP uses both.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::support::*;
use socket2::{Domain, Protocol, Socket, Type};
use whimbrel_lab::{Direction, Host, Lab, Link, LinkSpec, MptcpUse, Rate, require, skip};

const SERVER: &str = "10.0.9.2:7000";
const MESSAGE: usize = 1000;

/// A client with 10.0.1.2 and 10.0.2.2, each on a link of its own to the router behind which the server is.
struct Net {
    _lab: Lab,
    client: Host,
    server: Host,
    links: [Link; 2],
}

impl Net {
    fn new() -> Self {
        let lab = Lab::new().unwrap();
        let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
        let router = lab.router("router").unwrap();
        [&client, &server].into_iter().for_each(|host| host.set_congestion_control("reno"));
        let links = [1, 2].map(|number| {
            let spec = LinkSpec::default().delay(ms(5)).rate(Rate::mbit(10));
            let link = lab.link(&client, &router, spec).unwrap();
            link.end(&router).add_address(&format!("10.0.{number}.1/24")).unwrap();
            let end = link.end(&client);
            end.add_address(&format!("10.0.{number}.2/24")).unwrap();
            end.add_default_route(&format!("10.0.{number}.1"), u32::from(number)).unwrap();
            let [source, gateway] = [2, 1].map(|host| IpAddr::from([10, 0, number, host]));
            client.add_source_route(end.name(), source, gateway, number).unwrap();
            link
        });
        let cable = lab.direct_link(&router, &server, LinkSpec::default()).unwrap();
        cable.end(&router).add_address("10.0.9.1/24").unwrap();
        cable.end(&server).add_address("10.0.9.2/24").unwrap();
        cable.end(&server).add_default_route("10.0.9.1", 1).unwrap();
        Self { _lab: lab, client, server, links }
    }

    fn sent(&self) -> [u64; 2] {
        std::array::from_fn(|link| self.links[link].stats(self.links[link].from(&self.client)).bytes)
    }
}

#[test]
fn packets_leave_by_the_link_of_their_address() {
    if !require!() {
        return;
    }
    let net = Net::new();
    let echo = udp_echo(&net.server, "10.0.9.2:0");
    for (link, source) in ["10.0.1.2", "10.0.2.2"].into_iter().enumerate() {
        let socket = udp_client(&net.client, source, echo);
        socket.set_read_timeout(Some(ms(2000))).unwrap();
        let before = net.sent();
        socket.send(&[0; MESSAGE]).unwrap();
        assert_eq!(socket.recv(&mut [0; MESSAGE]).unwrap(), MESSAGE);
        let after = net.sent();
        assert!(after[link] - before[link] >= MESSAGE as u64, "{before:?} {after:?}");
        assert_eq!(after[1 - link], before[1 - link], "the other link carried something");
    }
}

#[test]
fn congestion_control_is_that_of_the_route() {
    if !require!() {
        return;
    }
    let net = Net::new();
    let listener = net.server.run(|| TcpListener::bind(SERVER)).unwrap();
    let client = connect(&net.client, SERVER.parse().unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    for stream in [client, server] {
        let name = socket2::SockRef::from(&stream).tcp_congestion().unwrap();
        assert!(name.starts_with(b"reno"), "{}", String::from_utf8_lossy(&name));
    }
}

fn mptcp() -> Socket {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).unwrap()
}

/// Both ends of a connection, and the listener, without which no subflow can join.
fn mptcp_pair(net: &Net) -> (TcpStream, TcpStream, TcpListener) {
    let server: SocketAddr = SERVER.parse().unwrap();
    let listener: TcpListener = net.server.run(|| {
        let socket = mptcp();
        socket.bind(&server.into()).unwrap();
        socket.listen(8).unwrap();
        socket.into()
    });
    let client: TcpStream = net.client.run(|| {
        let socket = mptcp();
        socket.connect(&server.into()).unwrap();
        socket.into()
    });
    (client, listener.accept().unwrap().0, listener)
}

/// Writes at one end while the other reads, for that long. Says how much arrived, and when the last of it.
fn carry(from: &mut TcpStream, to: &mut TcpStream, time: Duration) -> (usize, Duration) {
    let began = Instant::now();
    from.set_write_timeout(Some(ms(200))).unwrap();
    to.set_read_timeout(Some(ms(200))).unwrap();
    let (mut received, mut last) = (0, Duration::ZERO);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while began.elapsed() < time {
                let _ = from.write(&[7; 4096]);
            }
        });
        let mut buffer = [0; 64 << 10];
        while began.elapsed() < time {
            if let Ok(n) = to.read(&mut buffer) {
                received += n;
                last = began.elapsed();
            }
        }
    });
    (received, last)
}

#[test]
fn the_kernels_mptcp_uses_both_links_and_survives_the_loss_of_one() {
    if !require!() {
        return;
    }
    let net = Net::new();
    let names = [0, 1].map(|link| net.links[link].end(&net.client).name().to_owned());
    if let Err(error) = net.client.allow_mptcp(2) {
        return skip("the_kernels_mptcp_uses_both_links", format!("the kernel has no MPTCP: {error}"));
    }
    net.server.allow_mptcp(2).unwrap();
    for (id, name) in (1..).zip(&names) {
        net.client.add_mptcp_endpoint(id, [10, 0, id, 2].into(), name, MptcpUse::Subflow).unwrap();
    }
    let (mut client, mut server, _listener) = mptcp_pair(&net);
    carry(&mut client, &mut server, ms(1500));
    let sent = net.sent();
    assert!(sent.iter().all(|&bytes| bytes > 300_000), "{sent:?}");

    net.links[0].set_blackhole(Direction::Both, true);
    net.client.del_mptcp_endpoint(1).unwrap();
    let (received, last) = carry(&mut client, &mut server, ms(3000));
    assert!(received > 500_000 && last > ms(2000), "{received} bytes, the last after {last:?}");
}
