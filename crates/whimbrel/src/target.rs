//! Whom to connect to, and under which name to listen, as programs have it at hand.

use whimbrel_base::{EndpointAddr, Name, NameError, Ticket};
use whimbrel_transport::Target;

use crate::error::TargetError;

/// Whom to connect to: a name, a ticket or an address; texts may be either of the first two.
pub trait IntoTarget {
    /// The target.
    ///
    /// # Errors
    /// [`TargetError`] when a text is neither a name nor a ticket.
    fn into_target(self) -> Result<Target, TargetError>;
}

impl IntoTarget for &str {
    fn into_target(self) -> Result<Target, TargetError> {
        let text = self.trim();
        if text.starts_with("whimbrel:") {
            return Ok(text.parse::<Ticket>()?.into());
        }
        match text.parse::<Name>() {
            Ok(name) => Ok(name.into()),
            Err(source) => Err(TargetError::Name { text: text.to_owned(), source }),
        }
    }
}

impl IntoTarget for String {
    fn into_target(self) -> Result<Target, TargetError> {
        self.as_str().into_target()
    }
}

impl IntoTarget for &String {
    fn into_target(self) -> Result<Target, TargetError> {
        self.as_str().into_target()
    }
}

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

into_target!(Name, Ticket, EndpointAddr, Target);

/// A name, or a text that is one.
pub trait IntoName {
    /// The name.
    ///
    /// # Errors
    /// [`NameError`] when a text is no name.
    fn into_name(self) -> Result<Name, NameError>;
}

impl IntoName for Name {
    fn into_name(self) -> Result<Name, NameError> {
        Ok(self)
    }
}

impl IntoName for &Name {
    fn into_name(self) -> Result<Name, NameError> {
        Ok(self.clone())
    }
}

impl IntoName for &str {
    fn into_name(self) -> Result<Name, NameError> {
        self.trim().parse()
    }
}

impl IntoName for String {
    fn into_name(self) -> Result<Name, NameError> {
        self.as_str().into_name()
    }
}

impl IntoName for &String {
    fn into_name(self) -> Result<Name, NameError> {
        self.as_str().into_name()
    }
}
