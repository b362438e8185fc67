//! Messages between two simulated endpoints: what each class promises, through moves and losses.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::simulation::{self, Cut, Options, Sim, ms, secs};
use whimbrel_proto::{
    Class, Config, Event, FlowError, FlowId, FlowOptions, HandoverMode, MAX_MESSAGE, MESSAGE_WINDOW,
    MessageId, Outcome, SendError, SendOptions, Side, Tag, Urgency,
};

fn config() -> Config {
    let mut config = Config::default();
    config.params.messages = MESSAGE_WINDOW;
    config
}

fn options() -> Options {
    Options { client: config(), server: config(), ..Options::default() }
}

/// Both sides take messages, over one path.
fn world() -> Sim {
    Sim::established(options())
}

fn flow(sim: &mut Sim, class: Class) -> FlowId {
    sim.client.open_flow(FlowOptions::new(class)).unwrap()
}

fn send_with(sim: &mut Sim, flow: FlowId, data: impl Into<Vec<u8>>, options: SendOptions) -> MessageId {
    let now = sim.now;
    sim.client.send_message(now, flow, data.into(), options).unwrap()
}

fn send(sim: &mut Sim, flow: FlowId, data: impl Into<Vec<u8>>) -> MessageId {
    send_with(sim, flow, data, SendOptions::default())
}

fn tagged(tag: u64) -> SendOptions {
    SendOptions { tag: Some(Tag(tag)), ..SendOptions::default() }
}

fn received(sim: &mut Sim) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| sim.server().recv_message()).map(|message| message.data).collect()
}

fn texts(sim: &mut Sim) -> Vec<String> {
    received(sim).into_iter().map(|data| String::from_utf8(data).unwrap()).collect()
}

fn outcome(sim: &Sim, id: MessageId) -> Option<Outcome> {
    sim.client_events.iter().find_map(|event| match event {
        Event::MessageDone(of, outcome) if *of == id => Some(*outcome),
        _ => None,
    })
}

/// Nothing is left of what was sent.
fn assert_clean(sim: &mut Sim) {
    for side in [Side::Client, Side::Server] {
        let connection = sim.connection(side).unwrap();
        assert_eq!((connection.footprint().messages, connection.buffered()), (0, 0), "{side:?}");
    }
}

#[test]
fn reliable_sequenced_messages_arrive_once_and_in_order_through_the_loss_of_their_path() {
    for cut in [Cut::Both, Cut::First(Side::Client), Cut::First(Side::Server), Cut::Silent] {
        let mut sim = world();
        sim.options.redial = true;
        let flow = flow(&mut sim, Class::RELIABLE_SEQUENCED);
        let sent: Vec<Vec<u8>> = (0..200u32).map(|n| n.to_be_bytes().repeat(n as usize * 7)).collect();
        let ids: Vec<_> = sent.iter().map(|data| send(&mut sim, flow, data.clone())).collect();
        sim.advance(ms(25));
        sim.cut_all(cut);
        sim.advance(secs(5));
        assert_eq!(received(&mut sim), sent, "{cut:?}");
        assert!(ids.iter().all(|id| outcome(&sim, *id) == Some(Outcome::Delivered)));
        assert_clean(&mut sim);
    }
}

#[test]
fn what_an_unreliable_message_was_on_its_path_when_it_died_never_goes_again() {
    let mut sim = world();
    sim.options.redial = true;
    let flow = flow(&mut sim, Class::UNRELIABLE);
    let before = send(&mut sim, flow, "before");
    sim.advance(ms(100));
    let lost = send(&mut sim, flow, "lost");
    sim.pump();
    sim.cut_all(Cut::Both);
    sim.advance(ms(200));
    let after = send(&mut sim, flow, "after");
    sim.advance(secs(2));
    assert_eq!(texts(&mut sim), ["before", "after"]);
    assert_eq!(outcome(&sim, before), Some(Outcome::Delivered));
    assert_eq!(outcome(&sim, lost), Some(Outcome::Lost));
    assert_eq!(outcome(&sim, after), Some(Outcome::Delivered));
    assert_clean(&mut sim);
}

