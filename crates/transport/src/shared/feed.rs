//! Events for the application.

use std::sync::Arc;

use tokio::sync::broadcast;
use whimbrel_base::{ConnectionId, EndpointId};
use whimbrel_proto::Side;

use crate::bulletin::Bulletin;
use crate::report::{ConnectionEvent, EndpointEvent};

/// Events kept for a slow listener.
const BACKLOG: usize = 64;

/// Tells what happens underneath to those who listen to the connection, or to all of its endpoint. Costs
/// nothing while nobody does.
#[derive(Debug, Default)]
pub(super) struct Feed {
    sender: Option<broadcast::Sender<ConnectionEvent>>,
    /// Where the endpoint's listeners are told.
    bulletin: Option<Arc<Bulletin>>,
    /// These know of the connection.
    established: bool,
    /// The end was told.
    ended: bool,
}

/// Of which connection something is told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whose {
    pub(super) id: ConnectionId,
    pub(super) peer: EndpointId,
    pub(super) side: Side,
}

impl Feed {
    /// Tells the endpoint's listeners too, from now on.
    pub(super) fn tell_endpoint(&mut self, bulletin: Arc<Bulletin>) {
        (self.bulletin, self.established) = (Some(bulletin), false);
    }

    /// Hears everything from now on.
    pub(super) fn subscribe(&mut self) -> broadcast::Receiver<ConnectionEvent> {
        self.sender.get_or_insert_with(|| broadcast::channel(BACKLOG).0).subscribe()
    }

    /// The connection is established.
    pub(super) fn established(&mut self, whose: Whose) {
        if let Some(bulletin) = &self.bulletin {
            self.established = true;
            let Whose { id, peer, side } = whose;
            bulletin.post(|| EndpointEvent::Established { id, peer, side });
        }
    }

    /// Tells those who listen, unless they were told already that the connection is over: nothing follows
    /// that. False if nobody listens.
    pub(super) fn tell(&mut self, whose: Whose, event: ConnectionEvent) -> bool {
        if self.ended {
            return false;
        }
        self.ended = matches!(event, ConnectionEvent::Closed { .. });
        let endpoint = self.tell_bulletin(whose, &event);
        self.sender.as_ref().is_some_and(|sender| sender.send(event).is_ok()) || endpoint
    }

    fn tell_bulletin(&self, whose: Whose, event: &ConnectionEvent) -> bool {
        let Some(bulletin) = &self.bulletin else { return false };
        let Whose { id, peer, side } = whose;
        match event {
            event if self.established => {
                let event = event.clone();
                bulletin.post(|| EndpointEvent::Connection { id, peer, side, event })
            }
            ConnectionEvent::Closed { code, reason } => bulletin.post(|| {
                let reason = if reason.is_empty() { code.to_string() } else { format!("{code}: {reason}") };
                EndpointEvent::Failed { peer: Some(peer), name: None, side, reason }
            }),
            // Paths of an attempt.
            _ => false,
        }
    }
}
