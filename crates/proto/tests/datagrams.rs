//! Messages in datagrams of their carriers, in simulated time.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::simulation::{self, Air, Cut, Options, Sim, ms, secs};
use whimbrel_proto::fuzzing::frame::{Frame, MessageHeader};
use whimbrel_proto::fuzzing::varint;
use whimbrel_proto::{
    Class, Config, Event, FlowId, FlowOptions, HandoverMode, MESSAGE_WINDOW, MessageId, Outcome, PathId,
    PathState, RateLimit, SendOptions, Side, Urgency,
};

const PATH: PathId = PathId(0);

fn config() -> Config {
    let mut config = Config::default();
    config.params.messages = MESSAGE_WINDOW;
    config
}

fn world(loss: u64, jitter: Duration) -> Sim {
    let datagrams = Some(Air { room: 1200, loss, jitter });
    Sim::established(Options { client: config(), server: config(), datagrams, ..Options::default() })
}

fn flow(sim: &mut Sim, class: Class) -> FlowId {
    sim.client.open_flow(FlowOptions::new(class)).unwrap()
}

fn send(sim: &mut Sim, flow: FlowId, data: impl Into<Vec<u8>>) -> MessageId {
    let now = sim.now;
    sim.client.send_message(now, flow, data.into(), SendOptions::default()).unwrap()
}

fn received(sim: &mut Sim) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| sim.server().recv_message()).map(|message| message.data).collect()
}

fn outcomes(sim: &Sim) -> BTreeMap<MessageId, Outcome> {
    let told = |event: &Event| match event {
        Event::MessageDone(id, outcome) => Some((*id, *outcome)),
        _ => None,
    };
    sim.client_events.iter().filter_map(told).collect()
}

/// Nothing is left of what was sent, and all credit was given back.
fn assert_clean(sim: &mut Sim) {
    for side in [Side::Client, Side::Server] {
        let connection = sim.connection(side).unwrap();
        assert_eq!((connection.footprint().messages, connection.buffered()), (0, 0), "{side:?}");
    }
    let (sent, returned) = (sim.client.message_credit().0, sim.server().message_credit().1);
    assert_eq!(sent, returned, "credit");
}

#[test]
fn a_lost_datagram_holds_nothing_up_and_each_message_has_its_outcome() {
    let mut sim = world(100, Duration::ZERO);
    let flow = flow(&mut sim, Class::UNRELIABLE);
    let mut sent = BTreeMap::new();
    let (mut late, mut came) = (Vec::new(), 0);
    let mut at: Vec<Instant> = Vec::new();
    for number in 0..2000_u32 {
        let id = send(&mut sim, flow, number.to_be_bytes().repeat(250));
        sent.insert(number, id);
        at.push(sim.now);
        let until = sim.now + ms(16);
        while sim.now < until {
            sim.advance(ms(1));
            for data in received(&mut sim) {
                let number = u32::from_be_bytes(data[..4].try_into().unwrap());
                late.push(sim.now - at[number as usize]);
                came += 1;
            }
        }
    }
    // The carrier itself is held up: what is told waits, what is sent does not.
    sim.advance(secs(2));
    came += received(&mut sim).len();
    late.sort();
    assert!(late[late.len() * 99 / 100] <= sim.options.delay + ms(1), "{:?}", late.last());
    let outcomes = outcomes(&sim);
    let delivered = outcomes.values().filter(|outcome| **outcome == Outcome::Delivered).count();
    assert_eq!((outcomes.len(), delivered), (2000, came), "what is called lost did not arrive");
    assert!((1700..1900).contains(&came), "a tenth was lost: {came}");
    assert_eq!(sim.client.message_stats().bytes_resent, 0);
    assert_clean(&mut sim);
}

#[test]
fn datagrams_that_overtake_each_other_leave_only_newer_ones_where_order_was_promised() {
    let mut sim = world(50, ms(80));
    let ordered = flow(&mut sim, Class::UNRELIABLE_SEQUENCED);
    let loose = flow(&mut sim, Class::UNRELIABLE);
    for number in 0..1000_u32 {
        send(&mut sim, ordered, number.to_be_bytes());
        send(&mut sim, loose, number.to_be_bytes());
        sim.advance(ms(5));
    }
    sim.advance(secs(2));
    let mut came = [Vec::new(), Vec::new()];
    while let Some(message) = sim.server().recv_message() {
        let number = u32::from_be_bytes(message.data[..].try_into().unwrap());
        came[usize::from(message.flow == loose)].push(number);
    }
    assert!(came[0].is_sorted(), "never older than the last");
    assert!(!came[1].is_sorted() && came[1].len() > came[0].len() + 100, "all that arrive");
    let mut all = came[1].clone();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), came[1].len(), "none twice");
    assert_clean(&mut sim);
}

