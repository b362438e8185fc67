//! A machine with a global IPv6 address behind a router whose firewall lets in what it is asked for.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod home;

use std::net::{Ipv6Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::home::{PATIENCE, Sides};
use whimbrel_base::SecretKey;
use whimbrel_lab::{Block, Host, HostChild, Lab, LinkSpec, PcpFirewall, require};
use whimbrel_portmap::{Mapped, Pinholes, PortMap, probe};
use whimbrel_transport::{CarrierKind, Endpoint};

/// Where the home finds its router, as a router's advertisement says it.
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const HOME: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0x20);
/// What it is given beside.
const OTHER: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0x21);
const BOTH: [CarrierKind; 2] = [CarrierKind::Tcp, CarrierKind::Quic];

/// A home behind a router that translates nothing, and somebody else on the Internet.
struct World {
    home: Host,
    router: Host,
    sides: Sides,
    _lab: Lab,
}

impl World {
    fn new() -> Self {
        let lab = Lab::new().unwrap();
        let (home, router, far) =
            (lab.host("home").unwrap(), lab.router("router").unwrap(), lab.host("far").unwrap());
        let spec = || LinkSpec::default().delay(Duration::from_millis(2));
        let wan = lab.link(&router, &far, spec().interface_names("wan0", "eth0")).unwrap();
        wan.end(&router).add_address("2001:db8:2::10/64").unwrap();
        wan.end(&far).add_address("2001:db8:2::1/64").unwrap();
        wan.end(&far).add_default_route("2001:db8:2::10", 1).unwrap();
        let lan = lab.link(&home, &router, spec().interface_names("eth0", "lan0")).unwrap();
        lan.end(&router).add_address("fe80::1/64").unwrap();
        lan.end(&router).add_address("2001:db8:1::1/64").unwrap();
        lan.end(&home).add_address("2001:db8:1::20/64").unwrap();
        lan.end(&home).add_default_route("fe80::1", 1).unwrap();
        let sides = Sides { far: far.runtime(2).unwrap(), inside: home.runtime(2).unwrap() };
        Self { home, router, sides, _lab: lab }
    }

    fn firewall(&self) -> PcpFirewall {
        PcpFirewall::start(&self.router, "wan0", "lan0", ROUTER).unwrap()
    }

    /// Over which carriers somebody on the Internet who dials a place is heard and answered.
    fn reached_over(&self, server: &Endpoint, place: SocketAddr) -> Vec<CarrierKind> {
        BOTH.into_iter().filter(|carrier| self.sides.is_reached(server, place, *carrier)).collect()
    }

    /// Gives the host another address. The router, which is asked for both then, goes on with what it has
    /// opened, and lets peers in at the other one too: where that is.
    fn until_reached_at_another_address(&self, server: &Endpoint, ports: &PortMap) -> SocketAddr {
        self.home.add_address("eth0", "2001:db8:1::21/64").unwrap();
        let [place, other] = [HOME, OTHER].map(|ip| SocketAddr::new(ip.into(), server.port()));
        self.sides.told(ports, |mapped| mapped.pinholes == Pinholes::Open(vec![place, other]));
        self.until_reached_over(&BOTH, server, place);
        self.until_reached_over(&BOTH, server, other);
        other
    }

    /// What the router's firewall does.
    fn rules(&self) -> String {
        let listed = self.router.command("nft").args(["list", "ruleset"]).output().unwrap();
        String::from_utf8_lossy(&listed.stdout).into_owned()
    }

    /// Waits until that is so: a router takes its time with its firewall, and a busy one is asked again.
    fn until_reached_over(&self, carriers: &[CarrierKind], server: &Endpoint, place: SocketAddr) {
        let begun = Instant::now();
        loop {
            let reached = self.reached_over(server, place);
            if reached == carriers {
                return;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{place} is reached over {reached:?} and not {carriers:?}: {}",
                self.rules()
            );
        }
    }
}

fn is_closed(mapped: &Mapped) -> bool {
    matches!(mapped.pinholes, Pinholes::Closed(_))
}

