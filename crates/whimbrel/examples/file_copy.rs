//! Copies a file from one machine to another, through changes of network on both.
//!
//! ```sh
//! cargo run --release --example file_copy -- receive COPY        # prints a ticket
//! cargo run --release --example file_copy -- send FILE TICKET
//! ```

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tokio::fs::File;
use tokio::io::{AsyncWriteExt as _, copy};
use whimbrel::{Allow, CloseCode, Connection, Endpoint, ListenOptions};

const LIMIT: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let endpoint = Endpoint::builder().bind().await?;
    let start = Instant::now();
    let (bytes, connection) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["receive", file] => receive(&endpoint, file).await?,
        ["send", file, ticket] => send(&endpoint, file, ticket).await?,
        _ => bail!("give: receive FILE, or: send FILE TICKET"),
    };
    eprintln!("{bytes} bytes in {:.1?}, moved {} times", start.elapsed(), connection.stats().moves);
    Ok(())
}

async fn receive(endpoint: &Endpoint, file: &str) -> Result<(u64, Connection)> {
    let mut file = File::create_new(file).await.context("the copy must not exist yet")?;
    let mut listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
    println!("{}", endpoint.ticket(None));
    let connection = listener.accept().await.context("the endpoint was closed")?;
    let mut stream = connection.accept_stream().await?;
    let bytes = copy(&mut stream, &mut file).await?;
    file.sync_all().await?;
    // Only now does the sender know that all is well.
    stream.write_all(&bytes.to_be_bytes()).await?;
    drop(stream);
    tokio::time::timeout(LIMIT, connection.closed()).await?;
    Ok((bytes, connection))
}

async fn send(endpoint: &Endpoint, file: &str, ticket: &str) -> Result<(u64, Connection)> {
    let mut file = File::open(file).await?;
    let connection = endpoint.connect(ticket).await?;
    let mut stream = connection.open_stream().await?;
    let bytes = copy(&mut file, &mut stream).await?;
    stream.shutdown().await?;
    let stored = tokio::io::AsyncReadExt::read_u64(&mut stream).await?;
    anyhow::ensure!(stored == bytes, "{stored} of {bytes} bytes were stored");
    connection.close(CloseCode::NONE, "", LIMIT).await?;
    Ok((bytes, connection))
}