#[test]
fn a_peer_without_messages_is_one_clear_error_and_nothing_changes_on_the_wire() {
    let mut sim = Sim::established(Options { client: config(), ..Options::default() });
    let error = sim.client.open_flow(FlowOptions::new(Class::RELIABLE)).unwrap_err();
    assert_eq!(error, FlowError::Unsupported);
    assert!(error.to_string().contains("use a stream"));
    // The peer would have been free to send: this side takes them.
    let error = sim.server().open_flow(FlowOptions::new(Class::RELIABLE));
    assert!(error.is_ok());
    let stream = sim.open(Side::Client).unwrap();
    sim.send(Side::Client, stream, 100_000);
    sim.settle();
}

#[test]
fn a_flow_waits_for_the_peers_answer_and_refuses_what_makes_no_sense() {
    let mut sim = Sim::new(options());
    let plain = FlowOptions::new(Class::RELIABLE);
    assert_eq!(sim.client.open_flow(plain), Err(FlowError::NotEstablished));
    sim.dial();
    sim.advance(ms(200));
    let grouped = FlowOptions { group: Some(1), ..plain };
    assert_eq!(sim.client.open_flow(grouped), Err(FlowError::GroupNeedsSequence));
    assert_eq!(sim.client.open_flow(FlowOptions { weight: 0, ..plain }), Err(FlowError::Weight));
    assert_eq!(sim.client.open_flow(FlowOptions { buffering: secs(2), ..plain }), Err(FlowError::Buffering));
    for _ in 0..1024 {
        sim.client.open_flow(plain).unwrap();
    }
    assert_eq!(sim.client.open_flow(plain), Err(FlowError::TooMany));
    assert!(sim.client.close_flow(FlowId(7)) && !sim.client.close_flow(FlowId(7)));
    let now = sim.now;
    let refused = sim.client.send_message(now, FlowId(7), b"x".to_vec(), SendOptions::default()).unwrap_err();
    assert_eq!((refused.error, refused.data), (SendError::UnknownFlow(FlowId(7)), b"x".to_vec()));
    assert_eq!(sim.client.open_flow(plain), Ok(FlowId(7)));
}

#[test]
fn a_message_of_the_largest_size_arrives_and_one_byte_more_is_refused() {
    let mut sim = world();
    let flow = flow(&mut sim, Class::RELIABLE);
    let now = sim.now;
    let large = vec![7; MAX_MESSAGE as usize + 1];
    let refused = sim.client.send_message(now, flow, large, SendOptions::default()).unwrap_err();
    assert_eq!(refused.error, SendError::TooLarge { size: MAX_MESSAGE + 1, most: MAX_MESSAGE });
    let mut data = refused.data;
    data.pop();
    let id = send(&mut sim, flow, data.clone());
    sim.advance(secs(20));
    assert_eq!(outcome(&sim, id), Some(Outcome::Delivered));
    assert!(received(&mut sim) == [data]);
    assert_clean(&mut sim);
}

#[test]
fn a_small_message_overtakes_a_large_one_unless_order_was_promised() {
    for (class, first) in [(Class::RELIABLE, 5), (Class::RELIABLE_SEQUENCED, 3_000_000)] {
        let mut sim = world();
        let flow = flow(&mut sim, class);
        send(&mut sim, flow, vec![1; 3_000_000]);
        sim.advance(ms(1));
        send(&mut sim, flow, "small");
        sim.advance(secs(5));
        let sizes: Vec<usize> = received(&mut sim).iter().map(Vec::len).collect();
        assert_eq!((sizes.len(), sizes[0]), (2, first), "{class:?}");
    }
}

#[test]
fn large_messages_without_order_take_turns_and_the_shorter_one_is_there_first() {
    let mut sim = world();
    let flow = flow(&mut sim, Class::RELIABLE);
    send(&mut sim, flow, vec![1; 3_000_000]);
    sim.advance(ms(1));
    send(&mut sim, flow, vec![2; 300_000]);
    sim.advance(secs(5));
    let sizes: Vec<usize> = received(&mut sim).iter().map(Vec::len).collect();
    assert_eq!(sizes, [300_000, 3_000_000]);
}

#[test]
fn empty_messages_are_messages() {
    for class in Class::ALL {
        let mut sim = world();
        sim.options.redial = true;
        let flow = flow(&mut sim, class);
        send(&mut sim, flow, "");
        sim.pump();
        if class.reliable {
            sim.cut_all(Cut::Both);
        }
        sim.advance(secs(2));
        assert_eq!(texts(&mut sim), [""], "{class:?}");
        assert_clean(&mut sim);
    }
}

