//! Several connections that are woken together: all of them, or none.

use futures_util::FutureExt;
use std::fmt;
use std::sync::Arc;

use whimbrel_base::Name;
use whimbrel_proto::{CloseCode, Side};

use super::{Suspended, accepted, dialling, read};
use crate::attend::spawn_driver;
use crate::connection::Connection;
use crate::endpoint::{Endpoint, start_listening};
use crate::endpoint_core::EndpointCore;
use crate::error::{BindError, ResumeError};
use crate::notices;
use crate::registry::Added;
use crate::shared::Shared;
use crate::supply::Supply;

/// Connections that were read back and registered, and do nothing yet. [`begin`](Self::begin) has them go on;
/// dropped before, they are forgotten, and other copies of them may go on instead.
pub struct Waking {
    core: Arc<EndpointCore>,
    waiting: Vec<Waiting>,
}

struct Waiting {
    shared: Arc<Shared>,
    name: Option<Name>,
    by_ticket: bool,
    side: Side,
}

impl fmt::Debug for Waking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Waking({} connections)", self.waiting.len())
    }
}

impl Endpoint {
    /// Reads connections back that were put to sleep, as [`resume`](Self::resume) does, but does nothing with
    /// them before [`Waking::begin`]. A client that comes meanwhile finds its connection.
    ///
    /// # Errors
    /// [`ResumeError`] if any of them can't be read or there is no room: then none is woken.
    pub fn wake(&self, suspended: &[Suspended]) -> Result<Waking, ResumeError> {
        let core = self.inner();
        if core.life.is_closed() {
            return Err(ResumeError::EndpointClosed);
        }
        let mut waking = Waking { core: core.clone(), waiting: Vec::with_capacity(suspended.len()) };
        for asleep in suspended {
            let (engine, contents) = read(core, asleep)?;
            let side = engine.side();
            let shared = match side {
                Side::Client => dialling(core, engine, &contents.places),
                Side::Server => accepted(core, engine, &contents),
            };
            match side {
                Side::Client => core.registry.add_dialled(&shared),
                Side::Server => match core.registry.add_accepted(&shared) {
                    Added::Yes => {}
                    Added::Full => return Err(ResumeError::Full),
                    Added::Exists(_) => return Err(ResumeError::InUse(shared.id)),
                },
            }
            let (name, by_ticket) = (contents.name, contents.by_ticket);
            waking.waiting.push(Waiting { shared, name, by_ticket, side });
        }
        Ok(waking)
    }
}

impl Waking {
    /// Has the connections go on: those that this side dialled dial again, of those that it accepted the
    /// clients are called. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// [`BindError`] if the endpoint can't listen, which it has to for clients to come.
    pub fn begin(mut self) -> Result<Vec<Connection>, BindError> {
        let core = self.core.clone();
        if self.waiting.iter().any(|one| one.side == Side::Server) {
            start_listening(&core)?;
        }
        let begun = std::mem::take(&mut self.waiting).into_iter();
        Ok(begun
            .map(|Waiting { shared, name, by_ticket, side }| match side {
                Side::Client => {
                    // It goes on in tasks of its own.
                    drop(Supply::new(&core, &shared, name.clone()));
                    Connection::new(shared, name)
                }
                Side::Server => {
                    spawn_driver(&core, &shared);
                    tokio::spawn(FutureExt::boxed(notices::tell(core.clone(), shared.clone())));
                    Connection::accepted(shared, name, by_ticket)
                }
            })
            .collect())
    }
}

impl Drop for Waking {
    fn drop(&mut self) {
        for Waiting { shared, .. } in self.waiting.drain(..) {
            shared.give_up(CloseCode::SUSPENDED, "");
            self.core.registry.remove(&shared);
        }
    }
}
