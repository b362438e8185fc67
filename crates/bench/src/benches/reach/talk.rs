//! What servers say: the time, every few milliseconds; or as much as there is room for.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::system::{Channel, Handler};

const EVERY: Duration = Duration::from_millis(2);
const PIECE: usize = 64 * 1024;

/// The time, on a clock that all hosts of the lab share.
pub(super) fn nanos() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    u64::try_from(BEGAN.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Says the time on each channel, from its first byte on.
pub(super) fn speaker() -> Handler {
    Arc::new(|channel| {
        Box::pin(async move {
            // The client's end shows what went wrong.
            let _ = speak(channel).await;
        })
    })
}

/// Sends as much as there is room for on each channel, from its first byte on.
pub(super) fn pourer() -> Handler {
    Arc::new(|channel| {
        Box::pin(async move {
            // The client takes as much as it wants, and ends it.
            let _ = pour(channel).await;
        })
    })
}

async fn pour(mut channel: Channel) -> io::Result<()> {
    channel.read_u8().await?;
    let piece = vec![7; PIECE];
    loop {
        channel.write_all(&piece).await?;
    }
}

async fn speak(mut channel: Channel) -> io::Result<()> {
    channel.read_u8().await?;
    loop {
        channel.write_u64(nanos()).await?;
        channel.flush().await?;
        tokio::time::sleep(EVERY).await;
    }
}

/// Begins to listen, and waits for the first word.
pub(super) async fn begin(channel: &mut Channel) -> io::Result<()> {
    channel.write_u8(0).await?;
    channel.flush().await?;
    channel.read_u64().await.map(drop)
}

/// Waits for a word that was written at `since` or later; returns when it was heard.
pub(super) async fn first_since(channel: &mut Channel, since: u64) -> io::Result<Instant> {
    loop {
        if channel.read_u64().await? >= since {
            return Ok(Instant::now());
        }
    }
}
