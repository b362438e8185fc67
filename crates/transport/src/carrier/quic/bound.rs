//! The most that may be in flight on a path that is full. quinn's BBR takes the distance of two
//! acknowledgements for a rate, and those that come together for gigabytes a second: its window then grows to
//! many times what the path holds, all of which waits in queues on the way. Whole round trips tell what the
//! path delivers.

use std::time::{Duration, Instant};

use super::rate::rate;
use super::shortest::Shortest;

/// What the path delivered at best in so many round trips counts, as in
/// draft-cardwell-iccrg-bbr-congestion-control §2.10.
const ROUNDS: usize = 10;
/// As much may be in flight as the path holds, and once more (§2.7 there), so that acknowledgements that come
/// late do not hold the sender up.
const GAIN: u32 = 2;
/// And this much longer: hosts are not served for milliseconds, and on a short path that is many round trips.
const SLACK: Duration = Duration::from_millis(10);
/// A path that became longer may still hold this part of what it delivers within its present round trip,
/// until the shorter one is forgotten. Less than all of it, so that a queue that is one's own shrinks.
const LONGER_PERCENT: u32 = 90;

/// What is delivered between a packet that is sent and its acknowledgement.
#[derive(Debug, Clone, Copy)]
struct Round {
    since: Instant,
    /// When the first packet was sent that is acknowledged in it.
    first_sent: Instant,
    acked: u64,
    shortest: Duration,
    /// Something else than the window held the sender up.
    app_limited: bool,
}

impl Round {
    fn at(since: Instant, first_sent: Instant) -> Self {
        Self { since, first_sent, acked: 0, shortest: Duration::MAX, app_limited: false }
    }
}

/// Bounds another controller's window.
#[derive(Debug, Clone)]
pub(super) struct Bound {
    least: u64,
    shortest: Option<Shortest>,
    round: Option<Round>,
    /// Bytes a second of the last rounds, in a ring.
    rates: [u64; ROUNDS],
    next: usize,
    /// The shortest round trips of the last two rounds: that of one in which the host was not served is long.
    present: [Duration; 2],
}

impl Bound {
    /// Of a path that may always hold `least` bytes.
    pub(super) fn new(least: u64) -> Self {
        Self { least, shortest: None, round: None, rates: [0; ROUNDS], next: 0, present: [Duration::ZERO; 2] }
    }

