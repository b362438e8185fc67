//! Several paths at once over real links: how they are opened, shared, kept, and set while they live.

use std::time::Instant;

use crate::lab_support::net::{Family, Multi};
use crate::lab_support::paths::{Running, active, carried, link};
use crate::lab_support::traffic::Way;
use crate::lab_support::{heavy, ms, secs};
use whimbrel_lab::{LinkSpec, Queue, require};
use whimbrel_transport::{CloseCode, HandoverMode, PathPolicy, Policy, Priority, SchedulerKind};

use HandoverMode::{Backup, Full, Single};

fn two(rate: u64, delay: u64) -> Multi {
    Multi::new(Family::V4, &[link(rate, delay), link(rate, delay)])
}

#[test]
fn in_mode_full_both_links_carry_data() {
    if !require!() {
        return;
    }
    let _alone = heavy();
    for way in [Way::Up, Way::Down] {
        let running = Running::in_mode(two(10, 10), Full);
        running.until_active(2);
        let began = Instant::now();
        running.start(way, 6_000_000).finish(&running.net.client);
        let took = began.elapsed();
        let shares: Vec<u64> = running.paths().iter().map(carried).collect();
        eprintln!("{way:?}: {took:?}, {shares:?}");
        // One link alone takes 4.8 s, both together 2.4 s.
        assert!(took < ms(4000), "{way:?}: {took:?}");
        assert!(shares.iter().all(|bytes| *bytes > 1_500_000), "{shares:?}");
    }
}

#[test]
fn in_mode_single_there_is_one_path_although_there_are_two_links() {
    if !require!() {
        return;
    }
    let running = Running::in_mode(two(10, 10), Single);
    running.start(Way::Up, 1_000_000).finish(&running.net.client);
    assert_eq!(running.paths().len(), 1);
}

/// The second path is opened, and carries nothing; when the first link goes, it takes over.
#[test]
fn in_mode_backup_the_second_link_waits_until_it_is_needed() {
    if !require!() {
        return;
    }
    for way in [Way::Up, Way::Down] {
        let running = Running::in_mode(two(10, 10), Backup);
        running.until_active(2);
        let waiting = running.paths().iter().find(|path| path.priority == Priority::Backup).unwrap().clone();
        let index = (0..2).find(|index| running.net.up(*index).ip() == waiting.local.ip()).unwrap();
        running.start(way, 2_000_000).finish(&running.net.client);
        let idle = carried(&running.over(index).unwrap());
        assert!(idle < 20_000, "{way:?}: {idle} bytes on the path that waits");
        let transfer = running.start(way, 4_000_000);
        let meter = transfer.meter.clone();
        let pause = running.longest_pause(&meter, 500_000, |net| net.up(1 - index).leave());
        eprintln!("{way:?}: longest pause {pause:?}");
        assert!(pause < secs(2), "{pause:?}");
        transfer.finish(&running.net.client);
        assert!(carried(&running.over(index).unwrap()) > 1_000_000);
    }
}

/// Whichever is taken away, the path with number 0 too, comes back when its address does.
#[test]
fn a_link_that_is_taken_away_and_brought_back_is_used_again() {
    if !require!() {
        return;
    }
    for index in [0, 1] {
        let running = Running::in_mode(two(10, 10), Full);
        running.until_active(2);
        let healthy = running.over(1 - index).map(|path| path.id);
        let transfer = running.start(Way::Down, 6_000_000);
        let pause = running.longest_pause(&transfer.meter, 300_000, |net| net.up(index).leave());
        eprintln!("link {index} is gone: longest pause {pause:?}");
        assert!(pause < secs(2), "{pause:?}");
        running.until_active(1);
        assert!(running.keeps(healthy), "no other path was given up");
        let again = running.net.up(index).arrive();
        running.until("the link is back", |paths| active(paths).any(|path| path.local.ip() == again));
        transfer.finish(&running.net.client);
        assert!(carried(&running.over(index).unwrap()) > 50_000, "it is not used");
    }
}

#[test]
fn when_the_last_path_is_gone_too_all_come_back() {
    if !require!() {
        return;
    }
    let running = Running::in_mode(two(10, 10), Full);
    running.until_active(2);
    let transfer = running.start(Way::Up, 4_000_000);
    transfer.reach(&running.net.client, 500_000);
    (0..2).for_each(|index| running.net.up(index).leave());
    running.until_active(0);
    std::thread::sleep(ms(500));
    for index in 0..2 {
        running.net.up(index).arrive();
    }
    running.until_active(2);
    transfer.finish(&running.net.client);
}

