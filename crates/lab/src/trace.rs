//! Recorded capacity of a link, in mahimahi's format.

use std::path::Path;
use std::time::Duration;

use crate::{Error, Rate, Result};

/// Bytes that one line of a trace lets through.
pub(crate) const BYTES_PER_CHANCE: usize = 1500;

/// A recording of what a link could carry: each line is the millisecond of one chance to send 1500 bytes.
/// After its last line the trace starts again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Milliseconds of the chances, ascending.
    chances: Vec<u64>,
}

impl Trace {
    /// Reads a trace file.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text =
            std::fs::read_to_string(path).map_err(|source| Error::TraceFile { path: path.into(), source })?;
        Self::parse(&text)
    }

    /// Reads a trace from text, one millisecond a line.
    pub fn parse(text: &str) -> Result<Self> {
        let mut chances = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let chance =
                line.trim().parse().map_err(|_| format_error(format!("line {} is `{line}`", number + 1)))?;
            chances.push(chance);
        }
        Self::from_millis(chances)
    }

    /// Makes a trace from the milliseconds of its chances.
    pub fn from_millis(chances: Vec<u64>) -> Result<Self> {
        if chances.last().is_none_or(|&last| last == 0) {
            return Err(format_error("it must last at least a millisecond".into()));
        }
        if !chances.is_sorted() {
            return Err(format_error("its lines are not ascending".into()));
        }
        Ok(Self { chances })
    }

    /// The same recording from the first chance behind `offset` on: what came before follows at its end. An
    /// offset beyond its end counts on through the repetitions.
    pub fn starting_at(&self, offset: Duration) -> Self {
        let offset = offset.as_millis() as u64 % self.period_ms();
        // A round ends with a chance, as this one has to.
        let before = self.chances.partition_point(|&chance| chance <= offset);
        let Some(&start) = self.chances[..before].last() else { return self.clone() };
        let behind = self.chances[before..].iter().map(|chance| chance - start);
        let first = self.chances[..before].iter().map(|chance| chance + self.period_ms() - start);
        Self { chances: behind.chain(first).collect() }
    }

    /// How long the trace runs before it repeats.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms())
    }

    /// The rate over the whole trace.
    pub fn mean_rate(&self) -> Rate {
        let bits = (self.chances.len() * BYTES_PER_CHANCE * 8) as u64;
        Rate::bit((bits * 1000 / self.period_ms()).max(1))
    }

    fn period_ms(&self) -> u64 {
        self.chances.last().copied().unwrap_or(1)
    }

    /// The number of the first chance at or after `since_start`, counting on through the repetitions.
    pub(crate) fn first_chance_from(&self, since_start: Duration) -> u64 {
        let millis = since_start.as_nanos().div_ceil(1_000_000) as u64;
        let (rounds, rest) = (millis / self.period_ms(), millis % self.period_ms());
        // Chances at a round's very end fall on millisecond 0 of the next one and come before its own.
        let previous_end = self.chances.partition_point(|&chance| chance < self.period_ms());
        if rest == 0 && rounds > 0 {
            return (rounds - 1) * self.chances.len() as u64 + previous_end as u64;
        }
        rounds * self.chances.len() as u64 + self.chances.partition_point(|&chance| chance < rest) as u64
    }

    /// When the chance of that number comes, counted from the trace's start.
    pub(crate) fn time_of_chance(&self, number: u64) -> Duration {
        let (round, index) = (number / self.chances.len() as u64, number % self.chances.len() as u64);
        Duration::from_millis(round * self.period_ms() + self.chances[index as usize])
    }
}

fn format_error(reason: String) -> Error {
    Error::TraceFormat { reason }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn chances_repeat_after_the_last_line() {
        let trace = Trace::parse("2\n2\n5\n10\n").unwrap();
        let times: Vec<_> = (0..6).map(|n| trace.time_of_chance(n)).collect();
        assert_eq!(times, [ms(2), ms(2), ms(5), ms(10), ms(12), ms(12)]);
        assert_eq!(trace.mean_rate(), Rate::kbit(4800));
    }

    #[test]
    fn the_first_chance_is_never_before_the_asked_time() {
        let trace = Trace::from_millis(vec![0, 2, 2, 5, 10, 10]).unwrap();
        for micros in (0..45_000).step_by(250) {
            let asked = Duration::from_micros(micros);
            let number = trace.first_chance_from(asked);
            assert!(trace.time_of_chance(number) >= asked);
            assert!(number == 0 || trace.time_of_chance(number - 1) < asked, "skipped one at {asked:?}");
        }
    }

    #[test]
    fn it_starts_in_the_middle_and_goes_on_as_before() {
        let trace = Trace::from_millis(vec![2, 2, 5, 10, 10]).unwrap();
        let starting = |millis| trace.starting_at(ms(millis));
        assert_eq!(starting(0), trace, "nothing came before");
        assert_eq!(starting(2).chances, [3, 8, 8, 10, 10]);
        assert_eq!(starting(4), starting(2), "from the chance before on");
        assert_eq!(starting(5).chances, [5, 5, 7, 7, 10]);
        assert_eq!(starting(10), trace, "its end is its start");
        assert_eq!(starting(25), starting(5));
        assert_eq!(starting(5).mean_rate(), trace.mean_rate());
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "0\n0\n", "5\n3\n", "1\nx\n", "-1\n"] {
            assert!(Trace::parse(text).is_err(), "{text:?}");
        }
    }
}
