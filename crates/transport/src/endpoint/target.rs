//! Whom to connect to.

use whimbrel_base::{EndpointAddr, Name, Ticket};

/// Whom to connect to: a [`Name`], an [`EndpointAddr`] or a [`Ticket`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target(pub(super) Whom);

/// What is known of the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Whom {
    /// Its name, to be looked up.
    Name(Name),
    /// Its key and where it may be; perhaps the name that it is to be asked for.
    Addr(EndpointAddr, Option<Name>),
}

impl From<Name> for Target {
    fn from(name: Name) -> Self {
        Self(Whom::Name(name))
    }
}

impl From<&Name> for Target {
    fn from(name: &Name) -> Self {
        name.clone().into()
    }
}

impl From<EndpointAddr> for Target {
    fn from(addr: EndpointAddr) -> Self {
        Self(Whom::Addr(addr, None))
    }
}

impl From<Ticket> for Target {
    fn from(ticket: Ticket) -> Self {
        Self(Whom::Addr(ticket.to_endpoint_addr(), ticket.name().cloned()))
    }
}
