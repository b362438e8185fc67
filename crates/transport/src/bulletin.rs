//! What happens to all connections of an endpoint, told in one place.

use std::sync::{Mutex, PoisonError};

use tokio::sync::broadcast;

use crate::events::EndpointEvents;
use crate::report::EndpointEvent;

/// Events kept for a slow listener.
const BACKLOG: usize = 1024;

/// Tells those who listen. Costs nothing while nobody does.
#[derive(Debug, Default)]
pub(crate) struct Bulletin {
    sender: Mutex<Option<broadcast::Sender<EndpointEvent>>>,
}

impl Bulletin {
    /// Hears everything from now on.
    pub(crate) fn subscribe(&self) -> EndpointEvents {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        EndpointEvents::new(sender.get_or_insert_with(|| broadcast::channel(BACKLOG).0).subscribe())
    }

    /// Tells those who listen. False if nobody does.
    pub(crate) fn post(&self, event: impl FnOnce() -> EndpointEvent) -> bool {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        // The last listener may have left: its backlog goes too.
        if sender.as_ref().is_some_and(|sender| sender.receiver_count() == 0) {
            *sender = None;
        }
        sender.as_ref().is_some_and(|sender| sender.send(event()).is_ok())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_proto::Side;

    use super::*;

    fn failed(reason: &str) -> EndpointEvent {
        EndpointEvent::Failed { peer: None, name: None, side: Side::Client, reason: reason.to_owned() }
    }

    #[tokio::test]
    async fn a_listener_that_falls_behind_learns_how_much_it_missed() {
        let bulletin = Bulletin::default();
        assert!(!bulletin.post(|| unreachable!("nobody listens")));
        let mut events = bulletin.subscribe();
        (0..BACKLOG + 3).for_each(|n| assert!(bulletin.post(|| failed(&n.to_string()))));
        assert_eq!(events.next().await, Some(EndpointEvent::Missed(3)));
        assert_eq!(events.next().await, Some(failed("3")));
        drop(events);
        assert!(!bulletin.post(|| unreachable!("nobody listens any more")));
    }
}
