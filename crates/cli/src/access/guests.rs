//! Connections of those who were let in, for as long as they are.

use futures_util::FutureExt;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::task::AbortHandle;
use whimbrel_transport::{CloseCode, Connection, Listener};

use super::Access;

const NO_LONGER: &str = "this key is no longer allowed here";
/// Ended connections are forgotten when so many more have come.
const SPARE: usize = 64;

/// Takes connections, and ends those whose peer is no longer let in: within a second of the change, whether
/// they have a path just then or not. An ended connection can't be joined again.
pub(crate) struct Guests {
    listener: Listener,
    access: Access,
    present: Present,
    sweeping: AbortHandle,
}

type Present = Arc<Mutex<Vec<Connection>>>;

impl Guests {
    pub(crate) fn new(listener: Listener, access: Access) -> Self {
        let present = Present::default();
        let sweeping = tokio::spawn(FutureExt::boxed(sweep(access.clone(), present.clone()))).abort_handle();
        Self { listener, access, present, sweeping }
    }

    /// The next connection; `None` once the endpoint is closed. Cancel-safe.
    pub(crate) async fn accept(&mut self) -> Option<Connection> {
        loop {
            let connection = self.listener.accept().await?;
            self.note(connection.clone());
            // The rules may have changed while it waited; if they change now, it is in the list.
            if self.access.admits(&connection) {
                return Some(connection);
            }
            connection.abort(CloseCode::NOT_ALLOWED, NO_LONGER);
        }
    }

    /// Lets somebody be here who was let in before.
    pub(crate) fn welcome(&self, connection: Connection) {
        self.note(connection);
    }

    /// All that are here, those included that wait to be accepted; nobody ends them any more.
    pub(crate) fn leave(mut self) -> Vec<Connection> {
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(_)) = pin!(self.accept()).poll(&mut context) {}
        std::mem::take(&mut *self.present.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, connection: Connection) {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        if present.len() + 1 > present.capacity().max(SPARE) {
            present.retain(|connection| connection.close_reason().is_none());
            let wanted = 2 * present.len() + SPARE;
            let more = wanted.saturating_sub(present.len());
            present.reserve(more);
        }
        present.push(connection);
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        self.sweeping.abort();
    }
}

async fn sweep(access: Access, present: Present) {
    loop {
        access.changed().await;
        let mut present = present.lock().unwrap_or_else(PoisonError::into_inner);
        present.retain(|connection| {
            let stays = access.admits(connection);
            if !stays {
                tracing::info!(peer = %connection.peer_id().short(), "no longer let in");
                connection.abort(CloseCode::NOT_ALLOWED, NO_LONGER);
            }
            stays && connection.close_reason().is_none()
        });
    }
}
