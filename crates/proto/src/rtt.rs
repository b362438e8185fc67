//! Round-trip estimation (RFC 6298 smoothing, RFC 9002 handling of the acknowledgement delay).

use std::time::{Duration, Instant};

use crate::timeouts::Silence;

/// So many measurements bring down the doubt of the first.
const ENOUGH: u8 = 8;

/// Used until something was measured.
const INITIAL: Duration = Duration::from_millis(333);

#[derive(Debug, Clone)]
pub(crate) struct Rtt {
    smoothed: Duration,
    variation: Duration,
    min: Duration,
    /// How often it was measured, up to what is enough.
    samples: u8,
}

impl Rtt {
    /// `hint` is what opening the carrier took, when known.
    pub(crate) fn new(hint: Option<Duration>) -> Self {
        let smoothed = hint.unwrap_or(INITIAL);
        Self { smoothed, variation: smoothed / 2, min: smoothed, samples: 0 }
    }

    pub(crate) fn sample(&mut self, elapsed: Duration, ack_delay: Duration) {
        let sample = elapsed.checked_sub(ack_delay).filter(|s| *s >= self.min).unwrap_or(elapsed);
        self.samples = (self.samples + 1).min(ENOUGH);
        if self.samples == 1 {
            self.min = elapsed;
            self.smoothed = sample;
            self.variation = sample / 2;
            return;
        }
        self.min = self.min.min(elapsed);
        let difference = self.smoothed.abs_diff(sample);
        self.variation = (self.variation * 3 + difference) / 4;
        self.smoothed = (self.smoothed * 7 + sample) / 8;
    }

    pub(crate) fn smoothed(&self) -> Duration {
        self.smoothed
    }

    /// Whether it was measured so often that its variation says something.
    pub(crate) fn is_settled(&self) -> bool {
        self.samples == ENOUGH
    }

    pub(crate) fn variation(&self) -> Duration {
        self.variation
    }

    pub(crate) fn min(&self) -> Duration {
        self.min
    }

    /// No progress for this long makes a path suspect: 2·srtt + 4·rttvar + ack delay, within limits. The
    /// upper one is there because a sample taken over a stall must not blind us to the next.
    pub(crate) fn suspect_after(&self, silence: Silence) -> Duration {
        let Silence { ack_delay, least, most } = silence;
        (self.smoothed * 2 + self.variation * 4 + ack_delay).clamp(least, most)
    }
}

/// So long the shortest round trip counts, and once more: paths change.
const LOWEST_WINDOW: Duration = Duration::from_secs(10);

/// The shortest round trip of late, acknowledgement delay taken out: the way without its queues.
#[derive(Debug, Clone)]
pub(crate) struct Lowest {
    current: Option<Duration>,
    previous: Duration,
    since: Instant,
}

impl Lowest {
    pub(crate) fn new(hint: Option<Duration>, now: Instant) -> Self {
        Self { current: None, previous: hint.unwrap_or(INITIAL), since: now }
    }

    pub(crate) fn sample(&mut self, now: Instant, elapsed: Duration, ack_delay: Duration) {
        let sample = elapsed.saturating_sub(ack_delay);
        match self.current {
            // What was only hinted at gives way to the first measurement.
            None => self.previous = sample,
            Some(current) if now.saturating_duration_since(self.since) >= LOWEST_WINDOW => {
                self.previous = current;
                self.since = now;
                self.current = Some(sample);
                return;
            }
            Some(_) => {}
        }
        self.current = Some(self.current.map_or(sample, |current| current.min(sample)));
    }

    pub(crate) fn get(&self) -> Duration {
        self.current.map_or(self.previous, |current| current.min(self.previous))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeouts::Timeouts;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_steady_path_converges_and_the_ack_delay_is_taken_out() {
        let mut rtt = Rtt::new(None);
        for _ in 0..50 {
            rtt.sample(ms(60), ms(0));
            rtt.sample(ms(85), ms(25));
        }
        assert!(rtt.smoothed().abs_diff(ms(60)) < ms(1));
        assert!(rtt.is_settled() && rtt.suspect_after(Timeouts::default().silence(ms(25))) < ms(155));
    }

    #[test]
    fn a_sample_over_a_stall_does_not_put_suspicion_off_for_minutes() {
        let mut rtt = Rtt::new(None);
        rtt.sample(Duration::from_secs(40), ms(0));
        assert_eq!(rtt.suspect_after(Timeouts::default().silence(ms(25))), Duration::from_secs(10));
    }

    #[test]
    fn the_shortest_round_trip_is_forgotten_when_the_path_has_changed() {
        let start = Instant::now();
        let mut lowest = Lowest::new(Some(ms(300)), start);
        let mut feed = |from: u64, rtt: u64| {
            (0..30).for_each(|i| lowest.sample(start + ms((from + i) * 1000), ms(rtt + i), ms(0)));
            lowest.get()
        };
        assert_eq!(feed(0, 20), ms(30));
        assert!(feed(30, 200) >= ms(200));
    }

    #[test]
    fn a_fast_path_is_not_suspected_within_the_floor() {
        let mut rtt = Rtt::new(Some(ms(1)));
        rtt.sample(Duration::from_micros(50), ms(0));
        assert_eq!(rtt.suspect_after(Timeouts::default().silence(ms(25))), ms(100));
    }
}