#[test]
fn modes_are_changed_on_a_living_connection_from_either_side() {
    if !require!() {
        return;
    }
    let running = Running::in_mode(two(10, 10), Single);
    let mut echo = running.echo();
    running.connection.path_control().set_handover(Full);
    running.until_active(2);
    let of_server = running.server.endpoint.path_control(running.connection.id()).unwrap();
    running.net.client.wait(echo.say(b"still there"));
    assert_eq!(of_server.handover(), Full);
    of_server.set_handover(Backup);
    let backups = |paths: &[whimbrel_transport::PathInfo]| {
        paths.iter().filter(|path| path.priority == Priority::Backup).count()
    };
    running.until("one stands by", |paths| backups(paths) == 1 && paths.len() == 2);
    assert_eq!(running.connection.path_control().handover(), Backup);
    of_server.set_handover(Full);
    running.until("none stands by", |paths| backups(paths) == 0 && paths.len() == 2);
    of_server.set_handover(Single);
    running.until_active(1);
    running.net.client.wait(echo.say(b"through all of it"));
}

#[test]
fn a_priority_that_is_set_by_hand_holds_on_both_sides_until_it_is_set_anew() {
    if !require!() {
        return;
    }
    let running = Running::in_mode(two(10, 10), Full);
    running.until_active(2);
    let of_server = running.server.endpoint.path_control(running.connection.id()).unwrap();
    let second = running.over(1).unwrap().id;
    of_server.set_priority(second, Priority::Backup).unwrap();
    running.until_priority(1, Priority::Backup);
    let before = carried(&running.over(1).unwrap());
    running.start(Way::Down, 1_000_000).finish(&running.net.client);
    running.start(Way::Up, 1_000_000).finish(&running.net.client);
    let after = carried(&running.over(1).unwrap());
    assert!(after - before < 20_000, "{} bytes on a path that stands by", after - before);
    running.connection.path_control().set_priority(second, Priority::Normal).unwrap();
    running.start(Way::Down, 2_000_000).finish(&running.net.client);
    assert!(carried(&running.over(1).unwrap()) > after + 100_000);
    assert!(running.connection.path_control().set_priority(99, Priority::Normal).is_err());
}

#[test]
fn the_preferred_network_carries_the_data_whenever_it_is_there() {
    if !require!() {
        return;
    }
    let rules = ["up0=cellular".parse().unwrap(), "up1=wifi".parse().unwrap()];
    let policy = PathPolicy { interfaces: rules.into(), ..Policy::PreferWifi.into() };
    let running = Running::new(two(10, 10), |builder| builder.paths(policy));
    running.until_active(2);
    assert_eq!(running.connection.path_control().handover(), Backup);
    running.until_priority(1, Priority::Normal);
    running.until_priority(0, Priority::Backup);
    let mut echo = running.echo();
    running.net.up(1).leave();
    running.until_active(1);
    running.until_priority(0, Priority::Normal);
    running.net.client.wait(echo.say(b"over the phone"));
    running.net.up(1).arrive();
    running.until_active(2);
    running.until_priority(1, Priority::Normal);
    running.until_priority(0, Priority::Backup);
    running.net.client.wait(echo.say(b"over wi-fi again"));
}

#[test]
fn only_interfaces_that_are_allowed_are_used() {
    if !require!() {
        return;
    }
    let policy = PathPolicy { interfaces: vec!["up1".parse().unwrap()], ..Policy::Aggregate.into() };
    let running = Running::new(two(10, 10), |builder| builder.paths(policy));
    running.start(Way::Up, 1_000_000).finish(&running.net.client);
    let paths = running.paths();
    assert_eq!(paths.len(), 1, "{paths:?}");
    assert_eq!(paths[0].local.ip(), running.net.up(1).ip());
}

/// The client learns of the server's second address, port and all, by announcement only.
#[test]
fn an_address_that_the_server_announces_gets_a_path() {
    if !require!() {
        return;
    }
    let net = Multi::with(Family::V4, &[link(10, 5)], &[link(10, 5), link(10, 5)]);
    let running = Running::in_mode(net, Full);
    running.until_active(2);
    let mut remotes: Vec<_> = running.paths().iter().map(|path| path.remote.address()).collect();
    remotes.sort();
    let port = running.server.endpoint.port();
    let at = |net: u8| std::net::SocketAddr::new(Family::V4.ip(net, 10), port);
    assert_eq!(remotes, [at(101), at(102)]);
    running.start(Way::Down, 1_000_000).finish(&running.net.client);
}

