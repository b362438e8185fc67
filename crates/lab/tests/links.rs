//! Emulated links do what they are told, also while they run.
#![allow(clippy::unwrap_used)]

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;
use whimbrel_lab::{Direction, Host, Lab, Link, LinkSpec, Queue, Rate, Trace, require};

/// Held by tests that a busy machine would disturb, so that they do not disturb each other.
static QUIET: Mutex<()> = Mutex::new(());

#[test]
fn delay_is_precise_and_changes_while_running() {
    let _quiet = QUIET.lock().unwrap_or_else(PoisonError::into_inner);
    if !require!() {
        return;
    }
    let net = pair(LinkSpec::default().delay(ms(25)));
    let socket = udp_client(&net.a, A, udp_echo(&net.b, "10.0.1.2:0"));
    let first = median_round_trip(&socket, 21);
    net.link.set_delay(net.link.from(&net.a), ms(5));
    let second = median_round_trip(&socket, 21);
    eprintln!("round trips: {first:?} for 25+25 ms, {second:?} for 5+25 ms");
    // Never early; how late, is up to the machine (the shaper's own tests are exact, in simulated time).
    assert!((ms(50)..ms(60)).contains(&first), "{first:?}");
    assert!((ms(30)..ms(40)).contains(&second), "{second:?}");
}

#[test]
fn an_idle_link_carries_no_frame() {
    if !require!() {
        return;
    }
    let net = pair(LinkSpec::default());
    // What a kernel says on its own comes with an address, and with an interface that is switched on.
    net.link.end(&net.a).set_up(false).unwrap();
    net.a.restore(net.link.end(&net.a).name()).unwrap();
    thread::sleep(ms(4000));
    let carried = net.link.stats(Direction::Both);
    assert_eq!((carried.packets, carried.dropped()), (0, 0), "{carried:?}");
    // The same link does count what is sent.
    let socket = udp_client(&net.a, A, udp_echo(&net.b, "10.0.1.2:0"));
    round_trip(&socket, ms(2000)).unwrap();
    assert_eq!(net.link.stats(Direction::Both).packets, 2);
}

/// Megabits a second that TCP brings through the link, as counted by the link.
fn measured_rate(link: &Link, from: &Host, to: &Host, time: Duration) -> f64 {
    let stream = connect(from, tcp_sink(to, "10.0.1.2:0")).unwrap();
    let flooder = thread::spawn(move || flood(stream, time + ms(1000)));
    // TCP's start is not the link's rate.
    thread::sleep(ms(500));
    let (began, before) = (Instant::now(), link.stats(link.from(from)));
    thread::sleep(time);
    let (elapsed, after) = (began.elapsed(), link.stats(link.from(from)));
    flooder.join().unwrap();
    (after.bytes - before.bytes) as f64 * 8.0 / elapsed.as_secs_f64() / 1e6
}

/// A link gives this rate, in Mbit/s: hardly more, and, because a busy machine holds the emulation up, not
/// much less. (The shaper's own tests are exact, in simulated time.)
fn gives(net: &Pair, rate: f64, time: Duration) {
    let measured = measured_rate(&net.link, &net.a, &net.b, time);
    eprintln!("{measured:.2} Mbit/s for {rate}");
    assert!((rate * 0.7..rate * 1.05).contains(&measured), "{measured} for {rate}");
}

#[test]
fn rate_is_kept_and_changes_while_running() {
    if !require!() {
        return;
    }
    let net = pair(LinkSpec::default().delay(ms(5)).rate(Rate::mbit(20)));
    gives(&net, 20.0, ms(4000));
    net.link.set_rate(Direction::Both, Rate::mbit(5));
    gives(&net, 5.0, ms(2000));
}

#[test]
fn a_trace_gives_its_rate() {
    if !require!() {
        return;
    }
    // 12 Mbit/s in bursts of five packets.
    let trace = Trace::from_millis((1..=20).flat_map(|n| [n * 5; 5]).collect()).unwrap();
    assert_eq!(trace.mean_rate(), Rate::mbit(12));
    let net = pair(LinkSpec::default().delay(ms(5)).queue(Queue::Time(ms(200))));
    net.link.set_trace(Direction::Forward, trace);
    // Small packets and the last bytes of a chance are wasted.
    gives(&net, 12.0, ms(3000));
}