#[test]
fn what_is_replaced_or_cancelled_before_it_leaves_is_never_sent() {
    let mut sim = world();
    let flow = flow(&mut sim, Class::RELIABLE);
    sim.cut_all(Cut::Both);
    sim.advance(ms(1));
    let old: Vec<_> = (0..50).map(|_| send_with(&mut sim, flow, vec![0; 1000], tagged(1))).collect();
    let untagged = send(&mut sim, flow, "untagged");
    let cancelled = send_with(&mut sim, flow, "cancelled", tagged(2));
    let now = sim.now;
    let new = sim.client.replace_messages(now, &[], flow, b"newest".to_vec(), tagged(1)).unwrap();
    sim.client.cancel_messages(flow, Tag(2));
    let refused = sim.client.replace_messages(now, &[], flow, vec![], SendOptions::default()).unwrap_err();
    assert_eq!(refused.error, SendError::NoTag);
    let before = sim.client.message_stats().bytes_sent;
    sim.dial();
    sim.advance(secs(1));
    assert_eq!(texts(&mut sim), ["newest", "untagged"], "it takes the place of the first");
    assert_eq!(sim.client.message_stats().bytes_sent - before, 14);
    assert!(old.iter().all(|id| outcome(&sim, *id) == Some(Outcome::Replaced)));
    assert_eq!(outcome(&sim, cancelled), Some(Outcome::Cancelled));
    assert_eq!(outcome(&sim, new), Some(Outcome::Delivered));
    assert_eq!(outcome(&sim, untagged), Some(Outcome::Delivered));
    assert_clean(&mut sim);
}

#[test]
fn deleting_all_deltas_and_replacing_the_key_frame_is_one_step_or_none() {
    let mut sim = world();
    let narrow = FlowOptions { queue: 10_000, ..FlowOptions::new(Class::RELIABLE_SEQUENCED) };
    let flow = sim.client.open_flow(narrow).unwrap();
    sim.cut_all(Cut::Both);
    sim.advance(ms(1));
    let (key, delta) = (tagged(1), tagged(2));
    send_with(&mut sim, flow, vec![b'K'; 5000], key);
    for _ in 0..3 {
        send_with(&mut sim, flow, "delta", delta);
    }
    let now = sim.now;
    let deltas = [(flow, Tag(2))];
    let too_large =
        sim.client.replace_messages(now, &deltas, flow, vec![b'X'; MAX_MESSAGE as usize + 1], key);
    assert!(matches!(too_large.unwrap_err().error, SendError::TooLarge { .. }));
    assert!(
        sim.client_events.iter().all(|event| !matches!(event, Event::MessageDone(..))),
        "nothing happened"
    );
    // There is room for it only once the others are gone.
    let plain = sim.client.send_message(now, flow, vec![b'k'; 8000], key).unwrap_err();
    assert_eq!(plain.error, SendError::Full);
    sim.client.replace_messages(now, &deltas, flow, vec![b'k'; 8000], key).unwrap();
    sim.dial();
    sim.advance(secs(1));
    assert_eq!(received(&mut sim), [vec![b'k'; 8000]]);
    assert_clean(&mut sim);
}

#[test]
fn a_full_queue_refuses_and_tells_when_there_is_room() {
    let mut sim = world();
    let narrow = FlowOptions { queue: 10_000, ..FlowOptions::new(Class::RELIABLE) };
    let flow = sim.client.open_flow(narrow).unwrap();
    send(&mut sim, flow, vec![0; 9000]);
    let now = sim.now;
    let refused = sim.client.send_message(now, flow, vec![1; 2000], SendOptions::default()).unwrap_err();
    assert_eq!((refused.error, refused.data.len()), (SendError::Full, 2000));
    sim.advance(secs(1));
    assert!(sim.client_events.contains(&Event::FlowWritable(flow)));
    send(&mut sim, flow, refused.data);
}

#[test]
fn a_message_is_dead_after_its_lifetime_and_stale_bytes_are_not_sent() {
    let mut sim = world();
    let flow = flow(&mut sim, Class::RELIABLE_SEQUENCED);
    let short = SendOptions { lifetime: Some(secs(10)), ..SendOptions::default() };
    sim.cut_all(Cut::Both);
    sim.advance(ms(1));
    let before = sim.client.message_stats().bytes_sent;
    let old = send_with(&mut sim, flow, vec![0; 100_000], short);
    sim.advance(secs(9));
    let young = send_with(&mut sim, flow, "young", short);
    sim.advance(secs(2));
    assert_eq!(outcome(&sim, old), Some(Outcome::Expired));
    sim.dial();
    sim.advance(secs(1));
    assert_eq!(texts(&mut sim), ["young"]);
    assert_eq!(outcome(&sim, young), Some(Outcome::Delivered));
    assert_eq!(sim.client.message_stats().bytes_sent - before, 5);
    assert_clean(&mut sim);
}

