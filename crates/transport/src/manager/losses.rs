//! Whether a path loses so much that QUIC is the better carrier.
//!
//! QUIC takes single losses for what they are and holds its rate, where the kernel's TCP halves its window at each. A
//! path over which this side sent at least [`ENOUGH`] packets, of which one in a hundred or more were lost, is lossy.
//! What counts is the last path of the connection that was measured, whatever carried it; congestion alone stays below.

use crate::carrier::CarrierStats;

/// Fewer packets say nothing.
const ENOUGH: u64 = 500;
/// One in so many lost is a lossy path.
const ONE_IN: u64 = 100;

/// Whether a path is lossy; `None` if too little was sent to tell.
pub(crate) fn is_lossy(stats: &CarrierStats) -> Option<bool> {
    (stats.sent >= ENOUGH).then(|| stats.lost.saturating_mul(ONE_IN) >= stats.sent)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn path(sent: u64, lost: u64) -> CarrierStats {
        let (srtt, rttvar) = (Duration::from_millis(20), Duration::ZERO);
        CarrierStats {
            srtt,
            rttvar,
            cwnd: 0,
            unsent: 0,
            delivery_rate: 0,
            sent,
            lost,
            since_ack: None,
            timeouts: 0,
        }
    }

    #[test]
    fn one_packet_in_a_hundred_is_lossy_if_there_were_enough() {
        assert_eq!(is_lossy(&path(ENOUGH - 1, 100)), None);
        assert_eq!(is_lossy(&path(1000, 9)), Some(false));
        assert_eq!(is_lossy(&path(1000, 10)), Some(true));
    }
}
