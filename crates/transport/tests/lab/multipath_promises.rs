//! Promises of time, at a round trip so long that a busy machine does not matter: each bound is less than a
//! round trip above what is promised.

use std::time::Duration;

use crate::lab_support::ms;
use crate::lab_support::net::{Family, Multi};
use crate::lab_support::paths::{Running, link};
use crate::lab_support::traffic::Way;
use whimbrel_lab::{Direction, require};
use whimbrel_transport::{CarrierKind, Carriers, HandoverMode};

const RTT: Duration = ms(300);
/// Eight seconds of a drip.
const BYTES: u64 = 400 << 10;

/// A steady stream, which leaves a silent blackhole within three round trips and 200 ms, also where there is
/// one path at a time and another one has to be dialled then.
fn blackhole(mode: HandoverMode, carriers: Carriers, dead: usize) {
    let delay = RTT.as_millis() as u64 / 2;
    let net = Multi::new(Family::V4, &[link(10, delay), link(10, delay)]);
    let running = Running::new(net, |builder| builder.handover(mode).carriers(carriers));
    running.until_active(if mode == HandoverMode::Single { 1 } else { 2 });
    let drip = running.start(Way::Drip, BYTES);
    drip.reach(&running.net.client, BYTES / 4);
    let pause = running.longest_pause(&drip.meter, BYTES / 2, |net| {
        net.near[dead].set_blackhole(Direction::Both, true);
    });
    eprintln!("{mode}, {carriers}, link {dead} dead: longest pause {pause:?}");
    assert!(pause < RTT * 3 + ms(200) + RTT / 2, "{pause:?}");
    drip.finish(&running.net.client);
}

#[test]
fn full_a_dead_first_link_is_left_within_three_round_trips() {
    if require!() {
        blackhole(HandoverMode::Full, Carriers::Auto, 0);
    }
}

#[test]
fn full_a_dead_second_link_is_left_within_three_round_trips() {
    if require!() {
        blackhole(HandoverMode::Full, Carriers::Auto, 1);
    }
}

#[test]
fn backup_a_dead_first_link_is_left_within_three_round_trips() {
    if require!() {
        blackhole(HandoverMode::Backup, Carriers::Auto, 0);
    }
}

/// The other link has no path yet: it is dialled when the first has fallen silent.
#[test]
fn single_a_dead_link_is_left_within_three_round_trips() {
    if require!() {
        blackhole(HandoverMode::Single, Carriers::Auto, 0);
    }
}

#[test]
fn over_quic_a_dead_link_is_left_within_three_round_trips() {
    if require!() {
        blackhole(HandoverMode::Full, Carriers::Only(CarrierKind::Quic), 0);
    }
}

#[test]
fn single_over_quic_a_dead_link_is_left_within_three_round_trips() {
    if require!() {
        blackhole(HandoverMode::Single, Carriers::Only(CarrierKind::Quic), 0);
    }
}
