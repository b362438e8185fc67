//! A connection that is opened over several paths at once.
#![allow(clippy::unwrap_used)]

use crate::simulation::{CONNECTION, Cut, Options, Sim, identity, ms, secs};
use whimbrel_base::ConnectionId;
use whimbrel_proto::fuzzing::frame::{Frame, Open};
use whimbrel_proto::{
    CloseCode, Config, Connection, HandoverMode, Params, PathId, PathState, ProtocolError, Side, refusal,
    segment,
};

fn options(handover: HandoverMode) -> Options {
    Options { client: Config { handover, ..Config::default() }, ..Options::default() }
}

fn state(sim: &Sim, side: Side, path: u64) -> Option<PathState> {
    sim.path(side, PathId(path)).map(|p| p.state)
}

fn without_retire() -> Config {
    let mut config = Config::default();
    config.params.retire = false;
    config
}

#[test]
fn two_opens_that_race_both_become_paths() {
    for (first, second) in [(20, 20), (20, 60), (60, 20), (20, 200)] {
        let mut sim = Sim::new(options(HandoverMode::Full));
        let id = sim.open(Side::Client).unwrap();
        sim.write(Side::Client, id, 9000);
        sim.dial_with(ms(first));
        sim.dial_with(ms(second));
        sim.advance(ms(2 * first.max(second) + 60));
        for side in [Side::Client, Side::Server] {
            for path in [0, 1] {
                assert_eq!(state(&sim, side, path), Some(PathState::Active), "{side:?} {path}");
            }
        }
        assert_eq!(sim.read_all(Side::Server), 9000);
        sim.settle();
    }
}

#[test]
fn early_bytes_leave_on_the_first_path_and_only_once() {
    for mode in [HandoverMode::Full, HandoverMode::Backup, HandoverMode::Single] {
        let mut sim = Sim::new(options(mode));
        let id = sim.open(Side::Client).unwrap();
        sim.write(Side::Client, id, 9000);
        sim.dial();
        sim.pump();
        sim.dial();
        sim.write(Side::Client, id, 2000);
        sim.advance(secs(1));
        assert_eq!(sim.read_all(Side::Server), 11_000, "{mode}");
        assert_eq!(sim.client.stats().stream_bytes_resent, 0, "{mode}");
        assert_eq!(sim.server().stats().stream_bytes_duplicate, 0, "{mode}");
        assert!(sim.carriers[0].up.sent > 11_000, "{mode}");
        // In mode single the newer path has taken over, in order.
        let old = (mode != HandoverMode::Single).then_some(PathState::Active);
        assert_eq!(state(&sim, Side::Client, 0), old, "{mode}");
        assert_eq!(state(&sim, Side::Client, 1), Some(PathState::Active), "{mode}");
    }
}

#[test]
fn bytes_that_an_unanswered_path_carries_go_again_when_another_is_answered() {
    for mode in [HandoverMode::Full, HandoverMode::Single] {
        let mut sim = Sim::new(options(mode));
        let id = sim.open(Side::Client).unwrap();
        sim.write(Side::Client, id, 5000);
        let dead = sim.dial().unwrap();
        sim.pump();
        sim.cut(dead, Cut::Silent);
        sim.dial();
        // One round trip for the answer, half of one for the data.
        sim.advance(ms(40 + 20));
        assert_eq!(sim.read_all(Side::Server), 5000, "{mode}");
    }
}

#[test]
fn bytes_repeated_on_request_arrive_with_the_second_open() {
    for mode in [HandoverMode::Full, HandoverMode::Single] {
        let mut sim = Sim::new(options(mode));
        let id = sim.open(Side::Client).unwrap();
        sim.write(Side::Client, id, 5000);
        let dead = sim.dial().unwrap();
        sim.pump();
        sim.cut(dead, Cut::Silent);
        sim.dial();
        sim.client.repeat_opening();
        sim.write(Side::Client, id, 1000);
        sim.advance(ms(20));
        assert_eq!(sim.read_all(Side::Server), 6000, "{mode}");
        sim.advance(secs(1));
        assert_eq!(sim.client.stats().stream_bytes_resent, 5000, "{mode}: once more, and not twice");
    }
}

