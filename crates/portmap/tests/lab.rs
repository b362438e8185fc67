//! A machine behind a home router that speaks PCP, NAT-PMP and UPnP: the router's side is miniupnpd.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod home;

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::home::{PATIENCE, Sides};
use whimbrel_base::SecretKey;
use whimbrel_lab::{DirectLink, Host, HostChild, Lab, Link, LinkSpec, NatGateway, require};
use whimbrel_portmap::{Mapped, Pinholes, Protocol};
use whimbrel_transport::CarrierKind;

/// Of the router's address. (miniupnpd serves only where it has an address that is public; those for examples
/// are not.)
const OUTSIDE: &str = "11.22.33";
/// UDP ports on which PCP and NAT-PMP are spoken, and on which UPnP's searches are heard.
const NAT_PMP: u16 = 5351;
const SSDP: u16 = 1900;
/// Where the home finds it.
const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 1);

/// A home behind a router at `outside`, and somebody else on the Internet.
struct World {
    home: Host,
    sides: Sides,
    router: NatGateway,
    _links: (Link, DirectLink),
    _lab: Lab,
}

impl World {
    fn new(outside: &str) -> Self {
        let lab = Lab::new().unwrap();
        let (home, router, far) =
            (lab.host("home").unwrap(), lab.router("router").unwrap(), lab.host("far").unwrap());
        let spec = || LinkSpec::default().delay(Duration::from_millis(2));
        let wan = lab.link(&router, &far, spec().interface_names("wan0", "eth0")).unwrap();
        wan.end(&router).add_address(&format!("{outside}.10/24")).unwrap();
        wan.end(&far).add_address(&format!("{outside}.1/24")).unwrap();
        wan.end(&router).add_default_route(&format!("{outside}.1"), 1).unwrap();
        // A plain cable: devices find each other there by multicast.
        let lan = spec().interface_names("eth0", "lan0");
        let lan = lab.direct_link(&home, &router, lan).unwrap();
        lan.end(&router).add_address("192.168.1.1/24").unwrap();
        lan.end(&home).add_address("192.168.1.20/24").unwrap();
        lan.end(&home).add_default_route("192.168.1.1", 1).unwrap();
        let nat = lab.nat_gateway(&router, "wan0").unwrap();
        let sides = Sides { far: far.runtime(2).unwrap(), inside: home.runtime(2).unwrap() };
        Self { home, sides, router: nat, _links: (wan, lan), _lab: lab }
    }
}

/// miniupnpd on a router.
struct Daemon {
    child: HostChild,
    _folder: tempfile::TempDir,
}

impl Daemon {
    fn start(router: &Host, protocols: &[&str]) -> Self {
        router
            .nft(
                "add table inet lab_upnp
                 add chain inet lab_upnp mapped_in
                 add chain inet lab_upnp mapped_out
                 add chain inet lab_upnp mapped_through
                 add chain inet lab_upnp inward { type nat hook prerouting priority dstnat; }
                 add chain inet lab_upnp outward { type nat hook postrouting priority srcnat; }
                 add chain inet lab_upnp passing { type filter hook forward priority filter; }
                 add rule inet lab_upnp inward jump mapped_in
                 add rule inet lab_upnp outward jump mapped_out
                 add rule inet lab_upnp passing jump mapped_through",
            )
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut config = String::from(
            "ext_ifname=wan0\nlistening_ip=lan0\nhttp_port=0\nsecure_mode=yes\n\
             upnp_table_name=lab_upnp\nupnp_nat_table_name=lab_upnp\nupnp_forward_chain=mapped_through\n\
             upnp_nat_chain=mapped_in\nupnp_nat_postrouting_chain=mapped_out\n\
             allow 1024-65535 192.168.1.0/24 1024-65535\ndeny 0-65535 0.0.0.0/0 0-65535\n",
        );
        for protocol in ["enable_natpmp", "enable_upnp"] {
            let value = if protocols.contains(&protocol) { "yes" } else { "no" };
            writeln!(config, "{protocol}={value}").unwrap();
        }
        let file = folder.path().join("miniupnpd.conf");
        std::fs::write(&file, config).unwrap();
        let pid = folder.path().join("pid");
        // What it says of its work is not the test's.
        let quiet = |command: &mut Command| {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        };
        let child =
            router.command("miniupnpd").with(quiet).arg("-d").arg("-f").arg(&file).arg("-P").arg(&pid);
        let mut daemon = Self { child: child.spawn().unwrap(), _folder: folder };
        daemon.wait_until_it_answers(protocols);
        daemon
    }

