//! What relays and servers see of a name service. The implementation over names is above this crate.

use std::io;
use std::sync::Arc;

use whimbrel_base::{EndpointAddr, EndpointId, Name, RelayPlace, RelayState};
use whimbrel_transport::{BoxFuture, Watch};

/// Where a relay is: one for each that a server uses.
pub trait Directory: Send + Sync + 'static {
    /// Where it is now. Where [others](Self::has_others) can take its place, this chooses one.
    fn locate(&self) -> BoxFuture<'_, io::Result<EndpointAddr>>;

    /// This relay was of no use, or is so no longer.
    fn failed(&self, _relay: EndpointId) {}

    /// Whether another relay can take the place of one that falls silent. Otherwise that one is waited for.
    fn has_others(&self) -> bool {
        false
    }
}

impl Directory for EndpointAddr {
    fn locate(&self) -> BoxFuture<'_, io::Result<EndpointAddr>> {
        let addr = self.clone();
        Box::pin(async move { Ok(addr) })
    }
}

/// A member of a group of relays, as its own record shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: Name,
    /// Who and where it is.
    pub addr: EndpointAddr,
    /// What it says of itself.
    pub state: Option<RelayState>,
}

impl Listed {
    /// Who it is.
    pub fn id(&self) -> EndpointId {
        self.addr.id
    }

    /// Where it says that it stands.
    pub fn place(&self) -> Option<&RelayPlace> {
        self.state.as_ref().map(|state| &state.place)
    }

    /// Its load as it says it, from 0 to 1.
    pub fn share(&self) -> f64 {
        self.state.as_ref().map_or(0.0, RelayState::share)
    }
}

/// A group of relays, as a name service knows it.
pub trait Roster: Send + Sync + 'static {
    /// The names of the members, now and as they change: what the group's owner signed. `None` until it is
    /// known.
    fn members(&self) -> Watch<Option<Arc<[Name]>>>;

    /// What is known of a member: what its own key signed.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if it is registered no more; others if that cannot be found out now.
    fn member<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, io::Result<Listed>>;
}
