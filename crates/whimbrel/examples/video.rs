//! Key and delta frames, as of a video: when the link falls behind, a key frame takes the place of all that
//! wait.
//!
//! ```sh
//! cargo run --example video             # prints a ticket
//! cargo run --example video -- TICKET   # on another machine, or in another window
//! ```

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use whimbrel::{Allow, Class, Endpoint, FlowOptions, ListenOptions, SendOptions, Tag};

const KEY: Tag = Tag(1);
const DELTA: Tag = Tag(2);
/// Thirty frames a second, and a key frame each second.
const PAUSE: Duration = Duration::from_nanos(1_000_000_000 / 30);

#[tokio::main]
async fn main() -> Result<()> {
    let endpoint = Endpoint::builder().bind().await?;
    match std::env::args().nth(1) {
        Some(ticket) => send(&endpoint, &ticket).await,
        None => show(&endpoint).await,
    }
}

async fn send(endpoint: &Endpoint, ticket: &str) -> Result<()> {
    let connection = endpoint.connect(ticket).await?;
    let video = connection.open_flow(FlowOptions::new(Class::RELIABLE_SEQUENCED)).await?;
    let mut ticks = tokio::time::interval(PAUSE);
    for frame in 0_u64.. {
        ticks.tick().await;
        let is_key = frame % 30 == 0;
        let mut data = vec![0; if is_key { 40_000 } else { 4000 }];
        data[..8].copy_from_slice(&frame.to_be_bytes());
        let tag = Some(if is_key { KEY } else { DELTA });
        let options = SendOptions { tag, silent: true, ..SendOptions::default() };
        match is_key {
            // Without the frames before them, old deltas show nothing.
            true => video.replace_all(&[(video.id(), DELTA)], data, options).await?,
            false => video.send(data, options).await?,
        };
    }
    Ok(())
}

async fn show(endpoint: &Endpoint) -> Result<()> {
    let mut listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
    println!("{}", endpoint.ticket(None));
    let connection = listener.accept().await.context("the endpoint is closed")?;
    let (mut shown, mut skipped, mut next, mut told) = (0, 0, 0, Instant::now());
    while let Ok(message) = connection.recv_message().await {
        let Some(number) = message.data.first_chunk() else { continue };
        let frame = u64::from_be_bytes(*number);
        skipped += frame.saturating_sub(next);
        (shown, next) = (shown + 1, frame + 1);
        if told.elapsed() > Duration::from_secs(1) {
            println!("frame {frame}: {shown} shown, {skipped} skipped");
            told = Instant::now();
        }
    }
    Ok(())
}
