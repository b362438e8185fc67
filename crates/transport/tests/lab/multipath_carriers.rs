//! Several paths on other carriers than TCP, or on different ones: the same faults, the same promises.

use crate::lab_support::net::{Family, Multi};
use crate::lab_support::paths::{Running, active, carried, link};
use crate::lab_support::secs;
use crate::lab_support::traffic::Way;
use whimbrel_lab::{Block, Direction, require};
use whimbrel_transport::{CarrierKind, Carriers, HandoverMode, PathInfo};

/// What the two links carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pair {
    QuicQuic,
    /// The second network lets no TCP through.
    TcpQuic,
}

const TOTAL: u64 = 1_200_000;

impl Pair {
    /// A connection in this mode; in mode `single` it has one of the two paths.
    fn start(self, mode: HandoverMode) -> Running {
        let net = Multi::new(Family::V4, &[link(4, 10), link(4, 10)]);
        let carriers = match self {
            Self::QuicQuic => Carriers::Only(CarrierKind::Quic),
            Self::TcpQuic => {
                net.router.block(Block::TcpOf(net.up(1).ip())).unwrap();
                Carriers::Auto
            }
        };
        let running = Running::new(net, |builder| builder.handover(mode).carriers(carriers));
        let count = if mode == HandoverMode::Single { 1 } else { 2 };
        running.until_active(count);
        running
    }

    /// What a link may be used with. On a busy machine QUIC may overtake TCP where both get through.
    fn allows(self, link: usize, carrier: CarrierKind) -> bool {
        carrier == CarrierKind::Quic || (self == Self::TcpQuic && link == 0)
    }

    /// Each path is on the carrier that it should be on.
    fn check(self, running: &Running, paths: &[PathInfo]) {
        for path in paths {
            let link = (0..2).find(|link| running.net.up(*link).ip() == path.local.ip()).unwrap();
            assert!(self.allows(link, path.carrier), "link {link}: {}", path.carrier);
        }
    }
}

/// A link swallows everything in the middle of a transfer.
fn blackhole(pair: Pair, mode: HandoverMode, link: usize, way: Way) {
    let running = pair.start(mode);
    pair.check(&running, &running.paths());
    let healthy = running.over(1 - link).map(|path| path.id);
    let transfer = running.start(way, TOTAL);
    transfer.reach(&running.net.client, TOTAL / 6);
    let pause = running.longest_pause(&transfer.meter, TOTAL / 2, |net| {
        net.near[link].set_blackhole(Direction::Both, true);
    });
    eprintln!("{pair:?}, {mode}, link {link} dead, {way:?}: longest pause {pause:?}");
    // However busy the machine is; what is promised of it is checked in `multipath_promises`.
    assert!(pause < secs(4), "{pair:?}, {mode}, link {link} dead, {way:?}: {pause:?}");
    transfer.finish(&running.net.client);
    running.until_served_by(1 - link, healthy);
    running.net.near[link].set_blackhole(Direction::Both, false);
    if mode != HandoverMode::Single {
        running.until("both work again", |paths| active(paths).count() == 2);
    }
    pair.check(&running, &running.paths());
    running.net.client.wait(running.echo().say(b"all is well"));
}

/// Either link, either way: they mostly wait, and do it together.
fn blackholes(pair: Pair, mode: HandoverMode) {
    if !require!() {
        return;
    }
    std::thread::scope(|scope| {
        for link in [0, 1] {
            for way in [Way::Up, Way::Down] {
                scope.spawn(move || blackhole(pair, mode, link, way));
            }
        }
    });
}

macro_rules! blackholes {
    ($($name:ident: $pair:ident $mode:ident;)*) => {
        $(#[test]
        fn $name() {
            blackholes(Pair::$pair, HandoverMode::$mode);
        })*
    };
}

blackholes! {
    full_one_of_two_quic_paths_dies_silently: QuicQuic Full;
    backup_one_of_two_quic_paths_dies_silently: QuicQuic Backup;
    single_a_quic_path_or_the_link_beside_it_dies_silently: QuicQuic Single;
    full_a_tcp_or_a_quic_path_dies_silently: TcpQuic Full;
    backup_a_tcp_or_a_quic_path_dies_silently: TcpQuic Backup;
    single_a_tcp_path_or_the_quic_link_beside_it_dies_silently: TcpQuic Single;
}

#[test]
fn where_one_of_two_networks_blocks_tcp_its_path_is_quic_and_carries_its_share() {
    if !require!() {
        return;
    }
    let running = Pair::TcpQuic.start(HandoverMode::Full);
    for way in [Way::Up, Way::Down] {
        running.start(way, TOTAL).finish(&running.net.client);
    }
    let blocked = running.over(1).unwrap();
    assert_eq!(blocked.carrier, CarrierKind::Quic);
    let shares: Vec<u64> = running.paths().iter().map(carried).collect();
    assert!(shares.iter().all(|bytes| *bytes > TOTAL / 8), "{shares:?}");
}

/// Nobody gets UDP through: the paths are as with TCP alone, and as soon.
#[test]
fn where_udp_is_blocked_both_paths_are_tcp() {
    if !require!() {
        return;
    }
    let net = Multi::new(Family::V4, &[link(4, 10), link(4, 10)]);
    net.router.block(Block::Udp).unwrap();
    let running = Running::in_mode(net, HandoverMode::Full);
    running.until_active(2);
    assert!(running.paths().iter().all(|path| path.carrier == CarrierKind::Tcp));
    running.start(Way::Up, TOTAL).finish(&running.net.client);
}

/// The gateway gives both flows other ports, in the middle of a transfer: neither path is given up.
#[test]
fn two_quic_paths_survive_a_rebinding_gateway() {
    if !require!() {
        return;
    }
    let net = Multi::new(Family::V4, &[link(4, 10), link(4, 10)]);
    let nat = net.lab.nat_gateway(&net.router, "wan0").unwrap();
    let quic = Carriers::Only(CarrierKind::Quic);
    let running = Running::new(net, |builder| builder.handover(HandoverMode::Full).carriers(quic));
    running.until_active(2);
    let ids = || running.paths().iter().map(|path| path.id).collect::<Vec<_>>();
    let before = ids();
    for way in [Way::Up, Way::Down] {
        let transfer = running.start(way, TOTAL);
        transfer.reach(&running.net.client, TOTAL / 3);
        nat.forget_mappings().unwrap();
        transfer.finish(&running.net.client);
    }
    running.until("both work", |paths| active(paths).count() == 2);
    assert_eq!(ids(), before, "a path was given up");
}
