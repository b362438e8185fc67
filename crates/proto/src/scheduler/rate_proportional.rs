//! `rate-proportional` [msocket §III-C]: "stripe data across the flowpaths proportional to their fair
//! throughputs so that all of the flowpaths drain out completely at the same instant".
//!
//! Before anything was measured, chunks are small and shared out by round-trip time, the shorter the more;
//! then by the measured rate. What a path has in flight, divided by its share, is the time it takes to drain;
//! the next chunk goes to the path with room that would drain first.

use super::{CHUNK, Choice, Input, PathSnapshot, SMALL_CHUNK, Scheduler};

#[derive(Debug)]
pub(super) struct RateProportional;

impl Scheduler for RateProportional {
    fn choose(&self, input: &Input<'_>) -> Choice {
        // Shares are comparable only if all are measured, or none.
        let measured = input.paths.iter().all(|path| path.rate.is_some());
        let share = |path: &PathSnapshot| if measured { path.expected_rate() } else { by_rtt(path) };
        let drains = |path: &PathSnapshot| {
            let load = u128::from(path.in_flight) << 32;
            (load / u128::from(share(path).max(1)), path.id)
        };
        let here = drains(input.here);
        if input.others().any(|other| other.room && drains(other) < here) {
            return Choice::Leave;
        }
        Choice::Send(if measured { CHUNK } else { SMALL_CHUNK })
    }
}

fn by_rtt(path: &PathSnapshot) -> u64 {
    1_000_000_000_000 / (path.srtt.as_micros() as u64).max(1)
}
