//! The systems that are measured, behind one interface: serve, and connect.

#[cfg(feature = "peers")]
pub(crate) mod crypto;
#[cfg(feature = "peers")]
mod iroh;
#[cfg(feature = "peers")]
pub(crate) mod iroh_relay;
#[cfg(feature = "peers")]
pub(crate) mod quinn;
mod tcp;
#[cfg(feature = "peers")]
mod tls;
mod whimbrel;

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a server does with each channel.
pub(crate) type Handler = Arc<dyn Fn(Channel) -> BoxFuture<'static, ()> + Send + Sync>;

/// Enough for any message that an echo is asked for; small, because idle connections hold it.
const ECHO_BUFFER: usize = 64;

/// Both ends run here.
const LOCALHOST: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Where a server is, and by what it is known: a certificate or an id, in text.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Address {
    pub(crate) socket: SocketAddr,
    pub(crate) identity: String,
}

/// How to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// Wait until the peer has answered.
    Plain,
    /// Send with the first flight.
    Early,
}

/// A system under measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Whimbrel, the subject.
    Whimbrel,
    /// TCP, without encryption.
    Tcp,
    /// TLS 1.3 over TCP, by tokio-rustls.
    Tls,
    /// QUIC, by quinn.
    Quinn,
    /// iroh: QUIC with keys as identities; direct addresses only.
    Iroh,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whimbrel => "whimbrel",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Quinn => "quinn",
            Self::Iroh => "iroh",
        })
    }
}

/// One end of a system that connects.
pub(crate) trait Client: Send + Sync {
    /// Connects, and opens a stream. The server may learn of the stream only with its first byte.
    fn connect(&self, start: Start) -> BoxFuture<'_, Result<Channel>>;

    /// Opens so many streams: of one connection, or, where a connection is one stream, each by a connection
    /// of its own.
    fn streams(&self, count: usize) -> BoxFuture<'_, Result<Vec<Channel>>> {
        Box::pin(async move {
            let mut channels = Vec::with_capacity(count);
            for _ in 0..count {
                channels.push(self.connect(Start::Plain).await?);
            }
            Ok(channels)
        })
    }
}

impl Kind {
    /// What was compiled in.
    pub(crate) fn available() -> Vec<Self> {
        let peers = [Self::Tls, Self::Quinn, Self::Iroh];
        let peers = peers.into_iter().filter(|_| cfg!(feature = "peers"));
        [Self::Whimbrel, Self::Tcp].into_iter().chain(peers).collect()
    }

    pub(crate) fn can_start_early(self) -> bool {
        matches!(self, Self::Whimbrel | Self::Quinn | Self::Iroh)
    }

    /// Accepts channels until the runtime ends.
    pub(crate) async fn serve(self, handler: Handler) -> Result<Address> {
        match self {
            Self::Whimbrel => whimbrel::serve(handler).await,
            Self::Tcp => tcp::serve(handler).await,
            #[cfg(feature = "peers")]
            Self::Tls => tls::serve(handler).await,
            #[cfg(feature = "peers")]
            Self::Quinn => quinn::serve(handler).await,
            #[cfg(feature = "peers")]
            Self::Iroh => iroh::serve(handler).await,
            #[cfg(not(feature = "peers"))]
            _ => anyhow::bail!("{self} is not compiled in"),
        }
    }

    /// A client of one server.
    pub(crate) async fn client(self, address: Address) -> Result<Box<dyn Client>> {
        Ok(match self {
            Self::Whimbrel => Box::new(whimbrel::Client::new(&address).await?),
            Self::Tcp => Box::new(tcp::Client::new(&address)),
            #[cfg(feature = "peers")]
            Self::Tls => Box::new(tls::Client::new(&address)?),
            #[cfg(feature = "peers")]
            Self::Quinn => Box::new(quinn::Client::new(&address)?),
            #[cfg(feature = "peers")]
            Self::Iroh => Box::new(iroh::Client::new(&address).await?),
            #[cfg(not(feature = "peers"))]
            _ => anyhow::bail!("{self} is not compiled in"),
        })
    }
}

/// Keeps each connection of whimbrel, whatever becomes of it, and counts them.
pub(crate) async fn keep(count: Arc<AtomicUsize>) -> Result<Address> {
    whimbrel::keep(count).await
}

/// A client of whimbrel that dials over QUIC alone, from the server's own address.
pub(crate) async fn over_quic(address: &Address) -> Result<Box<dyn Client>> {
    Ok(Box::new(whimbrel::Client::over_quic(address).await?))
}

/// A handler that sends everything back.
pub(crate) fn echo() -> Handler {
    Arc::new(|channel| {
        Box::pin(async move {
            // The client's end shows what went wrong.
            let _ = echo_one(channel).await;
        })
    })
}

async fn echo_one(mut channel: Channel) -> io::Result<()> {
    let mut buffer = [0; ECHO_BUFFER];
    loop {
        let n = channel.read(&mut buffer).await?;
        if n == 0 {
            return channel.shutdown().await;
        }
        channel.write_all(&buffer[..n]).await?;
        channel.flush().await?;
    }
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A byte stream in both directions, and what keeps it alive.
pub(crate) struct Channel {
    stream: Box<dyn Duplex>,
    _connection: Option<Box<dyn Any + Send>>,
    /// Whether the connection resumed an earlier session, where the system tells.
    pub(crate) resumed: Option<bool>,
}

impl Channel {
    pub(crate) fn new(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        Self { stream: Box::new(stream), _connection: None, resumed: None }
    }

    #[cfg(feature = "peers")]
    fn of(self, connection: impl Any + Send) -> Self {
        Self { _connection: Some(Box::new(connection)), ..self }
    }
}

impl AsyncRead for Channel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Channel {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(cx)
    }
}
