//! One path: between which addresses, since when, and what it runs on.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::task::Context;
use std::time::{Duration, Instant};

use whimbrel_proto::{PathEnd, PathId};

use crate::carrier::quic::QuicCarrier;
use crate::carrier::{CarrierKind, CarrierStats, Flow, PathError, Segments, TcpCarrier, Worked};
use crate::cause::DownCause;
use crate::locator::{Locator, canonical};
use crate::signal::Reception;

enum Carrier {
    Tcp(Box<TcpCarrier>),
    Quic(Box<QuicCarrier>),
}

/// One path.
pub(crate) struct PathIo {
    pub(crate) id: PathId,
    pub(crate) local: SocketAddr,
    pub(crate) remote: Locator,
    pub(crate) since: Instant,
    /// Its packets leave as the system's routes say, because its socket belongs to all networks.
    pub(crate) follows_routes: bool,
    /// How well its Wi-Fi is received.
    pub(crate) reception: Reception,
    carrier: Carrier,
    /// Why it ends, where that was known before the engine gave it up.
    cause: OnceLock<DownCause>,
}

impl PathIo {
    pub(crate) fn tcp(id: PathId, local: SocketAddr, remote: Locator, carrier: TcpCarrier) -> Self {
        Self::new(id, local, remote, Carrier::Tcp(Box::new(carrier)))
    }

    pub(crate) fn quic(id: PathId, local: SocketAddr, remote: Locator, carrier: QuicCarrier) -> Self {
        Self::new(id, local, remote, Carrier::Quic(Box::new(carrier)))
    }

    fn new(id: PathId, local: SocketAddr, remote: Locator, carrier: Carrier) -> Self {
        let (local, remote) = (canonical(local), remote.canonical());
        let (since, follows_routes, reception) = (Instant::now(), false, Reception::default());
        Self { id, local, remote, since, follows_routes, reception, carrier, cause: OnceLock::new() }
    }

    /// The same, of which [`follows_routes`](Self::follows_routes) says that.
    pub(crate) fn following_routes(mut self, follows_routes: bool) -> Self {
        self.follows_routes = follows_routes;
        self
    }

    /// Why it is about to end. What is told first counts.
    pub(crate) fn note_cause(&self, cause: DownCause) {
        self.cause.get_or_init(|| cause);
    }

    /// Why it ended, where that is known better than the engine can. `end` is what the engine says.
    pub(crate) fn cause(&self, end: PathEnd) -> DownCause {
        let is_refused = || match &self.carrier {
            Carrier::Tcp(tcp) => tcp.is_refused(),
            Carrier::Quic(quic) => quic.is_refused(),
        };
        match self.cause.get() {
            // It had done what it was there for, however its carrier ended then: a peer that closes one
            // before it has read all resets it.
            Some(DownCause::ClosedByPeer | DownCause::Reset | DownCause::Silent)
                if end == PathEnd::Retired =>
            {
                DownCause::Retired
            }
            // The engine's timer fired first, or QUIC's.
            None | Some(DownCause::Silent) if end == PathEnd::Silent && is_refused() => {
                DownCause::Unreachable
            }
            Some(cause) => *cause,
            None => end.into(),
        }
    }

    /// It is about to become suspect: what was said of its other end counts if it stays silent. `since_ack`
    /// is what the carrier says. Asks the kernel.
    pub(crate) fn falls_silent(&self, now: Instant, since_ack: Option<Duration>) {
        match &self.carrier {
            Carrier::Tcp(tcp) => {
                // It ends when it is read next.
                if let Some(error) = tcp.ask_of_silence(now, since_ack) {
                    self.note_cause((&error).into());
                }
            }
            Carrier::Quic(quic) => quic.follow_peer(),
        }
    }

    pub(crate) fn kind(&self) -> CarrierKind {
        match &self.carrier {
            Carrier::Tcp(tcp) => tcp.kind,
            Carrier::Quic(_) => CarrierKind::Quic,
        }
    }

    /// Hands what arrived with the path's first flight to the engine.
    pub(crate) fn feed(&self, engine: &impl Segments, plaintext: &[u8]) -> Result<(), PathError> {
        match &self.carrier {
            Carrier::Tcp(tcp) => tcp.feed(engine, plaintext),
            Carrier::Quic(quic) => quic.feed(engine, plaintext),
        }
    }

    /// Reads and writes once, as far as the carrier goes, and registers for what it does not give now.
    pub(crate) fn drive(&self, engine: &impl Segments, cx: &mut Context<'_>) -> Result<Worked, PathError> {
        match &self.carrier {
            Carrier::Tcp(tcp) => tcp.drive(engine, cx),
            Carrier::Quic(quic) => quic.drive(engine, cx),
        }
    }

    /// The carrier took no more when it was last written to: not worth trying until it says so.
    pub(crate) fn is_blocked(&self) -> bool {
        match &self.carrier {
            Carrier::Tcp(tcp) => tcp.is_blocked(),
            Carrier::Quic(quic) => quic.is_blocked(),
        }
    }

    /// Writes what waits, for as long as the carrier takes it.
    pub(crate) fn flush(&self, engine: &impl Segments) -> Result<Flow, PathError> {
        match &self.carrier {
            Carrier::Tcp(tcp) => tcp.flush(engine),
            Carrier::Quic(quic) => quic.flush(engine),
        }
    }

    /// As [`flush`](Self::flush); `None` if another thread is at it. `now`: the clock was looked at just now.
    pub(crate) fn try_flush(
        &self,
        engine: &impl Segments,
        now: Option<Instant>,
    ) -> Option<Result<Flow, PathError>> {
        match &self.carrier {
            Carrier::Tcp(tcp) => tcp.try_flush(engine, now),
            Carrier::Quic(quic) => quic.try_flush(engine),
        }
    }

    /// Queues the end of the channel behind everything written.
    pub(crate) fn end(&self) {
        match &self.carrier {
            Carrier::Tcp(tcp) => tcp.end(),
            Carrier::Quic(quic) => quic.end(),
        }
    }

    /// Bytes that the carrier keeps in this process, at most, beside those that were sent and not
    /// acknowledged.
    pub(crate) fn buffered(&self) -> u64 {
        match &self.carrier {
            // The kernel bounds its own.
            Carrier::Tcp(_) => 0,
            Carrier::Quic(quic) => quic.buffered(),
        }
    }

    /// Something that was sent has not even arrived, as far as the kernels know. False if that cannot be
    /// told.
    pub(crate) fn is_unheard(&self) -> bool {
        match &self.carrier {
            Carrier::Tcp(tcp) => tcp.is_unheard(),
            Carrier::Quic(_) => false,
        }
    }

    /// What the carrier knows of the path, if it can tell.
    pub(crate) fn stats(&self) -> Option<CarrierStats> {
        match &self.carrier {
            Carrier::Tcp(tcp) => tcp.stats(self.remote.tcp_extent()),
            Carrier::Quic(quic) => Some(quic.stats()),
        }
    }
}
