//! A server's end rests while its peer is away: it is packed, unpacked, and goes on where it was.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::simulation::{Cut, Options, Sim, ms, secs};
use whimbrel_proto::{
    Class, Config, Event, FlowOptions, MESSAGE_WINDOW, Outcome, Params, RateLimit, SendOptions, Side,
    Timeouts, Urgency,
};

fn with_messages() -> Options {
    let config = || {
        let params = Params { messages: MESSAGE_WINDOW, ..Params::default() };
        Config { params, ..Config::default() }
    };
    Options { client: config(), server: config(), ..Options::default() }
}

/// The client has written, and was put to sleep when all of that was acknowledged; nothing of it was read.
fn left_alone() -> (Sim, whimbrel_proto::StreamId) {
    let mut sim = Sim::established(with_messages());
    let stream = sim.open(Side::Client).unwrap();
    sim.send(Side::Client, stream, 30_000);
    sim.advance(secs(1));
    sim.server_accepts();
    sim.client.suspend();
    sim.advance(secs(1));
    let now = sim.now;
    sim.client.detach(now);
    sim.cut_all(Cut::Both);
    sim.advance(ms(200));
    assert!(sim.server().is_peer_suspended());
    (sim, stream)
}

#[test]
fn a_server_whose_peer_is_suspended_rests_and_goes_on_where_it_was() {
    let (mut sim, stream) = left_alone();
    let before = (sim.server().stats(), sim.server().buffered(), sim.server().detached_since());
    let now = sim.now;
    assert!(sim.server().may_rest(now + secs(3)));
    let resting = sim.server().rest(now + secs(3)).unwrap();
    assert_eq!((resting.buffered(), resting.detached_since()), (before.1, before.2));
    assert_eq!(resting.poll_timeout(), sim.server().poll_timeout());
    sim.rest();
    assert_eq!(sim.rests, 1);
    assert_eq!((sim.server().stats(), sim.server().buffered(), sim.server().detached_since()), before);
    assert!(sim.server().is_peer_suspended());
    sim.send(Side::Server, stream, 20_000);
    sim.rest();
    assert_eq!(sim.rests, 2, "what is written meanwhile waits too");
    sim.resume(Side::Client);
    sim.dial();
    let done = sim.run_until(secs(20), |sim| {
        sim.read_all(Side::Client);
        sim.read_all(Side::Server);
        sim.client_app.bytes_missing_at(&sim.server_app).is_none()
            && sim.server_app.bytes_missing_at(&sim.client_app).is_none()
    });
    assert!(done, "{}", sim.report());
    assert!(sim.events(Side::Server).contains(&Event::PeerResumed));
}

#[test]
fn what_has_a_path_or_something_to_remember_does_not_rest() {
    let mut sim = Sim::established(with_messages());
    let later = sim.now + secs(3);
    assert!(!sim.server().may_rest(later), "there is a path");
    let (mut sim, _) = left_alone();
    let later = sim.now + secs(3);
    assert!(!sim.client.may_rest(later), "a client dials");
    let now = sim.now;
    let server = sim.server.as_mut().unwrap();
    let flow = server.open_flow(FlowOptions::new(Class::RELIABLE)).unwrap();
    server.send_message(now, flow, b"somebody waits for its end".to_vec(), SendOptions::default()).unwrap();
    assert!(server.rest(later).is_none());
    let (mut sim, _) = left_alone();
    assert!(sim.server().may_rest(later));
    sim.server().suspend();
    assert!(!sim.server().may_rest(later), "its peer has to be told that it leaves");
}

#[test]
fn a_server_rests_when_no_path_was_there_for_as_long_as_was_set() {
    let mut sim = Sim::established(with_messages());
    sim.advance(secs(1));
    let timeouts = Timeouts { rest_after: secs(600), ..Timeouts::default() };
    sim.server().set_timeouts(timeouts).unwrap();
    sim.cut_all(Cut::Both);
    sim.advance(ms(1));
    let detached = sim.server().detached_since().unwrap();
    assert!(!sim.server().may_rest(detached + secs(599)), "most moves are over by then");
    let resting = sim.server().rest(detached + secs(600)).unwrap();
    assert_eq!(resting.wake().timeouts(), timeouts);
}

#[test]
fn a_server_whose_peer_has_said_that_it_will_be_away_rests_at_once() {
    let (mut sim, _) = left_alone();
    let detached = sim.server().detached_since().unwrap();
    assert!(!sim.server().may_rest(detached + ms(99)));
    assert!(sim.server().may_rest(detached + ms(100)));
}

#[test]
fn an_unreliable_message_waits_for_a_path_as_long_as_was_set_when_it_was_sent() {
    let mut sim = Sim::established(with_messages());
    let flow = sim.client.open_flow(FlowOptions::new(Class::UNRELIABLE)).unwrap();
    sim.cut_all(Cut::Both);
    sim.advance(ms(1));
    let own = SendOptions { lifetime: Some(secs(9)), ..SendOptions::default() };
    let sent = [(ms(1000), SendOptions::default()), (secs(5), SendOptions::default()), (secs(5), own)].map(
        |(unreliable_patience, options)| {
            let timeouts = Timeouts { unreliable_patience, ..Timeouts::default() };
            sim.client.set_timeouts(timeouts).unwrap();
            let now = sim.now;
            sim.client.send_message(now, flow, b"reading".to_vec(), options).unwrap()
        },
    );
    let over =
        |sim: &Sim| sent.map(|id| sim.client_events.contains(&Event::MessageDone(id, Outcome::Expired)));
    let mut told = Vec::new();
    for step in [ms(990), ms(20), ms(3980), ms(20), ms(3980), ms(20)] {
        sim.advance(step);
        told.push(over(&sim));
    }
    let [none, first, two, all] = [[false; 3], [true, false, false], [true, true, false], [true; 3]];
    assert_eq!(told, [none, first, first, two, two, all]);
}

#[test]
fn limits_timeouts_and_counts_of_flows_are_written_down() {
    let mut sim = Sim::established(with_messages());
    let flow = sim.client.open_flow(FlowOptions::new(Class::RELIABLE)).unwrap();
    let now = sim.now;
    sim.client.send_message(now, flow, vec![1; 100], SendOptions::default()).unwrap();
    sim.advance(secs(1));
    let limit = RateLimit::new(250_000);
    let timeouts = Timeouts { heartbeat: secs(7), last_words: secs(2), ..Timeouts::default() };
    sim.client.set_timeouts(timeouts).unwrap();
    sim.client.set_rate_limit(sim.now, limit);
    sim.client.set_urgency_limit(sim.now, Urgency::default(), RateLimit::new(100_000));
    let counted = sim.client.flow_stats();
    assert_eq!((counted[0].messages.delivered, counted[0].delays.count()), (1, 1));
    let now = sim.now;
    sim.client.detach(now);
    let before = sim.client.snapshot().unwrap();
    sim.resume(Side::Client);
    assert_eq!((sim.client.rate_limit(), sim.client.timeouts()), (limit, timeouts));
    assert_eq!(sim.client.flow_stats(), counted);
    // The limit of one level shows in the bytes alone; the claim of the copy that was read back is longer.
    let tail = |bytes: &[u8]| bytes[bytes.len() - 60..].to_vec();
    assert_eq!(tail(&sim.client.snapshot().unwrap()), tail(&before));
    assert!(Duration::ZERO < sim.client.flow_stats()[0].delays.longest());
}
