//! The application's handle to a name that it listens for.

use std::fmt;
use std::sync::Arc;

use whimbrel_base::Name;

use crate::connection::Connection;
use crate::endpoint_core::EndpointCore;
use crate::incoming::Incoming;
use crate::listeners::Arrivals;

/// Takes connections that peers open. Dropping it refuses further ones; those accepted go on.
pub struct Listener {
    pub(crate) endpoint: Arc<EndpointCore>,
    pub(crate) name: Option<Name>,
    pub(crate) arrivals: Arrivals,
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
        loop {
            let accepted = match &mut self.arrivals {
                Arrivals::Accepted(connections) => return connections.recv().await,
                Arrivals::Asked(callers) => Incoming::from(callers.recv().await?).accept().await,
            };
            if accepted.is_some() {
                return accepted;
            }
        }
    }

    /// The next peer that wants to connect, to let it in or not; `None` once the endpoint is closed. Where
    /// the listener does not [ask first](crate::ListenOptions::ask_first), the peer has been let in by its
    /// options already, and to refuse it is to close its connection. Cancel-safe.
    pub async fn incoming(&mut self) -> Option<Incoming> {
        match &mut self.arrivals {
            Arrivals::Accepted(connections) => connections.recv().await.map(Incoming::from),
            Arrivals::Asked(callers) => callers.recv().await.map(Incoming::from),
        }
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
