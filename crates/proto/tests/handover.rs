//! Handover modes, priorities and announced addresses: agreed upon, changed, and told reliably.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::Duration;

use crate::simulation::tcp::Link;
use crate::simulation::{Cut, Options, Sim, ms, secs};
use whimbrel_proto::{Config, Event, HandoverMode, PathId, PathState, Priority, Side, StreamId};

const SIDES: [Side; 2] = [Side::Client, Side::Server];

fn options(handover: HandoverMode) -> Options {
    let client = Config { handover, ..Config::default() };
    Options { client, ..Options::default() }
}

/// Two links with a round trip of 50 ms.
fn two(handover: HandoverMode) -> Sim {
    Sim::over(options(handover), &[Link::new(10, 50), Link::new(10, 50)])
}

fn priorities(sim: &mut Sim, side: Side) -> Vec<Priority> {
    sim.connection(side).unwrap().paths().iter().map(|path| path.priority).collect()
}

/// Has `from` write a block every 10 ms for `time`; returns the longest pause at the reader.
fn longest_gap(sim: &mut Sim, from: Side, id: StreamId, time: Duration) -> Duration {
    let end = sim.now + time;
    let (mut last, mut longest) = (sim.now, Duration::ZERO);
    while sim.now < end {
        sim.write(from, id, 4000);
        for _ in 0..5 {
            sim.advance(ms(2));
            if sim.read_all(from.peer()) > 0 {
                longest = longest.max(sim.now - last);
                last = sim.now;
            }
        }
    }
    longest.max(sim.now - last)
}

fn stream(sim: &mut Sim, from: Side) -> StreamId {
    let id = sim.open(Side::Client).unwrap();
    sim.advance(ms(200));
    sim.server_accepts();
    assert!(longest_gap(sim, from, id, secs(1)) < ms(100));
    id
}

#[test]
fn a_backup_path_carries_nothing_until_it_is_needed() {
    for from in SIDES {
        let mut sim = two(HandoverMode::Backup);
        assert_eq!(priorities(&mut sim, Side::Server), [Priority::Normal, Priority::Backup]);
        let id = stream(&mut sim, from);
        let idle = |sim: &Sim, side| sim.path(side, PathId(1)).unwrap().bytes_sent;
        let before = SIDES.map(|side| idle(&sim, side));
        longest_gap(&mut sim, from, id, secs(5));
        assert_eq!(SIDES.map(|side| idle(&sim, side)), before, "from {from:?}");
        sim.cut(0, Cut::Both);
        let gap = longest_gap(&mut sim, from, id, secs(3));
        assert!(gap <= ms(100), "{gap:?}");
        sim.settle();
    }
}

#[test]
fn an_idle_backup_path_is_kept_alive() {
    let mut sim = two(HandoverMode::Backup);
    let before = sim.path(Side::Client, PathId(1)).unwrap().bytes_received;
    sim.advance(secs(3600));
    for side in SIDES {
        let path = sim.path(side, PathId(1)).unwrap();
        assert_eq!(path.state, PathState::Active, "{side:?}");
    }
    assert!(sim.path(Side::Client, PathId(1)).unwrap().bytes_received > before, "nobody asked");
    // One that has died meanwhile is found out, and told; it is not used.
    sim.cut(1, Cut::Silent);
    sim.advance(secs(70));
    let is_loss =
        |event: &Event| matches!(event, Event::PathSuspect(PathId(1)) | Event::PathDown(PathId(1), _));
    assert!(sim.events(Side::Client).iter().any(is_loss));
    assert!(sim.path(Side::Client, PathId(0)).is_some());
}

#[test]
fn data_returns_to_a_normal_path_when_there_is_one_again() {
    let mut sim = two(HandoverMode::Backup);
    let id = stream(&mut sim, Side::Client);
    sim.stall(0, true);
    longest_gap(&mut sim, Side::Client, id, secs(2));
    assert_eq!(sim.path(Side::Client, PathId(0)).unwrap().state, PathState::Suspect);
    sim.stall(0, false);
    longest_gap(&mut sim, Side::Client, id, secs(2));
    let before = sim.path(Side::Client, PathId(1)).unwrap().bytes_sent;
    longest_gap(&mut sim, Side::Client, id, secs(2));
    assert_eq!(sim.path(Side::Client, PathId(1)).unwrap().bytes_sent, before);
    sim.settle();
}

