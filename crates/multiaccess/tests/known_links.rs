//! What is measured over links whose delay and rate are known.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::support::{Traffic, is_near, world};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use whimbrel_lab::require;
use whimbrel_multiaccess::{AccessPath, Survey};

/// One way, in milliseconds, and Mbit/s.
const LINKS: [(u64, u64); 2] = [(150, RATE), (225, RATE)];
const RATE: u64 = 20;

#[track_caller]
fn assert_near(what: &str, found: f64, expected: f64, share: f64) {
    assert!(is_near(found, expected, share), "{what}: {found}, expected about {expected}");
}

fn path<'a>(paths: &'a [AccessPath], interface: &str) -> &'a AccessPath {
    paths.iter().find(|path| path.interface == interface).unwrap()
}

/// Two links of 300 and 450 ms there and back. Over each a connection exchanges single bytes, so that nothing
/// queues; then 20 Mbit/s fill the first one for five seconds.
#[test]
fn round_trips_and_rates_of_two_links_are_told_apart_and_right() {
    if !require!() {
        return;
    }
    let world = world(&LINKS);
    let runtime = world.client.runtime(1).unwrap();
    let mut survey = runtime.block_on(async { Survey::open() }).unwrap();
    let began = Instant::now();
    let mut measure = || runtime.block_on(survey.measure(began.elapsed())).unwrap();
    let mut measure_for = |time: Duration| {
        let end = Instant::now() + time;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(100));
            measure();
        }
        measure()
    };
    let before = measure_for(Duration::ZERO);
    assert_eq!(before.len(), 2, "{before:?}");
    assert!(before.iter().all(|path| path.estimate.needs_exploring()), "{before:?}");

    let at = |n: u8, port: u16| SocketAddr::from(([10, 0, n, 2], port));
    let chatter = [0, 1].map(|n| Traffic::chatter(&world.client, &world.server, at(n, 7000)));
    let measured = measure_for(Duration::from_secs(4));
    for (name, (delay, _)) in world.names.iter().zip(LINKS) {
        let estimate = path(&measured, name).estimate;
        let expected = 2.0 * delay as f64 / 1000.0;
        assert_near("smallest", estimate.srtt_min.unwrap().0, expected, 0.1);
        assert_near("median", estimate.srtt_median.unwrap().0, expected, 0.1);
        assert_eq!(estimate.connections, 1);
    }
    let [first, second] = chatter;
    let open = first.stop();

    let download = Traffic::download(&world.client, &world.server, at(0, 7001));
    let paths = measure_for(Duration::from_secs(5));
    drop(download.stop());
    let rate = RATE as f64 * 1e6 / 8.0;
    let (filled, other) = (path(&paths, "link0").estimate, path(&paths, "link1").estimate);
    assert_near("best rate", filled.down.best.unwrap().0, rate, 0.15);
    // The other one carried chatter only, which does not say what it can carry.
    assert!(other.down.best.is_none() && other.up.best.is_none(), "{other:?}");
    assert!(filled.up.best.is_none(), "{filled:?}");

    // What ended counts on: a large object is not kept off a path for being idle.
    drop((open, second.stop()));
    let end = Instant::now() + Duration::from_secs(30);
    let mut paths = measure_for(Duration::ZERO);
    while paths.iter().any(|path| path.estimate.connections > 0) && Instant::now() < end {
        paths = measure_for(Duration::from_millis(100));
    }
    let filled = path(&paths, "link0").estimate;
    assert!(filled.connections == 0 && filled.is_measured() && !filled.needs_exploring(), "{filled:?}");
}

/// A link of 20 Mbit/s is filled upwards. What is sent counts as the interface counts it, before the link may
/// drop some of it: at a round trip of 20 ms a sender notices that so early that it makes no difference.
#[test]
fn the_rate_of_a_link_that_is_filled_upwards_is_right_and_is_none_of_the_way_down() {
    if !require!() {
        return;
    }
    let world = world(&[(10, RATE), (10, RATE)]);
    let runtime = world.client.runtime(1).unwrap();
    let mut survey = runtime.block_on(async { Survey::open() }).unwrap();
    let began = Instant::now();
    let mut measure = || {
        std::thread::sleep(Duration::from_millis(100));
        runtime.block_on(survey.measure(began.elapsed())).unwrap()
    };
    let rate = RATE as f64 * 1e6 / 8.0;
    let upload = Traffic::upload(&world.client, &world.server, SocketAddr::from(([10, 0, 0, 2], 7000)));
    // Whatever a busy machine held up is made good in time.
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let best = path(&measure(), "link0").estimate.up.best;
        if best.is_some_and(|best| is_near(best.0, rate, 0.15)) {
            break;
        }
        assert!(Instant::now() < end, "{best:?}, expected about {rate}");
    }
    // And that was not on the way to another one: fifty times it stays what the link carries.
    for _ in 0..50 {
        let paths = measure();
        let (filled, other) = (path(&paths, "link0").estimate, path(&paths, "link1").estimate);
        assert_near("best rate", filled.up.best.unwrap().0, rate, 0.5);
        // Acknowledgements fill nothing.
        assert!(filled.down.best.is_none(), "{filled:?}");
        assert!(other.up.best.is_none() && other.down.best.is_none(), "{other:?}");
    }
    drop(upload.stop());
}

/// A route that names its congestion control, as servers and tuned hosts have.
#[test]
fn a_route_that_names_its_congestion_control_leads_there_as_any_other() {
    if !require!() {
        return;
    }
    let world = world(&LINKS);
    world.client.set_congestion_control("reno");
    world.links[0].end(&world.client).add_default_route("10.0.0.2", 1).unwrap();
    let runtime = world.client.runtime(1).unwrap();
    let measured = runtime.block_on(async { Survey::open().unwrap().measure(Duration::ZERO).await }).unwrap();
    assert!(path(&measured, &world.names[0]).routes.have_default(), "{measured:?}");
}
