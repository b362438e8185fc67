//! How much came through a relay, and what it cost the relay.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::report::Trial;
use crate::sys;

/// How fast bytes came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Carried {
    bytes: u64,
    took: Duration,
    /// Processor time of the relay's process.
    used: Duration,
}

impl Carried {
    /// A trial with what is measured.
    pub(super) fn noted(self, trial: Trial) -> Trial {
        let gbit = self.bytes as f64 * 8.0 / 1e9;
        // The kernel counts in ticks of 10 ms.
        let used = self.used.max(Duration::from_millis(10));
        trial.with("rate", gbit / self.took.as_secs_f64()).with("carried", gbit / used.as_secs_f64())
    }
}

/// Measures what a relay carries.
pub(super) struct Meter {
    relay: u32,
    began: Instant,
    before: u64,
    used: Duration,
}

impl Meter {
    /// Begins to measure the relay with this process id. What comes through it is counted there.
    pub(super) fn start(relay: u32, counted: &AtomicU64) -> Result<Self> {
        let used = sys::cpu_time_of(relay)?;
        Ok(Self { relay, began: Instant::now(), before: counted.load(Ordering::Relaxed), used })
    }

    /// What was carried since then.
    pub(super) fn stop(self, counted: &AtomicU64) -> Result<Carried> {
        let bytes = counted.load(Ordering::Relaxed) - self.before;
        let took = self.began.elapsed();
        Ok(Carried { bytes, took, used: sys::cpu_time_of(self.relay)?.saturating_sub(self.used) })
    }
}