/// As where a server has an address that leads nowhere, and one behind a relay.
#[test]
fn what_is_said_while_several_places_are_dialled_is_heard_where_the_answer_comes_from() {
    for (mode, answers) in
        [HandoverMode::Full, HandoverMode::Single].into_iter().flat_map(|mode| [(mode, 0), (mode, 1)])
    {
        let mut sim = Sim::established(Options {
            client: Config { handover: mode, ..Config::default() },
            ..Options::default()
        });
        let id = sim.open(Side::Client).unwrap();
        sim.settle();
        sim.cut(0, Cut::Both);
        sim.advance(ms(1));
        let places = [sim.dial().unwrap(), sim.dial().unwrap()];
        sim.client.leads_elsewhere(PathId(2));
        sim.client.repeat_opening();
        sim.pump();
        sim.cut(places[1 - answers], Cut::Silent);
        sim.write(Side::Client, id, 500);
        sim.advance(ms(21));
        assert_eq!(sim.read_all(Side::Server), 500, "{mode}, {answers}");
        sim.advance(secs(1));
        let resent = sim.client.stats().stream_bytes_resent;
        assert_eq!(resent, 500, "{mode}, {answers}");
        sim.settle();
    }
}

#[test]
fn bytes_acknowledged_before_they_could_be_repeated_do_not_go_again() {
    let mut sim = Sim::new(options(HandoverMode::Full));
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 5000);
    sim.dial();
    sim.advance(ms(20));
    // Asked for while the answer is on its way, and nothing can leave in the meantime.
    sim.dial();
    sim.carriers[1].stalled = true;
    sim.options.capacity = 0;
    sim.client.repeat_opening();
    sim.advance(ms(50));
    sim.options.capacity = 128 * 1024;
    sim.carriers[1].stalled = false;
    sim.advance(secs(1));
    assert_eq!(sim.read_all(Side::Server), 5000);
    assert_eq!(sim.client.stats().stream_bytes_resent, 0);
}

