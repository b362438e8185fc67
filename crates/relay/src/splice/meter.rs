//! Counts the bytes of a splice, and holds them up where there are too many.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::time::{Sleep, sleep};
use whimbrel_base::RelayToken;

use crate::traffic::Traffic;

/// What counts the bytes of a splice.
pub struct Meter<'a> {
    bytes: &'a AtomicU64,
    /// The relay's, and whose reservation it is.
    relay: Option<(&'a Traffic, RelayToken)>,
}

impl<'a> Meter<'a> {
    /// Counts in `bytes` alone.
    #[must_use]
    pub fn new(bytes: &'a AtomicU64) -> Self {
        Self { bytes, relay: None }
    }

    /// Counts for a relay as well, which may have a limit for the reservation.
    pub(crate) fn of_relay(bytes: &'a AtomicU64, traffic: &'a Traffic, token: RelayToken) -> Self {
        Self { bytes, relay: Some((traffic, token)) }
    }

    /// So many so far.
    pub(super) fn count(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn passed(&self, count: usize) {
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        if let Some((traffic, token)) = self.relay {
            traffic.passed(token, count);
        }
    }

    /// Ready when the next piece may pass. One that has waited may, whatever others of the reservation have taken
    /// meanwhile: those wait longer for it, and so each of them has its turn, also the few bytes beside a download.
    pub(super) fn poll_turn(&self, pause: &mut Option<Pin<Box<Sleep>>>, cx: &mut Context<'_>) -> Poll<()> {
        if pause.is_none() {
            let wait = self.relay.and_then(|(traffic, token)| traffic.pause(token));
            *pause = wait.map(|wait| Box::pin(sleep(wait)));
        }
        if let Some(waiting) = pause {
            ready!(waiting.as_mut().poll(cx));
        }
        *pause = None;
        Poll::Ready(())
    }
}
