//! The connection to the service, for what needs more of it than answers.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use whimbrel_transport::Connection;

use super::Core;
use crate::resolver::AskError;

/// Keeps the connection to the service wanted. Ends when it is dropped.
pub(in crate::resolver) struct Wanted(Arc<Core>);

impl Drop for Wanted {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.wanted -= 1;
        state.used = Instant::now();
    }
}

impl Core {
    /// Wants a connection to the service for more than questions.
    pub(in crate::resolver) fn want_connection(core: &Arc<Self>) -> Result<Wanted, AskError> {
        let mut state = core.state();
        if state.ended {
            return Err(AskError::Closed);
        }
        state.wanted += 1;
        drop(state);
        core.work.notify_one();
        Ok(Wanted(core.clone()))
    }

    /// The connection to the service, while there is one.
    pub(in crate::resolver) fn connection(&self) -> watch::Receiver<Option<Connection>> {
        self.connection.subscribe()
    }

    /// Notes a new connection, or that there is none.
    pub(in crate::resolver) fn connected(&self, connection: Option<Connection>) {
        self.connection.send_replace(connection);
    }

    /// Something is asked on a stream of its own.
    pub(in crate::resolver) fn probes(&self) {
        self.state().probing = true;
    }

    /// It was answered.
    pub(in crate::resolver) fn heard(&self) {
        let mut state = self.state();
        (state.probing, state.heard) = (false, true);
        drop(state);
        self.work.notify_one();
    }

    /// Whether something was answered on a stream of its own on this connection.
    pub(in crate::resolver) fn was_heard(&self) -> bool {
        self.state().heard
    }
}
