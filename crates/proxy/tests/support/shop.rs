//! A server far away that has a name, which the DNS of both networks knows, and whose TLS ends in the proxy.
#![allow(clippy::unwrap_used, unreachable_pub)]

use crate::networks::{FAR, World};
use crate::secure::{Authority, Key};
use std::net::{IpAddr, TcpListener, UdpSocket};
use whimbrel_lab::Host;
use whimbrel_proxy::HttpProxy;

/// Its name.
pub const SHOP: &str = "shop.example";
/// What a manager is told of the DNS of both networks.
const DNS: &str = "[[interface]]\nname = \"link0\"\nservers = [\"10.0.0.2\"]\n\
                   [[interface]]\nname = \"link1\"\nservers = [\"10.0.1.2\"]\n";

/// Two networks as fast as each other, which know the name, and a proxy that intercepts it.
pub fn intercepted(key: &Key, servers: &Authority) -> World {
    let interception = key.intercepts(&[SHOP], &servers.file);
    let world = World::made(
        &[(10, 10), (10, 10)],
        DNS,
        |_| {},
        |upstream, settings| HttpProxy::intercepting(upstream, settings, interception),
    );
    dns(&world.server, [10, 0, 0, 2]);
    dns(&world.server, [10, 0, 1, 2]);
    world
}

/// Where its server listens.
pub fn door(world: &World) -> TcpListener {
    world.server.run(|| TcpListener::bind((FAR, 443)).unwrap())
}

/// A DNS server that says of every name that it is the far host, by IPv4 alone.
fn dns(host: &Host, at: [u8; 4]) {
    let socket = host.run(|| UdpSocket::bind((IpAddr::from(at), 53)).unwrap());
    let IpAddr::V4(far) = FAR else { panic!("{FAR}") };
    std::thread::spawn(move || {
        let mut question = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut question) {
            let name = question[12..length].iter().position(|byte| *byte == 0).unwrap();
            // The name, its end, type and class (RFC 1035, §4.1.2).
            let end = 12 + name + 5;
            let is_v4 = question[end - 4..end - 2] == [0, 1];
            let mut answer = question[..2].to_vec();
            answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_v4), 0, 0, 0, 0]);
            answer.extend(&question[12..end]);
            if is_v4 {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                answer.extend(far.octets());
            }
            let _ = socket.send_to(&answer, from);
        }
    });
}
