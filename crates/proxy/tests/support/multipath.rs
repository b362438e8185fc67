//! The kernel's Multipath TCP between the hosts of a world.
#![allow(clippy::unwrap_used, unreachable_pub)]

use crate::networks::{FAR, World};
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{IpAddr, SocketAddr, TcpListener};
use whimbrel_lab::{MptcpUse, skip};

/// Has both hosts speak it, the client over all links. False where this kernel has none: then the test is
/// skipped.
pub fn is_allowed(world: &World, test: &str) -> bool {
    if let Err(error) = world.client.allow_mptcp(2) {
        skip(test, format!("the kernel has no MPTCP: {error}"));
        return false;
    }
    world.server.allow_mptcp(2).unwrap();
    for (id, link) in (1_u8..).zip(&world.links) {
        let (address, end) = (IpAddr::from([10, 0, id - 1, 1]), link.end(&world.client));
        world.client.add_mptcp_endpoint(id, address, end.name(), MptcpUse::Subflow).unwrap();
    }
    true
}

/// A socket of the far host that speaks it with those that do, and TCP with others.
pub fn listener(world: &World) -> TcpListener {
    world.server.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).unwrap();
        socket.bind(&SocketAddr::new(FAR, 0).into()).unwrap();
        socket.listen(16).unwrap();
        socket.into()
    })
}

/// What `ss` lists on the server's host of connections from this port: `-M` those of Multipath TCP, `-t` all
/// that carry them.
pub fn listed(world: &World, kind: &str, port: u16) -> Vec<String> {
    let port = format!(":{port}");
    let filter = [kind, "-nH", "state", "established", "sport", "=", &port];
    let output = world.server.command("ss").args(filter).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}
