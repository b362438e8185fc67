//! The lines of README on messages and on sleep: a thermometer that says the present temperature, and whose
//! connection goes on in another endpoint, which could be another process on another host.
//!
//! ```sh
//! cargo run --example thermometer
//! ```

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use whimbrel::{
    Allow, Class, Connection, Endpoint, FlowOptions, ListenOptions, SecretKey, SendOptions, Stream, Tag,
};

#[tokio::main]
async fn main() -> Result<()> {
    let server = Endpoint::builder().bind().await?;
    let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
    let serving = tokio::spawn(async move { serve(&listener.accept().await.context("a connection")?).await });

    let key = SecretKey::generate();
    let here = Endpoint::builder().identity(key.clone()).bind().await?;
    let elsewhere = Endpoint::builder().identity(key).bind().await?;
    let connection = here.connect(server.addr()).await?;
    measure(&connection).await?;
    let mut stream = connection.open_stream().await?;
    stream.write_all(b"still there?\n").await?;
    println!("the stream says: {}", asleep_and_awake(connection, &elsewhere).await?);
    serving.await?
}

async fn measure(connection: &Connection) -> Result<()> {
    let readings = connection.open_flow(FlowOptions::new(Class::RELIABLE)).await?;
    let temperature = SendOptions { tag: Some(Tag(1)), ..SendOptions::default() };
    readings.replace("21.5 °C", temperature).await?;
    Ok(())
}

async fn serve(connection: &Connection) -> Result<()> {
    let message = connection.recv_message().await?;
    println!("it is {}", String::from_utf8_lossy(&message.data));
    let mut stream = connection.accept_stream().await?;
    BufReader::new(&mut stream).read_line(&mut String::new()).await?;
    stream.write_all(b"still here\n").await?;
    // The other side has read it before this one ends.
    connection.closed().await;
    Ok(())
}

/// The answer, as the next owner of the connection reads it.
async fn asleep_and_awake(connection: Connection, elsewhere: &Endpoint) -> Result<String> {
    let asleep = connection.suspend(Duration::from_secs(5)).await?;
    let awake = elsewhere.resume(&asleep).await?;
    let stream = awake.streams().remove(0);
    let answer = first_line(stream).await?;
    elsewhere.close(Duration::from_secs(5)).await;
    Ok(answer)
}

async fn first_line(stream: Stream) -> Result<String> {
    BufReader::new(stream).lines().next_line().await?.context("an answer")
}
