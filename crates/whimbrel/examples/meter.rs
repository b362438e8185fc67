//! A meter whose readings outlive it: kill either side with `kill -9` and start it again, and the collector
//! prints each reading once.
//!
//! ```sh
//! cargo run --example meter -- collect collector-state            # prints a ticket, then readings
//! cargo run --example meter -- measure meter-state TICKET         # in another terminal; kill it, start it again
//! ```

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use whimbrel::{Allow, Endpoint, ListenOptions, State};

const PORT: u16 = 4490;

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (role, directory) = (args.next().unwrap_or_default(), args.next().context("a directory")?);
    let directory = PathBuf::from(directory);
    let builder = Endpoint::builder().identity_file(directory.join("identity"));
    match role.as_str() {
        "collect" => {
            let port = args.next().map_or(Ok(PORT), |port| port.parse())?;
            let endpoint = builder.port(port).bind().await?;
            collect(&endpoint, &endpoint.open_state(&directory).await?).await
        }
        "measure" => {
            let endpoint = builder.bind().await?;
            measure(&endpoint.open_state(&directory).await?, &args.next().context("a ticket")?).await
        }
        _ => anyhow::bail!("collect DIRECTORY [PORT], or measure DIRECTORY TICKET"),
    }
}

async fn measure(state: &State, ticket: &str) -> Result<()> {
    let collector = state.dial(ticket).await?;
    let readings = collector.flow("readings").await?;
    loop {
        // What it would have read.
        let reading = format!("{:.1} °C", 20.0 + f64::from(std::process::id() % 50) / 10.0);
        let receipt = readings.send(reading).await?;
        println!("reading {} is on the disk, {} wait", receipt.number(), collector.owed().messages);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn collect(endpoint: &Endpoint, state: &State) -> Result<()> {
    let mut listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
    println!("{}", endpoint.ticket(None));
    let carrier = state.clone();
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            if let Err(error) = carrier.attach(&connection).await {
                eprintln!("{}: {error}", connection.peer_id());
            }
        }
    });
    loop {
        let message = state.recv().await?;
        println!("reading {}: {}", message.number(), String::from_utf8_lossy(message.data()));
        // Not before it has been dealt with: until then it comes again.
        message.ack().await?;
    }
}
