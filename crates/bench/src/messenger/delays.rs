//! How late messages are that are sent at a steady pace, alone or beside bulk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::time::{interval_at, sleep, timeout};

use super::{End, Measure, Places};

/// Of the bulk, before the first message: its queue is full then.
const BULK_FIRST: Duration = Duration::from_millis(2500);
/// Until every path is up that there will be.
const SETTLE: Duration = Duration::from_millis(800);

/// Messages at a steady pace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Letters {
    /// Bytes of each, at least eight.
    pub(crate) size: usize,
    pub(crate) every: Duration,
    pub(crate) count: usize,
    /// Beside a transfer on the same connection.
    pub(crate) bulk: bool,
    /// Those that are not there so long after the last one that is count as lost.
    pub(crate) patience: Duration,
}

/// What came of them.
pub(crate) struct Delays {
    /// Of each that arrived: how long after the moment at which it was to be sent, in milliseconds.
    pub(crate) late: Vec<f64>,
    /// Messages that did not arrive.
    pub(crate) missing: usize,
    /// What the bulk carried beside them, in bits a second.
    pub(crate) bulk: f64,
}

impl Measure for Letters {
    type Found = Delays;

    async fn of<E: End>(self, places: Places, (mut from, mut to): (E, E)) -> Result<Delays> {
        ensure!(self.size >= size_of::<u64>(), "a message has room for a time");
        let arrived = Arc::new(AtomicU64::new(0));
        let mut bulk = Vec::new();
        if self.bulk {
            bulk.push(places.second.spawn(to.beside(arrived.clone())));
            bulk.push(places.first.spawn(from.beside(arrived.clone())));
            sleep(BULK_FIRST).await;
            ensure!(arrived.load(Ordering::Relaxed) > 0, "the bulk does not come");
        }
        sleep(SETTLE).await;
        let (clock, before) = (Instant::now(), arrived.load(Ordering::Relaxed));
        let receiver = places.second.spawn(async move {
            let mut late = Vec::with_capacity(self.count);
            // The first may take as long as all of them.
            let mut patience = self.every * self.count as u32 + self.patience;
            while late.len() < self.count {
                let Ok(letter) = timeout(patience, to.receive()).await else { break };
                let sent = Duration::from_nanos(letter?.stamp);
                late.push(clock.elapsed().saturating_sub(sent).as_secs_f64() * 1000.0);
                patience = self.patience;
            }
            anyhow::Ok(late)
        });
        let sender = places.first.spawn(async move {
            let mut ticks = interval_at((clock + self.every).into(), self.every);
            let mut message = vec![7; self.size];
            for _ in 0..self.count {
                // A sender that is held up is late too.
                let due = ticks.tick().await.into_std();
                let stamp = u64::try_from(due.saturating_duration_since(clock).as_nanos())?;
                message[..size_of::<u64>()].copy_from_slice(&stamp.to_be_bytes());
                from.send(&message).await?;
                from.flush().await?;
            }
            // Its end would end the connection.
            anyhow::Ok(from)
        });
        let late = receiver.await.context("the receiver panicked")??;
        let carried = arrived.load(Ordering::Relaxed) - before;
        let seconds = clock.elapsed().as_secs_f64();
        sender.abort();
        bulk.iter().for_each(tokio::task::JoinHandle::abort);
        let missing = self.count - late.len();
        Ok(Delays { late, missing, bulk: carried as f64 * 8.0 / seconds })
    }
}
