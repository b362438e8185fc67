//! The systems that carry messages, behind one interface: send, and receive.

mod delays;
#[cfg(feature = "peers")]
mod enet;
mod framed;
mod outage;
#[cfg(feature = "peers")]
mod quinn;
mod speed;
mod whimbrel;

use std::fmt;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::runtime::Handle;
use whimbrel_transport::{CarrierKind, Carriers, Class, HandoverMode};

pub(crate) use self::delays::{Delays, Letters};
pub(crate) use self::outage::{Outage, Switch};
pub(crate) use self::speed::SIZE;
use crate::system::BoxFuture;

/// A system, and what it promises of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Messenger {
    /// Messages of a flow.
    Whimbrel { class: Class, redundant: bool },
    /// The same over QUIC alone, where what fits goes in datagrams.
    WhimbrelQuic(Class),
    /// A length before each message, over TLS.
    FramedTls,
    /// A length before each message, over plain TCP with this congestion control.
    FramedTcp(&'static str),
    /// A length before each message, on one QUIC stream of quinn.
    QuinnStream,
    /// A QUIC stream each, by quinn.
    QuinnStreams,
    /// QUIC datagrams, by quinn.
    QuinnDatagrams,
    /// ENet's packets: reliable ones, or unreliable ones of which none is older than the last. It does not
    /// encrypt.
    Enet { reliable: bool },
}

impl fmt::Display for Messenger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whimbrel { redundant: true, .. } => f.write_str("whimbrel-redundant"),
            Self::Whimbrel { class, .. } => f.write_str(match *class {
                Class::RELIABLE_SEQUENCED => "whimbrel",
                Class::RELIABLE => "whimbrel-reliable",
                Class::UNRELIABLE_SEQUENCED => "whimbrel-unreliable-sequenced",
                _ => "whimbrel-unreliable",
            }),
            Self::WhimbrelQuic(class) => write!(f, "{}-quic", Self::whimbrel(*class)),
            Self::FramedTls => f.write_str("framed-tls"),
            Self::FramedTcp(control) => write!(f, "tcp-{control}"),
            Self::QuinnStream => f.write_str("quinn-stream"),
            Self::QuinnStreams => f.write_str("quinn-streams"),
            Self::QuinnDatagrams => f.write_str("quinn-datagrams"),
            Self::Enet { reliable: true } => f.write_str("enet"),
            Self::Enet { reliable: false } => f.write_str("enet-unreliable"),
        }
    }
}

/// Where the two ends of a connection are.
#[derive(Clone)]
pub(crate) struct Places {
    /// The runtime of the end that dials, and that of the other.
    pub(crate) first: Handle,
    pub(crate) second: Handle,
    /// The second end's address.
    pub(crate) at: IpAddr,
    /// What the subject may dial with.
    pub(crate) carriers: Carriers,
    /// How the subject uses several links.
    pub(crate) handover: HandoverMode,
}

impl Places {
    /// Both ends in the current runtime, as applications have them by default.
    fn here() -> Self {
        let [first, second] = [Handle::current(), Handle::current()];
        let (carriers, handover) = (Carriers::default(), HandoverMode::default());
        Self { first, second, at: Ipv4Addr::LOCALHOST.into(), carriers, handover }
    }
}

/// What is seen of a message that arrived.
#[derive(Debug, Clone, Copy)]
struct Letter {
    size: usize,
    /// Its first eight bytes.
    stamp: u64,
}

impl Letter {
    fn of(message: &[u8]) -> Self {
        let stamp = message.first_chunk().map_or(0, |stamp| u64::from_be_bytes(*stamp));
        Self { size: message.len(), stamp }
    }
}

/// Bytes of bulk that arrived.
type Arrived = Arc<AtomicU64>;

/// One end of a connection that carries messages.
trait End: Send + Sized + 'static {
    /// Sends a message, or leaves it with those that go together; waits while there is no room.
    fn send(&mut self, message: &[u8]) -> impl Future<Output = Result<()>> + Send;

    /// Has everything leave that was sent.
    fn flush(&mut self) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Waits for the next message.
    fn receive(&mut self) -> impl Future<Output = Result<Letter>> + Send;

    /// Its part of a transfer beside the messages: the end that dialled sends as much as it can, for as long
    /// as that runs; the other takes it, and counts.
    fn beside(&mut self, arrived: Arrived) -> BoxFuture<'static, Result<()>>;
}

/// Bytes of bulk that are written or read at once.
const BLOCK: usize = 16 * 1024;

/// Sends bulk for as long as it is taken.
async fn pour(mut to: impl AsyncWrite + Unpin) -> Result<()> {
    loop {
        to.write_all(&[7; BLOCK]).await?;
    }
}

