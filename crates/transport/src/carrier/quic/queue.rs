//! How much may be in flight so that little waits in the queues on the way: for connections whose streams
//! have messages beside them. BBR alone has as much in flight again as the path holds, which waits in its
//! queue.

use std::time::{Duration, Instant};

use super::rate::rate;
use super::shortest::Shortest;

/// So long may the last byte wait on the way, or this part of the shortest round trip.
const WAIT: Duration = Duration::from_millis(4);
const WAIT_SHARE: u32 = 16;
/// The window grows by this part in a round trip without a queue. After so many of them (what a window does
/// is seen a round trip later) it grows by more in each further one, up to a quarter.
const GROWTH: u64 = 32;
const QUICKEST_GROWTH: u64 = 4;
const STEADY_ROUNDS: u32 = 4;
/// Where a queue was last seen it grows steadily for so many rounds, and quicker only up to this part of it:
/// rounds without a queue came of losses, or of the other controller's short window, and not of a quicker
/// path.
const REMEMBERED: u32 = 24;
const NEARLY_FULL: (u64, u64) = (15, 16);
/// It keeps at least this (RFC 9002 §7.2 has two datagrams; what is lost must be noticed).
const LEAST: u64 = 4 * 1_200;
/// So many bytes of a round tell of a queue (RFC 9406 §4.2 has eight packets).
const SEEN: u64 = 8 * 1_200;
/// A round that took so many round trips had nothing to send for a while.
const WITHOUT_REST: u32 = 3;
/// A queue that stays for so many rounds is of somebody else, and a short window gives way to it for nothing:
/// for this long the other controller's window holds then.
const FRUITLESS: u32 = 10;
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// What was acknowledged within one round trip.
#[derive(Debug, Clone, Copy)]
struct Round {
    since: Instant,
    shortest: Duration,
    acked: u64,
}

/// A window for short queues, at most that of another controller: what the path delivers within the round
/// trip that it may have. It follows the shortest round trip of each round, because single ones vary for
/// other reasons.
#[derive(Debug, Clone)]
pub(super) struct ShortQueue {
    shortest: Option<Shortest>,
    round: Option<Round>,
    /// Bytes a second in the last round.
    last_rate: u64,
    /// `None` until a queue was seen.
    window: Option<u64>,
    /// The window that the last queue left.
    full: u64,
    /// Rounds in a row without a queue.
    free: u32,
    /// Rounds in a row with a queue.
    fruitless: u32,
    given_up: Option<Instant>,
}

/// By which part the window grows after so many rounds without a queue.
fn growth(free: u32) -> u64 {
    let quicker = free.saturating_sub(STEADY_ROUNDS).min(u64::BITS - 1);
    (GROWTH >> quicker).max(QUICKEST_GROWTH)
}

/// What a window becomes after `free` rounds without a queue, of a path that last had one when it was `full`.
fn grown(window: u64, free: u32, full: u64) -> u64 {
    let by = |part| window.saturating_add(window / part);
    if free >= REMEMBERED {
        return by(growth(free));
    }
    let (part, of) = NEARLY_FULL;
    by(growth(free)).min((full / of * part).max(by(GROWTH)))
}

impl Round {
    fn at(since: Instant) -> Self {
        Self { since, shortest: Duration::MAX, acked: 0 }
    }
}

impl ShortQueue {
    pub(super) fn new() -> Self {
        Self {
            shortest: None,
            round: None,
            last_rate: 0,
            window: None,
            full: u64::MAX,
            free: 0,
            fruitless: 0,
            given_up: None,
        }
    }

