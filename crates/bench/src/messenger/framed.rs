//! Messages with a length before each, over a byte stream: what applications write themselves.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::{TcpListener, TcpStream};

use super::{Arrived, End, Letter, Places, pour, take};
use crate::system::{BoxFuture, Channel};

/// Messages gather in this before they are written.
const BUFFER: usize = 16 * 1024;

/// Begins an end's part of the bulk.
pub(super) type Beside = Box<dyn FnOnce(Arrived) -> BoxFuture<'static, Result<()>> + Send>;

pub(super) struct Framed {
    stream: BufStream<Channel>,
    message: Vec<u8>,
    beside: Option<Beside>,
}

impl Framed {
    pub(super) fn new(channel: Channel, beside: Option<Beside>) -> Self {
        Self { stream: BufStream::with_capacity(BUFFER, BUFFER, channel), message: Vec::new(), beside }
    }
}

/// Over TLS, on this host.
#[cfg(feature = "peers")]
pub(super) async fn tls() -> Result<(Framed, Framed)> {
    use crate::system::{Kind, Start};

    let (accepted, mut others) = tokio::sync::mpsc::channel(1);
    let handler = std::sync::Arc::new(move |channel| {
        let accepted = accepted.clone();
        let hand_over: BoxFuture<'static, ()> = Box::pin(async move {
            // The other side hears of it otherwise.
            let _ = accepted.send(channel).await;
        });
        hand_over
    });
    let address = Kind::Tls.serve(handler).await?;
    let client = Kind::Tls.client(address).await?.connect(Start::Plain).await?;
    let server = others.recv().await.context("nobody came")?;
    Ok((Framed::new(client, None), Framed::new(server, None)))
}

/// Over plain TCP; the bulk has a connection of its own.
pub(super) async fn tcp(places: &Places, control: &'static str) -> Result<(Framed, Framed)> {
    let at = SocketAddr::new(places.at, 0);
    let listener = places.second.spawn(TcpListener::bind(at)).await??;
    let server = listener.local_addr()?;
    let second = places.second.spawn(async move {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let beside: Beside =
            Box::new(|arrived| Box::pin(async move { take(listener.accept().await?.0, arrived).await }));
        anyhow::Ok(Framed::new(Channel::new(stream), Some(beside)))
    });
    let first = places.first.spawn(async move {
        let stream = dial(server, control).await?;
        let beside: Beside =
            Box::new(move |_| Box::pin(async move { pour(dial(server, control).await?).await }));
        anyhow::Ok(Framed::new(Channel::new(stream), Some(beside)))
    });
    Ok((first.await??, second.await??))
}

async fn dial(server: SocketAddr, control: &str) -> Result<TcpStream> {
    let stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    SockRef::from(&stream)
        .set_tcp_congestion(control.as_bytes())
        .with_context(|| format!("the kernel has no congestion control `{control}`"))?;
    Ok(stream)
}

impl End for Framed {
    async fn send(&mut self, message: &[u8]) -> Result<()> {
        self.stream.write_u32(message.len() as u32).await?;
        Ok(self.stream.write_all(message).await?)
    }

    async fn flush(&mut self) -> Result<()> {
        Ok(self.stream.flush().await?)
    }

    async fn receive(&mut self) -> Result<Letter> {
        let length = self.stream.read_u32().await? as usize;
        self.message.resize(length, 0);
        self.stream.read_exact(&mut self.message).await?;
        Ok(Letter::of(&self.message))
    }

    fn beside(&mut self, arrived: Arrived) -> BoxFuture<'static, Result<()>> {
        match self.beside.take() {
            Some(begin) => begin(arrived),
            None => Box::pin(async { anyhow::bail!("nothing goes beside these messages") }),
        }
    }
}