/// Takes bulk, and counts it.
async fn take(mut from: impl AsyncRead + Unpin, arrived: Arrived) -> Result<()> {
    let mut block = vec![0; BLOCK];
    loop {
        let n = from.read(&mut block).await?;
        ensure!(n > 0, "the bulk ended");
        arrived.fetch_add(n as u64, Ordering::Relaxed);
    }
}

/// Something that is done with both ends of a connection.
trait Measure: Send + 'static {
    type Found: Send;

    fn of<E: End>(self, places: Places, ends: (E, E)) -> impl Future<Output = Result<Self::Found>> + Send;
}

impl Messenger {
    /// The subject's, of a class.
    pub(crate) const fn whimbrel(class: Class) -> Self {
        Self::Whimbrel { class, redundant: false }
    }

    /// What is compared on loopback, as far as it was compiled in.
    pub(crate) fn on_loopback() -> Vec<Self> {
        let all = [
            Self::whimbrel(Class::RELIABLE_SEQUENCED),
            Self::whimbrel(Class::UNRELIABLE),
            Self::WhimbrelQuic(Class::UNRELIABLE),
            Self::FramedTls,
            Self::QuinnStreams,
            Self::Enet { reliable: true },
            Self::QuinnDatagrams,
            Self::Enet { reliable: false },
        ];
        all.into_iter().filter(|system| system.is_available()).collect()
    }

    /// Whether it was compiled in.
    pub(crate) fn is_available(self) -> bool {
        cfg!(feature = "peers")
            || matches!(self, Self::Whimbrel { .. } | Self::WhimbrelQuic(_) | Self::FramedTcp(_))
    }

    /// Whether every message arrives.
    pub(crate) fn is_reliable(self) -> bool {
        match self {
            Self::Whimbrel { class, .. } | Self::WhimbrelQuic(class) => class.reliable,
            Self::QuinnDatagrams | Self::Enet { reliable: false } => false,
            _ => true,
        }
    }

    /// Messages a second that arrive while one side sends as many as it can.
    pub(crate) async fn rate(self, length: Duration) -> Result<f64> {
        match self {
            #[cfg(feature = "peers")]
            Self::Enet { reliable } => {
                tokio::task::spawn_blocking(move || enet::rate(reliable, length)).await?
            }
            _ => self.measure(&Places::here(), speed::Rate(length)).await,
        }
    }

    /// What one message there and one back take, each time, in microseconds.
    pub(crate) async fn round_trips(self, length: Duration) -> Result<Vec<f64>> {
        match self {
            #[cfg(feature = "peers")]
            Self::Enet { reliable } => {
                tokio::task::spawn_blocking(move || enet::round_trips(reliable, length)).await?
            }
            _ => self.measure(&Places::here(), speed::RoundTrips(length)).await,
        }
    }

    /// How late messages are that are sent at a steady pace.
    pub(crate) async fn delays(self, places: &Places, letters: Letters) -> Result<Delays> {
        self.measure(places, letters).await
    }

    /// How long after the end of an outage the first message is there; `None` if there was none.
    pub(crate) async fn outage(self, places: &Places, outage: Outage) -> Result<Option<Duration>> {
        self.measure(places, outage).await
    }

    async fn measure<M: Measure>(self, places: &Places, measure: M) -> Result<M::Found> {
        let at = places.clone();
        match self {
            Self::Whimbrel { class, redundant } => {
                measure.of(at, whimbrel::pair(places, class, redundant).await?).await
            }
            Self::WhimbrelQuic(class) => {
                let over = Places { carriers: Carriers::Only(CarrierKind::Quic), ..places.clone() };
                measure.of(at, whimbrel::pair(&over, class, false).await?).await
            }
            Self::FramedTcp(control) => measure.of(at, framed::tcp(places, control).await?).await,
            #[cfg(feature = "peers")]
            Self::FramedTls => measure.of(at, framed::tls().await?).await,
            #[cfg(feature = "peers")]
            Self::QuinnStream => measure.of(at, quinn::stream(places).await?).await,
            #[cfg(feature = "peers")]
            Self::QuinnStreams => measure.of(at, quinn::streams(places).await?).await,
            #[cfg(feature = "peers")]
            Self::QuinnDatagrams => measure.of(at, quinn::datagrams(places).await?).await,
            #[cfg(feature = "peers")]
            Self::Enet { reliable } => measure.of(at, enet::served(places, reliable).await?).await,
            #[cfg(not(feature = "peers"))]
            _ => anyhow::bail!("{self} is not compiled in"),
        }
    }
}
