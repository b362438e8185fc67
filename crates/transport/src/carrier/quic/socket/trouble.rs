//! Errors of receiving in a row, and the pause after too many of them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

/// Errors in a row after which receiving pauses; a datagram that was sent causes one at most.
pub(super) const ERRORS_AT_ONCE: u32 = 64;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Errors in a row, and the pause after too many of them.
#[derive(Default)]
pub(super) struct Trouble {
    errors: u32,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Trouble {
    pub(super) fn end(&mut self) {
        self.errors = 0;
    }

    /// One more error, with nothing received since the one before.
    pub(super) fn note(&mut self, error: &io::Error) {
        self.errors = self.errors.saturating_add(1);
        if let Some(pauses) = self.errors.checked_sub(ERRORS_AT_ONCE) {
            let pause = FIRST_PAUSE.saturating_mul(2u32.saturating_pow(pauses)).min(LONGEST_PAUSE);
            tracing::warn!(%error, ?pause, "cannot receive");
            self.pause = Some(Box::pin(tokio::time::sleep(pause)));
        }
    }

    /// Ready unless there is a pause.
    pub(super) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            std::task::ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        Poll::Ready(())
    }
}
