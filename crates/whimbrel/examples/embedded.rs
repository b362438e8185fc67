//! A name service, a server and a client in one process: what a test of your own program needs.
//! Run it by `cargo run --example embedded`.

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel::names::{Admission, Limits, MemoryStore, Service};
use whimbrel::{Allow, Endpoint, ListenOptions, SecretKey, transport};

#[tokio::main]
async fn main() -> Result<()> {
    let own = transport::Endpoint::builder().bind().await?;
    let names = Service::start(own, MemoryStore::new(), Admission::any(), Limits::default()).await?;

    let server = Endpoint::builder().identity(SecretKey::generate()).names(names.addr()).bind().await?;
    server.register_user("ada@example.org").await?;
    let mut listener = server.listen(ListenOptions::named("clock.ada@example.org").allow(Allow::Any)).await?;
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            connection.accept_stream().await?.write_all(b"it is late").await?;
        }
        anyhow::Ok(())
    });

    let client = Endpoint::builder().names(names.addr()).bind().await?;
    let mut stream = client.connect("clock.ada@example.org").await?.open_stream().await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    println!("the clock says: {answer}");
    Ok(())
}