    /// Until it has the ports of all that it is to speak: one that is asked sooner is found over another
    /// protocol.
    fn wait_until_it_answers(&mut self, protocols: &[&str]) {
        let speaks = |protocol| protocols.contains(&protocol);
        let ports = [(NAT_PMP, speaks("enable_natpmp")), (SSDP, speaks("enable_upnp"))];
        let sockets = format!("/proc/{}/net/udp", self.child.child().id());
        let until = Instant::now() + PATIENCE;
        loop {
            let table = std::fs::read_to_string(&sockets).unwrap_or_default();
            if ports.iter().all(|(port, wanted)| !wanted || table.contains(&format!(":{port:04X} "))) {
                return;
            }
            assert!(Instant::now() < until, "miniupnpd does not begin:\n{table}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // One that has ended already is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All is known of it.
fn is_passed_on(mapped: &Mapped) -> bool {
    !mapped.places.is_empty() && mapped.pinholes == Pinholes::Needless
}

/// Has the router pass the port on, is reached there over both carriers, and gives the port back.
fn is_reached_through_a_port(protocols: &[&str], by: Protocol) {
    let world = World::new(OUTSIDE);
    let _daemon = Daemon::start(world.router.router(), protocols);
    let key = SecretKey::generate();
    let server = world.sides.endpoint_at_home(&key);
    world.sides.echo(&server);
    let ports = world.sides.map(&server, &key);
    let told = world.sides.told(&ports, is_passed_on);
    let place = SocketAddr::new(format!("{OUTSIDE}.10").parse().unwrap(), server.port());
    assert_eq!((told.places.as_slice(), told.by), ([place].as_slice(), Some(by)));
    assert_eq!(server.addr().addrs.first(), Some(&place), "told before its own address");
    for carrier in [CarrierKind::Tcp, CarrierKind::Quic] {
        assert!(world.sides.is_reached(&server, place, carrier), "{carrier:?}");
    }

    // A process that ended without a word is followed by another one: it has the same port.
    drop(ports);
    let ports = world.sides.map(&server, &key);
    let again = world.sides.told(&ports, is_passed_on);
    assert_eq!(again, told);

    world.sides.inside.block_on(ports.close());
    assert!(!server.addr().addrs.contains(&place));
    assert!(!world.sides.is_reached(&server, place, CarrierKind::Tcp), "given back");
}

#[test]
fn a_router_that_speaks_pcp_passes_the_port_on() {
    if require!() {
        is_reached_through_a_port(&["enable_natpmp", "enable_upnp"], Protocol::Pcp);
    }
}

#[test]
fn a_router_that_speaks_upnp_alone_passes_the_port_on() {
    if require!() {
        is_reached_through_a_port(&["enable_upnp"], Protocol::Upnp);
    }
}

#[test]
fn a_router_that_speaks_nat_pmp_is_asked_by_it() {
    if !require!() {
        return;
    }
    let world = World::new(OUTSIDE);
    let _speaking = world.router.speak_nat_pmp(ROUTER, Ipv4Addr::new(11, 22, 33, 10)).unwrap();
    let key = SecretKey::generate();
    let server = world.sides.endpoint_at_home(&key);
    let ports = world.sides.map(&server, &key);
    let told = world.sides.told(&ports, |mapped| !mapped.places.is_empty());
    let place = SocketAddr::from(([11, 22, 33, 10], server.port()));
    assert_eq!((told.places.as_slice(), told.by), ([place].as_slice(), Some(Protocol::NatPmp)));
    world.sides.echo(&server);
    assert!(world.sides.is_reached(&server, place, CarrierKind::Quic));
}

#[test]
fn a_router_behind_another_one_is_of_no_use_which_is_said() {
    if !require!() {
        return;
    }
    let world = World::new("100.64.0");
    let _speaking = world.router.speak_nat_pmp(ROUTER, Ipv4Addr::new(100, 64, 0, 10)).unwrap();
    let key = SecretKey::generate();
    let server = world.sides.endpoint_at_home(&key);
    let before = server.addr();
    let ports = world.sides.map(&server, &key);
    let problem = world.sides.told(&ports, |mapped| mapped.problem.is_some()).problem.unwrap();
    assert!(problem.contains("100.64.0.10 is not public"), "{problem}");
    assert_eq!(server.addr(), before);
}

#[test]
fn a_router_that_speaks_none_of_the_protocols_is_asked_later_which_is_said() {
    if !require!() {
        return;
    }
    let world = World::new(OUTSIDE);
    let key = SecretKey::generate();
    let server = world.sides.endpoint_at_home(&key);
    let ports = world.sides.map(&server, &key);
    let problem = world.sides.told(&ports, |mapped| mapped.problem.is_some()).problem.unwrap();
    assert!(problem.contains("192.168.1.1 passes no port on"), "{problem}");

    // It learns to, and the host comes to it anew.
    let _daemon = Daemon::start(world.router.router(), &["enable_natpmp"]);
    world.home.add_address("eth0", "192.168.1.21/24").unwrap();
    world.sides.told(&ports, |mapped| mapped.by == Some(Protocol::Pcp));
}
