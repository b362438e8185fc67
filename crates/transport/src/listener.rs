//! The application's handle to a name that it listens for.

use std::fmt;
use std::sync::Arc;

use tokio::sync::mpsc;
use whimbrel_base::Name;

use crate::connection::Connection;
use crate::endpoint_core::EndpointCore;

/// Takes connections that peers open. Dropping it refuses further ones; those accepted go on.
pub struct Listener {
    pub(crate) endpoint: Arc<EndpointCore>,
    pub(crate) name: Option<Name>,
    pub(crate) receiver: mpsc::Receiver<Connection>,
    /// Publishes the record while the listener lives.
    pub(crate) publisher: Option<tokio::task::JoinHandle<()>>,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Listener {
    /// The name that is listened for.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    /// The next connection; `None` once the endpoint is closed. Cancel-safe.
    pub async fn accept(&mut self) -> Option<Connection> {
        self.receiver.recv().await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.endpoint.listeners.remove(&self.name);
        if let Some(publisher) = &self.publisher {
            publisher.abort();
        }
    }
}
