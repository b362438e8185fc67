//! Candidates are exchanged over whatever path lives, and the path that comes of them leaves the one before
//! as a backup path.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;

use crate::simulation::{Cut, Options, Sim, ms, secs};
use whimbrel_proto::fuzzing::frame::Frame;
use whimbrel_proto::{Config, Event, PathId, PathState, Priority, Side};

const BOTH: [Side; 2] = [Side::Client, Side::Server];

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([198, 51, 100, 7], port))
}

fn statements(sim: &Sim, side: Side) -> usize {
    sim.events(side).iter().filter(|event| matches!(event, Event::PeerCandidates)).count()
}

#[test]
fn each_side_hears_the_others_candidates_after_one_way_and_each_time_that_they_are_stated() {
    let mut sim = Sim::established(Options::default());
    for (count, side) in [(1, Side::Client), (1, Side::Server), (2, Side::Client)] {
        sim.connection(side).unwrap().state_candidates(vec![at(1), at(2)]);
        sim.advance(ms(21));
        assert_eq!(statements(&sim, side.peer()), count);
        assert_eq!(sim.connection(side.peer()).unwrap().peer_candidates(), [at(1), at(2)]);
    }
}

#[test]
fn candidates_that_were_lost_with_their_path_are_said_on_the_next_one_as_they_are_by_then() {
    let mut sim = Sim::established(Options::default());
    for side in BOTH {
        sim.connection(side).unwrap().state_candidates(vec![at(1)]);
    }
    sim.advance(ms(5));
    sim.cut_all(Cut::Both);
    sim.advance(ms(5));
    sim.client.state_candidates(vec![at(2)]);
    sim.dial();
    sim.advance(ms(200));
    assert_eq!(sim.client.peer_candidates(), [at(1)]);
    assert_eq!(sim.server().peer_candidates(), [at(2)]);
    assert_eq!(statements(&sim, Side::Server), 1, "what is outdated is not said again");
}

#[test]
fn a_peer_that_does_not_know_candidates_hears_of_none_and_may_send_none() {
    let mut options = Options::default();
    options.client.params.punch = false;
    let mut sim = Sim::established(options);
    let server = sim.server();
    assert!(!server.can_punch() && !server.can_search());
    server.state_candidates(vec![at(1)]);
    sim.advance(ms(50));
    assert_eq!(statements(&sim, Side::Client), 0);
    let mut segment = Vec::new();
    Frame::Candidates { sequence: 1, addresses: vec![at(1)] }.encode(&mut segment);
    let now = sim.now;
    assert!(sim.server().handle_segment(now, PathId(0), &segment).is_err());
}

#[test]
fn a_copy_of_either_side_that_was_read_back_is_heard_although_it_counts_anew() {
    for side in BOTH {
        let mut sim = Sim::established(Options::default());
        for _ in 0..5 {
            sim.connection(side).unwrap().state_candidates(vec![at(1)]);
            sim.advance(ms(50));
        }
        sim.cut_all(Cut::Both);
        sim.advance(ms(1));
        sim.resume(side);
        sim.dial();
        sim.advance(ms(200));
        sim.connection(side).unwrap().state_candidates(vec![at(9)]);
        sim.advance(ms(100));
        assert_eq!(sim.connection(side.peer()).unwrap().peer_candidates(), [at(9)], "{side:?}");
    }
}

#[test]
fn each_side_hears_where_the_other_one_sees_it_also_after_the_path_that_carried_it_was_lost() {
    let mut sim = Sim::established(Options::default());
    sim.server().state_observed(at(1));
    sim.client.state_observed(at(2));
    sim.advance(ms(21));
    assert_eq!((sim.client.observed(), sim.server().observed()), (Some(at(1)), Some(at(2))));
    sim.server().state_observed(at(3));
    sim.advance(ms(5));
    sim.cut_all(Cut::Both);
    sim.advance(ms(5));
    sim.dial();
    sim.advance(ms(200));
    assert_eq!(sim.client.observed(), Some(at(3)));
}

#[test]
fn a_peer_that_does_not_know_observations_is_told_none_and_may_send_none() {
    let mut options = Options::default();
    options.client.params.observed = false;
    let mut sim = Sim::established(options);
    sim.server().state_observed(at(1));
    sim.advance(ms(50));
    assert_eq!(sim.client.observed(), None);
    let mut segment = Vec::new();
    Frame::Observed { sequence: 1, address: at(1) }.encode(&mut segment);
    let now = sim.now;
    assert!(sim.server().handle_segment(now, PathId(0), &segment).is_err());
}

/// In mode `single`: a first path, and one that was opened beside it.
fn beside(config: &Config) -> Sim {
    let options = Options { client: config.clone(), server: config.clone(), ..Options::default() };
    let mut sim = Sim::established(options);
    sim.advance(ms(100));
    sim.dial();
    sim.client.keep_as_backup(PathId(1), PathId(0));
    sim.advance(ms(200));
    sim
}

#[test]
fn the_path_before_stays_as_a_backup_path_and_carries_on_when_the_new_one_breaks() {
    let mut sim = beside(&Config::default());
    for side in BOTH {
        let paths = sim.connection(side).unwrap().paths();
        let kinds: Vec<_> = paths.iter().map(|path| (path.id, path.state, path.priority)).collect();
        let expected = [
            (PathId(0), PathState::Active, Priority::Backup),
            (PathId(1), PathState::Active, Priority::Normal),
        ];
        assert_eq!(kinds, expected, "{side:?}");
    }
    let carried = |sim: &Sim| sim.path(Side::Client, PathId(0)).unwrap().bytes_sent;
    let before = carried(&sim);
    let stream = sim.open(Side::Client).unwrap();
    sim.send(Side::Client, stream, 40_000);
    sim.advance(ms(30));
    assert!(carried(&sim) < before + 200, "the backup path carries data");
    sim.cut(1, Cut::Both);
    sim.server_accepts();
    let done = sim.run_until(secs(1), |sim| {
        sim.read_all(Side::Server);
        sim.client_app.bytes_missing_at(&sim.server_app).is_none()
    });
    assert!(done && sim.carriers.len() == 2, "nobody dials: {}", sim.report());
}

#[test]
fn what_takes_the_place_of_the_path_that_is_to_be_kept_is_kept_instead() {
    let config = Config::default();
    let mut sim = Sim::established(Options { client: config.clone(), server: config, ..Options::default() });
    sim.advance(ms(100));
    sim.dial();
    sim.dial();
    sim.client.keep_as_backup(PathId(2), PathId(0));
    sim.advance(secs(1));
    let kinds: Vec<_> = sim.client.paths().iter().map(|path| (path.id, path.priority)).collect();
    assert_eq!(kinds, [(PathId(1), Priority::Backup), (PathId(2), Priority::Normal)]);
}

#[test]
fn a_later_path_replaces_both() {
    let mut sim = beside(&Config::default());
    sim.dial();
    sim.advance(secs(2));
    let paths: Vec<PathId> = sim.client.paths().iter().map(|path| path.id).collect();
    assert_eq!(paths, [PathId(2)]);
}
