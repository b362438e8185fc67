//! What happens to a connection, one event after the other.

use tokio::sync::broadcast;

use crate::report::{ConnectionEvent, EndpointEvent};

/// The events of a connection from the time on when they were [asked for](crate::Connection::events).
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<ConnectionEvent>,
}

impl Events {
    pub(crate) fn new(receiver: broadcast::Receiver<ConnectionEvent>) -> Self {
        Self { receiver }
    }

    /// The next event; `None` behind the last. Whoever falls too far behind gets
    /// [`ConnectionEvent::Missed`] in place of the oldest. Cancel-safe.
    pub async fn next(&mut self) -> Option<ConnectionEvent> {
        use broadcast::error::RecvError;
        match self.receiver.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(count)) => Some(ConnectionEvent::Missed(count)),
            Err(RecvError::Closed) => None,
        }
    }

    /// The next event if it is there already.
    pub fn try_next(&mut self) -> Option<ConnectionEvent> {
        use broadcast::error::TryRecvError;
        match self.receiver.try_recv() {
            Ok(event) => Some(event),
            Err(TryRecvError::Lagged(count)) => Some(ConnectionEvent::Missed(count)),
            Err(TryRecvError::Empty | TryRecvError::Closed) => None,
        }
    }
}

/// What happens to all connections of an endpoint, from the time on when it was
/// [asked for](crate::Endpoint::events).
#[derive(Debug)]
pub struct EndpointEvents {
    receiver: broadcast::Receiver<EndpointEvent>,
}

impl EndpointEvents {
    pub(crate) fn new(receiver: broadcast::Receiver<EndpointEvent>) -> Self {
        Self { receiver }
    }

    /// The next event; `None` once the endpoint is gone. A listener that falls too far behind gets
    /// [`EndpointEvent::Missed`] in place of the oldest. Cancel-safe.
    pub async fn next(&mut self) -> Option<EndpointEvent> {
        use broadcast::error::RecvError;
        match self.receiver.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(count)) => Some(EndpointEvent::Missed(count)),
            Err(RecvError::Closed) => None,
        }
    }
}
