//! QUIC by quinn: a stream for each message, or a datagram.

use anyhow::{Context as _, Result};
use quinn::Connection;

use super::{End, SIZE};
use crate::system::quinn::connections;

pub(super) struct Streams(Connection);
pub(super) struct Datagrams(Connection);

pub(super) async fn streams() -> Result<(Streams, Streams)> {
    let (there, back) = connections().await?;
    Ok((Streams(there), Streams(back)))
}

pub(super) async fn datagrams() -> Result<(Datagrams, Datagrams)> {
    let (there, back) = connections().await?;
    there.max_datagram_size().context("no datagrams")?;
    Ok((Datagrams(there), Datagrams(back)))
}

impl End for Streams {
    async fn send(&mut self, message: &[u8]) -> Result<()> {
        let mut stream = self.0.open_uni().await?;
        stream.write_all(message).await?;
        Ok(stream.finish()?)
    }

    async fn receive(&mut self) -> Result<usize> {
        let mut stream = self.0.accept_uni().await?;
        Ok(stream.read_to_end(SIZE).await?.len())
    }
}

impl End for Datagrams {
    async fn send(&mut self, message: &[u8]) -> Result<()> {
        Ok(self.0.send_datagram_wait(message.to_vec().into()).await?)
    }

    async fn receive(&mut self) -> Result<usize> {
        Ok(self.0.read_datagram().await?.len())
    }
}
