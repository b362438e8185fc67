//! The bytes that a relay passes on: how many there were, and how many of a reservation may pass now.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use whimbrel_base::RelayToken;

use crate::limits::Limits;
use crate::rates::{Rate, Rates};

/// What passes at once in any case: less would cost the line more than it spares.
const LEAST_BURST: f64 = (256 * 1024) as f64;
/// No pause is longer: what all splices of a reservation owe together passes in less.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// The part of a share that datagrams have in any case. They cannot wait as bytes of TCP do, and would hardly find a
/// moment in which these leave something.
const OF_DATAGRAMS: f64 = 0.25;

/// How much of the relay's line each reservation may take, over TCP and QUIC together.
#[derive(Clone, Debug)]
pub(crate) struct Line(Option<Arc<Mutex<Shares>>>);

/// What each reservation may pass now.
#[derive(Debug)]
struct Shares {
    all: Rates<RelayToken>,
    /// What datagrams may pass although others have taken everything. They owe that as well.
    datagrams: Rates<RelayToken>,
}

impl Line {
    /// As the limits say.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self(limits.bytes_per_second.map(|bytes| {
            let of = |part: f64| {
                let per_second = bytes.max(1.0);
                let burst = per_second.max(LEAST_BURST) * part;
                Rates::new(Rate { per_second: per_second * part, burst })
            };
            Arc::new(Mutex::new(Shares { all: of(1.0), datagrams: of(OF_DATAGRAMS) }))
        }))
    }

    /// How long until what a reservation has passed is paid for. `None` if something may pass at once.
    pub(crate) fn pause(&self, token: RelayToken, now: Instant) -> Option<Duration> {
        let wait = lock(self.0.as_ref()?).all.wait(token, now);
        (!wait.is_zero()).then(|| wait.clamp(Duration::from_millis(1), LONGEST_PAUSE))
    }

    /// Bytes of a reservation have passed.
    pub(crate) fn passed(&self, token: RelayToken, bytes: usize, now: Instant) {
        if let Some(shares) = &self.0 {
            lock(shares).all.owe(token, bytes as f64, now);
        }
    }

    /// Whether a datagram of a reservation may pass. Then it is counted.
    pub(crate) fn takes(&self, token: RelayToken, bytes: usize, now: Instant) -> bool {
        let Some(shares) = &self.0 else { return true };
        let Shares { all, datagrams } = &mut *lock(shares);
        if !all.wait(token, now).is_zero() {
            if !datagrams.wait(token, now).is_zero() {
                return false;
            }
            datagrams.owe(token, bytes as f64, now);
        }
        all.owe(token, bytes as f64, now);
        true
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
        assert_eq!(
            taken,
            (1 << 20) / 1200 + 1 + (1 << 18) / 1200 + 1,
            "a second's worth, and what is theirs alone"
        );
        assert!(!line.takes(token(1), 1200, now));
        assert!(line.takes(token(1), 1200, now + Duration::from_millis(10)));
    }

    #[test]
    fn downloads_over_tcp_leave_a_quarter_to_datagrams_and_each_has_its_turn() {
        let line = Line::new(&Limits { bytes_per_second: Some(RATE), ..Limits::default() });
        let begin = Instant::now();
        // Two that take pieces of 64 KiB as splices do, one of which is asked after the other one each time.
        let (mut due, mut passed, mut datagrams) = ([Some(begin); 2], [0_u64; 2], 0_u64);
        for ms in 0..60_000 {
            let now = begin + Duration::from_millis(ms);
            for (due, passed) in due.iter_mut().zip(&mut passed) {
                while due.is_none_or(|due| due <= now) {
                    if due.take().is_none()
                        && let Some(pause) = line.pause(token(1), now)
                    {
                        *due = Some(now + pause);
                        continue;
                    }
                    line.passed(token(1), 1 << 16, now);
                    *passed += 1 << 16;
                }
            }
            datagrams += if line.takes(token(1), 1200, now) { 1200 } else { 0 };
        }
        let all = datagrams + passed.iter().sum::<u64>();
        assert!((60 << 20..=62 << 20).contains(&all), "{all} bytes in a minute");
        assert!((14 << 20..=30 << 20).contains(&datagrams), "{datagrams} of datagrams, {passed:?} of TCP");
        assert!(passed[0].abs_diff(passed[1]) <= 20 << 16, "the burst alone: {passed:?}");
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let (line, now) = (Line::new(&Limits::default()), Instant::now());
        (0..10).for_each(|_| line.passed(token(1), 1 << 30, now));
        assert_eq!(line.pause(token(1), now), None);
        assert!(line.takes(token(1), 1 << 16, now));
    }
}
