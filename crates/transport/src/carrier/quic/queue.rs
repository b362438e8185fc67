//! How much may be in flight so that little waits in the queues on the way: for connections whose streams have
//! messages beside them. BBR alone has as much in flight again as the path holds, which waits in its queue.

use std::time::{Duration, Instant};

/// So long may the last byte wait on the way, or this part of the shortest round trip.
const WAIT: Duration = Duration::from_millis(4);
const WAIT_SHARE: u32 = 16;
/// The window grows by this part in a round trip without a queue, by more in each further one, up to a quarter.
const GROWTH: u64 = 16;
const QUICKEST_GROWTH: u64 = 4;
/// So long the shortest round trip counts, and once more: paths change.
const SHORTEST_FOR: Duration = Duration::from_secs(10);

/// The shortest of the round trips of late.
#[derive(Debug, Clone, Copy)]
struct Shortest {
    current: Duration,
    previous: Duration,
    since: Instant,
}

/// A window for short queues, at most that of another controller and at least half of it: what the path holds by
/// its estimate. It follows the shortest round trip of each round, because single ones vary for other reasons.
#[derive(Debug, Clone)]
pub(super) struct ShortQueue {
    shortest: Option<Shortest>,
    /// Of the present round.
    round_since: Option<Instant>,
    round_shortest: Duration,
    /// `None` until a queue was seen.
    window: Option<u64>,
    growth: u64,
}

impl ShortQueue {
    pub(super) fn new() -> Self {
        Self {
            shortest: None,
            round_since: None,
            round_shortest: Duration::MAX,
            window: None,
            growth: GROWTH,
        }
    }

    /// A packet was acknowledged that was sent at `sent`.
    pub(super) fn on_ack(&mut self, now: Instant, sent: Instant) {
        let took = now.saturating_duration_since(sent);
        self.round_shortest = self.round_shortest.min(took);
        let new = Shortest { current: took, previous: took, since: now };
        let shortest = self.shortest.get_or_insert(new);
        if now.saturating_duration_since(shortest.since) >= SHORTEST_FOR {
            *shortest = Shortest { previous: shortest.current, ..new };
        }
        shortest.current = shortest.current.min(took);
    }

    /// Packets that were acknowledged together are done with. `inner` is the other controller's window.
    pub(super) fn on_end_acks(&mut self, now: Instant, inner: u64, app_limited: bool) {
        let Some(shortest) = self.shortest else { return };
        let base = shortest.current.min(shortest.previous);
        let since = *self.round_since.get_or_insert(now);
        if self.round_shortest == Duration::MAX || now.saturating_duration_since(since) < self.round_shortest
        {
            return;
        }
        let (target, took) = (base + WAIT.max(base / WAIT_SHARE), self.round_shortest);
        (self.round_since, self.round_shortest) = (Some(now), Duration::MAX);
        let before = self.window.unwrap_or(inner);
        if took > target {
            let fits = u128::from(before) * target.as_nanos() / took.as_nanos().max(1);
            self.window = Some(u64::try_from(fits).unwrap_or(u64::MAX));
            self.growth = GROWTH;
        } else if !app_limited && let Some(window) = &mut self.window {
            *window = window.saturating_add(*window / self.growth);
            self.growth = (self.growth / 2).max(QUICKEST_GROWTH);
        }
        self.window = self.window.map(|window| window.clamp(inner / 2, inner));
    }

    /// The window, given that of the other controller.
    pub(super) fn window(&self, inner: u64) -> u64 {
        self.window.map_or(inner, |window| window.clamp(inner / 2, inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    /// 20 Mbit/s.
    const RATE: u64 = 2_500_000;
    const BASE: Duration = Duration::from_millis(50);

    /// A path of 50 ms without queue, as full as the window has it, for `rounds`; `other` bytes of somebody else
    /// are in its queue, and single round trips are longer by up to `jitter`. Returns how long the queue is then
    /// and how many bytes a second were carried.
    fn over(inner: u64, rounds: u32, other: u64, jitter: Duration) -> (Duration, u64) {
        let (mut now, mut queue) = (Instant::now(), ShortQueue::new());
        let pipe = RATE * BASE.as_millis() as u64 / 1000;
        // One that is alone is measured first.
        queue.on_ack(now, now - BASE);
        let (mut wait, mut carried) = (Duration::ZERO, 0);
        for _ in 0..rounds {
            let window = queue.window(inner);
            let waiting = (window + other).saturating_sub(pipe);
            wait = Duration::from_nanos(waiting * 1_000_000_000 / RATE);
            carried = window * 1_000_000_000 / (BASE + wait).as_nanos() as u64;
            for step in 0..10 {
                now += (BASE + wait) / 10;
                queue.on_ack(now, now - BASE - wait - jitter * (step % 10) / 10);
            }
            queue.on_end_acks(now, inner, false);
        }
        (wait, carried)
    }

    #[test]
    fn what_would_double_the_round_trip_waits_a_few_milliseconds_and_the_path_stays_full() {
        // BBR: twice what the path holds.
        let (wait, carried) = over(250_000, 50, 0, Duration::ZERO);
        assert!(wait > Duration::ZERO && wait <= 8 * MS, "{wait:?}");
        assert!(carried >= RATE * 99 / 100, "{carried}");
    }

    #[test]
    fn round_trips_that_vary_cost_no_throughput() {
        let (wait, carried) = over(250_000, 50, 0, 40 * MS);
        assert!(wait <= 8 * MS && carried >= RATE * 99 / 100, "{wait:?} {carried}");
    }

    #[test]
    fn beside_others_who_fill_the_queue_half_of_the_window_stays() {
        let (_, carried) = over(250_000, 50, 250_000, Duration::ZERO);
        assert!(carried >= RATE / 3, "{carried}");
    }

    #[test]
    fn the_shortest_round_trip_is_forgotten_when_the_path_has_become_longer() {
        let (mut now, mut queue) = (Instant::now(), ShortQueue::new());
        for round in 0..800_u32 {
            let took = if round < 100 { 20 * MS } else { 80 * MS };
            now += took;
            queue.on_ack(now, now - took);
            queue.on_end_acks(now, 100_000, false);
        }
        assert_eq!(queue.window(100_000), 100_000);
    }

    #[test]
    fn without_a_queue_the_other_window_holds() {
        let (mut now, mut queue) = (Instant::now(), ShortQueue::new());
        for inner in [12_000, 24_000, 48_000, 96_000] {
            now += BASE;
            queue.on_ack(now, now - BASE);
            queue.on_end_acks(now, inner, false);
            assert_eq!(queue.window(inner), inner, "it grows as it did");
        }
    }
}
