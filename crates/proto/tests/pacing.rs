//! Limits of the rate at which a side sends, in simulated time.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::simulation::tcp::Link;
use crate::simulation::{Cut, Options, Sim, ms, secs, wide_config};
use whimbrel_proto::{
    Class, Config, Event, FlowId, FlowOptions, HandoverMode, MESSAGE_WINDOW, Outcome, RateLimit, SendOptions,
    Side, StreamId, Urgency,
};

fn options(handover: HandoverMode) -> Options {
    let mut config = Config { handover, ..wide_config() };
    config.params.messages = MESSAGE_WINDOW;
    Options { client: config.clone(), server: config, ..Options::default() }
}

fn rate(bytes_per_second: u64) -> Option<RateLimit> {
    Some(RateLimit::new(bytes_per_second).unwrap())
}

fn limit(sim: &mut Sim, limit: Option<RateLimit>) {
    let now = sim.now;
    sim.client.set_rate_limit(now, limit);
}

/// A stream on which there is always something to send.
fn bulk(sim: &mut Sim) -> StreamId {
    let id = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, id, 1 << 20);
    id
}

/// Keeps the stream busy for `time`. Returns how many of its bytes came out at the other end meanwhile.
fn carried(sim: &mut Sim, stream: StreamId, time: Duration) -> u64 {
    let (end, mut read) = (sim.now + time, 0);
    while sim.now < end {
        sim.write(Side::Client, stream, 1 << 20);
        sim.advance(ms(50).min(end - sim.now));
        read += sim.read_all(Side::Server);
    }
    read
}

/// Within 3 %: `sent` of what `limit` allows in `time`.
fn assert_kept(sent: u64, limit: u64, time: Duration) {
    let asked = limit * time.as_secs();
    println!("{sent} of {asked} bytes: {:+.2} %", sent as f64 * 100.0 / asked as f64 - 100.0);
    assert!(sent.abs_diff(asked) * 100 <= asked * 3, "{sent} instead of {asked}");
}

fn bytes_on_wire(sim: &Sim) -> u64 {
    sim.carriers.iter().map(|carrier| carrier.up.sent).sum()
}

#[test]
fn a_limit_is_kept_within_three_percent_over_ten_seconds_over_one_path_and_over_several() {
    for limited in [40_000, 300_000, 2_000_000] {
        let links = [Link::new(20, 30), Link::new(10, 50), Link::new(5, 20)];
        for paths in 1..=3 {
            let mut sim = Sim::over(options(HandoverMode::Full), &links[..paths]);
            limit(&mut sim, rate(limited));
            let stream = bulk(&mut sim);
            carried(&mut sim, stream, secs(2));
            let (before, time) = (bytes_on_wire(&sim), secs(10));
            let read = carried(&mut sim, stream, time);
            assert_kept(bytes_on_wire(&sim) - before, limited, time);
            assert_kept(read, limited, time);
        }
    }
}

#[test]
fn a_limit_holds_from_the_moment_at_which_it_is_set_and_no_longer_than_until_it_is_lifted() {
    let mut sim = Sim::over(options(HandoverMode::Single), &[Link::new(20, 30)]);
    let stream = bulk(&mut sim);
    let free = carried(&mut sim, stream, secs(3));
    assert!(free > 6_000_000, "{free}");
    for limited in [500_000, 100_000, 1_000_000] {
        limit(&mut sim, rate(limited));
        carried(&mut sim, stream, secs(1));
        let read = carried(&mut sim, stream, secs(10));
        assert_kept(read, limited, secs(10));
    }
    assert_eq!(sim.client.rate_limit(), rate(1_000_000));
    limit(&mut sim, None);
    carried(&mut sim, stream, secs(1));
    assert!(carried(&mut sim, stream, secs(3)) > 6_000_000);
    assert_eq!(sim.client.rate_limit(), None);
}

