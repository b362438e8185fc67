//! Connections that are opened before anything needs them: where the manager says of a message that one over
//! another network is worth it for what comes next. A page asks for several objects at once, and what is open
//! there by then saves each of them two round trips.

use super::{IDLE, Origins};
use crate::Destination;
use crate::http::recent::Recent;
use futures_util::FutureExt;
use std::sync::Arc;
use tokio::sync::Semaphore;
use whimbrel_access::Intents;
use whimbrel_multiaccess::Candidate;

/// Servers for which one was opened lately.
const REMEMBERED: usize = 1024;
/// So many are opened for a server at most, in the time for which idle ones are kept: half of what browsers
/// open.
const EACH: u32 = 3;
/// So many are being opened at a time; for other servers none is meanwhile.
const MOST: usize = 16;

/// What is opened ahead, and was lately.
pub(super) struct Ahead {
    /// How many, for each server. The manager is told of idle connections alone: while all are in use it
    /// says of each message that another one is worth it.
    lately: Recent<u32>,
    places: Arc<Semaphore>,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { lately: Recent::new(REMEMBERED, IDLE), places: Arc::new(Semaphore::new(MOST)) }
    }
}

impl Origins {
    /// Opens a connection that is idle then, so that the manager is told of it with the next question. Nobody
    /// waits for it.
    ///
    /// Over TLS none is: what a server shows first decides there whether this proxy may speak with it at all.
    pub(super) fn open_ahead(self: &Arc<Self>, to: &Destination, by: Candidate) {
        let before = self.ahead.lately.of(to).unwrap_or_default();
        if self.secured.is_some() || before >= EACH {
            return;
        }
        let Ok(place) = Arc::clone(&self.ahead.places).try_acquire_owned() else { return };
        self.ahead.lately.put(to, before + 1);
        let (origins, to) = (Arc::clone(self), to.clone());
        tokio::spawn(FutureExt::boxed(async move {
            match origins.connect(&to, &Intents::default(), vec![by], false).await {
                Ok(line) => origins.keep(line),
                Err(error) => tracing::debug!(%error, %to, "no connection is opened ahead"),
            }
            drop(place);
        }));
    }
}
