//! Whom to connect to, as programs have it at hand.

use std::fmt;

use whimbrel_base::{EndpointAddr, EndpointId, Name, Ticket};

use crate::error::TargetError;

/// Whom to connect to: a [`Name`], a [`Ticket`], an [`EndpointId`] or an [`EndpointAddr`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target(pub(super) Whom);

/// What is known of the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Whom {
    /// Its name, to be looked up.
    Name(Name),
    /// Its key, to be looked up.
    Id(EndpointId),
    /// The same, and the name that it is to be asked for, which nobody looks up.
    Listener(EndpointId, Name),
    /// Its key and where it may be.
    Addr(EndpointAddr),
    /// The same, perhaps with the name that it is to be asked for, and with what lets its holder in.
    Ticket(Ticket),
}

impl Target {
    /// The peer with this key, to be looked up, and which of its listeners is meant: the one under this name,
    /// which need not be published, or else the one without a name. Where neither is, the connection is
    /// refused with [`NO_LISTENER`](crate::CloseCode::NO_LISTENER). A key by itself also means the only
    /// listener that there is, whatever its name: of several programs with one key any may answer then.
    #[must_use]
    pub fn listener(id: EndpointId, name: Name) -> Self {
        Self(Whom::Listener(id, name))
    }

    /// The peer's key, unless only its name is known.
    #[must_use]
    pub fn id(&self) -> Option<EndpointId> {
        match &self.0 {
            Whom::Name(_) => None,
            Whom::Id(id) | Whom::Listener(id, _) => Some(*id),
            Whom::Addr(addr) => Some(addr.id),
            Whom::Ticket(ticket) => Some(ticket.id()),
        }
    }

    /// The name by which the peer is found or that its ticket gives it, if there is one.
    pub(super) fn name(&self) -> Option<&Name> {
        match &self.0 {
            Whom::Name(name) => Some(name),
            Whom::Ticket(ticket) => ticket.name(),
            Whom::Id(_) | Whom::Listener(..) | Whom::Addr(_) => None,
        }
    }
}

/// A text that [`IntoTarget`] takes again, without the [listener](Target::listener) that is meant.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Whom::Name(name) => name.fmt(f),
            Whom::Id(id) | Whom::Listener(id, _) => id.fmt(f),
            Whom::Addr(addr) => Ticket::new(addr.id, addr.addrs.iter().copied(), None).fmt(f),
            Whom::Ticket(ticket) => ticket.fmt(f),
        }
    }
}

impl From<Name> for Target {
    fn from(name: Name) -> Self {
        Self(Whom::Name(name))
    }
}

impl From<EndpointId> for Target {
    fn from(id: EndpointId) -> Self {
        Self(Whom::Id(id))
    }
}

impl From<EndpointAddr> for Target {
    fn from(addr: EndpointAddr) -> Self {
        Self(Whom::Addr(addr))
    }
}

impl From<Ticket> for Target {
    fn from(ticket: Ticket) -> Self {
        Self(Whom::Ticket(ticket))
    }
}

/// What says whom to connect to: a [`Target`], any of what a target is made of, or a text of it.
pub trait IntoTarget {
    /// The target.
    ///
    /// # Errors
    /// [`TargetError`] when a text is no name, no ticket and no id.
    fn into_target(self) -> Result<Target, TargetError>;
}

impl IntoTarget for &str {
    fn into_target(self) -> Result<Target, TargetError> {
        let text = self.trim();
        if text.starts_with("whimbrel:") {
            return Ok(text.parse::<Ticket>()?.into());
        }
        if let Ok(id) = text.parse::<EndpointId>() {
            return Ok(id.into());
        }
        let name = text.parse::<Name>();
        name.map(Target::from).map_err(|source| TargetError::Name { text: text.to_owned(), source })
    }
}

whimbrel_base::as_its_text!(IntoTarget, into_target, Result<Target, TargetError>, String, &String);

macro_rules! into_target {
    ($($kind:ty),*) => {$(
        impl IntoTarget for $kind {
            fn into_target(self) -> Result<Target, TargetError> {
                Ok(self.into())
            }
        }

        impl IntoTarget for &$kind {
            fn into_target(self) -> Result<Target, TargetError> {
                Ok(self.clone().into())
            }
        }
    )*};
}

into_target!(Name, Ticket, EndpointId, EndpointAddr, Target);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_name_a_ticket_or_an_id() {
        let id = whimbrel_base::SecretKey::from_bytes(&[7; 32]).id();
        let ticket = Ticket::new(id, ["192.0.2.1:4480".parse().unwrap()], None);
        let texts = ["ssh.laptop.user@example.org".to_owned(), ticket.to_string(), format!(" {id}\n")];
        let targets = texts.map(|text| text.into_target().unwrap().0);
        assert!(matches!(&targets[0], Whom::Name(name) if name.local() == "ssh.laptop.user"));
        assert_eq!(targets[1], Target::from(ticket).0);
        assert_eq!(targets[2], Whom::Id(id));
        for target in &targets {
            assert_eq!(target, &Target(target.clone()).to_string().into_target().unwrap().0);
        }
        let listener = Target::listener(id, "agent@whimbrel.invalid".parse().unwrap());
        assert_eq!((listener.id(), listener.name(), listener.to_string()), (Some(id), None, id.to_string()));
        let error = "nobody".into_target().unwrap_err().to_string();
        assert!(error.starts_with("\"nobody\" is no name"), "{error}");
        assert!(matches!("whimbrel:x".into_target(), Err(TargetError::Ticket(_))));
    }
}
