//! QUIC by quinn: one stream, a stream for each message, or a datagram.

use anyhow::{Context as _, Result};
use quinn::Connection;

use super::framed::{Beside, Framed};
use super::{Arrived, End, Letter, Places, pour, take};
use crate::system::quinn::connections;
use crate::system::{BoxFuture, Channel};

/// Before bulk, whose stream has priority 0.
const URGENT: i32 = 1;
/// A message is no longer.
const LONGEST: usize = 64 * 1024;

pub(super) struct Streams(Half);
pub(super) struct Datagrams(Half);

/// One end, which knows whether it dialled.
struct Half {
    connection: Connection,
    dialled: bool,
}

async fn halves(places: &Places) -> Result<(Half, Half)> {
    // In the lab with the congestion control of the subject's own QUIC; on loopback with the default.
    let bbr = !places.at.is_loopback();
    let (first, second) = connections(&places.first, &places.second, places.at, bbr).await?;
    Ok((Half { connection: first, dialled: true }, Half { connection: second, dialled: false }))
}

pub(super) async fn streams(places: &Places) -> Result<(Streams, Streams)> {
    let (first, second) = halves(places).await?;
    Ok((Streams(first), Streams(second)))
}

pub(super) async fn datagrams(places: &Places) -> Result<(Datagrams, Datagrams)> {
    let (first, second) = halves(places).await?;
    first.connection.max_datagram_size().context("no datagrams")?;
    Ok((Datagrams(first), Datagrams(second)))
}

/// All messages on one stream, a length before each.
pub(super) async fn stream(places: &Places) -> Result<(Framed, Framed)> {
    let (first, second) = halves(places).await?;
    let (mut send, receive) = first.connection.open_bi().await?;
    send.set_priority(URGENT)?;
    // The other side learns of a stream by its first byte: a message without content.
    send.write_all(&0_u32.to_be_bytes()).await?;
    let there = Channel::new(tokio::io::join(receive, send));
    let (send, receive) = second.connection.accept_bi().await?;
    let mut here = Framed::new(Channel::new(tokio::io::join(receive, send)), Some(second.later()));
    here.receive().await?;
    Ok((Framed::new(there, Some(first.later())), here))
}

impl Half {
    fn beside(&self, arrived: Arrived) -> BoxFuture<'static, Result<()>> {
        let (connection, dialled) = (self.connection.clone(), self.dialled);
        Box::pin(async move {
            match dialled {
                true => pour(connection.open_bi().await?.0).await,
                false => {
                    let (_answer, bulk) = connection.accept_bi().await?;
                    take(bulk, arrived).await
                }
            }
        })
    }

    fn later(self) -> Beside {
        Box::new(move |arrived| self.beside(arrived))
    }
}

impl End for Streams {
    async fn send(&mut self, message: &[u8]) -> Result<()> {
        let mut stream = self.0.connection.open_uni().await?;
        stream.set_priority(URGENT)?;
        stream.write_all(message).await?;
        Ok(stream.finish()?)
    }

    async fn receive(&mut self) -> Result<Letter> {
        let mut stream = self.0.connection.accept_uni().await?;
        Ok(Letter::of(&stream.read_to_end(LONGEST).await?))
    }

    fn beside(&mut self, arrived: Arrived) -> BoxFuture<'static, Result<()>> {
        self.0.beside(arrived)
    }
}

impl End for Datagrams {
    async fn send(&mut self, message: &[u8]) -> Result<()> {
        Ok(self.0.connection.send_datagram_wait(message.to_vec().into()).await?)
    }

    async fn receive(&mut self) -> Result<Letter> {
        Ok(Letter::of(&self.0.connection.read_datagram().await?))
    }

    fn beside(&mut self, arrived: Arrived) -> BoxFuture<'static, Result<()>> {
        self.0.beside(arrived)
    }
}
