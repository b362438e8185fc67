//! The members of a group, as a record tells them.

use std::fmt;
use std::str::FromStr;

use crate::key::EndpointId;
use crate::wire::{DecodeError, Reader, put_name};
use crate::{Name, NameError};

/// No group has more members.
pub const MAX_GROUP_MEMBERS: usize = 256;

/// The kinds of members on the wire.
const KEY: u8 = 1;
const NAME: u8 = 2;

/// A member of a group: an endpoint, by its key or by a name of its own. Ordered as records have them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Member {
    /// The endpoint with this key.
    Key(EndpointId),
    /// The endpoint that has this name.
    Name(Name),
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(id) => id.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<EndpointId> for Member {
    fn from(id: EndpointId) -> Self {
        Self::Key(id)
    }
}

impl From<Name> for Member {
    fn from(name: Name) -> Self {
        Self::Name(name)
    }
}

impl PartialEq<EndpointId> for Member {
    fn eq(&self, id: &EndpointId) -> bool {
        matches!(self, Self::Key(key) if key == id)
    }
}

/// An id or a name.
impl FromStr for Member {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text.parse() {
            Ok(id) => Ok(Self::Key(id)),
            Err(_) => text.parse().map(Self::Name),
        }
    }
}

/// Writes at most [`MAX_GROUP_MEMBERS`], in order.
pub(super) fn put(bytes: &mut Vec<u8>, members: &[Member]) {
    // Checked: at most 256.
    bytes.extend_from_slice(&(members.len() as u16).to_be_bytes());
    for member in members {
        match member {
            Member::Key(id) => {
                bytes.push(KEY);
                bytes.extend_from_slice(id.as_bytes());
            }
            Member::Name(name) => {
                bytes.push(NAME);
                put_name(bytes, name);
            }
        }
    }
}

/// Reads what [`put`] writes: each member once, in ascending order.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<Vec<Member>, DecodeError> {
    let count = usize::from(reader.u16()?);
    if count > MAX_GROUP_MEMBERS {
        return Err(DecodeError::Malformed("number of members"));
    }
    let mut members = Vec::with_capacity(count);
    for _ in 0..count {
        let member = match reader.u8()? {
            KEY => Member::Key(reader.id()?),
            NAME => Member::Name(reader.name()?),
            _ => return Err(DecodeError::Malformed("member")),
        };
        if members.last().is_some_and(|last| *last >= member) {
            return Err(DecodeError::Malformed("member"));
        }
        members.push(member);
    }
    Ok(members)
}
