//! The program of README: `cargo run -p whimbrel-cli --example readme -- NAME SERVICE KEYFILE`.

use anyhow::{Context as _, Result};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let name = args.next().context("which name?")?;
    let service = args.next().context("which name service?")?;
    let file = args.next().context("which key file?")?;
    let endpoint = whimbrel::Endpoint::builder().identity_file(file).names(service).bind().await?;
    let connection = endpoint.connect(name).await?;
    let mut stream = connection.open_stream().await?;
    stream.write_all(b"hello\r\n").await?;
    let line = BufReader::new(stream).lines().next_line().await?;
    println!("{}", line.context("no answer")?);
    Ok(())
}