    /// A packet of `bytes` was acknowledged that was sent at `sent`.
    pub(super) fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool) {
        let took = now.saturating_duration_since(sent);
        self.shortest.get_or_insert(Shortest::new(now, took)).saw(now, took);
        let mut round = *self.round.get_or_insert(Round::at(now, sent));
        if sent >= round.since && now > round.since {
            self.end(now, sent, round);
            round = Round::at(now, sent);
        }
        round.acked += bytes;
        round.shortest = round.shortest.min(took);
        round.app_limited |= app_limited;
        self.round = Some(round);
    }

    /// A packet was acknowledged that was sent at `sent`, within the round.
    fn end(&mut self, now: Instant, sent: Instant, round: Round) {
        // A host that was not served finds the acknowledgements of a whole window at once, and takes them for
        // a multiple of the rate, from which the next window is made. They were not sent at once, and
        // draft-cheng-iccrg-delivery-rate-estimation goes by the longer of both times. Half of the time for
        // sending here, since quinn's pacing sends no quicker than this window tells: a host that is often
        // not served would see ever less.
        let (acking, sending) = (now - round.since, sent - round.first_sent);
        let rate = rate(round.acked, acking.max(sending / 2));
        self.present = [round.shortest.min(now - sent), self.present[0]];
        // A sender with little to send shows what the path can do only if that is more than was known.
        if !round.app_limited || rate > self.best() {
            self.rates[self.next] = rate;
            self.next = (self.next + 1) % ROUNDS;
        }
    }

    /// Bytes a second.
    fn best(&self) -> u64 {
        self.rates.iter().copied().max().unwrap_or(0)
    }

    /// The window, given that of the other controller.
    pub(super) fn window(&self, inner: u64) -> u64 {
        let (Some(shortest), best @ 1..) = (self.shortest, self.best()) else { return inner };
        let present = self.present[0].min(self.present[1]);
        let time = (shortest.get() * GAIN + SLACK).max(present * LONGER_PERCENT / 100);
        let holds = u128::from(best) * time.as_nanos() / 1_000_000_000;
        inner.min(u64::try_from(holds).unwrap_or(u64::MAX).max(self.least))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INITIAL: u64 = 12_000;
    const PACKET: u64 = 1_200;
    const MS: Duration = Duration::from_millis(1);
    const ENDLESS: u64 = u64::MAX;

    /// A path that delivers packets in order at a rate, whatever waits, and acknowledges them in bursts. What
    /// the window allows is in flight at any time.
    struct Path {
        now: Instant,
        rate: u64,
        round_trip: Duration,
        /// When the last byte that was sent is through.
        busy_until: Instant,
        in_flight: Vec<(Instant, Instant)>,
        bound: Bound,
    }

    impl Path {
        fn new(rate: u64, round_trip: Duration) -> Self {
            let now = Instant::now();
            let bound = Bound::new(INITIAL);
            Self { now, rate, round_trip, busy_until: now, in_flight: Vec::new(), bound }
        }

        /// Goes on for a while; acknowledgements are looked at each `burst`. Returns the bytes that were
        /// delivered, and the longest wait in the queue in the last part of it.
        fn run(&mut self, time: Duration, burst: Duration, inner: u64) -> (u64, Duration) {
            let (end, mut delivered, mut wait) = (self.now + time, 0, Duration::ZERO);
            let late = self.now + time / 2;
            while self.now < end {
                while (self.in_flight.len() as u64 + 1) * PACKET <= self.bound.window(inner).min(4 << 20) {
                    let through = Duration::from_nanos(PACKET * 1_000_000_000 / self.rate);
                    self.busy_until = self.busy_until.max(self.now) + through;
                    self.in_flight.push((self.now, self.busy_until + self.round_trip));
                }
                if self.now >= late {
                    wait = wait.max(self.busy_until - self.now);
                }
                self.now += burst;
                let here = self.in_flight.partition_point(|(_, arrives)| *arrives <= self.now);
                for (sent, _) in self.in_flight.drain(..here) {
                    self.bound.on_ack(self.now, sent, PACKET, false);
                    delivered += PACKET;
                }
            }
            (delivered, wait)
        }
    }

    #[test]
    fn whatever_the_other_controller_allows_no_more_than_a_round_trip_waits_and_the_path_is_full() {
        for (rate, round_trip) in [(12_500_000, 24 * MS), (625_000, 50 * MS), (2_500_000, 200 * MS)] {
            let mut path = Path::new(rate, round_trip);
            path.run(4 * round_trip, 5 * MS, INITIAL);
            let (_, wait) = path.run(40 * round_trip, 5 * MS, ENDLESS);
            assert!(wait <= (round_trip + SLACK) * 5 / 4, "{rate}: {wait:?}");
            let (delivered, _) = path.run(Duration::from_secs(10), 5 * MS, ENDLESS);
            assert!(delivered >= rate * 99 / 10, "{rate}: {delivered}");
        }
    }

    #[test]
    fn a_short_path_whose_host_is_not_served_for_a_while_stays_full() {
        let mut path = Path::new(100_000_000, MS / 10);
        path.run(Duration::from_secs(1), 8 * MS, ENDLESS);
        let (delivered, _) = path.run(Duration::from_secs(1), 8 * MS, ENDLESS);
        assert!(delivered >= 95_000_000, "{delivered}");
    }

    /// All that was in flight is acknowledged at once then, however long it took to be sent.
    #[test]
    fn a_host_that_is_not_served_for_a_while_does_not_take_a_burst_for_what_the_path_delivers() {
        let (rate, round_trip) = (12_500_000, 24 * MS);
        let mut path = Path::new(rate, round_trip);
        path.run(4 * round_trip, 5 * MS, INITIAL);
        let (_, undisturbed) = path.run(Duration::from_secs(2), 5 * MS, ENDLESS);
        for _ in 0..10 {
            path.run(200 * MS, 200 * MS, ENDLESS);
            let (_, wait) = path.run(200 * MS, 5 * MS, ENDLESS);
            assert!(wait <= undisturbed * 5 / 4, "{wait:?} after {undisturbed:?}");
        }
    }

    #[test]
    fn a_path_that_becomes_four_times_as_long_or_quick_is_full_again() {
        let mut path = Path::new(2_500_000, 50 * MS);
        path.run(100 * MS, MS, INITIAL);
        path.run(Duration::from_secs(2), MS, ENDLESS);
        path.round_trip = 200 * MS;
        let (delivered, _) = path.run(Duration::from_secs(10), MS, ENDLESS);
        assert!(delivered >= 2_500_000 * 6, "until the shorter round trip is forgotten: {delivered}");
        path.run(Duration::from_secs(15), MS, ENDLESS);
        let (delivered, _) = path.run(Duration::from_secs(10), MS, ENDLESS);
        assert!(delivered >= 2_500_000 * 98 / 10, "{delivered}");
        path.rate = 10_000_000;
        path.run(Duration::from_secs(5), MS, ENDLESS);
        let (delivered, _) = path.run(Duration::from_secs(10), MS, ENDLESS);
        assert!(delivered >= 10_000_000 * 98 / 10, "{delivered}");
    }

    #[test]
    fn one_that_has_little_to_send_for_a_while_is_not_held_up_by_it() {
        let mut path = Path::new(2_500_000, 50 * MS);
        path.run(Duration::from_secs(2), MS, ENDLESS);
        let before = path.bound.window(ENDLESS);
        for _ in 0..100 {
            path.now += 50 * MS;
            path.bound.on_ack(path.now, path.now - 50 * MS, PACKET, true);
        }
        assert!(path.bound.window(ENDLESS) >= before * 9 / 10);
    }

    #[test]
    fn a_smaller_window_of_the_other_controller_holds() {
        let mut path = Path::new(2_500_000, 50 * MS);
        path.run(Duration::from_secs(2), MS, ENDLESS);
        assert_eq!(path.bound.window(4_800), 4_800);
        assert_eq!(Bound::new(INITIAL).window(ENDLESS), ENDLESS, "nothing is known yet");
    }
}
