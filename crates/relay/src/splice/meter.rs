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
    /// How long nothing may pass.
    pause: Option<Pin<Box<Sleep>>>,
}

impl<'a> Meter<'a> {
    /// Counts in `bytes` alone.
    #[must_use]
    pub fn new(bytes: &'a AtomicU64) -> Self {
        Self { bytes, relay: None, pause: None }
    }

    /// Counts for a relay as well, which may have a limit for the reservation.
    pub(crate) fn of_relay(bytes: &'a AtomicU64, traffic: &'a Traffic, token: RelayToken) -> Self {
        Self { bytes, relay: Some((traffic, token)), pause: None }
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

    /// Whether it holds bytes up.
    pub(super) fn pauses(&self) -> bool {
        self.pause.is_some()
    }

    /// Ready when something may pass.
    pub(super) fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            match self.relay.and_then(|(traffic, token)| traffic.pause(token)) {
                Some(pause) => self.pause = Some(Box::pin(sleep(pause))),
                None => return Poll::Ready(()),
            }
        }
    }
}
