//! Several paths, of which some fail without a word: the others carry on, and nothing that works is given up.

use crate::lab_support::net::{Family, Multi};
use crate::lab_support::paths::{Running, active, link};
use crate::lab_support::traffic::{DeafPeer, Way};
use crate::lab_support::{ms, secs};
use whimbrel_lab::{Block, Direction, require};
use whimbrel_transport::{CarrierKind, Carriers, Config, HandoverMode, PathInfo, PathState, Timeouts};

const TOTAL: u64 = 3_000_000;
const TCP: Carriers = Carriers::Only(CarrierKind::Tcp);

fn two() -> Multi {
    Multi::new(Family::V4, &[link(10, 10), link(10, 10)])
}

/// A link swallows everything in the middle of a transfer.
fn blackhole(mode: HandoverMode, path: usize, way: Way, direction: Direction) {
    let running = Running::in_mode(two(), mode);
    running.until_active(if mode == HandoverMode::Single { 1 } else { 2 });
    let healthy = running.over(1 - path).map(|path| path.id);
    let transfer = running.start(way, TOTAL);
    transfer.reach(&running.net.client, TOTAL / 4);
    let pause = running.longest_pause(&transfer.meter, TOTAL / 3, |net| {
        net.near[path].set_blackhole(direction, true);
    });
    eprintln!("{mode}, link {path} dead, {way:?}, {direction:?}: longest pause {pause:?}");
    // However busy the machine is; what is promised of it is checked in `multipath_promises`.
    assert!(pause < secs(2), "{pause:?}");
    transfer.finish(&running.net.client);
    running.until_served_by(1 - path, healthy);
    running.net.near[path].set_blackhole(direction, false);
    if mode != HandoverMode::Single {
        running.until("both work again", |paths| active(paths).count() == 2);
    }
    running.net.client.wait(running.echo().say(b"all is well"));
}

macro_rules! blackholes {
    ($($name:ident: $mode:ident $path:literal $way:ident $direction:ident;)*) => {
        $(#[test]
        fn $name() {
            if require!() {
                blackhole(HandoverMode::$mode, $path, Way::$way, Direction::$direction);
            }
        })*
    };
}

blackholes! {
    full_path_0_dies_silently_while_uploading: Full 0 Up Both;
    full_path_0_dies_silently_while_downloading: Full 0 Down Both;
    full_path_1_dies_silently_while_uploading: Full 1 Up Both;
    full_path_1_dies_silently_while_downloading: Full 1 Down Both;
    backup_path_0_dies_silently_while_uploading: Backup 0 Up Both;
    backup_path_0_dies_silently_while_downloading: Backup 0 Down Both;
    backup_path_1_dies_silently_while_uploading: Backup 1 Up Both;
    backup_path_1_dies_silently_while_downloading: Backup 1 Down Both;
    single_path_0_dies_silently_while_uploading: Single 0 Up Both;
    single_path_0_dies_silently_while_downloading: Single 0 Down Both;
    single_the_other_link_dies_silently_while_uploading: Single 1 Up Both;
    single_the_other_link_dies_silently_while_downloading: Single 1 Down Both;
    full_a_link_fails_towards_the_server_while_uploading: Full 0 Up Forward;
    full_a_link_fails_towards_the_server_while_downloading: Full 0 Down Forward;
    full_a_link_fails_towards_the_client_while_uploading: Full 0 Up Backward;
    full_a_link_fails_towards_the_client_while_downloading: Full 0 Down Backward;
    backup_a_link_fails_towards_the_server_while_downloading: Backup 0 Down Forward;
    backup_a_link_fails_towards_the_client_while_uploading: Backup 0 Up Backward;
}

