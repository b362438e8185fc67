//! `earliest-arrival`: a chunk goes to the path on which it arrives first (ECF's idea, for any number of
//! paths).

use std::time::Duration;

use super::{Choice, Input, PathSnapshot, SMALL_CHUNK, Scheduler};

/// So long may the queue of a path be that is not the best: it keeps the path busy until the next
/// acknowledgement. What queues there longer only makes the reader wait for it, while later bytes arrive on
/// better paths.
const QUEUE: Duration = Duration::from_millis(20);
/// A path that has delivered so many bytes is as fast as it looks: several bursts of common shapers.
const PROVEN: u64 = 256 * 1024;
/// In flight on a path that may be slower than it looks, at most: this, and so much of what it has delivered.
const DOUBTFUL_FLIGHT: u64 = 3 * SMALL_CHUNK;
const DOUBTFUL_SHARE: u64 = 8;
/// Round trips that differ by half and this much are about as long.
const ALIKE: Duration = Duration::from_millis(3);

#[derive(Debug)]
pub(super) struct EarliestArrival;

impl Scheduler for EarliestArrival {
    fn choose(&self, input: &Input<'_>) -> Choice {
        let here = input.here;
        if is_held(here, input) {
            return Choice::Leave;
        }
        let chunk = here.chunk().min(input.waiting);
        let arrival = here.arrival(chunk);
        let mut is_best = true;
        let mut elsewhere = 0u64;
        for other in input.others().filter(|other| !is_held(other, input)) {
            if (other.arrival(chunk), other.id) < (arrival, here.id) {
                is_best = false;
                elsewhere = elsewhere.saturating_add(other.deliverable(arrival));
            }
        }
        let brought_sooner = elsewhere >= input.waiting;
        if is_best || !(brought_sooner || here.queueing() > longest_queue(input)) {
            return Choice::Send(if is_doubtful(here, input) { chunk.min(SMALL_CHUNK) } else { chunk });
        }
        Choice::Leave
    }
}

/// A doubtful path has as much in flight as it may.
fn is_held(path: &PathSnapshot, input: &Input<'_>) -> bool {
    let most = DOUBTFUL_FLIGHT + path.delivered / DOUBTFUL_SHARE;
    path.in_flight >= most && is_doubtful(path, input)
}

/// `path` may be slower than it looks, because shapers let a first burst pass at full speed. Held back only
/// beside a path that has carried more and whose round trip is about as long: beside a much longer one it is
/// worth its risk, and on a longer one it would take many round trips to become known.
fn is_doubtful(path: &PathSnapshot, input: &Input<'_>) -> bool {
    let carried = |p: &PathSnapshot| p.delivered.saturating_add(p.in_flight);
    let mut others = input.paths.iter().filter(|other| other.id != path.id);
    path.delivered < PROVEN && others.any(|other| carried(other) > carried(path) && are_alike(path, other))
}

fn are_alike(a: &PathSnapshot, b: &PathSnapshot) -> bool {
    let (short, long) = (a.base_rtt.min(b.base_rtt), a.base_rtt.max(b.base_rtt));
    long <= short * 3 / 2 + ALIKE
}

/// Beyond a carrier's window; more while it grows, if most is to be hoped for from it.
fn longest_queue(input: &Input<'_>) -> Duration {
    let here = input.here;
    let is_fastest = input.others().all(|other| other.expected_rate() <= here.expected_rate());
    let gain = if here.growing && is_fastest { here.base_rtt * 2 } else { here.base_rtt / 4 };
    QUEUE + gain
}