#[test]
fn what_does_not_fit_or_must_not_get_lost_goes_in_segments() {
    let mut sim = world(1000, Duration::ZERO);
    let redundant = FlowOptions { redundant: true, ..FlowOptions::new(Class::UNRELIABLE) };
    let redundant = sim.client.open_flow(redundant).unwrap();
    let (loose, reliable) = (flow(&mut sim, Class::UNRELIABLE), flow(&mut sim, Class::RELIABLE));
    for (flow, size) in [(reliable, 1190), (redundant, 20), (loose, 1190), (loose, 30)] {
        send(&mut sim, flow, vec![1; size]);
    }
    let (now, once) = (sim.now, SendOptions { retransmissions: Some(0), ..SendOptions::default() });
    sim.client.send_message(now, reliable, vec![1; 10], once).unwrap();
    sim.advance(secs(3));
    let mut sizes: Vec<usize> = received(&mut sim).iter().map(Vec::len).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [10, 20, 1190, 1190], "no datagram arrives");
    assert_clean(&mut sim);
}

#[test]
fn where_no_datagram_arrives_reliable_messages_go_in_segments_after_a_few() {
    let mut sim = world(1000, Duration::ZERO);
    let flow = flow(&mut sim, Class::RELIABLE_SEQUENCED);
    let sent = [vec![], vec![1; 10], vec![2; 1000]];
    for data in &sent {
        send(&mut sim, flow, data.clone());
    }
    sim.advance(secs(2));
    assert_eq!(received(&mut sim), sent);
    let stats = sim.client.message_stats();
    assert_eq!((stats.delivered, stats.retransmitted), (3, 12), "four datagrams each");
    assert_clean(&mut sim);
}

#[test]
fn reliable_messages_in_datagrams_arrive_once_and_in_order_whatever_is_lost_or_overtaken() {
    let mut sim = world(200, ms(60));
    let (ordered, loose) = (flow(&mut sim, Class::RELIABLE_SEQUENCED), flow(&mut sim, Class::RELIABLE));
    for number in 0..1000_u32 {
        send(&mut sim, ordered, number.to_be_bytes());
        send(&mut sim, loose, number.to_be_bytes());
        sim.advance(ms(5));
    }
    sim.advance(secs(5));
    let mut came = [Vec::new(), Vec::new()];
    while let Some(message) = sim.server().recv_message() {
        let number = u32::from_be_bytes(message.data[..].try_into().unwrap());
        came[usize::from(message.flow == loose)].push(number);
    }
    let all: Vec<u32> = (0..1000).collect();
    assert_eq!(came[0], all);
    assert!(!came[1].is_sorted());
    came[1].sort_unstable();
    assert_eq!(came[1], all, "each once");
    assert!(outcomes(&sim).values().all(|outcome| *outcome == Outcome::Delivered));
    assert_clean(&mut sim);
}

#[test]
fn a_peer_that_knows_unreliable_ones_alone_gets_no_others() {
    for old in [Side::Client, Side::Server] {
        let mut options = Options { client: config(), server: config(), ..Options::default() };
        options.datagrams = Some(Air { room: 1200, loss: 1000, jitter: Duration::ZERO });
        let config = if old == Side::Client { &mut options.client } else { &mut options.server };
        config.params.reliable_datagrams = false;
        let mut sim = Sim::established(options);
        let (loose, reliable) = (flow(&mut sim, Class::UNRELIABLE), flow(&mut sim, Class::RELIABLE));
        send(&mut sim, reliable, "in a segment");
        send(&mut sim, loose, "in a datagram");
        sim.advance(ms(100));
        assert_eq!(received(&mut sim), [b"in a segment"], "{old:?}");
        assert_eq!(sim.client.message_stats().retransmitted, 0);
        sim.advance(secs(2));
        assert_clean(&mut sim);
    }
}

