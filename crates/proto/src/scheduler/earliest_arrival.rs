//! `earliest-arrival`: a chunk goes to the path on which it arrives first (ECF's idea, for any number of
//! paths).

use std::time::Duration;

use super::{Choice, Input, Scheduler};

/// So long may the queue of a path be that is not the best: it keeps the path busy until the next
/// acknowledgement. What queues there longer only makes the reader wait for it, while later bytes arrive on
/// better paths.
const QUEUE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct EarliestArrival;

impl Scheduler for EarliestArrival {
    fn choose(&self, input: &Input<'_>) -> Choice {
        let here = input.here;
        let chunk = here.chunk().min(input.waiting);
        let arrival = here.arrival(chunk);
        let mut is_best = true;
        let mut elsewhere = 0u64;
        for other in input.others() {
            if (other.arrival(chunk), other.id) < (arrival, here.id) {
                is_best = false;
                elsewhere = elsewhere.saturating_add(other.deliverable(arrival));
            }
        }
        let brought_sooner = elsewhere >= input.waiting;
        if is_best || !(brought_sooner || here.queueing() > longest_queue(input)) {
            return Choice::Send(chunk);
        }
        Choice::Leave
    }
}

/// Beyond a carrier's window; more while it grows, if most is to be hoped for from it.
fn longest_queue(input: &Input<'_>) -> Duration {
    let here = input.here;
    let is_fastest = input.others().all(|other| other.expected_rate() <= here.expected_rate());
    let gain = if here.growing && is_fastest { here.base_rtt * 2 } else { here.base_rtt / 4 };
    QUEUE + gain
}
