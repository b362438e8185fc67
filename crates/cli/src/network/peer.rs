//! Whom to connect to.

use whimbrel_base::{EndpointId, Name, Ticket};
use whimbrel_names::Pin;
use whimbrel_transport::Target;

use super::personal::Personal;
use crate::options::Globals;

/// Whom to connect to, as people write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Name(Name),
    /// A name, and the key that it must stand for.
    Pinned(Pin),
    Ticket(Ticket),
    /// A key, which a name service or the local network finds.
    Key(EndpointId),
    /// What the user calls a device or a friend.
    Personal(Personal),
}

impl Peer {
    /// What the library connects to; `None` for a personal name, which stands for something else.
    pub(super) fn target(&self) -> Option<Target> {
        match self {
            Self::Name(name) | Self::Pinned(Pin { name, .. }) => Some(name.clone().into()),
            Self::Ticket(ticket) => Some(ticket.clone().into()),
            Self::Key(id) => Some((*id).into()),
            Self::Personal(_) => None,
        }
    }

    /// Fails early if it is a personal name that stands for nothing: for commands that connect later.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn check(&self, globals: &Globals) -> anyhow::Result<()> {
        match self {
            Self::Personal(personal) => personal.check(globals),
            _ => Ok(()),
        }
    }

    /// Its name, if that is what it was asked for by.
    pub(crate) fn name(&self) -> Option<&Name> {
        match self {
            Self::Name(name) | Self::Pinned(Pin { name, .. }) => Some(name),
            Self::Ticket(_) | Self::Key(_) | Self::Personal(_) => None,
        }
    }

    /// As it is written on a command line: [`FromStr`](std::str::FromStr) reads it again.
    pub(crate) fn as_argument(&self) -> String {
        match self {
            Self::Name(name) => name.to_string(),
            Self::Ticket(ticket) => ticket.to_string(),
            Self::Pinned(pin) => pin.to_string(),
            Self::Key(id) => id.to_string(),
            Self::Personal(personal) => personal.to_string(),
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
        match name.parse() {
            Ok(name) => Ok(Self::Name(name)),
            Err(error) => {
                let error: whimbrel_base::NameError = error;
                Personal::read(text).map(Self::Personal).ok_or_else(|| error.to_string())
            }
        }
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
            Self::Personal(personal) => personal.fmt(f),
        }
    }
}