/// Sends so many small messages at once, over a path whose datagrams have room for ten of them and more. What
/// the client has for its carrier.
fn sent_at_once(bundles: bool, class: Class, count: u32) -> Vec<Vec<u8>> {
    let mut server = config();
    server.params.datagram_bundles = bundles;
    let mut sim = Sim::established(Options { client: config(), server, ..Options::default() });
    let flow = flow(&mut sim, class);
    for n in 0..count {
        send(&mut sim, flow, n.to_be_bytes().repeat(25));
    }
    sim.client.set_datagram_room(PATH, 1200);
    let (now, mut datagrams) = (sim.now, Vec::new());
    loop {
        let mut datagram = Vec::new();
        if !sim.client.poll_datagram(now, PATH, &mut datagram) {
            break;
        }
        sim.server().handle_datagram(now, PATH, &datagram).unwrap();
        datagrams.push(datagram);
    }
    let came: Vec<u32> =
        received(&mut sim).iter().map(|data| u32::from_be_bytes(*data.first_chunk().unwrap())).collect();
    assert_eq!(came, (0..count).collect::<Vec<u32>>());
    datagrams
}

#[test]
fn small_messages_that_wait_share_a_datagram_with_a_peer_that_takes_them_so() {
    for class in [Class::UNRELIABLE, Class::RELIABLE] {
        let shared = sent_at_once(true, class, 100);
        assert_eq!(shared.len(), 10, "{class:?}");
        assert!(shared.iter().all(|datagram| datagram.len() <= 1200));
        assert_eq!(sent_at_once(false, class, 100).len(), 100, "{class:?}");
        assert_eq!(sent_at_once(true, class, 1).len(), 1, "nothing is waited for");
    }
}

#[test]
fn beside_a_copy_goes_nothing_that_another_path_brings_sooner() {
    let full = || Config { handover: HandoverMode::Full, ..config() };
    let mut sim = Sim::established(Options { client: full(), server: full(), ..Options::default() });
    sim.dial_with(ms(200));
    sim.advance(secs(2));
    let paths: Vec<PathId> = sim.client.paths().iter().map(|path| path.id).collect();
    let [quick, slow] = paths[..] else { panic!("{paths:?}") };
    let both = FlowOptions { redundant: true, ..FlowOptions::new(Class::RELIABLE) };
    let both = sim.client.open_flow(both).unwrap();
    let single = flow(&mut sim, Class::RELIABLE);
    sim.client.set_datagram_room(quick, 1200);
    sim.client.set_datagram_room(slow, 1200);
    let (now, mut datagrams) = (sim.now, [Vec::new(), Vec::new(), Vec::new()]);
    send(&mut sim, both, vec![1; 100]);
    assert!(sim.client.poll_datagram(now, quick, &mut datagrams[0]));
    for _ in 0..5 {
        send(&mut sim, single, vec![2; 100]);
    }
    assert!(sim.client.poll_datagram(now, slow, &mut datagrams[1]));
    assert!(sim.client.poll_datagram(now, quick, &mut datagrams[2]));
    let lengths = datagrams.map(|datagram| datagram.len() / 100);
    assert_eq!(lengths, [1, 1, 5], "one message, its copy, and what waits for the quicker path");
}

/// What shares a datagram is lost together, and told one by one.
#[test]
fn of_messages_that_share_datagrams_each_has_its_outcome() {
    let mut sim = world(100, ms(5));
    let flow = flow(&mut sim, Class::UNRELIABLE);
    for round in 0..100_u32 {
        for n in 0..30 {
            send(&mut sim, flow, (round * 30 + n).to_be_bytes());
        }
        sim.advance(ms(20));
    }
    sim.advance(secs(3));
    let came = received(&mut sim).len();
    let outcomes = outcomes(&sim);
    let delivered = outcomes.values().filter(|outcome| **outcome == Outcome::Delivered).count();
    assert_eq!(outcomes.len(), 3000);
    assert_eq!(delivered, came, "who is told is who came");
    assert!((2000..2950).contains(&came), "a tenth of the datagrams is lost: {came}");
    assert_clean(&mut sim);
}

#[test]
fn a_peer_that_did_not_offer_it_gets_none() {
    for old in [Side::Client, Side::Server] {
        let mut options = Options { client: config(), server: config(), ..Options::default() };
        options.datagrams = Some(Air { room: 1200, loss: 1000, jitter: Duration::ZERO });
        let config = if old == Side::Client { &mut options.client } else { &mut options.server };
        config.params.datagrams = false;
        let mut sim = Sim::established(options);
        let flow = flow(&mut sim, Class::UNRELIABLE);
        send(&mut sim, flow, "in a segment");
        sim.advance(ms(100));
        assert_eq!(received(&mut sim), [b"in a segment"], "{old:?}");
    }
}

