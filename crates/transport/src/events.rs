//! What happens to a connection, one event after the other.

use tokio::sync::broadcast;

use crate::report::{ConnectionEvent, EndpointEvent};

/// The events of a connection from the time on when they were [asked for](crate::Connection::events).
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<ConnectionEvent>,
    is_over: bool,
}

impl Events {
    pub(crate) fn new(receiver: broadcast::Receiver<ConnectionEvent>) -> Self {
        Self { receiver, is_over: false }
    }

    /// The next event; `None` behind the last. Whoever falls too far behind gets
    /// [`ConnectionEvent::Missed`] in place of the oldest. Cancel-safe.
    pub async fn next(&mut self) -> Option<ConnectionEvent> {
        use broadcast::error::RecvError;
        if self.is_over {
            return None;
        }
        match self.receiver.recv().await {
            Ok(event) => Some(self.seen(event)),
            Err(RecvError::Lagged(count)) => Some(ConnectionEvent::Missed(count)),
            Err(RecvError::Closed) => None,
        }
    }

    /// The next event if it is there already.
    pub fn try_next(&mut self) -> Option<ConnectionEvent> {
        use broadcast::error::TryRecvError;
        match self.receiver.try_recv() {
            Ok(event) => Some(self.seen(event)),
            Err(TryRecvError::Lagged(count)) => Some(ConnectionEvent::Missed(count)),
            Err(TryRecvError::Empty | TryRecvError::Closed) => None,
        }
    }

    /// The handles that outlive the connection's end keep the channel open.
    fn seen(&mut self, event: ConnectionEvent) -> ConnectionEvent {
        self.is_over |= matches!(event, ConnectionEvent::Closed { .. });
        event
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
