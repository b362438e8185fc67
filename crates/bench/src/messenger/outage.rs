//! How long after an outage the first message is there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::watch;
use tokio::time::{interval, sleep, timeout};

use super::{End, Measure, Places};

/// Messages come and go before the outage, so that every timer has its usual length.
const BEFORE: Duration = Duration::from_millis(2500);
const EVERY: Duration = Duration::from_millis(50);
const SIZE: usize = 100;

/// Takes the link away, and gives it back; returns the moment from which it could be used, or not any more.
pub(crate) type Switch = Arc<dyn Fn(bool) -> Result<Instant> + Send + Sync>;

/// An outage while messages are sent.
#[derive(Clone)]
pub(crate) struct Outage {
    pub(crate) link: Switch,
    pub(crate) length: Duration,
    /// How long a message may take after it.
    pub(crate) limit: Duration,
}

impl Measure for Outage {
    type Found = Option<Duration>;

    async fn of<E: End>(self, places: Places, (mut from, mut to): (E, E)) -> Result<Option<Duration>> {
        let (told, mut came) = watch::channel(None::<Instant>);
        let receiver = places.second.spawn(async move {
            while to.receive().await.is_ok() {
                told.send_replace(Some(Instant::now()));
            }
        });
        let sender = places.first.spawn(async move {
            let mut ticks = interval(EVERY);
            while from.send(&[7; SIZE]).await.is_ok() && from.flush().await.is_ok() {
                ticks.tick().await;
            }
        });
        let switch = |on| {
            let link = self.link.clone();
            async move { tokio::task::spawn_blocking(move || link(on)).await.context("a switch panicked")? }
        };
        sleep(BEFORE).await;
        came.borrow().context("no message comes before the outage")?;
        switch(false).await?;
        sleep(self.length).await;
        let usable = switch(true).await?;
        let first = came.wait_for(|at| at.is_some_and(|at| at > usable));
        let first = match timeout(self.limit, first).await {
            Ok(Ok(at)) => (*at).map(|at| at - usable),
            // The connection did not outlive it, or is silent.
            Ok(Err(_)) | Err(_) => None,
        };
        sender.abort();
        receiver.abort();
        Ok(first)
    }
}
