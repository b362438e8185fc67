//! Recorded rates: each line of a trace is the millisecond of one chance to send 1500 bytes; the trace
//! repeats.

use std::path::Path;

/// What one line lets pass.
const CHANCE: f64 = 1500.0;
/// The rate is constant within so many milliseconds.
const BIN_MS: u64 = 50;
/// Longer traces are refused: one day.
const MAX_MS: u64 = 86_400_000;

/// A rate that changes with time.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Bytes per second in each bin.
    rates: Vec<f64>,
}

/// Why a trace can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It can't be read.
    #[error("{file}: {error}")]
    Read {
        /// The file.
        file: String,
        /// Why.
        error: std::io::Error,
    },
    /// A line is wrong.
    #[error("{file}: line {line}: `{text}` is not a time in milliseconds up to one day, in rising order")]
    Line {
        /// The file.
        file: String,
        /// Its number, from 1.
        line: usize,
        /// What it says.
        text: String,
    },
    /// There is nothing in it.
    #[error("{0}: a trace needs at least one line with a time above 0")]
    Empty(String),
}

impl Trace {
    /// # Errors
    /// [`TraceError`] if the file can't be read or a line is not a time.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let file = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|error| TraceError::Read { file: file.clone(), error })?;
        Self::parse(&file, &text)
    }

    /// # Errors
    /// [`TraceError`] if a line is not a time.
    pub fn parse(name: &str, text: &str) -> Result<Self, TraceError> {
        let mut chances: Vec<u32> = Vec::new();
        let mut last = 0;
        for (number, line) in text.lines().enumerate() {
            let wrong = || TraceError::Line {
                file: name.to_owned(),
                line: number + 1,
                text: line.chars().take(40).collect(),
            };
            let millis: u64 = line.trim().parse().map_err(|_| wrong())?;
            if millis < last || millis > MAX_MS {
                return Err(wrong());
            }
            last = millis;
            let bin = (millis / BIN_MS) as usize;
            if chances.len() <= bin {
                chances.resize(bin + 1, 0);
            }
            chances[bin] += 1;
        }
        if last == 0 {
            return Err(TraceError::Empty(name.to_owned()));
        }
        let seconds = BIN_MS as f64 / 1000.0;
        Ok(Self { rates: chances.iter().map(|count| f64::from(*count) * CHANCE / seconds).collect() })
    }

    /// Bytes per second at a time, and when the rate may change next.
    pub(super) fn rate_at(&self, seconds: f64) -> (f64, f64) {
        let bin_seconds = BIN_MS as f64 / 1000.0;
        // Rounding must not keep the clock in the bin that just ended.
        let bin = (seconds / bin_seconds + 1e-9) as u64;
        (self.rates[(bin % self.rates.len() as u64) as usize], (bin + 1) as f64 * bin_seconds)
    }

    /// The mean over the whole trace in bytes per second.
    pub fn mean_rate(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len() as f64
    }
}
