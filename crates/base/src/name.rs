//! Names: what people type instead of addresses.
//!
//! ```text
//! name    = local "@" domain
//! local   = [ [ service "." ] device "." ] user
//! domain  = label *( "." label )
//! label   = 1 to 63 of a-z 0-9 "-", with no "-" first or last
//! ```
//!
//! At most 253 bytes together, as for host names (RFC 1035 §2.3.4). Upper case is folded to lower case when a
//! name is read, so that a [`Name`] has exactly one form. There is always an `@`, which no endpoint id and no
//! host name has: the three are never mistaken for one another.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 253;

/// The longest label (what stands between dots), in bytes.
pub const MAX_LABEL_BYTES: usize = 63;

/// What a [`Name`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NameKind {
    /// `user@example.org`
    User,
    /// `laptop.user@example.org`
    Device,
    /// `ssh.laptop.user@example.org`
    Service,
}

impl fmt::Display for NameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::User => "user",
            Self::Device => "device",
            Self::Service => "service",
        })
    }
}

/// A user, a device of a user, or a service on a device.
///
/// Cheap to clone. Equal names are equal byte for byte.
///
/// ```
/// use whimbrel_base::{Name, NameKind};
/// let name: Name = "ssh.Laptop.user@Example.org".parse().unwrap();
/// assert_eq!(name.as_str(), "ssh.laptop.user@example.org");
/// assert_eq!(name.kind(), NameKind::Service);
/// assert_eq!(name.user().as_str(), "user@example.org");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// The name in its one form: lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is a user, a device or a service.
    pub fn kind(&self) -> NameKind {
        match self.local().bytes().filter(|byte| *byte == b'.').count() {
            0 => NameKind::User,
            1 => NameKind::Device,
            _ => NameKind::Service,
        }
    }

    /// The user that this name is, or belongs to.
    pub fn user(&self) -> Name {
        match self.parent() {
            Some(parent) => parent.user(),
            None => self.clone(),
        }
    }

    /// The device that this name is, or runs on. None for a user.
    pub fn device(&self) -> Option<Name> {
        match self.kind() {
            NameKind::User => None,
            NameKind::Device => Some(self.clone()),
            NameKind::Service => self.parent(),
        }
    }

    /// The name one floor up: a service's device, a device's user. None for a user.
    pub fn parent(&self) -> Option<Name> {
        let at = self.0.find('@')?;
        let dot = self.0[..at].find('.')?;
        Some(Self(Arc::from(&self.0[dot + 1..])))
    }

    /// What stands before the `@`.
    pub fn local(&self) -> &str {
        self.0.split_once('@').map_or(&*self.0, |(local, _)| local)
    }

    /// What stands behind the `@`.
    pub fn domain(&self) -> &str {
        self.0.split_once('@').map_or("", |(_, domain)| domain)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({})", self.0)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.len() > MAX_NAME_BYTES {
            return Err(NameError::TooLong(text.len()));
        }
        let (local, domain) = text.split_once('@').ok_or(NameError::NoAt)?;
        if domain.contains('@') {
            return Err(NameError::TwoAts);
        }
        if local.is_empty() {
            return Err(NameError::NoUser);
        }
        if domain.is_empty() {
            return Err(NameError::NoDomain);
        }
        let labels = local.split('.').count();
        if labels > 3 {
            return Err(NameError::TooManyLabels(labels));
        }
        for label in local.split('.').chain(domain.split('.')) {
            check_label(label)?;
        }
        Ok(Self(text.to_ascii_lowercase().into()))
    }
}

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

crate::as_its_text!(IntoName, into_name, Result<Name, NameError>, String, &String);

