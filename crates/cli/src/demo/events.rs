//! The four events, one after the other, while the download runs.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tokio::sync::watch;

use super::client::Seen;
use super::stage::Stage;
use super::{Outcome, millis};

/// Nothing came for so long: what was on its way has arrived, and what comes next is new.
const QUIET: Duration = Duration::from_millis(150);
/// So long without an address, if the event does not say otherwise.
const GAP: Duration = Duration::from_millis(300);
/// An event that needs longer did not recover.
const LIMIT: Duration = Duration::from_secs(10);
/// What was sent again is counted so long after the recovery.
const SETTLE: Duration = Duration::from_millis(300);

/// Who moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) name: &'static str,
    client: bool,
    server: bool,
    away: Duration,
    /// When it happens, in percent of the download.
    at: u64,
}

pub(crate) const EVENTS: [Event; 4] = [
    Event { name: "the client moves", client: true, server: false, away: GAP, at: 15 },
    Event { name: "the server moves", client: false, server: true, away: GAP, at: 35 },
    Event { name: "both move at once", client: true, server: true, away: GAP, at: 55 },
    Event {
        name: "the client is away for 5 s",
        client: true,
        server: false,
        away: Duration::from_secs(5),
        at: 75,
    },
];

/// Waits for the event's moment, lets it happen, and measures.
pub(crate) async fn happen(
    event: &Event,
    stage: &mut Stage,
    seen: &mut watch::Receiver<Seen>,
    size: u64,
) -> Result<Outcome> {
    if seen.wait_for(|seen| seen.bytes >= size / 100 * event.at).await.is_err() {
        bail!("the download ended before {}", event.name);
    }
    let resent_before = stage.count().await?.resent;
    let left = Instant::now();
    let leave = async {
        if event.client {
            stage.client.leave().await?;
        }
        if event.server {
            stage.server.leave().await?;
        }
        anyhow::Ok(())
    };
    leave.await?;
    quiet(seen).await;
    tokio::time::sleep(event.away.saturating_sub(left.elapsed())).await;
    let before = *seen.borrow_and_update();

    // The measured time includes the way of this order to the command, some tenths of a millisecond.
    let usable = Instant::now();
    let (client, server) = (&mut stage.client, &mut stage.server);
    let arrive_client = async { if event.client { client.arrive().await } else { Ok(()) } };
    let arrive_server = async { if event.server { server.arrive().await } else { Ok(()) } };
    let arrivals = async { tokio::try_join!(arrive_client, arrive_server) };
    let news = tokio::time::timeout(LIMIT, seen.wait_for(|seen| seen.bytes > before.bytes));
    let (arrived, news) = tokio::join!(arrivals, news);
    arrived?;
    let Ok(Ok(first)) = news.map(|news| news.map(|first| *first)) else {
        return Ok(Outcome { event: event.name, recovery_ms: None, silence_ms: None, bytes_resent: 0 });
    };
    tokio::time::sleep(SETTLE).await;
    Ok(Outcome {
        event: event.name,
        recovery_ms: Some(millis(first.at.duration_since(usable))),
        silence_ms: Some(millis(first.at.duration_since(before.at))),
        bytes_resent: stage.count().await?.resent.saturating_sub(resent_before),
    })
}

/// Waits until nothing has come for a while.
async fn quiet(seen: &mut watch::Receiver<Seen>) {
    let wait = async {
        while let Ok(changed) = tokio::time::timeout(QUIET, seen.changed()).await {
            if changed.is_err() {
                return;
            }
        }
    };
    // If it does not become quiet, the event does nothing: that is found out when it is measured.
    let _ = tokio::time::timeout(LIMIT, wait).await;
}
