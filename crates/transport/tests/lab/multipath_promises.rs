//! Promises of time, at a round trip so long that a busy machine does not matter: each bound is less than a
//! round trip above what is promised.

use std::time::Duration;

use crate::lab_support::ms;
use crate::lab_support::net::{Family, Multi};
use crate::lab_support::paths::{Running, link};
use crate::lab_support::traffic::Way;
use whimbrel_lab::{Direction, require};
use whimbrel_transport::HandoverMode;

const RTT: Duration = ms(300);
/// Eight seconds of a drip.
const BYTES: u64 = 400 << 10;

/// A steady stream, which leaves a silent blackhole within three round trips and 200 ms.
fn blackhole(mode: HandoverMode, dead: usize) {
    let delay = RTT.as_millis() as u64 / 2;
    let running = Running::in_mode(Multi::new(Family::V4, &[link(10, delay), link(10, delay)]), mode);
    running.until_active(2);
    let drip = running.start(Way::Drip, BYTES);
    drip.reach(&running.net.client, BYTES / 4);
    let pause = running.longest_pause(&drip.meter, BYTES / 2, |net| {
        net.near[dead].set_blackhole(Direction::Both, true);
    });
    eprintln!("{mode}, link {dead} dead: longest pause {pause:?}");
    assert!(pause < RTT * 3 + ms(200) + RTT / 2, "{pause:?}");
    drip.finish(&running.net.client);
}

#[test]
fn full_a_dead_first_link_is_left_within_three_round_trips() {
    if require!() {
        blackhole(HandoverMode::Full, 0);
    }
}

#[test]
fn full_a_dead_second_link_is_left_within_three_round_trips() {
    if require!() {
        blackhole(HandoverMode::Full, 1);
    }
}

#[test]
fn backup_a_dead_first_link_is_left_within_three_round_trips() {
    if require!() {
        blackhole(HandoverMode::Backup, 0);
    }
}
