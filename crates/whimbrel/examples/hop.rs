//! A counter that hops: one peer that counts on, and a client that is put to sleep and woken in other
//! endpoints, which could be other processes on other hosts: under its own key and, by its signed word, under
//! another one. At last it is handed over while it is used.
//!
//! ```sh
//! cargo run --example hop
//! ```

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel::{Allow, Endpoint, ListenOptions, SecretKey, Stream, Suspended};

const LIMIT: Duration = Duration::from_secs(5);

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

    let (first, second) = (SecretKey::generate(), SecretKey::generate());
    let mut here = Endpoint::builder().identity(first.clone()).bind().await?;
    let mut connection = here.connect(server.addr()).await?;
    let (mut stream, mut number) = (connection.open_stream().await?, 0);
    for next in [&first, &second, &second] {
        number = count(&mut stream, number).await?;
        println!("{number} as {}", here.id().short());
        // One number is under way while the connection sleeps.
        stream.write_u64(number).await?;
        let asleep = if next.id() == here.id() {
            connection.suspend(LIMIT).await?
        } else {
            connection.suspend_for(next.id(), LIMIT).await?
        };
        here.close(LIMIT).await;
        let bytes: Vec<u8> = asleep.into_bytes();
        println!("asleep in {} bytes", bytes.len());
        here = Endpoint::builder().identity(next.clone()).bind().await?;
        connection = here.resume(&Suspended::from_bytes(bytes)).await?;
        stream = connection.streams().pop().context("its stream")?;
        number = stream.read_u64().await?;
    }

    // Live, over a connection between the two owners.
    let there = Endpoint::builder().bind().await?;
    let mut listener = there.listen(ListenOptions::unnamed().allow(Allow::only([here.id()]))).await?;
    let over = here.connect(there.addr()).await?;
    let arriving = listener.accept().await.context("a connection")?;
    stream.write_u64(number).await?;
    let (gone, come) =
        tokio::join!(connection.hand_over(&over, LIMIT), there.accept_hand_over(&arriving, LIMIT));
    gone?;
    let connection = come?;
    let mut stream = connection.streams().pop().context("its stream")?;
    number = stream.read_u64().await?;
    let number = count(&mut stream, number).await?;
    println!("{number} at the end, as {}", there.id().short());
    Ok(())
}

/// Has the peer count on three times.
async fn count(stream: &mut Stream, mut number: u64) -> Result<u64> {
    for _ in 0..3 {
        stream.write_u64(number).await?;
        number = stream.read_u64().await?;
    }
    Ok(number)
}
