//! The bytes that a relay passes on: how many there were, and how many of a reservation may pass now.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use whimbrel_base::RelayToken;

use crate::limits::Limits;
use crate::rates::{Rate, Rates};

/// What passes at once in any case: less would cost the line more than it spares.
const LEAST_BURST: f64 = (256 * 1024) as f64;
/// The longest pause. Whether it is over is looked at again then.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How much of the relay's line each reservation may take, over TCP and QUIC together.
#[derive(Clone, Debug)]
pub(crate) struct Line(Option<Arc<Mutex<Rates<RelayToken>>>>);

impl Line {
    /// As the limits say.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self(limits.bytes_per_second.map(|bytes| {
            let per_second = bytes.max(1.0);
            Arc::new(Mutex::new(Rates::new(Rate { per_second, burst: per_second.max(LEAST_BURST) })))
        }))
    }

    /// How long nothing of a reservation may pass. `None` if something may.
    pub(crate) fn pause(&self, token: RelayToken, now: Instant) -> Option<Duration> {
        let wait = lock(self.0.as_ref()?).wait(token, now);
        (!wait.is_zero()).then(|| wait.clamp(Duration::from_millis(1), LONGEST_PAUSE))
    }

    /// Bytes of a reservation have passed.
    pub(crate) fn passed(&self, token: RelayToken, bytes: usize, now: Instant) {
        if let Some(rates) = &self.0 {
            lock(rates).owe(token, bytes as f64, now);
        }
    }

    /// Whether a datagram of a reservation may pass. Then it is counted.
    pub(crate) fn takes(&self, token: RelayToken, bytes: usize, now: Instant) -> bool {
        let Some(rates) = &self.0 else { return true };
        let mut rates = lock(rates);
        let may = rates.wait(token, now).is_zero();
        if may {
            rates.owe(token, bytes as f64, now);
        }
        may
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What passes over TCP.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// Bytes of what is spliced now.
    running: AtomicU64,
    line: Line,
}

impl Traffic {
    pub(crate) fn new(line: Line) -> Self {
        Self { running: AtomicU64::new(0), line }
    }

    /// Bytes of what is spliced now, so far.
    pub(crate) fn running(&self) -> u64 {
        self.running.load(Ordering::Relaxed)
    }

    /// A splice goes on that had passed so many bytes.
    pub(crate) fn begin(&self, bytes: u64) {
        self.running.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A splice has ended after so many bytes.
    pub(crate) fn end(&self, bytes: u64) {
        self.running.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// How long nothing of a reservation may pass.
    pub(crate) fn pause(&self, token: RelayToken) -> Option<Duration> {
        // Without a limit the time is not asked for.
        self.line.0.as_ref()?;
        self.line.pause(token, Instant::now())
    }

    /// Bytes of a reservation have passed.
    pub(crate) fn passed(&self, token: RelayToken, bytes: usize) {
        self.running.fetch_add(bytes as u64, Ordering::Relaxed);
        if self.line.0.is_some() {
            self.line.passed(token, bytes, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: f64 = (1 << 20) as f64;

    fn token(number: u8) -> RelayToken {
        RelayToken::from_bytes([number; 10])
    }

    #[test]
    fn a_reservation_takes_no_more_of_the_line_than_its_share_and_others_do_not_feel_it() {
        let line = Line::new(&Limits { bytes_per_second: Some(RATE), ..Limits::default() });
        let (begin, mut now, mut passed) = (Instant::now(), Instant::now(), 0_u64);
        // One that takes pieces of 64 KiB whenever it may, for a minute.
        while now < begin + Duration::from_secs(60) {
            match line.pause(token(1), now) {
                Some(pause) => now += pause,
                None => {
                    line.passed(token(1), 1 << 16, now);
                    passed += 1 << 16;
                }
            }
        }
        assert!((60 << 20..=62 << 20).contains(&passed), "{passed} bytes in a minute");
        assert!(line.takes(token(2), 1200, now), "another one has its own share");
    }

    #[test]
    fn datagrams_beyond_the_share_are_not_taken_until_there_is_some_again() {
        let line = Line::new(&Limits { bytes_per_second: Some(RATE), ..Limits::default() });
        let now = Instant::now();
        let taken = (0..2000).filter(|_| line.takes(token(1), 1200, now)).count();
        assert_eq!(taken, (1 << 20) / 1200 + 1);
        assert!(!line.takes(token(1), 1200, now));
        assert!(line.takes(token(1), 1200, now + Duration::from_millis(10)));
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let (line, now) = (Line::new(&Limits::default()), Instant::now());
        (0..10).for_each(|_| line.passed(token(1), 1 << 30, now));
        assert_eq!(line.pause(token(1), now), None);
        assert!(line.takes(token(1), 1 << 16, now));
    }
}
