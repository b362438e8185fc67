//! How fast files are sent.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Keeps all files together within a rate.
#[derive(Clone)]
pub(crate) struct Pace {
    rate: Option<u64>,
    start: Instant,
    sent: Arc<Mutex<u64>>,
}

impl Pace {
    /// At most so many bytes a second.
    pub(crate) fn new(rate: Option<u64>) -> Self {
        Self { rate, start: Instant::now(), sent: Arc::default() }
    }

    /// So many bytes have left: waits until more may. Once it was begun they count, also if this is dropped.
    pub(super) async fn sent(&self, bytes: usize) {
        let Some(rate) = self.rate else { return };
        let due = {
            let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
            *sent += bytes as u64;
            Duration::from_secs_f64(*sent as f64 / rate as f64)
        };
        let early = due.saturating_sub(self.start.elapsed());
        // Even the shortest sleep lasts until the clock's next tick.
        if !early.is_zero() {
            tokio::time::sleep(early).await;
        }
    }
}