#[test]
fn a_message_that_died_half_sent_is_passed_over_and_gives_its_credit_back() {
    let mut narrow = options();
    narrow.capacity = 16 * 1024;
    narrow.delay = ms(100);
    let mut sim = Sim::established(narrow);
    let roomy = FlowOptions { queue: 20 << 20, ..FlowOptions::new(Class::RELIABLE_SEQUENCED) };
    let flow = sim.client.open_flow(roomy).unwrap();
    let large = send_with(&mut sim, flow, vec![0; 10_000_000], tagged(1));
    send(&mut sim, flow, "behind");
    sim.advance(secs(1));
    sim.client.cancel_messages(flow, Tag(1));
    sim.advance(secs(2));
    assert_eq!(outcome(&sim, large), Some(Outcome::Cancelled));
    assert_eq!(texts(&mut sim), ["behind"]);
    assert_clean(&mut sim);
}

#[test]
fn a_reliable_message_is_sent_again_no_more_often_than_it_may() {
    let mut sim = world();
    sim.options.redial = true;
    let flow = flow(&mut sim, Class::RELIABLE_SEQUENCED);
    let once = SendOptions { retransmissions: Some(1), ..SendOptions::default() };
    let never = SendOptions { retransmissions: Some(0), ..SendOptions::default() };
    let (once, never) = (send_with(&mut sim, flow, "once", once), send_with(&mut sim, flow, "never", never));
    sim.pump();
    sim.cut_all(Cut::Both);
    sim.advance(secs(2));
    assert_eq!(texts(&mut sim), ["once"]);
    assert_eq!(outcome(&sim, once), Some(Outcome::Delivered));
    assert_eq!(outcome(&sim, never), Some(Outcome::Lost));
    assert_clean(&mut sim);
}

#[test]
fn each_flow_counts_what_became_of_its_messages_and_how_long_they_took() {
    let mut sim = world();
    let (orders, state) = (flow(&mut sim, Class::RELIABLE_SEQUENCED), flow(&mut sim, Class::RELIABLE));
    for _ in 0..10 {
        send(&mut sim, orders, "order");
    }
    sim.advance(secs(1));
    let quick = sim.client.message_delays().percentile(99.0).unwrap();
    send(&mut sim, orders, "again");
    let waiting = sim.client.flow_stats();
    assert_eq!((waiting[0].messages.queued, waiting[1].messages.queued), (1, 0));
    assert_eq!((sim.client.message_stats().queued, sim.client.message_stats().bytes_queued), (1, 5));
    sim.pump();
    sim.cut_all(Cut::Both);
    sim.advance(ms(20));
    send_with(&mut sim, state, "old", SendOptions { lifetime: Some(ms(1)), ..SendOptions::default() });
    sim.advance(ms(2));
    let now = sim.now;
    send_with(&mut sim, state, "state", tagged(1));
    sim.client.replace_messages(now, &[], state, b"newer".to_vec(), tagged(1)).unwrap();
    sim.dial();
    sim.advance(secs(2));
    let all = sim.client.flow_stats();
    let (orders, state) = (all[0].messages, all[1].messages);
    assert_eq!((orders.delivered, orders.retransmitted, orders.expired, orders.replaced), (11, 1, 0, 0));
    assert_eq!((state.delivered, state.retransmitted, state.expired, state.replaced), (1, 0, 1, 1));
    assert_eq!((all[0].delays.count(), all[1].delays.count()), (11, 1));
    assert!(all[0].delays.longest() > quick + ms(1), "the one that went again took longer: {all:?}");
    let sum = sim.client.message_stats();
    assert_eq!((sum.delivered, sum.retransmitted, sum.expired, sum.replaced), (12, 1, 1, 1));
    assert_eq!((sum.queued, sum.bytes_queued), (0, 0));
}

