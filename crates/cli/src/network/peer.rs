//! Whom to connect to.

use whimbrel_base::{EndpointId, Name, Ticket};
use whimbrel_names::Pin;
use whimbrel_transport::Target;

/// Whom to connect to, as people write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Name(Name),
    /// A name, and the key that it must stand for.
    Pinned(Pin),
    Ticket(Ticket),
    /// A key, which a name service or the local network finds.
    Key(EndpointId),
}

impl Peer {
    /// What the library connects to.
    pub(crate) fn target(&self) -> Target {
        match self {
            Self::Name(name) | Self::Pinned(Pin { name, .. }) => name.clone().into(),
            Self::Ticket(ticket) => ticket.clone().into(),
            Self::Key(id) => (*id).into(),
        }
    }

    /// Its name, if that is what it was asked for by.
    pub(crate) fn name(&self) -> Option<&Name> {
        match self {
            Self::Name(name) | Self::Pinned(Pin { name, .. }) => Some(name),
            Self::Ticket(_) | Self::Key(_) => None,
        }
    }

    /// As it is written on a command line: [`FromStr`](std::str::FromStr) reads it again.
    pub(crate) fn as_argument(&self) -> String {
        match self {
            Self::Name(name) => name.to_string(),
            Self::Ticket(ticket) => ticket.to_string(),
            Self::Pinned(pin) => pin.to_string(),
            Self::Key(id) => id.to_string(),
        }
    }
}

impl std::str::FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("whimbrel:") {
            return text
                .parse()
                .map(Self::Ticket)
                .map_err(|error: whimbrel_base::TicketError| error.to_string());
        }
        if text.contains('=') {
            return text
                .parse()
                .map(Self::Pinned)
                .map_err(|error: whimbrel_names::PinError| error.to_string());
        }
        if let Ok(id) = text.parse() {
            return Ok(Self::Key(id));
        }
        // In a host name of ssh, '+' stands for the '@' of a name.
        let name = match text.rsplit_once('+') {
            Some((user, domain)) if !text.contains('@') => format!("{user}@{domain}"),
            _ => text.to_owned(),
        };
        name.parse().map(Self::Name).map_err(|error: whimbrel_base::NameError| error.to_string())
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) | Self::Pinned(Pin { name, .. }) => name.fmt(f),
            Self::Ticket(ticket) => match ticket.name() {
                Some(name) => name.fmt(f),
                None => ticket.id().fmt(f),
            },
            Self::Key(id) => id.fmt(f),
        }
    }
}
