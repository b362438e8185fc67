//! Peers that wait until the application lets them in.

use tokio::sync::oneshot;
use whimbrel_base::{EndpointId, Name};
use whimbrel_proto::CloseCode;

use crate::connection::Connection;
use crate::locator::Locator;

/// Who wants to connect.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) peer: EndpointId,
    /// The name that it asks for.
    pub(crate) name: Option<Name>,
    /// Where it dialled from.
    pub(crate) remote: Option<Locator>,
    /// It proved that it has a ticket with the listener's secret.
    pub(crate) by_ticket: bool,
}

/// A peer that wants to connect: its key is proved, nothing else has happened. It waits for up to ten
/// seconds, and is refused if this is dropped.
#[derive(Debug)]
#[must_use = "the peer is refused when this is dropped"]
pub struct Incoming {
    caller: Caller,
    answer: Answer,
}

/// How the peer is told.
#[derive(Debug)]
enum Answer {
    /// It waits.
    Waits(oneshot::Sender<Verdict>),
    /// It was let in already.
    Accepted(Connection),
}

/// What became of it.
#[derive(Debug)]
pub(crate) enum Verdict {
    Accept(oneshot::Sender<Connection>),
    Refuse(CloseCode, String),
}

/// A peer on its way to who decides.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) caller: Caller,
    pub(crate) verdict: oneshot::Sender<Verdict>,
}

impl From<Asked> for Incoming {
    fn from(Asked { caller, verdict }: Asked) -> Self {
        Self { caller, answer: Answer::Waits(verdict) }
    }
}

impl From<Connection> for Incoming {
    fn from(connection: Connection) -> Self {
        let caller = Caller {
            peer: connection.peer_id(),
            name: connection.name().cloned(),
            remote: connection.stats().paths.first().map(|path| path.remote),
            by_ticket: connection.is_by_ticket(),
        };
        Self { caller, answer: Answer::Accepted(connection) }
    }
}

impl Incoming {
    /// Who it is, proved by its key.
    #[must_use]
    pub fn peer_id(&self) -> EndpointId {
        self.caller.peer
    }

    /// The name that it asks for, if any.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        self.caller.name.as_ref()
    }

    /// Where it dialled from; `None` if it is out of reach again.
    #[must_use]
    pub fn remote(&self) -> Option<Locator> {
        self.caller.remote
    }

    /// Whether it proved that it has a ticket with the listener's
    /// [secret](crate::ListenOptions::ticket_secret).
    #[must_use]
    pub fn is_by_ticket(&self) -> bool {
        self.caller.by_ticket
    }

    /// Lets it in. `None` if it has gone meanwhile. Cancel-safe: then the connection is closed.
    pub async fn accept(self) -> Option<Connection> {
        match self.answer {
            Answer::Accepted(connection) => Some(connection),
            Answer::Waits(verdict) => {
                let (reply, connection) = oneshot::channel();
                verdict.send(Verdict::Accept(reply)).ok()?;
                connection.await.ok()
            }
        }
    }

    /// Says no: the peer's attempt to connect fails with this code and reason. Does not wait.
    pub fn refuse(self, code: CloseCode, reason: &str) {
        match self.answer {
            Answer::Accepted(connection) => connection.abort(code, reason),
            // It may have gone already.
            Answer::Waits(verdict) => drop(verdict.send(Verdict::Refuse(code, reason.to_owned()))),
        }
    }
}
