//! Whom a flag or a line of a file names: everybody, a key, or a name.

use std::fmt;
use std::str::FromStr;

use whimbrel_base::key::EndpointIdError;
use whimbrel_base::{EndpointId, Name, NameError};

/// `any`, an id or a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Any,
    Id(EndpointId),
    Name(Name),
}

impl FromStr for Who {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "any" {
            return Ok(Self::Any);
        }
        if text.contains('@') {
            return text.parse().map(Self::Name).map_err(|error: NameError| error.to_string());
        }
        text.parse().map(Self::Id).map_err(|error: EndpointIdError| {
            format!("neither `any` nor a name (which has an '@') nor an endpoint id: {error}")
        })
    }
}

/// As it is written: [`FromStr`] reads it again.
impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_a_key_and_a_name_are_told_apart() {
        let id = whimbrel_base::SecretKey::from_bytes(&[7; 32]).id();
        assert_eq!("any".parse(), Ok(Who::Any));
        assert_eq!(id.to_string().parse(), Ok(Who::Id(id)));
        assert!(matches!("Phone.Ada@example.org".parse(), Ok(Who::Name(name)) if name.device().is_some()));
        for text in ["any", &id.to_string(), "phone.ada@example.org"] {
            assert_eq!(text.parse::<Who>().map(|who| who.to_string()), Ok(text.to_owned()));
        }
        for wrong in ["", "everybody", "bob", "a@", "any "] {
            assert!(wrong.parse::<Who>().is_err(), "{wrong}");
        }
    }
}