#[test]
fn after_a_long_outage_the_newest_update_arrives_first_and_hardly_anything_stale_is_sent() {
    let mut sim = world();
    let flow = flow(&mut sim, Class::RELIABLE_SEQUENCED);
    sim.advance(ms(100));
    sim.cut_all(Cut::Silent);
    let (mut sent, before) = (0u64, sim.client.message_stats());
    for n in 0..1200u32 {
        let now = sim.now;
        let data = n.to_be_bytes().repeat(256);
        sent += data.len() as u64;
        sim.client.replace_messages(now, &[], flow, data, tagged(1)).unwrap();
        sim.advance(ms(50));
    }
    sim.dial();
    sim.advance(secs(2));
    let first = received(&mut sim).remove(0);
    assert_eq!(first[..4], 1199u32.to_be_bytes());
    let stats = sim.client.message_stats();
    let wire = stats.bytes_sent + stats.bytes_resent - before.bytes_sent - before.bytes_resent;
    assert!((wire - 1024) * 20 <= sent, "{wire} of {sent}");
    assert_clean(&mut sim);
}

#[test]
fn messages_that_nobody_takes_hold_their_sender_back_and_nobody_else() {
    let mut narrow = options();
    narrow.server.params.messages = 100_000;
    let mut sim = Sim::established(narrow);
    let flow = flow(&mut sim, Class::RELIABLE_SEQUENCED);
    let sent: Vec<Vec<u8>> = (0..500u32).map(|n| n.to_be_bytes().repeat(200)).collect();
    for data in &sent {
        send(&mut sim, flow, data.clone());
    }
    sim.advance(secs(2));
    assert!(sim.server().buffered() <= 100_000);
    let stream = sim.open(Side::Client).unwrap();
    sim.send(Side::Client, stream, 300_000);
    sim.settle();
    let mut all = Vec::new();
    while all.len() < sent.len() {
        let some = received(&mut sim);
        assert!(!some.is_empty(), "{} of {}", all.len(), sent.len());
        all.extend(some);
        sim.advance(ms(200));
    }
    assert_eq!(all, sent);
    assert_clean(&mut sim);
}

#[test]
fn flows_of_a_group_are_delivered_in_the_order_sent() {
    let mut sim = world();
    sim.options.redial = true;
    let of = |class, level| FlowOptions {
        group: Some(9),
        urgency: Urgency::new(level).unwrap(),
        ..FlowOptions::new(class)
    };
    let low = sim.client.open_flow(of(Class::RELIABLE_SEQUENCED, 7)).unwrap();
    let high = sim.client.open_flow(of(Class::RELIABLE_SEQUENCED, 0)).unwrap();
    let loose = sim.client.open_flow(of(Class::UNRELIABLE_SEQUENCED, 3)).unwrap();
    let mut expected = Vec::new();
    for n in 0..60 {
        let flow = [low, high, loose, high][n % 4];
        send(&mut sim, flow, format!("{n}"));
        if flow != loose {
            expected.push(format!("{n}"));
        }
    }
    sim.pump();
    sim.cut_all(Cut::Both);
    sim.advance(secs(2));
    assert_eq!(texts(&mut sim), expected, "what is unreliable was lost with the path");
    send(&mut sim, loose, "loose");
    send(&mut sim, low, "last");
    sim.advance(secs(1));
    assert_eq!(texts(&mut sim), ["loose", "last"]);
    assert_clean(&mut sim);
}

#[test]
fn small_messages_wait_for_each_other_as_long_as_their_flow_says_and_no_longer() {
    let mut sim = world();
    let patient = FlowOptions { buffering: ms(300), ..FlowOptions::new(Class::RELIABLE) };
    let flow = sim.client.open_flow(patient).unwrap();
    let segments = |sim: &Sim| sim.carriers[0].up.boundaries.len();
    sim.advance(secs(1));
    let before = segments(&sim);
    for _ in 0..10 {
        send(&mut sim, flow, "small");
        sim.advance(ms(20));
    }
    assert!(received(&mut sim).is_empty() && segments(&sim) == before);
    sim.advance(ms(101 + 20));
    assert_eq!(received(&mut sim).len(), 10);
    assert_eq!(segments(&sim), before + 1);
    for _ in 0..3 {
        send(&mut sim, flow, vec![0; 500]);
    }
    sim.advance(ms(21));
    assert_eq!(received(&mut sim).len(), 3, "a segment is full");
}

