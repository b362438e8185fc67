//! What arrived when, and what follows from it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Something that the receiving application has read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    pub(crate) bytes: u64,
    /// When it was due to be written, if it is a block that says so.
    pub(crate) written: Option<Instant>,
}

/// Where the receiving application notes what it reads.
#[derive(Debug)]
pub(crate) struct Notes {
    began: Instant,
    arrivals: Mutex<Vec<Arrival>>,
}

impl Notes {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), arrivals: Mutex::default() }
    }

    /// A moment as a block carries it.
    pub(crate) fn stamp(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.began).as_nanos() as u64
    }

    pub(crate) fn arrived(&self, bytes: u64) {
        self.push(Arrival { at: Instant::now(), bytes, written: None });
    }

    pub(crate) fn block_arrived(&self, bytes: u64, stamp: u64) {
        let written = Some(self.began + Duration::from_nanos(stamp));
        self.push(Arrival { at: Instant::now(), bytes, written });
    }

    /// All that was noted since the last call.
    pub(crate) fn take(&self) -> Vec<Arrival> {
        std::mem::take(&mut *self.lock())
    }

    /// Bytes noted since the last call of [`take`](Self::take).
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().iter().map(|arrival| arrival.bytes).sum()
    }

    fn push(&self, arrival: Arrival) {
        self.lock().push(arrival);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Megabits a second in each of `count` bins, of which the first begins at `start`.
pub(crate) fn goodput_bins(arrivals: &[Arrival], start: Instant, bin: Duration, count: usize) -> Vec<f64> {
    let mut bytes = vec![0; count];
    for arrival in arrivals {
        let Some(since) = arrival.at.checked_duration_since(start) else { continue };
        let index = (since.as_nanos() / bin.as_nanos().max(1)) as usize;
        if let Some(bytes) = bytes.get_mut(index) {
            *bytes += arrival.bytes;
        }
    }
    bytes.into_iter().map(|bytes| bytes as f64 * 8.0 / bin.as_secs_f64() / 1e6).collect()
}

/// The longest time between `from` and `to` in which nothing arrived.
pub(crate) fn longest_gap(arrivals: &[Arrival], from: Instant, to: Instant) -> Duration {
    let within = arrivals.iter().map(|arrival| arrival.at).filter(|at| (from..to).contains(at));
    // What arrived last before the time began is where a gap in it began.
    let before = arrivals.iter().map(|arrival| arrival.at).filter(|at| *at < from).max();
    let mut last = before.unwrap_or(from);
    let mut longest = Duration::ZERO;
    for at in within.chain([to]) {
        longest = longest.max(at.saturating_duration_since(last));
        last = at;
    }
    longest
}

/// When that many bytes had arrived, counted from `start`; `None` if they never did.
pub(crate) fn time_to(arrivals: &[Arrival], start: Instant, bytes: u64) -> Option<Duration> {
    let mut sum = 0;
    let enough = arrivals.iter().find(|arrival| {
        sum += arrival.bytes;
        sum >= bytes
    })?;
    Some(enough.at.saturating_duration_since(start))
}

/// When each block was due to be written, and how long it took from then.
pub(crate) fn delays(arrivals: &[Arrival]) -> Vec<(Instant, Duration)> {
    let delay = |arrival: &Arrival| {
        let written = arrival.written?;
        Some((written, arrival.at.saturating_duration_since(written)))
    };
    arrivals.iter().filter_map(delay).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, millis: &[u64]) -> Vec<Arrival> {
        let arrival = |&ms| Arrival { at: start + Duration::from_millis(ms), bytes: 1000, written: None };
        millis.iter().map(arrival).collect()
    }

    #[test]
    fn goodput_is_of_what_arrived_in_each_bin() {
        let start = Instant::now();
        let arrivals = at(start, &[0, 50, 199, 200, 450, 700]);
        let bins = goodput_bins(&arrivals, start, Duration::from_millis(200), 3);
        assert_eq!(bins, [0.12, 0.04, 0.04]);
    }

    #[test]
    fn a_gap_may_begin_before_and_end_with_the_time_looked_at() {
        let start = Instant::now();
        let moment = |ms| start + Duration::from_millis(ms);
        let arrivals = at(start, &[0, 100, 150, 400, 450]);
        let gap = |from, to| longest_gap(&arrivals, moment(from), moment(to)).as_millis();
        assert_eq!(gap(0, 500), 250);
        assert_eq!(gap(160, 420), 250);
        assert_eq!(gap(420, 1000), 550);
        assert_eq!(longest_gap(&[], moment(0), moment(70)).as_millis(), 70);
    }

    #[test]
    fn a_file_has_come_with_its_last_byte() {
        let start = Instant::now();
        let arrivals = at(start, &[10, 20, 30]);
        assert_eq!(time_to(&arrivals, start, 1001), Some(Duration::from_millis(20)));
        assert_eq!(time_to(&arrivals, start, 3001), None);
    }
}