/// Traffic both ways, and a link that fails one way: what still comes over it does not make it look well.
#[test]
fn a_link_that_fails_one_way_holds_nothing_up_although_it_brings_data() {
    if !require!() {
        return;
    }
    for direction in [Direction::Forward, Direction::Backward] {
        let running = Running::in_mode(two(), HandoverMode::Full);
        running.until_active(2);
        let (up, down) = (running.start(Way::Up, TOTAL), running.start(Way::Down, TOTAL));
        up.reach(&running.net.client, TOTAL / 6);
        let hindered = if direction == Direction::Forward { &up.meter } else { &down.meter };
        let pause = running.longest_pause(hindered, TOTAL / 2, |net| {
            net.near[0].set_blackhole(direction, true);
        });
        eprintln!("{direction:?}: longest pause {pause:?}");
        assert!(pause < secs(2), "{pause:?}");
        up.finish(&running.net.client);
        down.finish(&running.net.client);
    }
}

/// The announcement of the server's new address leaves on a path that has just died.
#[test]
fn an_announcement_that_is_lost_arrives_on_another_path() {
    if !require!() {
        return;
    }
    let net = Multi::with(Family::V4, &[link(10, 10), link(10, 10)], &[link(10, 1), link(10, 1)]);
    let second = Family::V4.ip(102, 10);
    net.server.host.del_address("at1", "10.0.102.10/24").unwrap();
    let running = Running::in_mode(net, HandoverMode::Full);
    running.until_active(2);
    running.net.near[0].set_blackhole(Direction::Both, true);
    running.net.server.host.add_address("at1", "10.0.102.10/24").unwrap();
    running.net.server.host.add_default_route("at1", "10.0.102.1", 200).unwrap();
    running.until("the new address is used", |paths| active(paths).any(|path| path.remote.ip() == second));
}

/// The window is full, because the reader is slow, and what it waits for sits on a link that is slow and
/// dies.
#[test]
fn a_slow_reader_is_not_held_up_by_a_dead_slow_path() {
    if !require!() {
        return;
    }
    let net = Multi::new(Family::V4, &[link(20, 5), link(1, 100)]);
    let config = || Config { stream_window: 256 << 10, window: 256 << 10, ..Config::default() };
    let running = Running::with(
        net,
        |builder| builder.config(config()).handover(HandoverMode::Full),
        |builder| builder.config(config()),
    );
    running.until_active(2);
    let client = &running.net.client;
    let deaf = client.wait(DeafPeer::start(&running.connection, 1_500_000));
    client.wait(deaf.received.reach(300_000));
    running.net.near[1].set_blackhole(Direction::Both, true);
    assert_eq!(client.wait(deaf.finish()), 1_500_000);
}

/// One network refuses every attempt to join: the other carries on undisturbed, and the first is used once it
/// lets us in.
#[test]
fn a_path_that_is_refused_disturbs_none_of_the_others() {
    if !require!() {
        return;
    }
    let net = two();
    let refused = Block::Refused(net.up(1).ip());
    net.router.block(refused).unwrap();
    let running = Running::in_mode(net, HandoverMode::Full);
    running.until("TCP has taken over", |paths| {
        let is_left = |path: &PathInfo| path.state == PathState::Retiring;
        !paths.iter().any(is_left) && active(paths).all(|path| path.carrier == CarrierKind::Tcp)
    });
    let healthy = running.over(0).map(|path| path.id);
    let transfer = running.start(Way::Up, TOTAL);
    transfer.reach(&running.net.client, TOTAL / 4);
    let pause = running.longest_pause(&transfer.meter, TOTAL / 2, |_| {});
    eprintln!("longest pause {pause:?}");
    assert!(pause < secs(2), "{pause:?}");
    transfer.finish(&running.net.client);
    assert_eq!(active(&running.paths()).count(), 1);
    assert!(running.keeps(healthy), "the healthy path was given up");
    running.net.router.unblock(refused).unwrap();
    running.until("both work", |paths| active(paths).count() == 2);
}

