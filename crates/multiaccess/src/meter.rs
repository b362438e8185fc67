//! Rates from the counters of an interface.

use std::time::Duration;
use whimbrel_access::{BytesPerSecond, Rates};

/// The time over which the present rate is averaged: short enough that a policy sees what began a moment ago,
/// long enough for a burst and the pause behind it.
const AVERAGED: Duration = Duration::from_millis(500);

/// The time after which a rate that was not seen again counts half, while the path is in use. A path that
/// became slower is believed after a minute or two.
const HALVES: Duration = Duration::from_secs(30);

/// A path that carries less than this share of its best rate is idle: its best rate is then neither refuted
/// nor confirmed, and does not decay.
const IDLE: f64 = 0.02;

/// Packets of at least so many bytes on average come from senders that have more to send: TCP fills segments
/// to the path's MTU, and QUIC datagrams to 1200 bytes at least (RFC 9000, §14). Calls, games, shells and
/// acknowledgements send smaller ones, at a rate that is theirs and not the path's.
const FULL: f64 = 1000.0;

/// A path is full when such packets have come for so long without a pause. What ends before then has been
/// held up by round trips rather than by the path (slow start).
const FILLED: Duration = Duration::from_millis(500);

/// What carries less than this share of the present rate is a pause.
const PAUSE: f64 = 0.25;

/// Turns counters of bytes and packets that are read now and then into the present rate and the best one
/// lately. Only what filled the path tells how much it can carry.
///
/// Pure: the time is whatever clock the caller has.
#[derive(Debug, Clone, Default)]
pub struct Meter {
    last: Option<Reading>,
    /// Bytes and packets per second.
    now: Option<(f64, f64)>,
    /// Since when the path has been filled.
    filled: Option<Duration>,
    best: f64,
}

/// What the counters had.
#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Duration,
    bytes: u64,
    packets: u64,
}

impl Meter {
    /// Nothing is known yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The counters had these values at this time. Counters that went back were begun anew, and say nothing.
    pub fn read(&mut self, at: Duration, bytes: u64, packets: u64) {
        let Some(last) = self.last.replace(Reading { at, bytes, packets }) else { return };
        let elapsed = at.saturating_sub(last.at).as_secs_f64();
        let moved = bytes.checked_sub(last.bytes).zip(packets.checked_sub(last.packets));
        let Some((bytes, packets)) = moved.filter(|_| elapsed > 0.0) else { return };
        let rates = (bytes as f64 / elapsed, packets as f64 / elapsed);
        let weight = 1.0 - (-elapsed / AVERAGED.as_secs_f64()).exp();
        let average = |now: f64, rate: f64| now + (rate - now) * weight;
        let before = self.now.unwrap_or(rates);
        let now = (average(before.0, rates.0), average(before.1, rates.1));
        self.now = Some(now);
        let is_filled = now.0 >= FULL * now.1 && rates.0 > 0.0 && rates.0 >= now.0 * PAUSE;
        self.filled = if is_filled { self.filled.or(Some(at)) } else { None };
        if self.filled.is_some_and(|since| at.saturating_sub(since) >= FILLED) {
            self.tell(now.0, elapsed);
        }
    }

    /// The path was full at this rate.
    fn tell(&mut self, rate: f64, elapsed: f64) {
        if rate > self.best * IDLE {
            self.best *= (-elapsed / HALVES.as_secs_f64()).exp2();
        }
        self.best = self.best.max(rate);
    }

    /// What is known. The best rate is unknown until something has filled the path.
    pub fn rates(&self) -> Rates {
        Rates {
            now: self.now.map(|(bytes, _)| BytesPerSecond(bytes)),
            best: (self.best > 0.0).then_some(BytesPerSecond(self.best)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    /// Counters that grow.
    #[derive(Default)]
    struct Path {
        meter: Meter,
        at: Duration,
        bytes: u64,
        packets: u64,
    }

    impl Path {
        fn new() -> Self {
            let mut path = Self::default();
            path.meter.read(path.at, 0, 0);
            path
        }

        /// Reads the counters every tick while packets of this size come at this rate.
        fn run(&mut self, rate: u64, size: u64, ticks: u32) {
            for _ in 0..ticks {
                self.at += TICK;
                self.bytes += rate / 10;
                self.packets = self.packets.saturating_add(rate / 10 / size);
                self.meter.read(self.at, self.bytes, self.packets);
            }
        }

        fn best(&self) -> Option<f64> {
            self.meter.rates().best.map(|best| best.0)
        }

        fn now(&self) -> f64 {
            self.meter.rates().now.unwrap().0
        }
    }

    fn near(found: Option<f64>, expected: f64) -> bool {
        (found.unwrap() - expected).abs() <= expected * 0.01
    }

    #[test]
    fn a_rate_is_known_within_seconds_and_forgotten_as_fast() {
        let mut path = Path::new();
        assert_eq!(path.meter.rates(), Rates::default());
        path.run(0, 1500, 1);
        assert_eq!(path.meter.rates(), Rates { now: Some(BytesPerSecond(0.0)), best: None });
        path.run(1_000_000, 1500, 25);
        assert!(near(Some(path.now()), 1e6) && near(path.best(), 1e6), "{:?}", path.meter);
        path.run(0, 1500, 50);
        assert!(path.now() < 100.0, "{:?}", path.meter);
    }

    #[test]
    fn the_best_rate_decays_by_use_alone() {
        let mut path = Path::new();
        path.run(1_000_000, 1500, 50);
        let best = path.best().unwrap();
        // An hour without traffic says nothing of what the path can carry.
        path.run(0, 1500, 36_000);
        assert!(path.best().unwrap() > best * 0.99, "{:?}", path.meter);
        // At a tenth of the rate for half a minute, the best counts half.
        let best = path.best().unwrap();
        path.run(100_000, 1250, 306);
        assert!(near(path.best(), best / 2.0), "{:?}", path.meter);
        path.run(100_000, 1250, 3000);
        assert!(near(path.best(), 1e5), "{:?}", path.meter);
    }

    #[test]
    fn what_does_not_fill_a_path_does_not_say_what_it_can_carry() {
        let mut path = Path::new();
        // Keystrokes; a call, at a rate that is the program's; a page whose end comes before the path is full.
        path.run(1000, 50, 600);
        path.run(250_000, 900, 600);
        path.run(500_000, 1500, 4);
        path.run(0, 1500, 20);
        assert_eq!(path.best(), None, "{:?}", path.meter);
        path.run(2_000_000, 1500, 50);
        let best = path.best().unwrap();
        path.run(1000, 50, 600);
        path.run(250_000, 900, 600);
        assert_eq!(path.best(), Some(best));
    }

    #[test]
    fn a_slow_path_that_is_full_is_known_too() {
        let mut path = Path::new();
        path.run(30_000, 1500, 50);
        assert!(near(path.best(), 3e4), "{:?}", path.meter);
    }

    #[test]
    fn counters_that_begin_anew_and_a_clock_that_stands_say_nothing() {
        let mut meter = Meter::new();
        meter.read(Duration::from_secs(1), 1_000_000, 1000);
        meter.read(Duration::from_secs(2), 5, 1);
        meter.read(Duration::from_secs(2), 1_000_000, 1000);
        assert_eq!(meter.rates(), Rates::default());
        meter.read(Duration::from_secs(3), 1_000_100, 1001);
        assert_eq!(meter.rates().now, Some(BytesPerSecond(100.0)));
    }
}
