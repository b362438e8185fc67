//! One connection to a peer that everything shares, and that is made anew only if it truly ended.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use tokio::sync::Mutex;
use whimbrel_transport::{Connection, Stream};

use crate::network::{Network, Peer, connect};

/// Opens streams to one peer.
pub(crate) struct Lasting {
    network: Arc<Network>,
    peer: Peer,
    current: Mutex<Option<Connection>>,
}

impl Lasting {
    pub(crate) fn new(network: Arc<Network>, peer: Peer) -> Self {
        Self { network, peer, current: Mutex::new(None) }
    }

    /// The connection, living or made now. While it is out of reach it still lives: streams opened
    /// then are served when it is back.
    pub(crate) async fn connection(&self) -> Result<Connection> {
        let mut current = self.current.lock().await;
        if let Some(connection) = current.as_ref().filter(|c| c.close_reason().is_none()) {
            return Ok(connection.clone());
        }
        *current = None;
        let connection = connect(&self.network, &self.peer).await?;
        *current = Some(connection.clone());
        Ok(connection)
    }

    /// A new stream.
    pub(crate) async fn stream(&self) -> Result<Stream> {
        // The connection may end between being found alive and being used, once.
        if let Ok(stream) = self.connection().await?.open_stream().await {
            return Ok(stream);
        }
        self.connection().await?.open_stream().await.with_context(|| format!("lost {}", self.peer))
    }
}
