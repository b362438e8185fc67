//! Routers and NAT gateways.
#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::net::{SocketAddr, TcpListener};

use crate::support::*;
use whimbrel_lab::{Host, Lab, LinkSpec, require};

/// inside 10.0.1.2 – 10.0.1.1 router 10.0.2.1 – 10.0.2.2 outside; the same for fd00:1:: and fd00:2::.
struct Routed {
    lab: Lab,
    inside: Host,
    router: Host,
    outside: Host,
}

fn routed() -> Routed {
    let lab = Lab::new().unwrap();
    let (inside, router, outside) =
        (lab.host("inside").unwrap(), lab.router("router").unwrap(), lab.host("outside").unwrap());
    let spec = LinkSpec::default().delay(ms(2));
    let near = lab.link(&inside, &router, spec.clone().interface_names("eth0", "lan")).unwrap();
    let far = lab.link(&router, &outside, spec.interface_names("wan", "eth0")).unwrap();
    for (end, host) in [
        (near.end(&router), "1::1"),
        (near.end(&inside), "1::2"),
        (far.end(&router), "2::1"),
        (far.end(&outside), "2::2"),
    ] {
        end.add_address(&format!("fd00:{host}/64")).unwrap();
        end.add_address(&format!("10.0.{}/24", host.replace("::", "."))).unwrap();
    }
    near.end(&inside).add_default_route("10.0.1.1", 10).unwrap();
    near.end(&inside).add_default_route("fd00:1::1", 10).unwrap();
    Routed { lab, inside, router, outside }
}

/// Tells every client the address it came from, then echoes.
fn mirror(host: &Host, address: &str) -> SocketAddr {
    let listener = host.run(|| TcpListener::bind(address)).unwrap();
    let bound = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let from = format!("{:<64}", stream.peer_addr().unwrap().ip());
            std::io::Write::write_all(&mut stream, from.as_bytes()).unwrap();
            std::thread::spawn(move || std::io::copy(&mut stream.try_clone().unwrap(), &mut stream));
        }
    });
    bound
}

fn seen_address(stream: &mut impl Read) -> String {
    let mut text = [0; 64];
    stream.read_exact(&mut text).unwrap();
    String::from_utf8_lossy(&text).trim().to_owned()
}

#[test]
fn a_router_forwards_both_families() {
    if !require!() {
        return;
    }
    let net = routed();
    let (v4, v6) = (mirror(&net.outside, "10.0.2.2:80"), mirror(&net.outside, "[fd00:2::2]:80"));
    assert!(connect(&net.inside, v4).is_err(), "there is no way back");
    net.outside.add_route("eth0", "10.0.1.0/24", "10.0.2.1").unwrap();
    net.outside.add_route("eth0", "fd00:1::/64", "fd00:2::1").unwrap();
    assert_eq!(seen_address(&mut connect(&net.inside, v4).unwrap()), "10.0.1.2");
    assert_eq!(seen_address(&mut connect(&net.inside, v6).unwrap()), "fd00:1::2");
    net.outside.del_route("eth0", "10.0.1.0/24").unwrap();
    net.outside.del_route("eth0", "fd00:1::/64").unwrap();
    net.outside.add_default_route("eth0", "fd00:2::1", 1).unwrap();
    assert_eq!(seen_address(&mut connect(&net.inside, v6).unwrap()), "fd00:1::2");
    net.outside.del_route("eth0", "::/0").unwrap();
}

#[test]
fn a_nat_gateway_hides_its_inside_and_forgets() {
    if !require!() {
        return;
    }
    let net = routed();
    let (v4, v6) = (mirror(&net.outside, "10.0.2.2:80"), mirror(&net.outside, "[fd00:2::2]:80"));
    let udp_server = udp_echo(&net.outside, "10.0.2.2:0");
    let nat = net.lab.nat_gateway(&net.router, "wan").unwrap();

    let mut old = connect(&net.inside, v4).unwrap();
    assert_eq!(seen_address(&mut old), "10.0.2.1", "the gateway's address");
    assert_eq!(seen_address(&mut connect(&net.inside, v6).unwrap()), "fd00:2::1");
    assert!(echoes(&mut old, ms(1000)));
    let udp = udp_client(&net.inside, "10.0.1.2", udp_server);
    assert!(round_trip(&udp, ms(1000)).is_some());

    nat.forget_mappings().unwrap();
    assert!(!echoes(&mut old, ms(700)), "the old flow is dead");
    let mut new = connect(&net.inside, v4).unwrap();
    assert_eq!(seen_address(&mut new), "10.0.2.1");
    assert!(echoes(&mut new, ms(1000)), "a new flow works");
    assert!(round_trip(&udp, ms(1000)).is_some(), "UDP gets a new mapping");
    assert!(!echoes(&mut old, ms(700)), "and stays dead");

    let server_inside = tcp_echo(&net.inside, "10.0.1.2:80");
    net.outside.add_route("eth0", "10.0.1.0/24", "10.0.2.1").unwrap();
    assert!(connect(&net.outside, server_inside).is_err(), "nothing comes in unasked");
}

#[test]
fn after_forgetting_udp_comes_from_another_port() {
    if !require!() {
        return;
    }
    let net = routed();
    let nat = net.lab.nat_gateway(&net.router, "wan").unwrap();
    let server = net.outside.run(|| std::net::UdpSocket::bind("10.0.2.2:7000")).unwrap();
    server.set_read_timeout(Some(ms(1000))).unwrap();
    let client = udp_client(&net.inside, "10.0.1.2", server.local_addr().unwrap());
    let port = || {
        client.send(b"x").unwrap();
        server.recv_from(&mut [0; 8]).unwrap().1.port()
    };
    let first = port();
    assert_eq!(port(), first);
    nat.forget_mappings().unwrap();
    assert_ne!(port(), first);
}
