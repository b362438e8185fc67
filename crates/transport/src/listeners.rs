//! Which names an endpoint answers to, whom it lets in, and who takes the connections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};
use whimbrel_base::{EndpointId, Name, TicketSecret};
use whimbrel_proto::{CloseCode, Open, proves_ticket};

use crate::allow::{Allow, Refusal, busy, stranger, within_limit};
use crate::connection::Connection;
use crate::incoming::{Asked, Caller, Verdict};

/// Connections that wait to be accepted.
const BACKLOG: usize = 1024;
/// Peers that wait until somebody decides whether they may come in.
const ASKED: usize = 256;
/// Who comes in: those who are allowed, and those who have a ticket with the secret.
pub(crate) struct Access {
    pub(crate) allow: Allow,
    pub(crate) secret: Option<TicketSecret>,
}

/// A listener, as those see it who come in.
pub(crate) struct Door {
    access: Access,
    queue: Queue,
}

/// Who takes the peers that are let in.
#[derive(Clone)]
enum Queue {
    /// The listener takes connections.
    Accepted(mpsc::Sender<Connection>),
    /// It is asked first.
    Asked(mpsc::Sender<Asked>),
}

/// Where the listener hears of those who come in.
#[derive(Debug)]
pub(crate) enum Arrivals {
    /// As connections.
    Accepted(mpsc::Receiver<Connection>),
    /// As peers that wait for an answer.
    Asked(mpsc::Receiver<Asked>),
}

/// A place for a connection with who listens.
pub(crate) enum Slot {
    Queued(mpsc::OwnedPermit<Connection>),
    Awaited(oneshot::Sender<Connection>),
}

impl Slot {
    pub(crate) fn send(self, connection: Connection) {
        match self {
            Self::Queued(permit) => drop(permit.send(connection)),
            // Whoever let the peer in may have lost interest since; then the connection ends.
            Self::Awaited(reply) => drop(reply.send(connection)),
        }
    }
}

impl Door {
    /// A place for `caller`, if it is let in; at once unless somebody has to be asked. Cancel-safe.
    pub(crate) async fn admit(&self, caller: Caller) -> Result<Slot, Refusal> {
        if !caller.by_ticket {
            self.access.allow.admit(caller.peer).await?;
        }
        match &self.queue {
            Queue::Accepted(sender) => {
                let permit = sender.clone().try_reserve_owned();
                permit.map(Slot::Queued).map_err(|_| busy())
            }
            Queue::Asked(sender) => {
                let (verdict, decided) = oneshot::channel();
                sender.try_send(Asked { caller, verdict }).map_err(|_| busy())?;
                match within_limit(decided).await? {
                    Ok(Verdict::Accept(reply)) => Ok(Slot::Awaited(reply)),
                    Ok(Verdict::Refuse(code, reason)) => Err((code, reason)),
                    Err(_) => Err((CloseCode::NOT_ALLOWED, NO_ANSWER.to_owned())),
                }
            }
        }
    }

    /// The peers that may connect without a ticket.
    pub(crate) fn allow(&self) -> &Allow {
        &self.access.allow
    }

    /// Whether an OPEN proves that its client has the ticket's secret.
    pub(crate) fn knows_ticket(&self, open: &Open, client: EndpointId) -> bool {
        let proof = self.access.secret.as_ref().zip(open.params.ticket_proof.as_ref());
        proof.is_some_and(|(secret, proof)| proves_ticket(secret, open.connection, client, proof))
    }

    /// Whether somebody is asked, who may take long.
    pub(crate) fn asks(&self) -> bool {
        matches!(self.access.allow, Allow::Check(_)) || matches!(self.queue, Queue::Asked(_))
    }
}

/// What a peer hears that the application was shown, and did not answer.
const NO_ANSWER: &str = "the application that was asked let nobody in";

/// All listeners of an endpoint, by name; `None` answers connections without a name.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<HashMap<Option<Name>, Arc<Door>>>);

impl Listeners {
    fn lock(&self) -> MutexGuard<'_, HashMap<Option<Name>, Arc<Door>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a listener, which is asked about each peer if `ask_first`; `None` if the name is taken.
    pub(crate) fn add(&self, name: Option<Name>, access: Access, ask_first: bool) -> Option<Arrivals> {
        let mut listeners = self.lock();
        if listeners.contains_key(&name) {
            return None;
        }
        let (queue, arrivals) = if ask_first {
            let (sender, receiver) = mpsc::channel(ASKED);
            (Queue::Asked(sender), Arrivals::Asked(receiver))
        } else {
            let (sender, receiver) = mpsc::channel(BACKLOG);
            (Queue::Accepted(sender), Arrivals::Accepted(receiver))
        };
        listeners.insert(name, Arc::new(Door { access, queue }));
        Some(arrivals)
    }

    pub(crate) fn remove(&self, name: &Option<Name>) {
        self.lock().remove(name);
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Who answers a connection to `target`.
    pub(crate) fn find(&self, target: Option<&Name>) -> Option<Arc<Door>> {
        let listeners = self.lock();
        // A client that dialled by ticket may know no name: the only listener is meant then.
        let door = match (listeners.get(&target.cloned()), target) {
            (Some(door), _) => Some(door),
            (None, None) if listeners.len() == 1 => listeners.values().next(),
            _ => listeners.get(&None),
        };
        door.cloned()
    }

    /// Why a peer is not let in whose target nobody listens under. Only those whom some listener lets in hear
    /// that: to a stranger all names look alike, those that are there and those that are not. Cancel-safe.
    pub(crate) async fn refusal_of_unlisted(&self, open: &Open, peer: EndpointId) -> Refusal {
        let unlisted = (CloseCode::NO_LISTENER, "nobody listens under this name".to_owned());
        let doors: Vec<Arc<Door>> = self.lock().values().cloned().collect();
        if doors.is_empty() {
            return unlisted;
        }
        let is_let_in = async {
            for door in doors {
                if door.knows_ticket(open, peer) || door.access.allow.permits(peer).await.unwrap_or(false) {
                    return true;
                }
            }
            false
        };
        match within_limit(is_let_in).await {
            Ok(true) => unlisted,
            Ok(false) => stranger(),
            Err(busy) => busy,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_nobody_listens_under_is_answered_without_a_name_and_by_no_other_listener() {
        let listeners = Listeners::default();
        let access = || Access { allow: Allow::Any, secret: None };
        let name = |text: &str| Some(text.parse::<Name>().unwrap());
        let (web, agent) = (name("web.desk.user@example.org"), name("agent@whimbrel.invalid"));
        let _web = listeners.add(web.clone(), access(), false).unwrap();
        assert!(listeners.find(None).is_some(), "the only one");
        assert!(listeners.find(web.as_ref()).is_some());
        assert!(listeners.find(agent.as_ref()).is_none());
        let _unnamed = listeners.add(None, access(), false).unwrap();
        let unnamed = listeners.find(None).unwrap();
        assert!(Arc::ptr_eq(&unnamed, &listeners.find(agent.as_ref()).unwrap()));
        assert!(!Arc::ptr_eq(&unnamed, &listeners.find(web.as_ref()).unwrap()));
    }
}
