//! An echo that survives moves, without any name service.
//!
//! ```sh
//! cargo run --example echo             # prints a ticket
//! cargo run --example echo -- TICKET   # on another machine, or in another window; then type
//! ```
//! Change networks on either side, and type on.

use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncWriteExt as _, copy, stdin, stdout};
use whimbrel::{Allow, CloseCode, Connection, Endpoint, ListenOptions};

#[tokio::main]
async fn main() -> Result<()> {
    let endpoint = Endpoint::builder().bind().await?;
    match std::env::args().nth(1) {
        None => serve(&endpoint).await,
        Some(ticket) => call(&endpoint, &ticket).await,
    }
}

async fn serve(endpoint: &Endpoint) -> Result<()> {
    let mut listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
    println!("{}", endpoint.ticket(None));
    while let Some(connection) = listener.accept().await {
        eprintln!("{} is here", connection.peer_id().short());
        tokio::spawn(echo(connection));
    }
    Ok(())
}

async fn echo(connection: Connection) -> Result<()> {
    loop {
        let (mut read, mut write) = connection.accept_stream().await?.into_split();
        copy(&mut read, &mut write).await?;
        write.shutdown().await?;
    }
}

async fn call(endpoint: &Endpoint, ticket: &str) -> Result<()> {
    let connection = endpoint.connect(ticket).await?;
    let (mut read, mut write) = connection.open_stream().await?.into_split();
    let send = async {
        copy(&mut stdin(), &mut write).await?;
        write.shutdown().await
    };
    tokio::try_join!(send, async { copy(&mut read, &mut stdout()).await })?;
    eprintln!("moved {} times", connection.stats().moves);
    Ok(connection.close(CloseCode::NONE, "", Duration::from_secs(5)).await?)
}