fn check_label(label: &str) -> Result<(), NameError> {
    if label.is_empty() {
        return Err(NameError::EmptyLabel);
    }
    if let Some(character) =
        label.chars().find(|character| !character.is_ascii_alphanumeric() && *character != '-')
    {
        return Err(NameError::Character(character));
    }
    if label.len() > MAX_LABEL_BYTES {
        return Err(NameError::LabelTooLong(label.len()));
    }
    if label.starts_with('-') || label.ends_with('-') {
        return Err(NameError::Hyphen(label.to_owned()));
    }
    Ok(())
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// There is no `@`.
    #[error("a name has an '@', as in user@example.org or ssh.laptop.user@example.org")]
    NoAt,
    /// There is more than one `@`.
    #[error("a name has one '@' only, as in laptop.user@example.org")]
    TwoAts,
    /// Nothing before the `@`.
    #[error("a user is missing before the '@'; write it as in user@example.org")]
    NoUser,
    /// Nothing behind the `@`.
    #[error("a domain is missing behind the '@'; write it as in user@example.org or user@home")]
    NoDomain,
    /// Two dots in a row, or a dot at an end.
    #[error("there is nothing between two dots, or a dot at an end; write it as in laptop.user@example.org")]
    EmptyLabel,
    /// More than service, device and user before the `@`.
    #[error(
        "before the '@' go at most a service, a device and a user, as in ssh.laptop.user@example.org; this has {0} parts"
    )]
    TooManyLabels(usize),
    /// A character that names don't have.
    #[error("names are made of the letters a-z, digits and '-'; {0:?} is none of them")]
    Character(char),
    /// A label begins or ends with a hyphen.
    #[error("{0:?} begins or ends with '-'; put a letter or a digit there")]
    Hyphen(String),
    /// A label is too long.
    #[error("a part between dots has at most {MAX_LABEL_BYTES} characters, one here has {0}; shorten it")]
    LabelTooLong(usize),
    /// The whole is too long.
    #[error("a name has at most {MAX_NAME_BYTES} characters, this has {0}; shorten it")]
    TooLong(usize),
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn the_three_kinds() {
        let user = name("user@example.org");
        let device = name("laptop.user@example.org");
        let service = name("ssh.laptop.user@example.org");
        assert_eq!(
            [user.kind(), device.kind(), service.kind()],
            [NameKind::User, NameKind::Device, NameKind::Service]
        );
        assert_eq!(service.parent(), Some(device.clone()));
        assert_eq!(device.parent(), Some(user.clone()));
        assert_eq!(user.parent(), None);
        assert_eq!(user.device(), None);
        assert_eq!(device.device(), Some(device.clone()));
        assert_eq!(service.device(), Some(device.clone()));
        for any in [&user, &device, &service] {
            assert_eq!(any.user(), user);
            assert_eq!(any.domain(), "example.org");
        }
        assert_eq!(service.local(), "ssh.laptop.user");
    }

    #[test]
    fn dots_in_the_domain_do_not_count() {
        let deep = name("a@b.c.d.e");
        assert_eq!(deep.kind(), NameKind::User);
        assert_eq!(deep.parent(), None);
        assert_eq!(name("alice@home").domain(), "home");
    }

    #[test]
    fn case_is_folded() {
        assert_eq!(name("SSH.Laptop.USER@Example.ORG"), name("ssh.laptop.user@example.org"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let long = "a".repeat(64);
        let cases = [
            ("user", NameError::NoAt),
            ("", NameError::NoAt),
            ("a@b@c", NameError::TwoAts),
            ("@example.org", NameError::NoUser),
            ("user@", NameError::NoDomain),
            ("a..b@c", NameError::EmptyLabel),
            (".a@c", NameError::EmptyLabel),
            ("a@c.", NameError::EmptyLabel),
            ("a.b.c.d@e", NameError::TooManyLabels(4)),
            ("us er@c", NameError::Character(' ')),
            ("usér@c", NameError::Character('é')),
            ("user@c:80", NameError::Character(':')),
            ("-a@c", NameError::Hyphen("-a".into())),
            ("a@c-", NameError::Hyphen("c-".into())),
            (&format!("{long}@c"), NameError::LabelTooLong(64)),
            (&format!("a@{}", "b.".repeat(126) + "b"), NameError::TooLong(255)),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<Name>(), Err(error), "{text}");
        }
        assert!(format!("{}@c", &long[..63]).parse::<Name>().is_ok());
        assert!(format!("a@{}", "b.".repeat(125) + "b").parse::<Name>().is_ok());
    }

    #[test]
    fn serde_is_the_string() {
        let name = name("laptop.user@example.org");
        let json = serde_json::to_string(&name).unwrap();
        assert_eq!(json, "\"laptop.user@example.org\"");
        assert_eq!(serde_json::from_str::<Name>(&json).unwrap(), name);
        assert!(serde_json::from_str::<Name>("\"nobody\"").is_err());
        let binary = postcard::to_stdvec(&name).unwrap();
        assert_eq!(postcard::from_bytes::<Name>(&binary).unwrap(), name);
    }

    proptest! {
        #[test]
        fn round_trip(text in "[a-z0-9]{1,9}(\\.[a-z0-9]([a-z0-9-]{0,9}[a-z0-9])?){0,2}@[a-z0-9]{1,9}(\\.[a-z]{2,5}){0,3}") {
            let name: Name = text.parse().unwrap();
            prop_assert_eq!(name.to_string(), text);
            prop_assert_eq!(name.user().kind(), NameKind::User);
        }

        #[test]
        fn parsing_never_panics_and_is_stable(text in "\\PC{0,40}|[a-zA-Z.@-]{0,40}") {
            if let Ok(name) = text.parse::<Name>() {
                prop_assert_eq!(name.as_str().parse::<Name>(), Ok(name.clone()));
            }
        }
    }
}
