//! Connections to a peer that everything shares, and that are made anew only if they truly ended.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::Mutex;
use whimbrel_transport::{Connection, Stream};

use crate::failure::Failure;
use crate::network::{Network, Peer, connect};

/// A peer that lets more streams be opened as they are used says so within this. One that has not is at its
/// limit.
const GROWTH: Duration = Duration::from_millis(500);
/// Connections to one peer. Programs that never raise their limit grant 1024 streams on each.
const MAX_CONNECTIONS: usize = 64;

/// Opens streams to one peer: on one connection, and on further ones only when the peer grants no more
/// streams on it.
pub(crate) struct Lasting {
    network: Arc<Network>,
    peer: Peer,
    current: Mutex<Vec<Connection>>,
}

impl Lasting {
    /// Makes no connection yet.
    pub(crate) fn new(network: Arc<Network>, peer: Peer) -> Self {
        Self { network, peer, current: Mutex::new(Vec::new()) }
    }

    /// Uses connections that were made before.
    pub(crate) async fn go_on_with(&self, connections: Vec<Connection>) {
        self.current.lock().await.extend(connections);
    }

    /// The living connections, as they are now.
    pub(crate) async fn living(&self) -> Vec<Connection> {
        let mut current = self.current.lock().await;
        current.retain(|connection| connection.close_reason().is_none());
        current.clone()
    }

    /// For how long the peer has been out of reach, if it is so just now on the newest connection.
    pub(crate) fn out_of_reach(&self) -> Option<Duration> {
        // Not waited for: the lock is held while a connection is made.
        self.current.try_lock().ok()?.last()?.stats().unreachable
    }

    /// The living connections, for another instance to go on with.
    pub(crate) async fn leave(&self) -> Vec<Connection> {
        std::mem::take(&mut *self.current.lock().await)
    }

    /// A connection, living or made now. While it is out of reach it still lives: streams opened then are
    /// served when it is back.
    ///
    /// # Errors
    /// When there is none and none can be made.
    pub(crate) async fn connection(&self) -> Result<Connection> {
        let connections = self.connections(1).await?;
        connections.into_iter().next().with_context(|| format!("lost {}", self.peer))
    }

    /// A new stream. Waits while the peer is out of reach.
    ///
    /// # Errors
    /// When the peer cannot be connected to, or grants no more streams.
    pub(crate) async fn stream(&self) -> Result<Stream> {
        let mut wanted = 1;
        let mut lost = 0;
        loop {
            let connections = self.connections(wanted).await?;
            if let Some(stream) = connections.iter().find_map(open_now) {
                return Ok(stream);
            }
            let Some(newest) = connections.last() else { continue };
            match tokio::time::timeout(GROWTH, newest.open_stream()).await {
                Ok(Ok(stream)) => return Ok(stream),
                // It may end between being found alive and being used, once.
                Ok(Err(error)) if lost > 0 => {
                    return Err(error).with_context(|| format!("lost {}", self.peer));
                }
                Ok(Err(_)) => lost += 1,
                // Out of reach, it cannot be told of a higher limit, and another one would not get there
                // either.
                Err(_) if newest.stats().unreachable.is_some() => {}
                Err(_) if connections.len() >= MAX_CONNECTIONS => {
                    let message = format!("{} lets no more streams be opened; let some end first", self.peer);
                    return Err(Failure::new(Failure::REFUSED, message).into());
                }
                Err(_) => wanted = connections.len() + 1,
            }
        }
    }

    /// The living connections, of which there are at least `wanted` then. Connects one at a time.
    async fn connections(&self, wanted: usize) -> Result<Vec<Connection>> {
        let mut current = self.current.lock().await;
        current.retain(|connection| connection.close_reason().is_none());
        if current.len() < wanted {
            current.push(connect(&self.network, &self.peer).await?);
        }
        Ok(current.clone())
    }
}

/// A stream, if the peer lets one be opened without waiting.
fn open_now(connection: &Connection) -> Option<Stream> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(connection.open_stream()).poll(&mut context) {
        Poll::Ready(stream) => stream.ok(),
        Poll::Pending => None,
    }
}