#[test]
fn an_idle_connection_saves_up_no_more_than_a_burst() {
    let mut sim = Sim::over(options(HandoverMode::Single), &[Link::new(100, 10)]);
    limit(&mut sim, rate(400_000));
    sim.advance(secs(100));
    let before = bytes_on_wire(&sim);
    bulk(&mut sim);
    sim.pump();
    let burst = bytes_on_wire(&sim) - before;
    assert!((8_000..=11_000).contains(&burst), "a fortieth of a second: {burst}");
}

#[test]
fn a_limit_of_one_urgency_holds_beside_others_that_have_none() {
    let mut sim = Sim::over(options(HandoverMode::Single), &[Link::new(20, 30)]);
    let now = sim.now;
    sim.client.set_urgency_limit(now, Urgency::FIRST, rate(200_000));
    let (limited, free) = (bulk(&mut sim), bulk(&mut sim));
    assert!(sim.client.set_stream_urgency(limited, Urgency::FIRST));
    let flow = FlowOptions { urgency: Urgency::FIRST, ..FlowOptions::new(Class::RELIABLE) };
    let flow = sim.client.open_flow(flow).unwrap();
    let (mut messages, end) = (0, sim.now + secs(10));
    sim.server_accepts();
    let progress = |sim: &Sim| {
        let read = |id| sim.server_app.streams.get(&id).map_or(0, |half| half.read);
        (read(limited), read(free))
    };
    let before = progress(&sim);
    while sim.now < end {
        sim.write(Side::Client, limited, 1 << 20);
        sim.write(Side::Client, free, 1 << 20);
        let now = sim.now;
        while sim.client.send_message(now, flow, vec![0; 1000], SendOptions::default()).is_ok() {}
        sim.advance(ms(20));
        sim.read_all(Side::Server);
        messages += std::iter::from_fn(|| sim.server().recv_message()).count() as u64;
    }
    let after = progress(&sim);
    assert_kept(after.0 - before.0 + messages * 1000, 200_000, secs(10));
    assert!(messages > 500, "equals share: {messages}");
    assert!(after.1 - before.1 > 20_000_000, "{}", after.1 - before.1);
}

fn send(sim: &mut Sim, flow: FlowId, size: usize) {
    let now = sim.now;
    sim.client.send_message(now, flow, vec![7; size], SendOptions::default()).unwrap();
}

#[test]
fn beyond_a_limit_reliable_messages_wait_and_unreliable_ones_die_of_their_age_alone() {
    let mut sim = Sim::established(options(HandoverMode::Single));
    limit(&mut sim, rate(50_000));
    let reliable = sim.client.open_flow(FlowOptions::new(Class::RELIABLE_SEQUENCED)).unwrap();
    let unreliable = sim.client.open_flow(FlowOptions::new(Class::UNRELIABLE)).unwrap();
    for _ in 0..200 {
        send(&mut sim, reliable, 1000);
        send(&mut sim, unreliable, 1000);
    }
    sim.advance(secs(8));
    let came: Vec<_> = std::iter::from_fn(|| sim.server().recv_message()).collect();
    let reliable = came.iter().filter(|message| message.class.reliable).count();
    let of_age = sim.client_events.iter().filter(|e| matches!(e, Event::MessageDone(_, Outcome::Expired)));
    let of_age = of_age.count();
    assert_eq!(reliable, 200, "what is reliable is only late");
    assert_eq!(came.len() - reliable + of_age, 200);
    assert!((20..=40).contains(&(came.len() - reliable)), "half of what leaves within a second");
}

#[test]
fn what_goes_again_after_a_loss_counts_too_and_nothing_is_lost() {
    let mut sim = Sim::established(options(HandoverMode::Single));
    limit(&mut sim, rate(100_000));
    let stream = bulk(&mut sim);
    sim.advance(secs(2));
    let (before, time) = (bytes_on_wire(&sim), secs(10));
    let end = sim.now + time;
    while sim.now < end {
        sim.cut_and_heal(Cut::Both);
        sim.write(Side::Client, stream, 1 << 20);
        sim.advance(ms(500));
        sim.read_all(Side::Server);
    }
    let sent = bytes_on_wire(&sim) - before;
    assert!(sent <= 1_030_000, "{sent}");
    limit(&mut sim, None);
    sim.settle();
}
