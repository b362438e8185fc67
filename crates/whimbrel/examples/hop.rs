//! A counter that hops: one stream, one peer that counts on, and a client that is put to sleep and woken in three
//! endpoints, which could as well be three processes on three hosts.
//!
//! ```sh
//! cargo run --example hop
//! ```

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel::{Allow, Endpoint, ListenOptions, SecretKey, Suspended};

#[tokio::main]
async fn main() -> Result<()> {
    let server = Endpoint::builder().bind().await?;
    let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
    tokio::spawn(async move {
        let connection = listener.accept().await.context("a connection")?;
        let mut stream = connection.accept_stream().await?;
        loop {
            let number = stream.read_u64().await?;
            stream.write_u64(number + 1).await?;
        }
        #[expect(unreachable_code, reason = "it says what the task may fail with")]
        anyhow::Ok(())
    });

    let key = SecretKey::generate();
    let mut here = Endpoint::builder().identity(key.clone()).bind().await?;
    let mut connection = here.connect(server.addr()).await?;
    let mut stream = connection.open_stream().await?;
    let mut number = 0;
    for hop in 1..=3 {
        for _ in 0..3 {
            stream.write_u64(number).await?;
            number = stream.read_u64().await?;
        }
        println!("hop {hop}: {number}");
        // One number is under way while the connection sleeps.
        stream.write_u64(number).await?;
        let asleep: Vec<u8> = connection.suspend(Duration::from_secs(5)).await?.into_bytes();
        here.close(Duration::from_secs(5)).await;
        println!("asleep in {} bytes", asleep.len());

        here = Endpoint::builder().identity(key.clone()).bind().await?;
        connection = here.resume(&Suspended::from_bytes(asleep)).await?;
        stream = connection.streams().pop().context("its stream")?;
        number = stream.read_u64().await?;
    }
    println!("{number} at the end");
    Ok(())
}