/// All that a path carries is datagrams: its failure is noticed all the same, and what was in them is lost.
#[test]
fn a_path_that_dies_under_datagrams_is_noticed_and_what_was_on_it_is_lost() {
    let mut sim = world(0, Duration::ZERO);
    sim.options.redial = true;
    let flow = flow(&mut sim, Class::UNRELIABLE);
    for _ in 0..50 {
        send(&mut sim, flow, "alive");
        sim.advance(ms(16));
    }
    sim.cut(0, Cut::Silent);
    let begin = sim.now;
    let mut last = None;
    while !sim.client_events.contains(&Event::PathSuspect(PATH)) {
        assert!(sim.now < begin + secs(1), "{}", sim.report());
        last = Some(send(&mut sim, flow, "into nothing"));
        sim.advance(ms(16));
    }
    sim.advance(secs(1));
    assert_eq!(outcomes(&sim)[&last.unwrap()], Outcome::Lost);
    let again = send(&mut sim, flow, "on a new path");
    sim.advance(secs(1));
    assert_eq!(outcomes(&sim)[&again], Outcome::Delivered);
    assert!(received(&mut sim).contains(&b"on a new path".to_vec()));
    sim.heal();
    sim.cut(0, Cut::Both);
    sim.advance(secs(5));
    assert_clean(&mut sim);
}

#[test]
fn datagrams_share_with_streams_by_urgency_and_keep_to_limits() {
    let mut sim = Sim::over(
        Options {
            client: Config { handover: HandoverMode::Single, ..config() },
            server: config(),
            datagrams: Some(Air { room: 1200, loss: 0, jitter: Duration::ZERO }),
            ..Options::default()
        },
        &[simulation::tcp::Link::new(20, 30)],
    );
    let now = sim.now;
    sim.client.set_rate_limit(now, RateLimit::new(500_000));
    let options = FlowOptions { urgency: Urgency::LAST, ..FlowOptions::new(Class::UNRELIABLE) };
    let flood = sim.client.open_flow(options).unwrap();
    let stream = sim.open(Side::Client).unwrap();
    let (end, mut streamed, mut flooded) = (sim.now + secs(10), 0, 0);
    while sim.now < end {
        let now = sim.now;
        sim.write(Side::Client, stream, 1 << 20);
        while sim.client.send_message(now, flood, vec![0; 1000], SendOptions::default()).is_ok() {}
        sim.advance(ms(20));
        streamed += sim.read_all(Side::Server);
        flooded += received(&mut sim).len() as u64 * 1000;
    }
    let all = streamed + flooded;
    assert!(all.abs_diff(5_000_000) < 150_000, "{streamed} + {flooded}");
    assert!(flooded * 50 >= all && flooded * 20 < all, "the least urgent has 2 %: {flooded} of {all}");
}

/// A datagram as a peer could make it.
fn datagram(number: u64, class: Class, of: u64, size: usize) -> Vec<u8> {
    let header = MessageHeader { flow: 0, number: of, class, tag: None, place: None };
    let mut bytes = Vec::new();
    varint::write(&mut bytes, number);
    let data = vec![7; size];
    Frame::Message { header, size: size as u64, offset: 0, data: &data }.encode(&mut bytes);
    bytes
}