#[test]
fn a_full_flow_is_writable_again_once_half_of_it_is_gone() {
    let mut sim = world();
    let narrow = FlowOptions { queue: 10_000, ..FlowOptions::new(Class::RELIABLE) };
    let flow = sim.client.open_flow(narrow).unwrap();
    sim.cut_all(Cut::Both);
    sim.advance(ms(1));
    let now = sim.now;
    let mut tags = 0;
    while sim.client.send_message(now, flow, vec![0; 1000], tagged(tags)).is_ok() {
        tags += 1;
    }
    assert!(tags >= 4, "{tags}");
    let is_writable = |sim: &mut Sim| sim.client_events.contains(&Event::FlowWritable(flow));
    for tag in 0..tags {
        assert!(!is_writable(&mut sim) || tag >= tags / 2, "after {tag} of {tags}");
        sim.client.cancel_messages(flow, Tag(tag));
        sim.advance(ms(1));
    }
    assert!(is_writable(&mut sim));
}

#[test]
fn a_full_flow_of_which_all_is_on_its_way_is_writable_again_with_the_first_that_arrives() {
    let mut sim = world();
    let narrow = FlowOptions { queue: 1 << 20, ..FlowOptions::new(Class::RELIABLE) };
    let flow = sim.client.open_flow(narrow).unwrap();
    let is_full = |sim: &mut Sim| {
        let now = sim.now;
        sim.client.send_message(now, flow, vec![0; 100_000], SendOptions::default()).is_err()
    };
    let mut sent = 0;
    while !is_full(&mut sim) {
        sent += 1;
        sim.advance(ms(2));
    }
    assert!(sent == 10, "{sent}");
    while !sim.client_events.contains(&Event::FlowWritable(flow)) {
        sim.advance(ms(1));
    }
    let arrived = sim.client_events.iter().filter(|event| matches!(event, Event::MessageDone(..))).count();
    assert!(arrived < sent / 2, "{arrived} of {sent} have arrived, and none waited to leave");
}

#[test]
fn a_flow_that_waits_less_takes_along_what_waits_in_its_group() {
    let mut sim = world();
    let of =
        |buffering| FlowOptions { buffering, group: Some(1), ..FlowOptions::new(Class::RELIABLE_SEQUENCED) };
    let [patient, hasty] = [ms(600), ms(100)].map(|time| sim.client.open_flow(of(time)).unwrap());
    sim.advance(secs(1));
    send(&mut sim, patient, "first");
    sim.advance(ms(20));
    send(&mut sim, hasty, "second");
    sim.advance(ms(90));
    assert!(received(&mut sim).is_empty());
    sim.advance(ms(10 + 21));
    assert_eq!(texts(&mut sim), ["first", "second"]);
}

#[test]
fn the_last_in_urgency_gets_two_percent_beside_a_flood_of_the_first() {
    use simulation::tcp::Link;
    let mut sim = Sim::over(options(), &[Link::new(20, 50)]);
    let of = |level| FlowOptions { urgency: level, ..FlowOptions::new(Class::RELIABLE) };
    let first = sim.client.open_flow(of(Urgency::FIRST)).unwrap();
    let last = sim.client.open_flow(of(Urgency::LAST)).unwrap();
    let stream = sim.open(Side::Client).unwrap();
    assert!(sim.client.set_stream_urgency(stream, Urgency::new(5).unwrap()));
    let (mut urgent, mut rest) = (0, 0);
    let begin = sim.server().stats().stream_bytes_received;
    for _ in 0..2000 {
        let now = sim.now;
        for flow in [first, last] {
            while sim.client.send_message(now, flow, vec![flow.0 as u8; 4000], SendOptions::default()).is_ok()
            {
            }
        }
        sim.write(Side::Client, stream, 100_000);
        sim.advance(ms(5));
        while let Some(message) = sim.server().recv_message() {
            *if message.flow == first { &mut urgent } else { &mut rest } += message.data.len() as u64;
        }
        sim.read_all(Side::Server);
    }
    let stream = sim.server().stats().stream_bytes_received - begin;
    let all = urgent + rest + stream;
    assert!(all > 20_000_000, "{all}");
    assert!(rest * 50 >= all && stream * 50 >= all, "{urgent} {stream} {rest}");
    assert!(urgent * 10 >= all * 9, "{urgent} {stream} {rest}");
}