/// The longest pause when a path goes away with a local event at the sender, with one at both ends, or
/// silently.
#[test]
fn failover_is_as_quick_as_promised() {
    for mode in [HandoverMode::Full, HandoverMode::Backup] {
        for from in SIDES {
            for lost in [0, 1] {
                for (cut, limit) in [
                    (Cut::Both, ms(50 + 50)),
                    (Cut::First(from), ms(50 + 50)),
                    (Cut::First(from.peer()), ms(50 + 50)),
                    (Cut::Silent, ms(3 * 50 + 200)),
                ] {
                    let mut sim = two(mode);
                    let id = stream(&mut sim, from);
                    sim.cut(lost, cut);
                    let gap = longest_gap(&mut sim, from, id, secs(3));
                    println!("{mode} from {from:?}, path {lost} {cut:?}: {gap:?}");
                    assert!(gap <= limit, "{mode} from {from:?}, path {lost} {cut:?}: {gap:?}");
                    let healthy = PathId(1 - lost as u64);
                    for side in SIDES {
                        let state = sim.path(side, healthy).map(|path| path.state);
                        assert_eq!(state, Some(PathState::Active), "{mode} {side:?}");
                    }
                    sim.settle();
                }
            }
        }
    }
}

#[test]
fn the_mode_changes_from_either_side_while_the_connection_lives() {
    let mut sim = two(HandoverMode::Full);
    let id = stream(&mut sim, Side::Client);
    assert_eq!(sim.server().handover(), HandoverMode::Full);
    let now = sim.now;
    sim.server().set_handover(now, HandoverMode::Backup);
    longest_gap(&mut sim, Side::Client, id, ms(500));
    assert_eq!(sim.client.handover(), HandoverMode::Backup);
    assert!(sim.events(Side::Client).contains(&Event::HandoverChanged(HandoverMode::Backup)));
    for side in SIDES {
        let backups = priorities(&mut sim, side).iter().filter(|p| **p == Priority::Backup).count();
        assert_eq!(backups, 1, "{side:?}");
    }
    let now = sim.now;
    sim.client.set_handover(now, HandoverMode::Full);
    longest_gap(&mut sim, Side::Client, id, ms(500));
    for side in SIDES {
        assert_eq!(priorities(&mut sim, side), [Priority::Normal; 2], "{side:?}");
    }
    let now = sim.now;
    sim.server().set_handover(now, HandoverMode::Single);
    longest_gap(&mut sim, Side::Client, id, ms(500));
    for side in SIDES {
        assert_eq!(sim.connection(side).unwrap().paths().len(), 1, "{side:?}");
    }
    sim.settle();
}

