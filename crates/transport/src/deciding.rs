//! Openings that somebody decides about just now: a client may send one on several carriers, and is asked
//! about once.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use whimbrel_base::{ConnectionId, EndpointId};

use crate::allow::Refusal;

type Key = (EndpointId, ConnectionId);
type Outcome = Option<Refusal>;

/// Openings by peer and connection. As many as there are peers in their handshake, at most.
#[derive(Debug, Default)]
pub(crate) struct Deciding(Mutex<HashMap<Key, watch::Receiver<Outcome>>>);

/// Whose turn it is to have an opening decided.
pub(crate) enum Turn<'a> {
    /// This carrier came first.
    First(Decision<'a>),
    /// Another one did.
    After(Undecided),
}

/// The right to have an opening decided. Whoever came after is told when it is dropped.
pub(crate) struct Decision<'a> {
    deciding: &'a Deciding,
    key: Key,
    outcome: watch::Sender<Outcome>,
}

/// An opening that another carrier brought before.
pub(crate) struct Undecided(watch::Receiver<Outcome>);

impl Deciding {
    pub(crate) fn begin(&self, peer: EndpointId, connection: ConnectionId) -> Turn<'_> {
        let key = (peer, connection);
        let mut deciding = self.lock();
        if let Some(first) = deciding.get(&key) {
            return Turn::After(Undecided(first.clone()));
        }
        let (outcome, decided) = watch::channel(None);
        deciding.insert(key, decided);
        Turn::First(Decision { deciding: self, key, outcome })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, watch::Receiver<Outcome>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Decision<'_> {
    /// Has others refused as the first one was.
    pub(crate) fn refuse(&self, refusal: &Refusal) {
        self.outcome.send_replace(Some(refusal.clone()));
    }
}

impl Drop for Decision<'_> {
    fn drop(&mut self) {
        self.deciding.lock().remove(&self.key);
    }
}

impl Undecided {
    /// Waits for the decision; how it was refused, if it was. Cancel-safe.
    pub(crate) async fn wait(mut self) -> Option<Refusal> {
        // It ends with the first one's turn.
        while self.0.changed().await.is_ok() {}
        self.0.borrow().clone()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_base::SecretKey;
    use whimbrel_proto::CloseCode;

    use super::*;

    #[tokio::test]
    async fn the_second_carrier_learns_what_became_of_the_first() {
        let deciding = Deciding::default();
        let (peer, connection) = (SecretKey::generate().id(), ConnectionId::random());
        let Turn::First(first) = deciding.begin(peer, connection) else { panic!("nobody came before") };
        let Turn::After(second) = deciding.begin(peer, connection) else { panic!("one came before") };
        let other = SecretKey::generate().id();
        assert!(matches!(deciding.begin(other, connection), Turn::First(_)), "it is no other peer's");
        let refusal = (CloseCode::application(7), "not today".to_owned());
        first.refuse(&refusal);
        drop(first);
        assert_eq!(second.wait().await, Some(refusal));
        assert!(deciding.lock().is_empty());
    }
}