#[test]
fn loss_is_as_set() {
    if !require!() {
        return;
    }
    let net = pair(LinkSpec::default().forward(|shape| shape.loss = 0.1));
    let socket = udp_client(&net.a, A, udp_echo(&net.b, "10.0.1.2:0"));
    let sent = 2000;
    for number in 0..sent {
        socket.send(b"x").unwrap();
        if number % 50 == 0 {
            thread::sleep(ms(2));
        }
    }
    thread::sleep(ms(100));
    let forward = net.link.stats(Direction::Forward);
    let share = forward.lost as f64 / (forward.lost + forward.packets) as f64;
    let back = net.link.stats(Direction::Backward);
    eprintln!("{:.1} % lost for 10 %", share * 100.0);
    assert!((0.07..0.13).contains(&share), "{forward:?}");
    assert_eq!(back.dropped(), 0, "the way back loses nothing");
    assert!(back.packets.abs_diff(forward.packets) < 20, "{forward:?} {back:?}");
}

#[test]
fn a_blackhole_opens_and_closes() {
    if !require!() {
        return;
    }
    let net = pair(LinkSpec::default().delay(ms(5)));
    let socket = udp_client(&net.a, A, udp_echo(&net.b, "10.0.1.2:0"));
    assert!(round_trip(&socket, ms(1000)).is_some());
    for direction in [Direction::Forward, Direction::Backward, Direction::Both] {
        net.link.set_blackhole(direction, true);
        assert!(round_trip(&socket, ms(100)).is_none(), "{direction:?}");
        net.link.set_blackhole(direction, false);
        assert!(round_trip(&socket, ms(1000)).is_some(), "{direction:?}");
    }
    assert!(net.link.stats(Direction::Both).swallowed >= 3);
}

#[test]
fn a_queue_holds_what_it_may_and_drops_the_rest() {
    if !require!() {
        return;
    }
    let spec = LinkSpec::default().rate(Rate::mbit(10)).queue(Queue::Time(ms(60)));
    let net = pair(spec);
    let socket = udp_client(&net.a, A, udp_echo(&net.b, "10.0.1.2:0"));
    assert!(round_trip(&socket, ms(1000)).is_some());
    let began = Instant::now();
    (0..200).for_each(|_| drop(socket.send(&[0; 1400])));
    let sending = began.elapsed();
    let stats = || net.link.stats(Direction::Forward);
    while stats().packets + stats().dropped() < 201 {
        assert!(began.elapsed() < ms(2000), "{:?}", stats());
        thread::sleep(ms(1));
    }
    let emptied = began.elapsed();
    let overflowed = stats().overflowed;
    eprintln!("{overflowed} of 200 overflowed; sent in {sending:?}, queue empty after {emptied:?}");
    // 75 kB wait, which is 60 ms or 52 packets; while they are sent, some more find room.
    let sent_meanwhile = sending.as_micros() as u64 / 1142;
    assert!(overflowed.abs_diff(147 - sent_meanwhile.min(147)) <= 4, "{overflowed}");
    assert!(emptied > ms(55) && emptied < sending + ms(75), "{emptied:?}");
}

#[test]
fn throughput_without_limits() {
    let _quiet = QUIET.lock().unwrap_or_else(PoisonError::into_inner);
    if !require!() {
        return;
    }
    let net = pair(LinkSpec::default());
    let emulated = measured_rate(&net.link, &net.a, &net.b, ms(1500));
    let lab = Lab::new().unwrap();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let cable = lab.direct_link(&a, &b, LinkSpec::default()).unwrap();
    cable.end(&a).add_address("10.0.1.1/24").unwrap();
    cable.end(&b).add_address("10.0.1.2/24").unwrap();
    let stream = connect(&a, tcp_sink(&b, "10.0.1.2:0")).unwrap();
    let direct = flood(stream, ms(1000)) as f64 * 8.0 / 1e6;
    eprintln!("emulated link {emulated:.0} Mbit/s, direct link {direct:.0} Mbit/s");
    // Far below what an idle machine does; a busy one must not fail here.
    assert!(emulated > 50.0 && direct > 200.0);
}
