//! Receiving durable messages.

use std::fmt;
use std::sync::Arc;

use whimbrel_base::EndpointId;

use super::change::Change;
use super::error::StateError;
use super::hub::Open;
use super::ledger::Arrived;
use super::lock;

/// A durable message that arrived. Dropped without [`ack`](Self::ack), it comes again when the state is
/// opened the next time.
pub struct DurableMessage {
    open: Arc<Open>,
    arrived: Arrived,
}

impl fmt::Debug for DurableMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("DurableMessage");
        shown.field("peer", &self.peer()).field("label", &self.label()).field("number", &self.number());
        shown.finish_non_exhaustive()
    }
}

impl DurableMessage {
    pub(super) fn new(open: Arc<Open>, arrived: Arrived) -> Self {
        Self { open, arrived }
    }

    /// The endpoint that sent it.
    #[must_use]
    pub fn peer(&self) -> EndpointId {
        self.arrived.key.peer
    }

    /// The flow's label.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.arrived.key.label
    }

    /// Its number in its flow, from 1 on: an application that was killed while it acknowledged can tell by it
    /// whether it has dealt with the message. Numbers begin anew if the peer begins with an empty state.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.arrived.number
    }

    /// The content.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.arrived.data
    }

    /// The content.
    #[must_use]
    pub fn into_data(self) -> Vec<u8> {
        self.arrived.data
    }

    /// Acknowledges the message: when this returns, that is on the disk, and the message does not come again,
    /// whatever dies. Those of one flow may be acknowledged in any order. If this is given up, the message
    /// may be acknowledged or not. More than once does nothing.
    ///
    /// # Errors
    /// [`StateError`] if the disk does not take it: it can be tried again.
    pub async fn ack(&self) -> Result<(), StateError> {
        let (hub, key, number) = (&self.open.0, self.arrived.key.clone(), self.arrived.number);
        let low = lock(&hub.ledger).low(&key).map_or(0, |(low, _)| low);
        let change = Change::Ack { key, low, number, stamp: self.arrived.stamp };
        hub.store.write(change, || Ok(())).await.map(drop)
    }
}