/// JOINs race like OPENs.
#[test]
fn a_repeated_join_carries_what_the_first_one_did() {
    let mut sim = Sim::established(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.settle();
    sim.cut(0, Cut::Both);
    sim.advance(ms(1));
    sim.write(Side::Client, id, 5000);
    let dead = sim.dial().unwrap();
    sim.pump();
    sim.cut(dead, Cut::Silent);
    sim.dial();
    sim.client.repeat_opening();
    sim.advance(ms(20));
    assert_eq!(sim.read_all(Side::Server), 5000);
    sim.settle();
}

#[test]
fn a_late_open_of_a_confirmed_connection_becomes_a_path() {
    let mut sim = Sim::new(options(HandoverMode::Full));
    sim.dial_with(ms(10));
    sim.dial_with(ms(300));
    sim.advance(ms(150));
    assert!(sim.server().is_confirmed());
    sim.advance(secs(1));
    for side in [Side::Client, Side::Server] {
        assert_eq!(state(&sim, side, 1), Some(PathState::Active), "{side:?}");
    }
    sim.settle();
}

/// A server of before refuses an OPEN once the connection is confirmed, and gives earlier paths up before.
#[test]
fn a_server_that_takes_one_open_only_keeps_the_connection() {
    for mode in [HandoverMode::Full, HandoverMode::Single] {
        for (first, second) in [(20, 20), (20, 25), (20, 60), (60, 20), (10, 300)] {
            let options = Options { server: without_retire(), ..options(mode) };
            let mut sim = Sim::new(options);
            let id = sim.open(Side::Client).unwrap();
            sim.write(Side::Client, id, 30_000);
            sim.dial_with(ms(first));
            sim.dial_with(ms(second));
            sim.advance(secs(2));
            assert_eq!(sim.client.close_reason(), None, "{mode} {first} {second}");
            assert_eq!(sim.read_all(Side::Server), 30_000, "{mode} {first} {second}\n{}", sim.report());
            assert!(sim.client.has_active_path(), "{mode} {first} {second}\n{}", sim.report());
            sim.settle();
        }
    }
}

fn refuse(sim: &mut Sim, path: u64, code: CloseCode) {
    let (now, wire) = (sim.now, refusal(code, "no"));
    let (body, _) = segment::split(&wire).unwrap().unwrap();
    sim.client.handle_segment(now, PathId(path), body).unwrap();
}

#[test]
fn a_refusal_of_one_of_several_opens_loses_that_path_only() {
    for code in [CloseCode::BUSY, CloseCode::BAD_PROOF, CloseCode::NOT_ALLOWED, CloseCode::UNKNOWN_CONNECTION]
    {
        for refused in [0, 1] {
            let mut sim = Sim::new(options(HandoverMode::Full));
            sim.dial();
            sim.dial();
            sim.pump();
            // Before any answer, and by whoever else sits at that address.
            refuse(&mut sim, refused, code);
            assert_eq!(sim.client.close_reason(), None, "{code}");
            sim.advance(secs(1));
            assert_eq!(state(&sim, Side::Client, 1 - refused), Some(PathState::Active), "{code}");
            sim.settle();
            // The last one that is refused ends the connection.
            let mut sim = Sim::new(options(HandoverMode::Full));
            sim.dial();
            sim.dial();
            sim.pump();
            refuse(&mut sim, refused, code);
            refuse(&mut sim, 1 - refused, code);
            assert_eq!(sim.client.close_reason().map(|reason| reason.1), Some(code));
        }
    }
}

#[test]
fn a_second_answer_with_another_random_breaks_the_protocol() {
    let mut sim = Sim::new(options(HandoverMode::Full));
    let dead = sim.dial_with(ms(500)).unwrap();
    sim.dial();
    sim.advance(ms(100));
    assert!(sim.client.is_established());
    let mut body = Vec::new();
    Frame::Accept { random: [1; 32], lost: vec![], params: Params::default() }.encode(&mut body);
    let (now, path) = (sim.now, sim.carriers[dead].path);
    assert_eq!(sim.client.handle_segment(now, path, &body), Err(ProtocolError::OtherAnswer));
}

/// The OPEN of an earlier attempt that was given up without an answer names it, so that the server does not
/// go on sending there.
#[test]
fn a_path_that_the_client_gave_up_before_the_answer_is_given_up_at_the_server() {
    let mut sim = Sim::new(Options::default());
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 100);
    let first = sim.dial().unwrap();
    sim.advance(ms(21));
    sim.cut(first, Cut::First(Side::Client));
    sim.advance(ms(1));
    sim.server_accepts();
    sim.write(Side::Server, id, 1000);
    sim.dial();
    sim.advance(ms(21));
    assert_eq!(state(&sim, Side::Server, 0), None);
    sim.advance(ms(20));
    assert_eq!(sim.read_all(Side::Client), 1000, "what was lost with the first path came with the answer");
    sim.settle();
}

/// Even if it carried nothing but the OPEN, of which no trace is left at the client otherwise.
#[test]
fn a_bare_open_that_the_client_gave_up_is_given_up_at_the_server() {
    let mut sim = Sim::new(Options::default());
    let first = sim.dial().unwrap();
    sim.advance(ms(21));
    sim.cut(first, Cut::First(Side::Client));
    sim.advance(ms(1));
    sim.dial();
    assert!(state(&sim, Side::Server, 0).is_some(), "it was heard");
    sim.advance(ms(21));
    assert_eq!(state(&sim, Side::Server, 0), None);
    sim.settle();
}

/// A recorded OPEN is of no use: its path id was taken.
#[test]
fn an_open_is_let_in_once() {
    let mut sim = Sim::established(Options::default());
    let open = |path| Open {
        connection: ConnectionId::from_bytes(&CONNECTION),
        path: PathId(path),
        random: [7; 32],
        lost: vec![],
        params: Params::default(),
    };
    let now = sim.now;
    assert!(sim.server().reopen(now, &open(0)).is_err());
    assert_eq!(sim.server().reopen(now, &open(3)), Ok(()));
    assert!(sim.server().reopen(now, &open(3)).is_err());
    let (local, peer) = (identity(Side::Server), identity(Side::Client));
    let late = Connection::server(Config::default(), &open(5), local, peer, [9; 32], now);
    assert_eq!(late.paths()[0].id, PathId(5));
}
