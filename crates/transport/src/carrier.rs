//! What a path runs on. A carrier is an ordered, authenticated byte channel with statistics of its own. The
//! driver calls it through [`PathIo`](crate::path_io::PathIo), one match away: there is nothing dynamic on
//! the way of a byte.

pub(crate) mod quic;
mod reach;
mod segments;
mod sizes;
mod sys;
mod tcp;

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use smallvec::{SmallVec, smallvec};

pub(crate) use reach::Reach;
pub(crate) use segments::{Next, Segments};
pub(crate) use sizes::{SMALL_SEGMENT, Sizes};
pub(crate) use sys::accept_who_speaks;
pub use sys::is_delivered;
pub(crate) use tcp::{TcpCarrier, hands_on, kind_of, spread, stream_socket, tune};

use crate::locator::Extent;
use crate::tls::TlsError;

/// The kind of transport that a path runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CarrierKind {
    /// TLS 1.3 over TCP.
    Tcp,
    /// As TCP, on a socket of Multipath TCP (RFC 8684), which both kernels must support.
    Mptcp,
    /// QUIC, over UDP.
    Quic,
}

impl fmt::Display for CarrierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Mptcp => "mptcp",
            Self::Quic => "quic",
        })
    }
}

/// Which carriers an endpoint dials with. It accepts TCP and QUIC whatever it dials with, and MPTCP if it
/// dials with that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Carriers {
    /// TCP and QUIC, whichever gets through first, TCP with a head start.
    #[default]
    Auto,
    /// One alone. MPTCP falls back to TCP silently where either kernel does not support it.
    Only(CarrierKind),
}

impl Carriers {
    /// What the listener's stream sockets are: those of MPTCP accept TCP too.
    pub(crate) fn listens_to(self) -> CarrierKind {
        match self {
            Self::Only(CarrierKind::Mptcp) => CarrierKind::Mptcp,
            _ => CarrierKind::Tcp,
        }
    }

    /// Best first.
    fn order(self) -> SmallVec<[CarrierKind; 2]> {
        match self {
            Self::Auto => smallvec![CarrierKind::Tcp, CarrierKind::Quic],
            Self::Only(kind) => smallvec![kind],
        }
    }
}

impl fmt::Display for Carriers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Only(kind) => kind.fmt(f),
        }
    }
}

/// A word that names no carrier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no carrier is called {0:?}; choose auto, tcp, mptcp or quic")]
pub struct UnknownCarrier(String);

impl FromStr for Carriers {
    type Err = UnknownCarrier;

    fn from_str(word: &str) -> Result<Self, UnknownCarrier> {
        match word {
            "auto" => Ok(Self::Auto),
            "tcp" => Ok(Self::Only(CarrierKind::Tcp)),
            "mptcp" => Ok(Self::Only(CarrierKind::Mptcp)),
            "quic" => Ok(Self::Only(CarrierKind::Quic)),
            _ => Err(UnknownCarrier(word.to_owned())),
        }
    }
}

/// What a carrier knows of its path: the kernel for TCP (`TCP_INFO`, tcp(7)), QUIC's own estimates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CarrierStats {
    /// Of how much of the path all of this tells. Where that is not the whole, "the peer" below is the next
    /// hop.
    pub extent: Extent,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Its mean deviation.
    pub rttvar: Duration,
    /// Congestion window, in bytes.
    pub cwnd: u64,
    /// Bytes that were written and not sent yet, as far as the carrier tells.
    pub unsent: u64,
    /// How fast bytes were delivered lately, in bytes a second; 0 if not known.
    pub delivery_rate: u64,
    /// Packets sent again or taken for lost, in total.
    pub lost: u64,
    /// Time since the peer last acknowledged anything; `None` if it never did.
    pub since_ack: Option<Duration>,
    /// Time since anything came from it, also what cannot be read yet; `None` if the carrier cannot tell.
    pub since_heard: Option<Duration>,
    /// Retransmission timeouts since it last acknowledged anything new.
    pub timeouts: u32,
}

impl CarrierStats {
    /// Time since the peer itself acknowledged something new; `None` if the carrier cannot tell.
    pub(crate) fn since_peer_ack(&self) -> Option<Duration> {
        // A kernel that backs off hears nothing new, although the other end's own segments still come, and
        // repeat old acknowledgements.
        let tells = self.extent == Extent::EndToEnd && self.timeouts == 0;
        self.since_ack.filter(|_| tells)
    }

    /// Time since the peer itself was heard; `None` if the carrier cannot tell.
    pub(crate) fn since_peer_heard(&self) -> Option<Duration> {
        self.since_heard.filter(|_| self.extent == Extent::EndToEnd)
    }
}

/// Why a path ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PathError {
    #[error("the peer closed it")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Quic(#[from] quinn::ConnectionError),
    #[error("the peer broke the protocol")]
    Protocol,
}

/// Where reading or writing stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// There may be more to do right away.
    More,
    /// Nothing more to do.
    Idle,
    /// The socket is not ready.
    Blocked,
}

/// What there was to do on a path.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Worked {
    /// Something may have come in.
    pub(crate) read: bool,
    /// There may be more to do at once.
    pub(crate) again: bool,
    /// Something waits to be sent, with what other tasks add to it now.
    pub(crate) after_others: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_peer_acknowledged_lately_is_progress() {
        let ack = Some(Duration::from_millis(3));
        let since_peer_ack = |extent, since_ack, timeouts| {
            let (srtt, rttvar) = (Duration::from_millis(20), Duration::ZERO);
            let (cwnd, unsent, delivery_rate, lost) = (14_600, 0, 0, 0);
            let since_heard = since_ack;
            let stats = CarrierStats {
                extent,
                srtt,
                rttvar,
                cwnd,
                unsent,
                delivery_rate,
                lost,
                since_ack,
                since_heard,
                timeouts,
            };
            assert_eq!(stats.since_peer_heard(), since_heard.filter(|_| extent == Extent::EndToEnd));
            stats.since_peer_ack()
        };
        assert_eq!(since_peer_ack(Extent::EndToEnd, ack, 0), ack);
        assert_eq!(since_peer_ack(Extent::EndToEnd, ack, 1), None, "it may repeat an old acknowledgement");
        assert_eq!(since_peer_ack(Extent::EndToEnd, None, 0), None);
        assert_eq!(since_peer_ack(Extent::NextHop, ack, 0), None, "the next hop lives, perhaps not the peer");
    }
}
