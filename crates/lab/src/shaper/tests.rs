//! The shaper in simulated time.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::Wake;

struct Sized(usize);

impl Packet for Sized {
    fn size(&self) -> usize {
        self.0
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn shaper(change: impl FnOnce(&mut Shape)) -> Shaper<Sized> {
    let mut shape = Shape::default();
    change(&mut shape);
    Shaper::new(shape, 7)
}

/// All arrivals up to `end`, each at the time the shaper announced.
fn arrivals(shaper: &mut Shaper<Sized>, end: Duration) -> Vec<Duration> {
    let mut times = Vec::new();
    while let Some(due) = shaper.next_due().filter(|&due| due <= end) {
        while shaper.take_due(due).is_some() {
            times.push(due);
        }
    }
    times
}

fn offer(shaper: &mut Shaper<Sized>, now: Duration, count: usize) {
    (0..count).for_each(|_| shaper.offer(now, Sized(1500)));
}

#[test]
fn delay_alone_moves_packets_by_that_time() {
    let mut shaper = shaper(|shape| shape.delay = ms(25));
    offer(&mut shaper, ms(1), 1);
    assert!(shaper.take_due(ms(25)).is_none());
    assert_eq!(arrivals(&mut shaper, ms(100)), [ms(26)]);
}

#[test]
fn rate_spaces_packets_and_delay_adds_to_it() {
    let mut shaper = shaper(|shape| {
        shape.delay = ms(10);
        shape.capacity = Capacity::Rate(Rate::mbit(12));
    });
    offer(&mut shaper, ms(0), 3);
    assert_eq!(arrivals(&mut shaper, ms(100)), [ms(11), ms(12), ms(13)]);
    // An idle link saves nothing up.
    offer(&mut shaper, ms(50), 2);
    assert_eq!(arrivals(&mut shaper, ms(100)), [ms(61), ms(62)]);
}

#[test]
fn a_token_bucket_lets_a_burst_through_and_then_the_rate() {
    let mut shaper = shaper(|shape| {
        shape.capacity = Capacity::Rate(Rate::mbit(12));
        shape.burst = 3000;
    });
    offer(&mut shaper, ms(0), 4);
    assert_eq!(arrivals(&mut shaper, ms(100)), [ms(0), ms(0), ms(1), ms(2)]);
    // It fills again while the link is idle, and never beyond its depth.
    offer(&mut shaper, ms(3), 2);
    assert_eq!(arrivals(&mut shaper, ms(100)), [ms(3), ms(4)]);
    offer(&mut shaper, ms(500), 3);
    assert_eq!(arrivals(&mut shaper, ms(600)), [ms(500), ms(500), ms(501)]);
}

#[test]
fn a_radio_sleeps_before_its_first_packet_and_after_a_silence() {
    let mut shaper = shaper(|shape| {
        shape.delay = ms(10);
        shape.wake = Some(Wake { after: ms(1000), takes: ms(300) });
    });
    offer(&mut shaper, ms(0), 2);
    assert_eq!(arrivals(&mut shaper, ms(1200)), [ms(310), ms(310)]);
    // 900 ms after the last one: still awake. 1000 ms: asleep again.
    offer(&mut shaper, ms(1200), 1);
    assert_eq!(arrivals(&mut shaper, ms(2000)), [ms(1210)]);
    offer(&mut shaper, ms(2200), 1);
    assert_eq!(arrivals(&mut shaper, ms(3000)), [ms(2510)]);
}

#[test]
fn a_full_queue_drops_the_newcomer() {
    for (queue, room) in [(Queue::Packets(4), 4), (Queue::Bytes(7000), 4), (Queue::Time(ms(50)), 50)] {
        let mut shaper = shaper(|shape| {
            shape.capacity = Capacity::Rate(Rate::mbit(12));
            shape.queue = queue;
        });
        offer(&mut shaper, ms(0), 100);
        assert_eq!(
            arrivals(&mut shaper, ms(1000)).len(),
            room + 1,
            "{queue:?}: the queue and the one in service"
        );
        assert_eq!(shaper.stats().overflowed, 99 - room as u64);
    }
}

#[test]
fn loss_is_random_but_repeatable() {
    let run = || {
        let mut shaper = shaper(|shape| shape.loss = 0.1);
        offer(&mut shaper, ms(0), 20_000);
        shaper.stats().lost
    };
    assert!((1900..2100).contains(&run()), "{}", run());
    assert_eq!(run(), run());
}

#[test]
fn a_blackhole_swallows_what_is_under_way_too() {
    let mut shaper = shaper(|shape| shape.delay = ms(25));
    offer(&mut shaper, ms(0), 2);
    shaper.set_shape(ms(1), Shape { blackhole: true, ..shaper.shape().clone() });
    offer(&mut shaper, ms(2), 3);
    assert!(shaper.take_due(ms(100)).is_none());
    assert_eq!(shaper.stats().swallowed, 5);
    shaper.set_shape(ms(101), Shape { blackhole: false, ..shaper.shape().clone() });
    offer(&mut shaper, ms(101), 1);
    assert_eq!(arrivals(&mut shaper, ms(200)), [ms(126)]);
}

#[test]
fn only_packets_that_are_too_large_are_swallowed() {
    let mut shaper = shaper(|_| {});
    for (largest, swallowed) in [(1499, 1), (1500, 1)] {
        shaper.set_shape(ms(1), Shape { largest: Some(largest), ..shaper.shape().clone() });
        offer(&mut shaper, ms(1), 1);
        assert_eq!(shaper.stats().swallowed, swallowed);
    }
    assert_eq!(arrivals(&mut shaper, ms(2)).len(), 1);
}

#[test]
fn a_changed_delay_holds_for_packets_under_way_without_reordering() {
    let mut shaper = shaper(|shape| shape.delay = ms(500));
    offer(&mut shaper, ms(0), 1);
    shaper.set_shape(ms(10), Shape { delay: ms(20), ..shaper.shape().clone() });
    offer(&mut shaper, ms(11), 1);
    assert_eq!(arrivals(&mut shaper, ms(1000)), [ms(20), ms(31)]);
}

#[test]
fn a_changed_rate_holds_from_the_change_on() {
    let mut shaper = shaper(|shape| shape.capacity = Capacity::Rate(Rate::kbit(1)));
    offer(&mut shaper, ms(0), 3);
    let shape = Shape { capacity: Capacity::Rate(Rate::mbit(12)), ..shaper.shape().clone() };
    shaper.set_shape(ms(5000), shape);
    assert_eq!(arrivals(&mut shaper, ms(9000)), [ms(5001), ms(5002), ms(5003)]);
}

#[test]
fn a_trace_gives_its_chances_and_wastes_unused_ones() {
    let trace = Trace::from_millis(vec![1, 2, 2, 10]).unwrap();
    let mut shaper = shaper(|shape| shape.capacity = Capacity::Trace(trace.into()));
    offer(&mut shaper, ms(0), 5);
    assert_eq!(arrivals(&mut shaper, ms(100)), [ms(1), ms(2), ms(2), ms(10), ms(11)]);
    offer(&mut shaper, ms(33), 1);
    assert_eq!(arrivals(&mut shaper, ms(100)), [ms(40)]);
}

#[test]
fn small_packets_share_a_chance_and_large_ones_take_two() {
    let trace = Trace::from_millis(vec![1, 2, 3, 4]).unwrap();
    let mut shaper = shaper(|shape| shape.capacity = Capacity::Trace(trace.into()));
    for size in [700, 700, 700, 1500] {
        shaper.offer(ms(0), Sized(size));
    }
    assert_eq!(arrivals(&mut shaper, ms(100)), [ms(1), ms(1), ms(2), ms(3)]);
}

#[test]
fn a_trace_carries_its_mean_rate() {
    let trace = Trace::from_millis(vec![3, 3, 7, 8, 20]).unwrap();
    let expected = trace.mean_rate().bytes_in(ms(20_000)) / 1500;
    let mut shaper = shaper(|shape| {
        shape.capacity = Capacity::Trace(trace.into());
        shape.queue = Queue::Packets(100);
    });
    let mut count = 0;
    for now in 0..20_000 {
        offer(&mut shaper, ms(now), 1);
        count += std::iter::from_fn(|| shaper.take_due(ms(now))).count();
    }
    assert!(count.abs_diff(expected) <= 5, "{count} of {expected}");
}

#[test]
fn flights_are_bounded() {
    let mut shaper = shaper(|shape| shape.delay = ms(60_000));
    (0..5000).for_each(|_| shaper.offer(ms(0), Sized(65_000)));
    assert!(shaper.flying_bytes <= MAX_FLYING_BYTES);
    assert_eq!(shaper.stats().overflowed as usize, 5000 - MAX_FLYING_BYTES / 65_000);
}
