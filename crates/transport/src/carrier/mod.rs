//! What a path runs on. A carrier is an ordered, authenticated byte channel with statistics of its
//! own. The driver calls it through [`PathIo`](crate::path_io::PathIo), one match away: there is nothing dynamic
//! on the way of a byte.

mod segments;
mod tcp;

use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

pub(crate) use tcp::{TcpCarrier, tune};

use crate::tls::TlsError;

/// The kind of transport that a path runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CarrierKind {
    /// TLS 1.3 over TCP.
    Tcp,
}

impl fmt::Display for CarrierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
        })
    }
}

/// What a carrier knows of its path: the kernel for TCP (`TCP_INFO`, tcp(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CarrierStats {
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Its mean deviation.
    pub rttvar: Duration,
    /// Congestion window, in bytes.
    pub cwnd: u64,
    /// Bytes that were written and not sent yet.
    pub unsent: u64,
    /// How fast bytes were delivered lately, in bytes a second; 0 if not known.
    pub delivery_rate: u64,
    /// Packets sent again or taken for lost, in total.
    pub lost: u64,
    /// Time since the peer last acknowledged anything.
    pub since_ack: Duration,
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
