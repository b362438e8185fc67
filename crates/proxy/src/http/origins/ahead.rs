//! Connections that are opened before anything needs them: beside the first one to a server, and where the
//! manager says of a message that one over another network is worth it for what comes next. A page asks for
//! several objects at once, and what is open by then saves each of them a round trip or two.
//!
//! Over TLS none is: what a server shows first decides there whether this proxy may speak with it at all.

use super::making::MOST;
use super::{IDLE, Origins};
use crate::Destination;
use crate::http::recent::Recent;
use std::sync::Arc;
use tokio::sync::Semaphore;
use whimbrel_access::Intents;
use whimbrel_multiaccess::Candidate;

/// Servers for which one was opened lately.
const REMEMBERED: usize = 1024;
/// So many are opened for a server at most, in the time for which idle ones are kept: half of what browsers
/// open.
const EACH: u32 = 3;

/// What is opened ahead, and was lately.
pub(super) struct Ahead {
    /// How many, for each server. The manager is told of idle connections alone: while all are in use it
    /// says of each message that another one is worth it.
    lately: Recent<u32>,
    /// Beside whose first one another was opened.
    beside: Recent<()>,
    places: Arc<Semaphore>,
}

impl Default for Ahead {
    fn default() -> Self {
        let (lately, beside) = (Recent::new(REMEMBERED, IDLE), Recent::new(REMEMBERED, IDLE));
        Self { lately, beside, places: Arc::new(Semaphore::new(MOST)) }
    }
}

impl Origins {
    /// Opens another connection beside a new one, over the same network, if none was within a minute: there
    /// the rest of an object is asked for while its first bytes come, and not behind them. The new one goes
    /// first: a server that serves one connection at a time begins with that.
    pub(super) fn open_beside(self: &Arc<Self>, to: &Destination, by: Candidate) {
        if self.ahead.beside.of(to).is_none() {
            self.ahead.beside.put(to, ());
            self.open(to, by);
        }
    }

    /// Opens a connection over another network, so that the manager is told of it with the next question.
    pub(super) fn open_ahead(self: &Arc<Self>, to: &Destination, by: Candidate) {
        let before = self.ahead.lately.of(to).unwrap_or_default();
        if before < EACH && self.open(to, by) {
            self.ahead.lately.put(to, before + 1);
        }
    }

    /// Opens a connection in the background. False: it is over TLS, or too many are being opened already.
    fn open(self: &Arc<Self>, to: &Destination, by: Candidate) -> bool {
        if self.secured.is_some() {
            return false;
        }
        let Ok(place) = Arc::clone(&self.ahead.places).try_acquire_owned() else { return false };
        self.make_idle(self.connecting(to, Intents::default(), vec![by], false), place);
        true
    }
}
