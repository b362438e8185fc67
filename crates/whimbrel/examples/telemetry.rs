//! Readings over a bad link: the newest of each sensor arrives, and what is stale is never sent.
//!
//! ```sh
//! cargo run --example telemetry             # prints a ticket
//! cargo run --example telemetry -- TICKET   # on another machine, or in another window
//! ```
//! Pull the plug for a minute: what comes first afterwards is the present state, not a minute of history.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use whimbrel::{Allow, Class, Endpoint, FlowOptions, ListenOptions, SendOptions, Tag};

const SENSORS: u64 = 8;
const PAUSE: Duration = Duration::from_millis(20);

#[tokio::main]
async fn main() -> Result<()> {
    let endpoint = Endpoint::builder().bind().await?;
    match std::env::args().nth(1) {
        Some(ticket) => measure(&endpoint, &ticket).await,
        None => watch(&endpoint).await,
    }
}

/// Tells every reading, each in the place of the one before.
async fn measure(endpoint: &Endpoint, ticket: &str) -> Result<()> {
    let connection = endpoint.connect(ticket).await?;
    let readings = connection.open_flow(FlowOptions::new(Class::RELIABLE)).await?;
    let began = Instant::now();
    for round in 0_u64.. {
        for sensor in 0..SENSORS {
            let value = (began.elapsed().as_secs_f64() + sensor as f64).sin();
            let options = SendOptions { tag: Some(Tag(sensor)), silent: true, ..SendOptions::default() };
            readings.replace(value.to_be_bytes(), options).await?;
        }
        tokio::time::sleep(PAUSE).await;
        if round % 50 == 0 {
            let told = connection.stats().messages;
            println!("{} delivered, {} replaced before they left", told.delivered, told.replaced);
        }
    }
    Ok(())
}

/// Shows the newest reading of each sensor.
async fn watch(endpoint: &Endpoint) -> Result<()> {
    let mut listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
    println!("{}", endpoint.ticket(None));
    let connection = listener.accept().await.context("the endpoint is closed")?;
    let mut values = [0.0; SENSORS as usize];
    let mut shown = Instant::now();
    while let Ok(message) = connection.recv_message().await {
        let sensor = message.tag.and_then(|tag| values.get_mut(tag.0 as usize));
        if let (Some(value), Ok(bytes)) = (sensor, message.data.try_into()) {
            *value = f64::from_be_bytes(bytes);
        }
        if shown.elapsed() > Duration::from_secs(1) {
            println!("{values:6.3?}");
            shown = Instant::now();
        }
    }
    Ok(())
}