#[test]
fn a_small_message_beside_a_bulk_stream_waits_for_no_more_than_what_the_carrier_has() {
    use simulation::tcp::Link;
    let mut sim = Sim::over(options(), &[Link::new(20, 50)]);
    let flow = flow(&mut sim, Class::RELIABLE);
    let stream = sim.open(Side::Client).unwrap();
    for _ in 0..100 {
        sim.write(Side::Client, stream, 200_000);
        sim.advance(ms(10));
        sim.read_all(Side::Server);
    }
    let before = sim.server().stats().stream_bytes_received;
    let now = sim.now;
    send(&mut sim, flow, "small");
    while received(&mut sim).is_empty() {
        sim.write(Side::Client, stream, 200_000);
        sim.advance(ms(1));
        sim.read_all(Side::Server);
        assert!(sim.now < now + secs(3));
    }
    let ahead = sim.server().stats().stream_bytes_received - before;
    // What the simulated socket and link hold, and a segment.
    assert!(ahead <= 1_000_000, "{ahead} bytes went before");
}

fn two_paths(delay: Duration) -> Sim {
    let mut wide = options();
    wide.client.handover = HandoverMode::Full;
    let mut sim = Sim::established(wide);
    sim.dial_with(delay);
    sim.advance(ms(300));
    assert_eq!(sim.client.paths().len(), 2);
    sim
}

#[test]
fn a_redundant_flow_loses_nothing_with_either_of_two_paths() {
    for lost in [0, 1] {
        for class in Class::ALL {
            let mut sim = two_paths(ms(20));
            let both = FlowOptions { redundant: true, ..FlowOptions::new(class) };
            let flow = sim.client.open_flow(both).unwrap();
            let sent: Vec<String> = (0..30).map(|n| format!("{n}")).collect();
            for text in &sent {
                send(&mut sim, flow, text.as_str());
                sim.advance(ms(1));
            }
            sim.cut(lost, Cut::Both);
            // Less than it would take to send anything again and hear of it.
            sim.advance(ms(21));
            let mut got = texts(&mut sim);
            if !class.sequenced {
                got.sort_by_key(|text| text.parse::<u32>().unwrap());
            }
            assert_eq!(got, sent, "{class:?} without path {lost}");
            sim.advance(secs(2));
            assert!(texts(&mut sim).is_empty());
            assert_clean(&mut sim);
        }
    }
}

#[test]
fn unreliable_messages_are_kept_from_a_carrier_that_would_only_hold_them() {
    let mut sim = world();
    let flow = flow(&mut sim, Class::UNRELIABLE);
    let sure = sim.client.open_flow(FlowOptions::new(Class::RELIABLE)).unwrap();
    let path = sim.client.paths()[0].id;
    sim.client.set_takes_now(path, false);
    let loose = send(&mut sim, flow, "unreliable");
    send(&mut sim, sure, "reliable");
    sim.advance(ms(500));
    assert_eq!(texts(&mut sim), ["reliable"]);
    sim.client.set_takes_now(path, true);
    sim.advance(ms(500));
    assert_eq!(texts(&mut sim), ["unreliable"]);
    assert_eq!(outcome(&sim, loose), Some(Outcome::Delivered));
    sim.client.set_takes_now(path, false);
    let stale = send(&mut sim, flow, "stale");
    sim.advance(secs(2));
    assert_eq!(outcome(&sim, stale), Some(Outcome::Expired), "after a second it is of no use");
    assert_clean(&mut sim);
}

#[test]
fn an_orderly_close_waits_for_messages_and_an_abort_does_not() {
    let mut sim = world();
    sim.options.redial = true;
    sim.keep_server = true;
    let flow = flow(&mut sim, Class::RELIABLE);
    let id = send(&mut sim, flow, "last words");
    sim.client.close(whimbrel_proto::CloseCode::NONE, "");
    let now = sim.now;
    let late = sim.client.send_message(now, flow, vec![], SendOptions::default()).unwrap_err();
    assert!(matches!(late.error, SendError::ConnectionClosed(_)));
    sim.pump();
    sim.cut_all(Cut::Both);
    sim.advance(secs(3));
    assert_eq!(texts(&mut sim), ["last words"]);
    assert_eq!(outcome(&sim, id), Some(Outcome::Delivered));
    assert!(sim.client.is_closed());

    let mut sim = world();
    let flow = self::flow(&mut sim, Class::RELIABLE);
    sim.cut_all(Cut::Both);
    sim.advance(ms(1));
    let id = send(&mut sim, flow, "too late");
    sim.client.give_up(whimbrel_proto::CloseCode::GOING_AWAY, "");
    sim.pump();
    assert_eq!(outcome(&sim, id), Some(Outcome::Lost));
}