    /// A packet of `bytes` was acknowledged that was sent at `sent`.
    pub(super) fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64) {
        let took = now.saturating_duration_since(sent);
        let round = self.round.get_or_insert(Round::at(now));
        round.shortest = round.shortest.min(took);
        round.acked += bytes;
        self.shortest.get_or_insert(Shortest::new(now, took)).saw(now, took);
    }

    /// Packets that were acknowledged together are done with. `inner` is the other controller's window.
    pub(super) fn on_end_acks(&mut self, now: Instant, inner: u64, app_limited: bool) {
        let Some(target) = self.target() else { return };
        let Some((took, rate)) = self.end_round(now, target) else { return };
        if self.given_up.is_some_and(|at| now.saturating_duration_since(at) < AGAIN_AFTER) {
            return;
        }
        if app_limited {
            // What waits on the way is not of this connection.
            self.fruitless = 0;
        } else if took > target {
            let fits = u128::from(rate) * target.as_nanos() / 1_000_000_000;
            self.full = u64::try_from(fits).unwrap_or(u64::MAX).max(LEAST);
            self.window = Some(self.full);
            (self.free, self.fruitless) = (0, self.fruitless + 1);
        } else {
            (self.free, self.fruitless) = (self.free.saturating_add(1), 0);
            let (free, full) = (self.free, self.full);
            self.window = self.window.map(|window| grown(window, free, full).min(inner));
        }
        if self.fruitless >= FRUITLESS {
            (self.window, self.fruitless, self.given_up) = (None, 0, Some(now));
        }
    }

    /// How long a round trip may take.
    fn target(&self) -> Option<Duration> {
        let base = self.shortest?.get();
        Some(base + WAIT.max(base / WAIT_SHARE))
    }

    /// The shortest round trip of the round that ends now, if one does, and how many bytes a second came of
    /// it or of the one before.
    fn end_round(&mut self, now: Instant, target: Duration) -> Option<(Duration, u64)> {
        let round = self.round?;
        let lasted = now.saturating_duration_since(round.since);
        // A window that doubles makes a queue within a part of a round.
        let seen = self.window.is_none() && round.acked >= SEEN && round.shortest > target;
        if lasted.is_zero() || lasted < if seen { WAIT } else { round.shortest } {
            return None;
        }
        self.round = Some(Round::at(now));
        let rate = rate(round.acked, lasted);
        let rate = rate.max(std::mem::replace(&mut self.last_rate, rate));
        // One with a rest in it tells nothing of what the path can deliver.
        (lasted <= round.shortest.saturating_mul(WITHOUT_REST)).then_some((round.shortest, rate))
    }

    /// The window, given that of the other controller.
    pub(super) fn window(&self, inner: u64) -> u64 {
        self.window.map_or(inner, |window| window.min(inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    /// 20 Mbit/s.
    const RATE: u64 = 2_500_000;
    const BASE: Duration = Duration::from_millis(50);

    /// A path of 50 ms without queue, as full as the window has it.
    struct Steady {
        now: Instant,
        queue: ShortQueue,
    }

    impl Steady {
        fn new() -> Self {
            let (now, mut queue) = (Instant::now(), ShortQueue::new());
            queue.on_ack(now, now - BASE, 1_200);
            Self { now, queue }
        }

        /// Goes on for `rounds`; what a window does is seen a round later. Returns how long the queue is
        /// then.
        fn go(&mut self, inner: u64, rounds: u32) -> Duration {
            let mut wait = Duration::ZERO;
            for _ in 0..rounds {
                let window = self.queue.window(inner);
                let waiting = window.saturating_sub(RATE * BASE.as_millis() as u64 / 1000);
                wait = Duration::from_nanos(waiting * 1_000_000_000 / RATE);
                let sent = self.now;
                self.now += BASE + wait;
                self.queue.on_ack(self.now, sent, window);
                self.queue.on_end_acks(self.now, inner, false);
            }
            wait
        }
    }

    /// A path of 50 ms without queue, as full as the window has it, for `rounds`; `other` bytes of somebody
    /// else are in its queue, and single round trips are longer by up to `jitter`. Returns how long the queue
    /// is then and how many bytes a second were carried.
    fn over(inner: u64, rounds: u32, other: u64, jitter: Duration) -> (Duration, u64) {
        let (mut now, mut queue) = (Instant::now(), ShortQueue::new());
        let pipe = RATE * BASE.as_millis() as u64 / 1000;
        // One that is alone is measured first.
        queue.on_ack(now, now - BASE, 1_200);
        let (mut wait, mut carried) = (Duration::ZERO, 0);
        for _ in 0..rounds {
            let window = queue.window(inner);
            let waiting = (window + other).saturating_sub(pipe);
            wait = Duration::from_nanos(waiting * 1_000_000_000 / RATE);
            carried = window * 1_000_000_000 / (BASE + wait).as_nanos() as u64;
            for step in 0..10 {
                now += (BASE + wait) / 10;
                let waited = BASE + wait + jitter * (step % 10) / 10;
                queue.on_ack(now, now - waited, window / 10);
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
    fn beside_others_that_fill_the_queue_the_other_window_holds_after_a_while() {
        let (_, carried) = over(250_000, 50, 250_000, Duration::ZERO);
        assert!(carried >= RATE / 3, "{carried}");
    }

    #[test]
    fn a_queue_that_a_doubling_window_makes_is_seen_within_its_round() {
        let (mut now, mut queue) = (Instant::now(), ShortQueue::new());
        queue.on_ack(now, now - BASE, 1_200);
        now += BASE;
        queue.on_end_acks(now, 1_000_000, false);
        for _ in 0..8 {
            now += MS;
            queue.on_ack(now, now - BASE - 20 * MS, 2_500);
            queue.on_end_acks(now, 1_000_000, false);
        }
        let window = queue.window(1_000_000);
        assert!(window <= RATE * 60 / 1_000, "{window}");
    }

    #[test]
    fn a_rest_does_not_look_like_a_path_that_delivers_little() {
        let (mut now, mut queue) = (Instant::now(), ShortQueue::new());
        queue.on_ack(now, now - BASE, 1_200);
        now += Duration::from_secs(5);
        queue.on_ack(now, now - BASE * 2, 1_200);
        queue.on_end_acks(now, 100_000, false);
        assert_eq!(queue.window(100_000), 100_000);
    }

    #[test]
    fn growth_is_steady_before_it_is_quick() {
        assert_eq!([1, 4, 5, 6, 7, 20].map(growth), [32, 32, 16, 8, 4, 4]);
    }

    #[test]
    fn below_a_full_path_growth_is_quick_and_at_it_steady_until_it_is_long_ago() {
        assert_eq!(grown(32_000, 7, 64_000), 40_000);
        assert_eq!(grown(56_000, 7, 64_000), 60_000, "not past it");
        assert_eq!(grown(64_000, 7, 64_000), 66_000);
        assert_eq!(grown(64_000, REMEMBERED, 64_000), 80_000, "the path may be quicker by now");
    }

    #[test]
    fn when_the_other_controller_had_a_short_window_for_a_while_no_long_queue_follows() {
        let mut path = Steady::new();
        path.go(250_000, 50);
        // BBR looks for the shortest round trip: three quarters of what the path holds, for 200 ms.
        path.go(93_750, 5);
        let longest = (0..40).map(|_| path.go(250_000, 1)).max().unwrap_or_default();
        assert!(longest <= 8 * MS, "{longest:?}");
        assert!(path.queue.window(250_000) >= 120_000);
    }

    #[test]
    fn the_shortest_round_trip_is_forgotten_when_the_path_has_become_longer() {
        let (mut now, mut queue) = (Instant::now(), ShortQueue::new());
        for round in 0..800_u32 {
            let took = if round < 100 { 20 * MS } else { 80 * MS };
            now += took;
            queue.on_ack(now, now - took, 10_000);
            queue.on_end_acks(now, 100_000, false);
        }
        assert_eq!(queue.window(100_000), 100_000);
    }

    #[test]
    fn without_a_queue_the_other_window_holds() {
        let (mut now, mut queue) = (Instant::now(), ShortQueue::new());
        for inner in [12_000, 24_000, 48_000, 96_000] {
            now += BASE;
            queue.on_ack(now, now - BASE, 1_200);
            queue.on_end_acks(now, inner, false);
            assert_eq!(queue.window(inner), inner, "it grows as it did");
        }
    }
}
