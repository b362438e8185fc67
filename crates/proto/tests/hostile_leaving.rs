//! Peers that say they leave when they do not, when they no longer may, or when nobody asked for it.
#![allow(clippy::unwrap_used)]

use crate::simulation::{Cut, Options, Sim, ms, secs};
use whimbrel_proto::fuzzing::frame::Frame;
use whimbrel_proto::fuzzing::varint;
use whimbrel_proto::{CloseCode, ClosedBy, Event, PathId, ProtocolError, Side};

const BOTH: [Side; 2] = [Side::Client, Side::Server];
const PATH: PathId = PathId(0);

fn suspends(generations: &[u64]) -> Vec<u8> {
    let mut body = Vec::new();
    generations.iter().for_each(|generation| Frame::Suspend(*generation).encode(&mut body));
    body
}

/// Gives `side` a segment with these, as if they came from its peer, and takes its events.
fn say(sim: &mut Sim, side: Side, path: PathId, generations: &[u64]) -> Result<(), ProtocolError> {
    let (now, body) = (sim.now, suspends(generations));
    let result = sim.connection(side).unwrap().handle_segment(now, path, &body);
    while let Some(event) = sim.connection(side).unwrap().poll_event() {
        match side {
            Side::Client => sim.client_events.push(event),
            Side::Server => sim.server_events.push(event),
        }
    }
    result
}

fn told(sim: &Sim, side: Side, what: &Event) -> usize {
    sim.events(side).iter().filter(|event| *event == what).count()
}

fn run(sim: &mut Sim, done: impl Fn(&Sim) -> bool) {
    let done = sim.run_until(secs(20), |sim| done(sim));
    assert!(done, "{}", sim.report());
}

fn all_is_here(sim: &Sim) -> bool {
    sim.client_app.bytes_missing_at(&sim.server_app).is_none()
        && sim.server_app.bytes_missing_at(&sim.client_app).is_none()
}

#[test]
fn a_suspend_of_a_generation_that_never_was_says_nothing() {
    for side in BOTH {
        let mut sim = Sim::established(Options::default());
        assert_eq!(say(&mut sim, side, PATH, &[1, 7, varint::MAX]), Ok(()));
        assert_eq!(told(&sim, side, &Event::PeerSuspended), 0);
        assert!(!sim.connection(side).unwrap().is_peer_suspended());
    }
}

#[test]
fn a_suspend_that_is_said_a_thousand_times_is_told_once_and_keeps_nothing() {
    for side in BOTH {
        let mut sim = Sim::established(Options::default());
        let before = sim.connection(side).unwrap().footprint();
        for _ in 0..10 {
            assert_eq!(say(&mut sim, side, PATH, &[0; 100]), Ok(()));
        }
        assert_eq!(told(&sim, side, &Event::PeerSuspended), 1);
        assert_eq!(sim.connection(side).unwrap().footprint(), before);
    }
}

/// It harms itself alone: what it sends counts as before, and its next path is its return.
#[test]
fn a_peer_that_says_it_leaves_and_goes_on_is_served_as_before() {
    for leaves in BOTH {
        let stays = leaves.peer();
        let mut sim = Sim::established(Options::default());
        let stream = sim.open(Side::Client).unwrap();
        sim.send(Side::Client, stream, 1000);
        run(&mut sim, all_is_here);
        sim.connection(leaves).unwrap().suspend();
        run(&mut sim, |sim| sim.events(leaves).contains(&Event::SuspendHeard));
        for _ in 0..3 {
            BOTH.into_iter().for_each(|side| sim.send(side, stream, 30_000));
            // Again and again, as one would that wants to be told of twice.
            sim.connection(leaves).unwrap().suspend();
            run(&mut sim, all_is_here);
        }
        assert_eq!(told(&sim, stays, &Event::PeerSuspended), 1);
        assert_eq!(told(&sim, stays, &Event::PeerResumed), 0);
        sim.cut_all(Cut::Both);
        sim.advance(ms(50));
        sim.dial().unwrap();
        BOTH.into_iter().for_each(|side| sim.send(side, stream, 30_000));
        run(&mut sim, all_is_here);
        assert_eq!(told(&sim, stays, &Event::PeerResumed), 1);
        assert!(!sim.connection(stays).unwrap().is_peer_suspended());
        assert!(BOTH.into_iter().all(|side| sim.connection(side).unwrap().close_reason().is_none()));
    }
}

/// Its paths are over, and its generation is not the one that has the connection.
#[test]
fn a_suspend_of_a_copy_that_was_superseded_says_nothing() {
    for resumed in BOTH {
        let stays = resumed.peer();
        let mut sim = Sim::established(Options::default());
        let stream = sim.open(Side::Client).unwrap();
        sim.send(Side::Client, stream, 1000);
        run(&mut sim, all_is_here);
        sim.cut_all(Cut::Both);
        sim.advance(ms(50));
        sim.resume(resumed);
        assert!(sim.connection(resumed).unwrap().is_claiming());
        let carrier = sim.dial().unwrap();
        let path = sim.carriers[carrier].path;
        sim.send(resumed, stream, 1000);
        run(&mut sim, all_is_here);
        sim.advance(secs(1));
        assert!(!sim.connection(resumed).unwrap().is_claiming());
        for path in [path, PATH] {
            assert_eq!(say(&mut sim, stays, path, &[0]), Ok(()));
            assert_eq!(told(&sim, stays, &Event::PeerSuspended), 0);
            assert!(!sim.connection(stays).unwrap().is_peer_suspended());
        }
        // The copy that has the connection may say so.
        assert_eq!(say(&mut sim, stays, path, &[1]), Ok(()));
        assert_eq!(told(&sim, stays, &Event::PeerSuspended), 1);
    }
}

#[test]
fn a_suspend_between_sides_of_which_one_did_not_offer_it_ends_the_connection() {
    for without in BOTH {
        for hears in BOTH {
            let mut options = Options::default();
            match without {
                Side::Client => options.client.params.suspend = false,
                Side::Server => options.server.params.suspend = false,
            }
            let mut sim = Sim::established(options);
            sim.advance(ms(200));
            assert_eq!(say(&mut sim, hears, PATH, &[0]), Err(ProtocolError::Unexpected("SUSPEND")));
            let reason = sim.connection(hears).unwrap().close_reason();
            assert_eq!(reason.map(|(by, code, _)| (by, code)), Some((ClosedBy::Local, CloseCode::PROTOCOL)));
            assert_eq!(told(&sim, hears, &Event::PeerSuspended), 0);
        }
    }
}
