//! NAT gateways of all kinds: at which port a socket inside is seen, and who gets in to it.
#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use whimbrel_lab::{Host, Lab, LinkSpec, NatGateway, NatKind, require};

/// The gateway's address, as those outside see it.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 1);
/// What is to come in does so, whatever else the machine does.
const SURELY: Duration = Duration::from_secs(10);
/// What is not to come in is not there after this.
const A_WHILE: Duration = Duration::from_millis(300);

/// inside 10.0.1.2 – 10.0.1.1 gateway 10.0.2.1 – 10.0.2.2 and 10.0.2.3 outside.
struct World {
    inside: Host,
    outside: Host,
    nat: NatGateway,
    _lab: Lab,
}

fn world() -> World {
    let lab = Lab::new().unwrap();
    let (inside, router, outside) =
        (lab.host("inside").unwrap(), lab.router("router").unwrap(), lab.host("outside").unwrap());
    let spec = LinkSpec::default().delay(Duration::from_millis(1));
    let near = lab.link(&inside, &router, spec.clone().interface_names("eth0", "lan")).unwrap();
    let far = lab.link(&router, &outside, spec.interface_names("wan", "eth0")).unwrap();
    near.end(&router).add_address("10.0.1.1/24").unwrap();
    near.end(&inside).add_address("10.0.1.2/24").unwrap();
    near.end(&inside).add_default_route("10.0.1.1", 10).unwrap();
    far.end(&router).add_address("10.0.2.1/24").unwrap();
    for address in ["10.0.2.2/24", "10.0.2.3/24"] {
        far.end(&outside).add_address(address).unwrap();
    }
    let nat = lab.nat_gateway(&router, "wan").unwrap();
    World { inside, outside, nat, _lab: lab }
}

impl World {
    fn inside(&self) -> UdpSocket {
        self.inside.run(|| UdpSocket::bind("10.0.1.2:0")).unwrap()
    }

    /// Two sockets at different ports of one address outside, and one at another address.
    fn outside(&self) -> [UdpSocket; 3] {
        ["10.0.2.2:7000", "10.0.2.2:7001", "10.0.2.3:7000"]
            .map(|at| self.outside.run(move || UdpSocket::bind(at)).unwrap())
    }
}

/// Sends from inside to a socket outside; returns where it is seen to come from.
fn seen(inside: &UdpSocket, outside: &UdpSocket) -> SocketAddr {
    outside.set_read_timeout(Some(SURELY)).unwrap();
    inside.send_to(b"out", outside.local_addr().unwrap()).unwrap();
    let (size, from) = outside.recv_from(&mut [0; 8]).unwrap();
    assert_eq!((size, from.ip()), (3, IpAddr::from(GATEWAY)));
    from
}

/// Sends to a place; panics unless it comes to that socket, or does not, as is expected.
fn sends(from: &UdpSocket, to: SocketAddr, at: &UdpSocket, is_expected: bool) {
    at.set_read_timeout(Some(if is_expected { SURELY } else { A_WHILE })).unwrap();
    from.send_to(b"in", to).unwrap();
    let mut buffer = [0; 8];
    match at.recv_from(&mut buffer) {
        Ok((size, source)) => assert!(is_expected && &buffer[..size] == b"in", "{size} bytes of {source}"),
        Err(error) => assert!(!is_expected, "{error}"),
    }
}

#[test]
fn each_kind_shows_a_socket_at_one_port_or_several_and_lets_in_whom_it_says() {
    if !require!() {
        return;
    }
    // Packets that come in once one was sent to the first host: from its port, from another port of it, and
    // from another address.
    for (kind, gets_in, is_steady) in [
        (NatKind::FullCone, [true, true, true], true),
        (NatKind::AddressRestricted, [true, true, false], true),
        (NatKind::PortRestricted, [true, false, false], true),
        (NatKind::Symmetric, [true, false, false], false),
    ] {
        let world = world();
        world.nat.set_kind(kind).unwrap();
        let (inside, outside) = (world.inside(), world.outside());
        let shown = seen(&inside, &outside[0]);
        for (from, expected) in outside.iter().zip(gets_in) {
            println!("{kind:?}: from {}", from.local_addr().unwrap());
            sends(from, shown, &inside, expected);
        }
        let others = [&outside[1], &outside[2]].map(|other| seen(&inside, other));
        assert_eq!(others.iter().all(|other| *other == shown), is_steady, "{kind:?}: {shown}, {others:?}");
        // Those who were sent to get in now, where they see the socket.
        for (from, at) in [(&outside[1], others[0]), (&outside[2], others[1])] {
            sends(from, at, &inside, true);
        }
        // No packet comes in at another port.
        let elsewhere = SocketAddr::new(shown.ip(), 9);
        sends(&outside[0], elsewhere, &inside, false);
    }
}

#[test]
fn a_gateway_that_is_told_to_turns_packets_back_to_hosts_inside() {
    if !require!() {
        return;
    }
    let world = world();
    world.nat.set_kind(NatKind::FullCone).unwrap();
    let outside = world.outside();
    let pair = [world.inside(), world.inside()];
    let shown = pair.each_ref().map(|socket| seen(socket, &outside[0]));
    sends(&pair[0], shown[1], &pair[1], false);
    world.nat.hairpin(GATEWAY).unwrap();
    let shown = pair.each_ref().map(|socket| seen(socket, &outside[0]));
    pair[1].set_read_timeout(Some(SURELY)).unwrap();
    pair[0].send_to(b"back", shown[1]).unwrap();
    let (size, from) = pair[1].recv_from(&mut [0; 8]).unwrap();
    assert_eq!((size, from.ip()), (4, IpAddr::from(GATEWAY)), "it comes from outside, as it seems");
    sends(&pair[1], from, &pair[0], true);
}

/// Whether a mapping is there still after twice that time, at a gateway that was told to forget after it, or
/// told nothing: the kernel of its own accord remembers for half a minute at least.
fn remembers(lives: Duration, is_told: bool) -> bool {
    let world = world();
    world.nat.set_kind(NatKind::PortRestricted).unwrap();
    let (inside, outside) = (world.inside(), world.outside());
    let shown = seen(&inside, &outside[0]);
    sends(&outside[0], shown, &inside, true);
    if is_told {
        world.nat.forget_idle_udp_after(lives).unwrap();
    }
    // Told only now: before this packet, which counts for the mapping, a busy machine may have been slow.
    sends(&outside[0], shown, &inside, true);
    std::thread::sleep(lives * 2);
    inside.set_read_timeout(Some(if is_told { A_WHILE } else { SURELY })).unwrap();
    outside[0].send_to(b"in", shown).unwrap();
    inside.recv_from(&mut [0; 8]).is_ok()
}

#[test]
fn a_gateway_forgets_what_was_idle_for_as_long_as_it_was_told() {
    if !require!() {
        return;
    }
    let lives = Duration::from_secs(2);
    std::thread::scope(|scope| {
        let told = scope.spawn(|| remembers(lives, true));
        assert!(remembers(lives, false));
        assert!(!told.join().unwrap());
    });
}