#[test]
fn a_firewall_that_is_asked_lets_peers_in_over_tcp_and_quic_until_the_port_is_given_back() {
    if !require!() {
        return;
    }
    let world = World::new();
    let _firewall = world.firewall();
    let key = SecretKey::generate();
    let server = world.sides.endpoint_at_home(&key);
    world.sides.echo(&server);
    let place = SocketAddr::new(HOME.into(), server.port());
    assert!(world.reached_over(&server, place).is_empty(), "nobody asked the firewall");

    let before = server.addr();
    let ports = world.sides.map(&server, &key);
    let told = world.sides.told(&ports, |mapped| matches!(mapped.pinholes, Pinholes::Open(_)));
    assert_eq!(told.pinholes, Pinholes::Open(vec![place]));
    assert_eq!((told.places, server.addr()), (vec![], before), "it is where it was");
    world.until_reached_over(&BOTH, &server, place);

    // A process that ended without a word is followed by another one, and somebody else is not.
    drop(ports);
    let other = SecretKey::generate();
    let stranger = world.sides.map(&server, &other);
    world.sides.told(
        &stranger,
        |mapped| matches!(&mapped.pinholes, Pinholes::Closed(why) if why.contains("not authorized")),
    );
    world.sides.inside.block_on(stranger.close());
    let ports = world.sides.map(&server, &key);
    world.sides.told(&ports, |mapped| mapped.pinholes == Pinholes::Open(vec![place]));
    world.until_reached_over(&BOTH, &server, place);

    world.sides.inside.block_on(ports.close());
    world.until_reached_over(&[], &server, place);
}

#[test]
fn a_trial_tells_where_peers_would_be_let_in_and_leaves_nothing_open() {
    if !require!() {
        return;
    }
    let world = World::new();
    let key = SecretKey::generate();
    let server = world.sides.endpoint_at_home(&key);
    let place = SocketAddr::new(HOME.into(), server.port());
    let would = |carrier| world.sides.inside.block_on(probe(&server, carrier));
    let silent = would(CarrierKind::Tcp).unwrap_err();
    assert!(silent.to_string().contains("fe80::1 opens no pinhole for 2001:db8:1::20"), "{silent}");
    let _firewall = world.firewall();
    for carrier in BOTH {
        let begun = Instant::now();
        let at = loop {
            match would(carrier) {
                Ok(at) => break at,
                // A busy one.
                Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
            }
        };
        assert_eq!(at, [place]);
    }
    world.sides.echo(&server);
    assert!(world.reached_over(&server, place).is_empty());
}

#[test]
fn a_router_that_opens_no_pinhole_is_asked_later_which_is_said() {
    if !require!() {
        return;
    }
    let world = World::new();
    // It answers nothing at all.
    world.router.block(Block::UdpPort(5351)).unwrap();
    let key = SecretKey::generate();
    let server = world.sides.endpoint_at_home(&key);
    let ports = world.sides.map(&server, &key);
    let closed = world.sides.told(&ports, is_closed).pinholes;
    assert!(matches!(&closed, Pinholes::Closed(why) if why.contains("fe80::1 opens no")), "{closed:?}");

    // It learns to, and the host has another address: both are asked for.
    world.router.unblock(Block::UdpPort(5351)).unwrap();
    let _firewall = world.firewall();
    world.home.add_address("eth0", "2001:db8:1::21/64").unwrap();
    let places = [0x20, 0x21].map(|last| {
        let ip = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, last);
        SocketAddr::new(ip.into(), server.port())
    });
    world.sides.told(&ports, |mapped| mapped.pinholes == Pinholes::Open(places.to_vec()));
}

#[test]
fn a_host_without_a_global_address_needs_no_pinhole() {
    if !require!() {
        return;
    }
    let world = World::new();
    world.home.del_address("eth0", "2001:db8:1::20/64").unwrap();
    world.home.add_address("eth0", "fd00:1::20/64").unwrap();
    let _firewall = world.firewall();
    let key = SecretKey::generate();
    let server = world.sides.endpoint_at_home(&key);
    let ports = world.sides.map(&server, &key);
    world.sides.told(&ports, |mapped| mapped.pinholes == Pinholes::Needless);
}

/// miniupnpd on the router, as Debian builds it.
struct Daemon {
    child: HostChild,
    _folder: tempfile::TempDir,
}

/// What it is asked by.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Pcp,
    Upnp,
}

