//! Whom to connect to.

use whimbrel_base::{EndpointAddr, Name, Ticket};

/// Whom to connect to: a [`Name`], an [`EndpointAddr`] or a [`Ticket`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub(super) name: Option<Name>,
    pub(super) addr: Option<EndpointAddr>,
}

impl From<Name> for Target {
    fn from(name: Name) -> Self {
        Self { name: Some(name), addr: None }
    }
}

impl From<&Name> for Target {
    fn from(name: &Name) -> Self {
        name.clone().into()
    }
}

impl From<EndpointAddr> for Target {
    fn from(addr: EndpointAddr) -> Self {
        Self { name: None, addr: Some(addr) }
    }
}

impl From<Ticket> for Target {
    fn from(ticket: Ticket) -> Self {
        Self { name: ticket.name().cloned(), addr: Some(ticket.to_endpoint_addr()) }
    }
}
