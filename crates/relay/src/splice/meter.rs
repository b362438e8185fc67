//! Counts the bytes of a splice, and holds them up where there are too many.

use std::future::Future as _;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::time::{Sleep, sleep};
use whimbrel_base::RelayToken;

use crate::fair::Client;
use crate::rates::source;
use crate::traffic::{Traffic, Turn};

/// A piece that is held up.
pub(super) struct Pause {
    sleep: Pin<Box<Sleep>>,
    /// It may pass then, without being asked for again.
    may: bool,
}

/// What counts the bytes of a splice.
pub struct Meter<'a> {
    bytes: &'a AtomicU64,
    /// The relay's, whose reservation it is, and which client's.
    relay: Option<(&'a Traffic, RelayToken, Client)>,
}

impl<'a> Meter<'a> {
    /// Counts in `bytes` alone.
    #[must_use]
    pub fn new(bytes: &'a AtomicU64) -> Self {
        Self { bytes, relay: None }
    }

    /// Counts for a relay as well, which may have a limit for the reservation. The client is at `client`.
    pub(crate) fn of_relay(
        bytes: &'a AtomicU64,
        traffic: &'a Traffic,
        token: RelayToken,
        client: IpAddr,
    ) -> Self {
        Self { bytes, relay: Some((traffic, token, source(client))) }
    }

    /// So many so far.
    pub(super) fn count(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn passed(&self, count: usize) {
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        if let Some((traffic, token, client)) = self.relay {
            traffic.passed(token, client, count);
        }
    }

    /// Ready when the next piece may pass. One that has waited for its reservation may, whatever others have
    /// taken meanwhile: those wait longer for it, and so each of them has its turn, also the few bytes beside
    /// a download. One whose client has had more than others asks again.
    pub(super) fn poll_turn(&self, pause: &mut Option<Pause>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(waiting) = pause {
                ready!(waiting.sleep.as_mut().poll(cx));
                let may = waiting.may;
                *pause = None;
                if may {
                    return Poll::Ready(());
                }
            }
            let Some((traffic, token, client)) = self.relay else { return Poll::Ready(()) };
            let (wait, may) = match traffic.turn(token, client) {
                Turn::Now => return Poll::Ready(()),
                Turn::After(wait) => (wait, true),
                Turn::AskIn(wait) => (wait, false),
            };
            *pause = Some(Pause { sleep: Box::pin(sleep(wait)), may });
        }
    }
}
