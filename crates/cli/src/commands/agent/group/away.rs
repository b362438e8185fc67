//! Whether the user is at this device, as `whimbrel devices away` says it meanwhile.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::presence::{self, Said};

/// Between two looks whether the user has said something else.
const LOOK: Duration = Duration::from_millis(500);

/// Whether the user is at this device, and since when it is so.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    away: bool,
    since: Instant,
}

impl State {
    /// From now on.
    pub(super) fn new(away: bool) -> Self {
        Self { away, since: Instant::now() }
    }

    /// What those are told who may know.
    pub(super) fn said(self) -> Said {
        let seconds = u32::try_from(self.since.elapsed().as_secs()).unwrap_or(u32::MAX);
        Said { away: self.away, seconds }
    }
}

/// Tells whenever the user has said something else, for as long as it is polled.
pub(super) async fn follow(tell: watch::Sender<State>) -> Infallible {
    loop {
        tokio::time::sleep(LOOK).await;
        // What cannot be looked at says nothing.
        let Ok(away) = presence::is_away() else { continue };
        let now = State::new(away);
        tell.send_if_modified(|last| {
            let is_new = last.away != away;
            if is_new {
                *last = now;
            }
            is_new
        });
    }
}
