//! Messages with a length before each, over TLS: what applications write themselves.

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::sync::mpsc;

use super::End;
use crate::system::{Channel, Kind, Start};

/// Messages gather in this before they are written.
const BUFFER: usize = 16 * 1024;

pub(super) struct Framed {
    stream: BufStream<Channel>,
    message: Vec<u8>,
}

impl Framed {
    fn new(channel: Channel) -> Self {
        Self { stream: BufStream::with_capacity(BUFFER, BUFFER, channel), message: Vec::new() }
    }
}

pub(super) async fn pair() -> Result<(Framed, Framed)> {
    let (accepted, mut others) = mpsc::channel(1);
    let handler = std::sync::Arc::new(move |channel| {
        let accepted = accepted.clone();
        let hand_over: crate::system::BoxFuture<'static, ()> = Box::pin(async move {
            // The other side hears of it otherwise.
            let _ = accepted.send(channel).await;
        });
        hand_over
    });
    let address = Kind::Tls.serve(handler).await?;
    let client = Kind::Tls.client(address).await?.connect(Start::Plain).await?;
    let server = others.recv().await.ok_or_else(|| anyhow::anyhow!("nobody came"))?;
    Ok((Framed::new(client), Framed::new(server)))
}

impl End for Framed {
    async fn send(&mut self, message: &[u8]) -> Result<()> {
        self.stream.write_u32(message.len() as u32).await?;
        Ok(self.stream.write_all(message).await?)
    }

    async fn flush(&mut self) -> Result<()> {
        Ok(self.stream.flush().await?)
    }

    async fn receive(&mut self) -> Result<usize> {
        let length = self.stream.read_u32().await? as usize;
        self.message.resize(length, 0);
        Ok(self.stream.read_exact(&mut self.message).await?)
    }
}
