//! Real hosts in network namespaces, joined by emulated links: slow tests.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod answers;
mod bulk;
mod causes;
mod datagrams;
mod deep_queue;
mod faults;
mod hand_over;
mod hops;
mod icmp;
mod messages;
mod moves;
mod mptcp;
mod multipath;
mod multipath_carriers;
mod multipath_faults;
mod multipath_many;
mod multipath_promises;
mod notices;
mod one_round_trip;
mod outages;
mod predecessors;
mod quic;
mod resume;
mod sizes;

use crate::lab_support;

/// Becomes a peer, if this program was started again as one.
#[test]
fn peer_process() {
    lab_support::process::run_if_peer();
}