#[test]
fn when_both_sides_speak_at_once_the_clients_word_counts() {
    let mut sim = two(HandoverMode::Full);
    let now = sim.now;
    sim.server().set_handover(now, HandoverMode::Single);
    sim.client.set_handover(now, HandoverMode::Backup);
    sim.server().set_priority(PathId(1), Priority::Normal);
    sim.advance(secs(1));
    for side in SIDES {
        let connection = sim.connection(side).unwrap();
        assert_eq!(connection.handover(), HandoverMode::Backup, "{side:?}");
        assert_eq!(connection.paths().len(), 2, "{side:?}");
    }
    let seen = SIDES.map(|side| priorities(&mut sim, side));
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn a_path_becomes_backup_and_normal_again_by_either_sides_word() {
    for teller in SIDES {
        let mut sim = two(HandoverMode::Full);
        let id = stream(&mut sim, Side::Client);
        for priority in [Priority::Backup, Priority::Normal, Priority::Backup] {
            sim.connection(teller).unwrap().set_priority(PathId(0), priority);
            longest_gap(&mut sim, Side::Client, id, ms(500));
            let told = Event::PriorityChanged(PathId(0), priority);
            assert!(sim.events(teller.peer()).contains(&told), "{teller:?} {priority:?}");
            let before = sim.path(Side::Client, PathId(0)).unwrap().bytes_sent;
            longest_gap(&mut sim, Side::Client, id, secs(1));
            let sent = sim.path(Side::Client, PathId(0)).unwrap().bytes_sent - before;
            assert_eq!(sent == 0, priority == Priority::Backup, "{teller:?} {priority:?}: {sent} bytes");
        }
    }
}

/// What was said on a path that died at that moment is said again on another.
#[test]
fn statements_survive_the_path_they_went_on() {
    for teller in SIDES {
        for cut in [Cut::Both, Cut::First(teller), Cut::First(teller.peer()), Cut::Silent] {
            let links = [Link::new(10, 20), Link::new(10, 50), Link::new(10, 60)];
            let mut sim = Sim::over(options(HandoverMode::Full), &links);
            let here: SocketAddr = "192.0.2.7:4480".parse().unwrap();
            let connection = sim.connection(teller).unwrap();
            connection.announce_address(0, here, Priority::Backup);
            connection.set_priority(PathId(2), Priority::Backup);
            sim.pump();
            sim.cut(0, cut);
            sim.advance(secs(3));
            let peer = sim.connection(teller.peer()).unwrap();
            assert_eq!(peer.peer_addresses(), [(0, here, Priority::Backup)], "{teller:?} {cut:?}");
            let path = peer.paths().into_iter().find(|path| path.id == PathId(2)).unwrap();
            assert_eq!(path.priority, Priority::Backup, "{teller:?} {cut:?}");
        }
    }
}

#[test]
fn addresses_are_announced_withdrawn_and_announced_again() {
    for teller in SIDES {
        let mut sim = Sim::established(Options::default());
        let (a, b): (SocketAddr, SocketAddr) =
            ("10.0.0.1:1".parse().unwrap(), "[2001:db8::1]:2".parse().unwrap());
        let expect = |sim: &mut Sim, addresses: &[(u8, SocketAddr, Priority)], told: Event| {
            // Cut at once: the frame that was just sent may or may not have arrived.
            sim.pump();
            sim.cut_and_heal(Cut::Both);
            sim.advance(secs(3));
            assert_eq!(sim.connection(teller.peer()).unwrap().peer_addresses(), addresses);
            assert!(sim.events(teller.peer()).contains(&told), "{told:?}");
        };
        let tell = |sim: &mut Sim, id, at, priority| {
            assert!(sim.connection(teller).unwrap().announce_address(id, at, priority));
        };
        tell(&mut sim, 0, a, Priority::Normal);
        let event = |id, address| Event::PeerAddress { id, address };
        expect(&mut sim, &[(0, a, Priority::Normal)], event(0, Some((a, Priority::Normal))));
        tell(&mut sim, 31, b, Priority::Backup);
        let both = [(0, a, Priority::Normal), (31, b, Priority::Backup)];
        expect(&mut sim, &both, event(31, Some((b, Priority::Backup))));
        sim.connection(teller).unwrap().withdraw_address(0);
        expect(&mut sim, &both[1..], event(0, None));
        tell(&mut sim, 0, b, Priority::Normal);
        let again = [(0, b, Priority::Normal), both[1]];
        expect(&mut sim, &again, event(0, Some((b, Priority::Normal))));
        assert!(!sim.connection(teller).unwrap().announce_address(32, a, Priority::Normal));
    }
}

/// Join, refuse, remove, join again; the last path removed, and a new one after it.
#[test]
fn paths_join_are_removed_and_join_again() {
    let mut sim = two(HandoverMode::Full);
    let id = stream(&mut sim, Side::Client);
    for round in 0..4 {
        sim.write(Side::Client, id, 50_000);
        let now = sim.now;
        let oldest = sim.client.paths()[0].id;
        sim.client.path_lost(now, oldest);
        sim.advance(ms(300));
        assert_eq!(sim.server().paths().len(), 1, "round {round}");
        sim.dial_over(Link::new(10, 50));
        sim.advance(ms(300));
        sim.read_all(Side::Server);
        assert_eq!(sim.server().paths().len(), 2, "round {round}");
    }
    sim.write(Side::Client, id, 50_000);
    let now = sim.now;
    for path in sim.client.paths() {
        sim.client.path_lost(now, path.id);
    }
    sim.advance(ms(300));
    assert!(sim.client.paths().is_empty());
    sim.dial_over(Link::new(10, 50));
    sim.advance(secs(1));
    sim.settle();
    // A path the server does not let in disturbs none of the others.
    let healthy = sim.client.paths().len();
    sim.server().close(whimbrel_proto::CloseCode::NONE, "done");
    assert_eq!(healthy, 1);
    sim.run_until(secs(10), |sim| sim.client.is_over());
    assert!(sim.client.is_closed());
}

/// A connection ends in order although the path that carried the word died.
#[test]
fn closing_depends_on_no_path() {
    for mode in [HandoverMode::Full, HandoverMode::Backup] {
        for closer in SIDES {
            for lost in [0, 1] {
                for cut in [Cut::Both, Cut::First(closer), Cut::First(closer.peer()), Cut::Silent] {
                    let mut sim = two(mode);
                    let id = stream(&mut sim, Side::Client);
                    sim.write(Side::Client, id, 100_000);
                    let connection = sim.connection(closer).unwrap();
                    connection.close(whimbrel_proto::CloseCode::application(4), "the end");
                    sim.pump();
                    sim.cut(lost, cut);
                    let over = |sim: &mut Sim| sim.client.is_over() && sim.server_was_over;
                    assert!(
                        sim.run_until(secs(5), over),
                        "{mode} {closer:?} {lost} {cut:?}\n{}",
                        sim.report()
                    );
                    // A server that closes does not wait for what the client was about to say.
                    if closer == Side::Server {
                        continue;
                    }
                    assert_eq!(sim.client_app.bytes_missing_at(&sim.server_app), None);
                }
            }
        }
    }
}