/// Either of the server's addresses goes, the one with id 0 too, and comes back, the first as another one.
#[test]
fn an_address_that_the_server_loses_and_gets_back_is_used_again() {
    if !require!() {
        return;
    }
    let net = Multi::with(Family::V4, &[link(10, 5)], &[link(10, 5), link(10, 5)]);
    let running = Running::in_mode(net, Full);
    running.until_active(2);
    let server = |running: &Running, index: u8, verb: &str| {
        let (host, interface, net) = (&running.net.server.host, format!("at{index}"), 101 + index);
        match verb {
            "del" => host.del_address(&interface, &format!("10.0.{net}.10/24")).unwrap(),
            _ => {
                host.add_address(&interface, &format!("10.0.{net}.{verb}/24")).unwrap();
                host.add_default_route(&interface, &format!("10.0.{net}.1"), 100 + u32::from(index)).unwrap();
            }
        }
    };
    for (index, again) in [(0, "11"), (1, "10")] {
        let transfer = running.start(Way::Down, 6_000_000);
        transfer.reach(&running.net.client, 500_000);
        let other = running
            .paths()
            .iter()
            .find(|path| path.remote.ip() != Family::V4.ip(101 + index, 10))
            .map(|path| path.id);
        let gone = std::net::IpAddr::from([10, 0, 101 + index, 10]);
        server(&running, index, "del");
        running.until("it is not used", |paths| paths.len() == 1 && paths[0].remote.ip() != gone);
        server(&running, index, again);
        let back: std::net::IpAddr = format!("10.0.{}.{again}", 101 + index).parse().unwrap();
        running.until("it is used again", |paths| {
            active(paths).count() == 2 && paths.iter().any(|path| path.remote.ip() == back)
        });
        transfer.finish(&running.net.client);
        assert!(running.keeps(other), "no other path was given up");
    }
}

/// The server announces an address that exists on its own host only, as those of virtual networks are.
#[test]
fn no_link_is_left_unused_because_one_of_the_servers_addresses_leads_nowhere() {
    if !require!() {
        return;
    }
    let net = Multi::with(Family::V4, &[link(10, 5), link(10, 5)], &[link(10, 5), link(10, 5)]);
    net.far[1].set_blackhole(whimbrel_lab::Direction::Both, true);
    let running = Running::in_mode(net, Full);
    let both_used = |paths: &[whimbrel_transport::PathInfo]| {
        (0..2).all(|index| active(paths).any(|path| path.local.ip() == running.net.up(index).ip()))
    };
    running.until("both links are used", both_used);
    // It takes no part; once it does, it gets a path.
    running.net.far[1].set_blackhole(whimbrel_lab::Direction::Both, false);
    running.connection.path_control().set_policy(Policy::Aggregate);
    let second = Family::V4.ip(102, 10);
    running.until("the address is used", |paths| active(paths).any(|path| path.remote.ip() == second));
    running.start(Way::Up, 1_000_000).finish(&running.net.client);
}

/// A rule that is set while the connection lives: what it forbids is left at once.
#[test]
fn an_interface_that_is_forbidden_meanwhile_is_left() {
    if !require!() {
        return;
    }
    let running = Running::in_mode(two(10, 10), Full);
    running.until_active(2);
    let policy = PathPolicy { interfaces: vec!["up1".parse().unwrap()], ..Policy::Aggregate.into() };
    running.connection.path_control().set_policy(policy);
    running.until("one is left", |paths| paths.len() == 1 && active(paths).count() == 1);
    assert_eq!(running.paths()[0].local.ip(), running.net.up(1).ip());
    running.start(Way::Down, 1_000_000).finish(&running.net.client);
    running.connection.path_control().set_policy(Policy::Aggregate);
    running.until_active(2);
}

#[test]
fn a_mesh_joins_each_of_ours_with_each_of_theirs() {
    if !require!() {
        return;
    }
    let links = || [link(10, 5), link(10, 5)];
    let net = Multi::with(Family::V4, &links(), &links());
    let policy = PathPolicy { mesh: true, ..PathPolicy::default() };
    let running = Running::new(net, |builder| builder.paths(policy));
    running.until_active(4);
    running.start(Way::Up, 2_000_000).finish(&running.net.client);
}

#[test]
fn ipv4_and_ipv6_serve_one_connection() {
    if !require!() {
        return;
    }
    let net = Multi::new(Family::V4, &[link(10, 5), link(10, 5)]);
    // The second link becomes one of IPv6 alone, and the server has both families.
    net.up(1).leave();
    let address = |host: &whimbrel_lab::Host, interface: &str, address: &str| {
        host.add_address(interface, address).unwrap();
    };
    address(&net.router, "lan1", "fd00:2::1/64");
    address(&net.router, "wan0", "fd00:101::1/64");
    address(&net.client.host, "up1", "fd00:2::10/64");
    address(&net.server.host, "at0", "fd00:101::10/64");
    net.client.host.add_default_route("up1", "fd00:2::1", 100).unwrap();
    net.server.host.add_default_route("at0", "fd00:101::1", 100).unwrap();
    let running = Running::in_mode(net, Full);
    running.until_active(2);
    let families: Vec<bool> = running.paths().iter().map(|path| path.local.is_ipv4()).collect();
    assert!(families.contains(&true) && families.contains(&false), "{families:?}");
    running.start(Way::Down, 2_000_000).finish(&running.net.client);
    assert!(running.paths().iter().all(|path| carried(path) > 100_000));
}

