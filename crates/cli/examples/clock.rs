//! The program of `docs/guide.md`: a clock that a server tells, and that goes on while either side moves.

use anyhow::Result;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use whimbrel::{Allow, Connection, Endpoint, ListenOptions};

#[tokio::main]
async fn main() -> Result<()> {
    let endpoint = Endpoint::builder().bind().await?;
    match std::env::args().nth(1) {
        None => serve(&endpoint).await,
        Some(ticket) => watch(&endpoint, &ticket).await,
    }
}

/// Prints a ticket, which says where this is, and lets in everybody: the ticket is no key.
async fn serve(endpoint: &Endpoint) -> Result<()> {
    let mut listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
    println!("{}", endpoint.ticket(None));
    while let Some(connection) = listener.accept().await {
        tokio::spawn(tick(connection));
    }
    Ok(())
}

/// Sends a line four times a second.
async fn tick(connection: Connection) -> Result<()> {
    let mut stream = connection.accept_stream().await?;
    for second in 1.. {
        stream.write_all(format!("tick {second}\n").as_bytes()).await?;
        tokio::time::sleep(std::time::Duration::from_millis(250)).await;
    }
    Ok(())
}

/// Prints what comes, and how often the connection has moved.
async fn watch(endpoint: &Endpoint, ticket: &str) -> Result<()> {
    let connection = endpoint.connect(ticket).await?;
    let mut stream = connection.open_stream().await?;
    stream.write_all(b"hello\n").await?;
    let mut lines = BufReader::new(stream).lines();
    while let Some(line) = lines.next_line().await? {
        println!("{line}, moved {} times", connection.stats().moves);
    }
    Ok(())
}