impl Daemon {
    fn start(router: &Host, by: By) -> Self {
        // It serves only where it has addresses of IPv4 too, and one that is public.
        router.add_address("wan0", "11.22.33.10/24").unwrap();
        router.add_address("lan0", "192.168.1.1/24").unwrap();
        router
            .nft(
                "add table inet lab_upnp
                 add chain inet lab_upnp mapped_in
                 add chain inet lab_upnp mapped_out
                 add chain inet lab_upnp mapped_through
                 add chain inet lab_upnp passing { type filter hook forward priority filter; }
                 add rule inet lab_upnp passing jump mapped_through
                 add rule inet lab_upnp passing iifname wan0 meta l4proto { tcp, udp } ct state { new, invalid } drop",
            )
            .unwrap();
        if by == By::Upnp {
            // Over IPv6 it answers to PCP whatever its configuration says.
            router.block(Block::UdpPort(5351)).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let (pcp, upnp) = if by == By::Pcp { ("yes", "no") } else { ("no", "yes") };
        let config = format!(
            "ext_ifname=wan0\next_ifname6=wan0\nlistening_ip=lan0\nhttp_port=0\nsecure_mode=yes\n\
             enable_natpmp={pcp}\nenable_upnp={upnp}\nmin_lifetime=5\n\
             upnp_table_name=lab_upnp\nupnp_nat_table_name=lab_upnp\nupnp_forward_chain=mapped_through\n\
             upnp_nat_chain=mapped_in\nupnp_nat_postrouting_chain=mapped_out\n\
             allow 1024-65535 192.168.1.0/24 1024-65535\ndeny 0-65535 0.0.0.0/0 0-65535\n"
        );
        let (file, pid) = (folder.path().join("miniupnpd.conf"), folder.path().join("pid"));
        std::fs::write(&file, config).unwrap();
        let quiet = |command: &mut Command| {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        };
        let child =
            router.command("miniupnpd").with(quiet).arg("-d").arg("-f").arg(&file).arg("-P").arg(&pid);
        let mut daemon = Self { child: child.spawn().unwrap(), _folder: folder };
        let sockets = format!("/proc/{}/net/udp6", daemon.child.child().id());
        let until = Instant::now() + PATIENCE;
        // The ports of PCP and of searches, in hexadecimal.
        let port = if by == By::Pcp { ":14E7 " } else { ":076C " };
        while !std::fs::read_to_string(&sockets).unwrap_or_default().contains(port) {
            assert!(Instant::now() < until, "miniupnpd does not begin");
            std::thread::sleep(Duration::from_millis(10));
        }
        daemon
    }
}

#[test]
fn a_router_in_the_wild_opens_its_ipv6_firewall_when_it_is_asked_and_closes_it_or_soon_forgets() {
    if !require!() {
        return;
    }
    let world = World::new();
    let mut daemon = Daemon::start(&world.router, By::Pcp);
    let key = SecretKey::generate();
    let server = world.sides.endpoint_at_home(&key);
    world.sides.echo(&server);
    let place = SocketAddr::new(HOME.into(), server.port());
    assert!(world.reached_over(&server, place).is_empty(), "nobody asked it");
    let ports = world.sides.map(&server, &key);
    world.sides.told(&ports, |mapped| mapped.pinholes == Pinholes::Open(vec![place]));
    world.until_reached_over(&BOTH, &server, place);
    let other = world.until_reached_at_another_address(&server, &ports);

    // What it was asked for twice it refuses to close, and forgets in five seconds, the least that it grants.
    world.sides.inside.block_on(ports.close());
    world.until_reached_over(&[], &server, place);
    world.until_reached_over(&[], &server, other);
    daemon.child.kill().unwrap();
}

#[test]
fn a_router_that_knows_upnp_alone_lets_peers_in_over_ipv6_until_the_port_is_given_back() {
    if !require!() {
        return;
    }
    let world = World::new();
    let mut daemon = Daemon::start(&world.router, By::Upnp);
    let key = SecretKey::generate();
    let server = world.sides.endpoint_at_home(&key);
    world.sides.echo(&server);
    let place = SocketAddr::new(HOME.into(), server.port());
    assert!(world.reached_over(&server, place).is_empty(), "nobody asked it");

    // A trial leaves nothing open. A busy router is asked again.
    let begun = Instant::now();
    while let Err(error) = world.sides.inside.block_on(probe(&server, CarrierKind::Tcp)) {
        assert!(begun.elapsed() < PATIENCE, "{error}");
    }
    world.until_reached_over(&[], &server, place);

    let ports = world.sides.map(&server, &key);
    world.sides.told(&ports, |mapped| mapped.pinholes == Pinholes::Open(vec![place]));
    world.until_reached_over(&BOTH, &server, place);
    let other = world.until_reached_at_another_address(&server, &ports);

    world.sides.inside.block_on(ports.close());
    world.until_reached_over(&[], &server, place);
    world.until_reached_over(&[], &server, other);
    daemon.child.kill().unwrap();
}
