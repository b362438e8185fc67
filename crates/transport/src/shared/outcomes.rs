//! What becomes of messages, for those who wait to know.

use std::collections::HashMap;

use tokio::sync::oneshot;
use whimbrel_proto::{MessageId, Outcome};

/// One entry a message that has no end yet: as many as the engine's queues hold. Most connections never have
/// any.
#[expect(clippy::box_collection, reason = "one word where there are none")]
#[derive(Default)]
pub(crate) struct Outcomes(Option<Box<HashMap<MessageId, oneshot::Sender<Outcome>>>>);

impl Outcomes {
    /// Whoever has the receiver will be told. It hears nothing if the connection ends first.
    pub(crate) fn expect(&mut self, id: MessageId) -> oneshot::Receiver<Outcome> {
        let (sender, receiver) = oneshot::channel();
        self.0.get_or_insert_default().insert(id, sender);
        receiver
    }

    pub(super) fn told(&mut self, id: MessageId, outcome: Outcome) {
        if let Some(sender) = self.0.as_mut().and_then(|expected| expected.remove(&id)) {
            // Whoever sent it may not want to know any more.
            let _ = sender.send(outcome);
        }
    }

    /// The connection is over: nothing more will be known.
    pub(crate) fn all_over(&mut self) {
        self.0 = None;
    }
}