#[test]
fn what_a_hostile_peer_puts_into_datagrams_is_bounded_by_credit_or_ends_the_connection() {
    let small = || {
        let mut sim = world(0, Duration::ZERO);
        sim.options.client.params.messages = 0;
        sim
    };
    // Again and again the same, and numbers without end: nothing is kept beyond the credit.
    let mut sim = small();
    let now = sim.now;
    for number in 0..1000 {
        let bytes = datagram(number * 3, Class::UNRELIABLE, number / 2, 1000);
        sim.server().handle_datagram(now, PATH, &bytes).unwrap();
    }
    assert_eq!(sim.server().footprint().messages, 500);
    let mut error = None;
    for number in 1000..100_000 {
        error = sim
            .server()
            .handle_datagram(now, PATH, &datagram(number * 3, Class::UNRELIABLE, number, 1000))
            .err();
        if error.is_some() {
            break;
        }
    }
    assert!(error.is_some() && sim.server().buffered() <= MESSAGE_WINDOW);
    // What may not be in one.
    let mut piece = Vec::new();
    varint::write(&mut piece, 0);
    let header = MessageHeader { flow: 0, number: 0, class: Class::UNRELIABLE, tag: None, place: None };
    Frame::Message { header, size: 9, offset: 0, data: b"x" }.encode(&mut piece);
    let mut two = datagram(0, Class::UNRELIABLE, 0, 1);
    Frame::Ping.encode(&mut two);
    let mut ping = vec![0];
    Frame::Ping.encode(&mut ping);
    let mut answers = Vec::new();
    varint::write(&mut answers, varint::MAX);
    Frame::Ping.encode(&mut answers);
    let mut future = Vec::new();
    varint::write(&mut future, varint::MAX);
    Frame::Datagrams { path: PATH, came: vec![0..1, 7..8] }.encode(&mut future);
    let none = datagram(varint::MAX, Class::RELIABLE, 0, 1);
    for bytes in [piece, two, ping, answers, future, none, vec![], vec![0], vec![0x40]] {
        let mut sim = small();
        let now = sim.now;
        assert!(sim.server().handle_datagram(now, PATH, &bytes).is_err(), "{bytes:?}");
        assert!(sim.server().is_closed());
    }
    // One that did not offer reliable ones, and answers, is given neither.
    let mut own = Vec::new();
    varint::write(&mut own, varint::MAX);
    Frame::Datagrams { path: PATH, came: vec![] }.encode(&mut own);
    for bytes in [datagram(0, Class::RELIABLE, 0, 1), own] {
        let mut server = config();
        server.params.reliable_datagrams = false;
        let mut sim = Sim::established(Options { client: config(), server, ..Options::default() });
        let now = sim.now;
        assert!(sim.server().handle_datagram(now, PATH, &bytes).is_err(), "{bytes:?}");
    }
    // Nor one that did not offer it several in one.
    let several =
        [datagram(0, Class::UNRELIABLE, 0, 1), datagram(0, Class::UNRELIABLE, 1, 1)[1..].to_vec()].concat();
    for (bundles, refused) in [(true, false), (false, true)] {
        let mut server = config();
        server.params.datagram_bundles = bundles;
        let mut sim = Sim::established(Options { client: config(), server, ..Options::default() });
        let now = sim.now;
        assert_eq!(sim.server().handle_datagram(now, PATH, &several).is_err(), refused);
    }
    // What was never sent cannot have come.
    let mut sim = small();
    let (now, mut segment) = (sim.now, Vec::new());
    Frame::Datagrams { path: PATH, came: vec![0..1, 3..4] }.encode(&mut segment);
    assert!(sim.client.handle_segment(now, PATH, &segment).is_err());
}

#[test]
fn what_carries_nothing_but_datagrams_stays_an_active_path() {
    let mut sim = world(0, ms(5));
    let flow = flow(&mut sim, Class::UNRELIABLE);
    for _ in 0..2000 {
        send(&mut sim, flow, "x");
        sim.advance(ms(10));
    }
    sim.advance(ms(100));
    assert_eq!(received(&mut sim).len(), 2000);
    assert!(!sim.client_events.iter().chain(&sim.server_events).any(|e| matches!(e, Event::PathSuspect(_))));
    assert_eq!(sim.path(Side::Client, PATH).unwrap().state, PathState::Active);
}

#[test]
fn short_queues_are_wanted_while_a_flow_is_open_that_is_more_urgent_than_the_streams() {
    let mut sim = world(0, Duration::ZERO);
    let equal = flow(&mut sim, Class::RELIABLE);
    let urgent = FlowOptions { urgency: Urgency::FIRST, ..FlowOptions::new(Class::UNRELIABLE) };
    let urgent = sim.client.open_flow(urgent).unwrap();
    assert!(!sim.client.wants_short_queues(), "there is no stream");
    let stream = sim.open(Side::Client).unwrap();
    sim.write(Side::Client, stream, 10_000);
    assert!(sim.client.wants_short_queues());
    sim.advance(ms(500));
    assert!(sim.client.wants_short_queues(), "between two writes");
    sim.client.close_flow(urgent);
    assert!(!sim.client.wants_short_queues(), "the other one is as urgent as the stream");
    assert!(sim.client.close_flow(equal));
}
