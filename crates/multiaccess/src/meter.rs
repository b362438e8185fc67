//! Rates from a counter of bytes.

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

/// Turns a counter of bytes that is read now and then into the present rate and the best one lately.
///
/// Pure: the time is whatever clock the caller has.
#[derive(Debug, Clone, Default)]
pub struct Meter {
    last: Option<(Duration, u64)>,
    /// Bytes per second.
    now: Option<f64>,
    best: f64,
}

impl Meter {
    /// Nothing is known yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The counter had this value at this time. A counter that went back was begun anew, and says nothing.
    pub fn read(&mut self, at: Duration, bytes: u64) {
        let last = self.last.replace((at, bytes));
        let Some((before, counted)) = last else { return };
        let elapsed = at.saturating_sub(before).as_secs_f64();
        let Some(moved) = bytes.checked_sub(counted).filter(|_| elapsed > 0.0) else { return };
        let rate = moved as f64 / elapsed;
        let weight = 1.0 - (-elapsed / AVERAGED.as_secs_f64()).exp();
        let now = self.now.map_or(rate, |now| now + (rate - now) * weight);
        self.now = Some(now);
        if now > self.best * IDLE {
            self.best *= (-elapsed / HALVES.as_secs_f64()).exp2();
        }
        self.best = self.best.max(now);
    }

    /// What is known. The best rate is unknown until something has moved.
    pub fn rates(&self) -> Rates {
        Rates {
            now: self.now.map(BytesPerSecond),
            best: (self.best > 0.0).then_some(BytesPerSecond(self.best)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    /// Reads the counter every tick while it grows at this rate.
    fn run(meter: &mut Meter, at: &mut Duration, bytes: &mut u64, rate: u64, ticks: u32) {
        for _ in 0..ticks {
            *at += TICK;
            *bytes += rate / 10;
            meter.read(*at, *bytes);
        }
    }

    fn near(found: Option<BytesPerSecond>, expected: f64) -> bool {
        (found.unwrap().0 - expected).abs() <= expected * 0.01
    }

    #[test]
    fn a_rate_is_known_within_seconds_and_forgotten_as_fast() {
        let (mut meter, mut at, mut bytes) = (Meter::new(), Duration::ZERO, 0);
        meter.read(at, bytes);
        assert_eq!(meter.rates(), Rates::default());
        run(&mut meter, &mut at, &mut bytes, 0, 1);
        assert_eq!(meter.rates(), Rates { now: Some(BytesPerSecond(0.0)), best: None });
        run(&mut meter, &mut at, &mut bytes, 1_000_000, 25);
        assert!(near(meter.rates().now, 1e6) && near(meter.rates().best, 1e6), "{meter:?}");
        run(&mut meter, &mut at, &mut bytes, 0, 50);
        assert!(meter.rates().now.unwrap().0 < 100.0, "{meter:?}");
    }

    #[test]
    fn the_best_rate_decays_by_use_alone() {
        let (mut meter, mut at, mut bytes) = (Meter::new(), Duration::ZERO, 0);
        meter.read(at, bytes);
        run(&mut meter, &mut at, &mut bytes, 1_000_000, 50);
        let best = meter.rates().best.unwrap().0;
        // An hour without traffic says nothing of what the path can carry.
        run(&mut meter, &mut at, &mut bytes, 0, 36_000);
        assert!(meter.rates().best.unwrap().0 > best * 0.9, "{meter:?}");
        // At a tenth of the rate for half a minute, the best counts half.
        let best = meter.rates().best.unwrap().0;
        run(&mut meter, &mut at, &mut bytes, 100_000, 302);
        assert!(near(meter.rates().best, best / 2.0), "{meter:?}");
        run(&mut meter, &mut at, &mut bytes, 100_000, 3000);
        assert!(near(meter.rates().best, 1e5), "{meter:?}");
    }

    #[test]
    fn a_counter_that_begins_anew_and_a_clock_that_stands_say_nothing() {
        let mut meter = Meter::new();
        meter.read(Duration::from_secs(1), 1_000_000);
        meter.read(Duration::from_secs(2), 5);
        meter.read(Duration::from_secs(2), 1_000_000);
        assert_eq!(meter.rates(), Rates::default());
        meter.read(Duration::from_secs(3), 1_000_100);
        assert_eq!(meter.rates().now, Some(BytesPerSecond(100.0)));
    }
}
