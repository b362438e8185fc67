//! Events for the application.

use tokio::sync::broadcast;

use crate::report::ConnectionEvent;

/// Events kept for a slow listener.
const BACKLOG: usize = 64;

/// Tells what happens underneath to those who listen. Costs nothing while nobody does.
#[derive(Debug, Default)]
pub(super) struct Feed {
    sender: Option<broadcast::Sender<ConnectionEvent>>,
    /// The end was told.
    ended: bool,
}

impl Feed {
    /// Hears everything from now on.
    pub(super) fn subscribe(&mut self) -> broadcast::Receiver<ConnectionEvent> {
        self.sender.get_or_insert_with(|| broadcast::channel(BACKLOG).0).subscribe()
    }

    /// Tells who listens, unless they were told already that the connection is over: nothing follows that.
    /// False if nobody listens.
    pub(super) fn tell(&mut self, event: ConnectionEvent) -> bool {
        if self.ended {
            return false;
        }
        self.ended = matches!(event, ConnectionEvent::Closed { .. });
        self.sender.as_ref().is_some_and(|sender| sender.send(event).is_ok())
    }
}