#[test]
fn many_flows_share_two_paths_in_both_directions() {
    if !require!() {
        return;
    }
    let running = Running::in_mode(two(10, 10), Full);
    running.until_active(2);
    let downloads: Vec<_> = (0..10).map(|_| running.start(Way::Down, 200_000)).collect();
    let upload = running.start(Way::Up, 1_000_000);
    downloads.into_iter().for_each(|transfer| transfer.finish(&running.net.client));
    upload.finish(&running.net.client);
}

/// An abort in the midst of everything, and an orderly end.
#[test]
fn a_connection_with_two_paths_ends_on_both_sides() {
    if !require!() {
        return;
    }
    for abort in [true, false] {
        let running = Running::in_mode(two(10, 10), Full);
        running.until_active(2);
        let transfer = running.start(Way::Down, 10_000_000);
        transfer.reach(&running.net.client, 300_000);
        if abort {
            running.connection.abort(CloseCode::NONE, "enough");
        } else {
            let close = running.connection.close(CloseCode::NONE, "", secs(20));
            running.net.client.wait(close).unwrap();
        }
        let began = Instant::now();
        while !running.server.endpoint.connections().is_empty() {
            assert!(began.elapsed() < secs(10), "the server still has it");
            std::thread::sleep(ms(10));
        }
    }
}

/// The schedulers govern the writer: each leaves its mark on who carries what.
#[test]
fn the_scheduler_that_is_set_decides_who_carries_what() {
    if !require!() {
        return;
    }
    let net = Multi::new(Family::V4, &[link(10, 2), link(10, 60)]);
    let running = Running::in_mode(net, Full);
    running.until_active(2);
    let control = running.connection.path_control();
    let sent = || [0, 1].map(|index| running.over(index).unwrap().bytes_sent);
    let shares = |kind, objects, bytes| {
        control.set_scheduler(kind);
        let before = sent();
        for _ in 0..objects {
            running.start(Way::Up, bytes).finish(&running.net.client);
        }
        let after = sent();
        let shares = [after[0] - before[0], after[1] - before[1]];
        eprintln!("{kind}: {shares:?}");
        shares
    };
    for kind in SchedulerKind::ALL {
        // Objects that the better path takes whole, one after the other; or so much that both rates are
        // known.
        let (objects, bytes) =
            if kind == SchedulerKind::RateProportional { (1, 4_000_000) } else { (8, 15_000) };
        let [quick, slow] = shares(kind, objects, bytes);
        let (both_carry_all, in_turn, alone) =
            (quick > 100_000 && slow > 60_000, slow > 20_000, slow < 20_000);
        let is_so = match kind {
            SchedulerKind::Redundant => both_carry_all,
            SchedulerKind::RoundRobin => in_turn,
            SchedulerKind::MinRtt | SchedulerKind::EarliestArrival => alone,
            // Both links have the same rate.
            SchedulerKind::RateProportional => slow * 2 > quick && quick * 2 > slow,
            other => panic!("{other} has no case here"),
        };
        assert!(is_so, "{kind}: {quick} and {slow}");
    }
}

/// A client without preferences takes what the server's mode says.
#[test]
fn a_server_may_ask_for_all_paths() {
    if !require!() {
        return;
    }
    let net = Multi::new(Family::V4, &[link(10, 5), LinkSpec::default()]);
    let running = Running::with(net, |builder| builder, |builder| builder.handover(Full));
    running.until_active(2);
    assert_eq!(running.connection.path_control().handover(), Full);
}

/// The path's window is still small then, and so are the chunks that the scheduler gives it: they must follow
/// one another nevertheless, instead of one for each acknowledgement.
#[test]
fn a_slow_backup_path_that_takes_over_carries_what_it_can() {
    if !require!() {
        return;
    }
    let _alone = heavy();
    let slow = link(2, 50).queue(Queue::Time(secs(2)));
    let running = Running::in_mode(Multi::new(Family::V4, &[link(8, 15), slow]), Backup);
    running.until_active(2);
    let backup =
        running.paths().iter().find(|path| path.priority == Priority::Backup).map(|path| path.local.ip());
    let used = usize::from(backup == Some(running.net.up(0).ip()));
    let transfer = running.start(Way::Down, 2_000_000);
    transfer.reach(&running.net.client, 500_000);
    running.net.up(used).leave();
    let began = Instant::now();
    transfer.finish(&running.net.client);
    // 1.5 MB take 6 s at 2 Mbit/s; with one chunk for each acknowledgement they took 20 s.
    let took = began.elapsed();
    assert!(took < secs(15), "{took:?}");
}
