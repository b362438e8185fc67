//! How fast a path delivers, measured from acknowledgements.

use std::time::{Duration, Instant};

use crate::scheduler::{first_rate, per_second};

/// No window is shorter: acknowledgements come in bunches.
const SHORTEST_WINDOW: Duration = Duration::from_millis(50);
/// After so many windows without a quarter more the path is taken to be full (BBR's rule).
const FLAT_WINDOWS: u8 = 3;

/// The delivery rate: the highest of this window and the one before. Only samples that were taken while the
/// pipe was full may lower it, because others say how much was asked of the path, not how much it could do.
#[derive(Debug, Clone)]
pub(crate) struct Rate {
    current: u64,
    previous: u64,
    since: Instant,
    /// What growth is measured against.
    baseline: u64,
    flat: u8,
    /// This window has a sample of a full pipe.
    full: bool,
}

impl Rate {
    pub(crate) fn new(now: Instant) -> Self {
        Self { current: 0, previous: 0, since: now, baseline: 0, flat: 0, full: false }
    }

    /// Bytes a second; `None` before anything was measured.
    pub(crate) fn get(&self) -> Option<u64> {
        Some(self.current.max(self.previous)).filter(|rate| *rate > 0)
    }

    /// It has not been seen to be flat.
    pub(crate) fn is_growing(&self) -> bool {
        self.flat < FLAT_WINDOWS
    }

    /// `bytes` were delivered over `interval`. `full`: as much was in flight as the path was known to carry.
    pub(crate) fn sample(&mut self, now: Instant, bytes: u64, interval: Duration, full: bool, rtt: Duration) {
        let rate = per_second(bytes, interval.max(Duration::from_micros(100)));
        if full && rate < first_rate(rtt) / 2 {
            // Not even the first window fits.
            self.flat = FLAT_WINDOWS;
        }
        if rate == 0 || (!full && self.get().is_some_and(|known| rate <= known)) {
            return;
        }
        if now.saturating_duration_since(self.since) >= rtt.max(SHORTEST_WINDOW) && self.current > 0 {
            self.turn(now);
        }
        self.current = self.current.max(rate);
        self.full |= full;
    }

    fn turn(&mut self, now: Instant) {
        if self.current >= self.baseline / 4 * 5 {
            self.baseline = self.current;
            self.flat = 0;
        } else if self.full {
            self.flat = self.flat.saturating_add(1);
        }
        self.previous = self.current;
        self.current = 0;
        self.full = false;
        self.since = now;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    fn feed(rate: &mut Rate, from: Instant, windows: u32, bytes: u64, full: bool) -> Instant {
        (0..windows).fold(from, |now, _| {
            rate.sample(now + RTT, bytes, RTT, full, RTT);
            now + RTT
        })
    }

    #[test]
    fn it_follows_a_full_path_up_and_down() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        assert_eq!(rate.get(), None);
        let now = feed(&mut rate, start, 5, 100_000, true);
        assert_eq!(rate.get(), Some(1_000_000));
        assert!(!rate.is_growing());
        feed(&mut rate, now, 3, 20_000, true);
        assert_eq!(rate.get(), Some(200_000));
    }

    #[test]
    fn a_path_that_is_full_below_half_of_the_first_window_has_stopped_growing_at_once() {
        let start = Instant::now();
        let half = first_rate(RTT) / 2;
        for (rate, grows) in [(half - 10, false), (half, true)] {
            let mut measured = Rate::new(start);
            measured.sample(start + RTT, rate / 10, RTT, true, RTT);
            assert_eq!(measured.is_growing(), grows, "{rate} bytes a second");
        }
    }

    #[test]
    fn a_trickle_says_nothing_against_a_path() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        let now = feed(&mut rate, start, 3, 100_000, true);
        feed(&mut rate, now, 100, 500, false);
        assert_eq!(rate.get(), Some(1_000_000));
    }
}