/// A middlebox closes flows of TCP that were idle for ten seconds. Who asks for signs of life more often
/// keeps his paths, those that stand by too.
#[test]
fn paths_outlive_a_middlebox_that_closes_idle_tcp_after_ten_seconds() {
    if !require!() {
        return;
    }
    let outlive = |mode| {
        let net = two();
        let nat = net.lab.nat_gateway(&net.router, "wan0").unwrap();
        nat.forget_idle_tcp_after(secs(10)).unwrap();
        let config = || Config {
            timeouts: Timeouts { heartbeat: secs(4), ..Timeouts::default() },
            ..Config::default()
        };
        let running = Running::with(
            net,
            |builder| builder.config(config()).handover(mode).carriers(TCP),
            |builder| builder.config(config()),
        );
        running.until_active(2);
        let before: Vec<u64> = running.paths().iter().map(|path| path.id).collect();
        let mut echo = running.echo();
        std::thread::sleep(secs(25));
        let took = running.net.client.wait(echo.say(b"anybody there?"));
        eprintln!("{mode}: answered after {took:?}");
        assert!(took < secs(2), "{mode}: {took:?}");
        running.until_active(2);
        assert!(before.iter().all(|id| running.keeps(Some(*id))), "{mode}: {:?}", running.paths());
    };
    std::thread::scope(|scope| {
        scope.spawn(|| outlive(HandoverMode::Full));
        scope.spawn(|| outlive(HandoverMode::Backup));
    });
}

/// Who asks less often finds his paths dead when he needs them, and has others soon.
#[test]
fn a_connection_outlives_paths_that_a_middlebox_closed_while_they_were_idle() {
    if !require!() {
        return;
    }
    let net = two();
    let nat = net.lab.nat_gateway(&net.router, "wan0").unwrap();
    nat.forget_idle_tcp_after(secs(10)).unwrap();
    let running = Running::new(net, |builder| builder.handover(HandoverMode::Full).carriers(TCP));
    running.until_active(2);
    let before: Vec<u64> = running.paths().iter().map(|path| path.id).collect();
    let mut echo = running.echo();
    std::thread::sleep(secs(13));
    let took = running.net.client.wait(echo.say(b"anybody there?"));
    eprintln!("answered after {took:?}");
    assert!(took < secs(8), "{took:?}");
    running.until("both are others now", |paths| {
        active(paths).count() == 2 && paths.iter().all(|path| !before.contains(&path.id))
    });
}

/// A gateway forgets flows that were idle for ten seconds; the paths that stood by are dead then, without a
/// word.
#[test]
fn a_gateway_that_forgets_idle_flows_costs_the_paths_and_not_the_connection() {
    if !require!() {
        return;
    }
    for mode in [HandoverMode::Full, HandoverMode::Backup] {
        let net = two();
        let nat = net.lab.nat_gateway(&net.router, "wan0").unwrap();
        let running = Running::in_mode(net, mode);
        running.until_active(2);
        let mut echo = running.echo();
        std::thread::sleep(secs(10));
        nat.forget_mappings().unwrap();
        let took = running.net.client.wait(echo.say(b"anybody there?"));
        eprintln!("{mode}: answered after {took:?}");
        assert!(took < secs(8), "{took:?}");
        running.start(Way::Down, TOTAL / 3).finish(&running.net.client);
        running.until("all work again", |paths| {
            paths.iter().filter(|path| path.state == PathState::Active).count() == 2
        });
    }
}

/// A path that was suspect comes back as it was: the blackhole was shorter than anybody's patience.
#[test]
fn a_path_that_was_silent_for_a_second_serves_again() {
    if !require!() {
        return;
    }
    let running = Running::in_mode(two(), HandoverMode::Full);
    running.until_active(2);
    let transfer = running.start(Way::Up, 2 * TOTAL);
    transfer.reach(&running.net.client, TOTAL / 4);
    running.net.near[1].set_blackhole(Direction::Both, true);
    std::thread::sleep(ms(1000));
    running.net.near[1].set_blackhole(Direction::Both, false);
    running.until("both work", |paths| active(paths).count() == 2);
    transfer.finish(&running.net.client);
}
