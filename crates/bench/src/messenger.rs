//! The systems that carry messages, behind one interface: send, and receive.

#[cfg(feature = "peers")]
mod enet;
#[cfg(feature = "peers")]
mod quinn;
#[cfg(feature = "peers")]
mod tls;
mod whimbrel;

use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Bytes of a message.
pub(crate) const SIZE: usize = 100;
/// Round trips, and messages, before the measured ones.
const WARM_UP: usize = 2000;
/// How often the sender of a flood looks at the clock.
const LOOK_EVERY: u64 = 64;

/// A system, and what it promises of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Messenger {
    /// Reliable sequenced messages of a flow.
    Whimbrel,
    /// Unreliable messages of a flow.
    WhimbrelUnreliable,
    /// A length before each message, over TLS.
    Framed,
    /// A QUIC stream each, by quinn.
    QuinnStreams,
    /// QUIC datagrams, by quinn.
    QuinnDatagrams,
    /// ENet's reliable packets; it does not encrypt.
    Enet,
    /// ENet's unreliable packets.
    EnetUnreliable,
}

impl fmt::Display for Messenger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whimbrel => "whimbrel",
            Self::WhimbrelUnreliable => "whimbrel-unreliable",
            Self::Framed => "framed-tls",
            Self::QuinnStreams => "quinn-streams",
            Self::QuinnDatagrams => "quinn-datagrams",
            Self::Enet => "enet",
            Self::EnetUnreliable => "enet-unreliable",
        })
    }
}

/// One end of a connection that carries messages.
trait End: Send + Sized + 'static {
    /// Sends a message, or leaves it with those that go together; waits while there is no room.
    fn send(&mut self, message: &[u8]) -> impl Future<Output = Result<()>> + Send;

    /// Has everything leave that was sent.
    fn flush(&mut self) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// The size of the next message that arrives.
    fn receive(&mut self) -> impl Future<Output = Result<usize>> + Send;
}

impl Messenger {
    /// What was compiled in, the reliable ones first.
    pub(crate) fn available() -> Vec<Self> {
        let peers =
            [Self::Framed, Self::QuinnStreams, Self::Enet, Self::QuinnDatagrams, Self::EnetUnreliable];
        let peers = peers.into_iter().filter(|_| cfg!(feature = "peers"));
        [Self::Whimbrel, Self::WhimbrelUnreliable].into_iter().chain(peers).collect()
    }

    /// Whether every message arrives.
    #[cfg(feature = "peers")]
    fn is_reliable(self) -> bool {
        !matches!(self, Self::WhimbrelUnreliable | Self::QuinnDatagrams | Self::EnetUnreliable)
    }

    /// Messages a second that arrive while one side sends as many as it can.
    pub(crate) async fn rate(self, length: Duration) -> Result<f64> {
        match self {
            Self::Whimbrel => rate(whimbrel::pair(true).await?, length).await,
            Self::WhimbrelUnreliable => rate(whimbrel::pair(false).await?, length).await,
            #[cfg(feature = "peers")]
            Self::Framed => rate(tls::pair().await?, length).await,
            #[cfg(feature = "peers")]
            Self::QuinnStreams => rate(quinn::streams().await?, length).await,
            #[cfg(feature = "peers")]
            Self::QuinnDatagrams => rate(quinn::datagrams().await?, length).await,
            #[cfg(feature = "peers")]
            Self::Enet | Self::EnetUnreliable => {
                let reliable = self.is_reliable();
                tokio::task::spawn_blocking(move || enet::rate(reliable, length)).await?
            }
            #[cfg(not(feature = "peers"))]
            _ => anyhow::bail!("{self} is not compiled in"),
        }
    }

    /// What one message there and one back take, each time, in microseconds.
    pub(crate) async fn round_trips(self, length: Duration) -> Result<Vec<f64>> {
        match self {
            Self::Whimbrel => round_trips(whimbrel::pair(true).await?, length).await,
            Self::WhimbrelUnreliable => round_trips(whimbrel::pair(false).await?, length).await,
            #[cfg(feature = "peers")]
            Self::Framed => round_trips(tls::pair().await?, length).await,
            #[cfg(feature = "peers")]
            Self::QuinnStreams => round_trips(quinn::streams().await?, length).await,
            #[cfg(feature = "peers")]
            Self::QuinnDatagrams => round_trips(quinn::datagrams().await?, length).await,
            #[cfg(feature = "peers")]
            Self::Enet | Self::EnetUnreliable => {
                let reliable = self.is_reliable();
                tokio::task::spawn_blocking(move || enet::round_trips(reliable, length)).await?
            }
            #[cfg(not(feature = "peers"))]
            _ => anyhow::bail!("{self} is not compiled in"),
        }
    }
}

async fn rate<E: End>((mut from, mut to): (E, E), length: Duration) -> Result<f64> {
    let receiver = tokio::spawn(async move {
        for _ in 0..WARM_UP {
            to.receive().await?;
        }
        let (began, mut count) = (Instant::now(), 0_u64);
        loop {
            to.receive().await?;
            count += 1;
            if count % LOOK_EVERY == 0 && began.elapsed() >= length {
                return Ok(count as f64 / began.elapsed().as_secs_f64());
            }
        }
    });
    let sender = tokio::spawn(async move { while from.send(&[7; SIZE]).await.is_ok() {} });
    let rate = receiver.await?;
    sender.abort();
    rate
}

async fn round_trips<E: End>((mut from, mut to): (E, E), length: Duration) -> Result<Vec<f64>> {
    let echo = tokio::spawn(async move {
        while let Ok(size) = to.receive().await {
            if to.send(&[7; SIZE][..size]).await.is_err() || to.flush().await.is_err() {
                return;
            }
        }
    });
    let mut times = Vec::new();
    let mut began = None;
    for number in 0.. {
        let sent = Instant::now();
        from.send(&[7; SIZE]).await?;
        from.flush().await?;
        from.receive().await?;
        if number >= WARM_UP {
            let began = *began.get_or_insert(sent);
            times.push(sent.elapsed().as_nanos() as f64 / 1000.0);
            if sent - began >= length {
                break;
            }
        }
    }
    echo.abort();
    Ok(times)
}
