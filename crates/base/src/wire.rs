//! Reading and writing the fixed byte layouts of this crate: big-endian integers, length-prefixed names.

use crate::Name;
use crate::key::{EndpointId, Signature};

/// The bytes are not in the one form that they may have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end in the middle of something.
    #[error("the bytes end too early: they were cut off on the way; get them again")]
    Truncated,
    /// Something follows the end.
    #[error("{0} bytes follow the end: they belong to something else, or were added; get them again")]
    Trailing(usize),
    /// More bytes than any of these can have.
    #[error("{size} bytes are more than the limit of {limit}; the sender must send less")]
    TooLarge {
        /// How many there are.
        size: usize,
        /// How many there may be.
        limit: usize,
    },
    /// Made by another version of the protocol.
    #[error("this has format version {0}, which this program does not know; update it")]
    Version(u8),
    /// A field has a value, or a form, that no writer produces.
    #[error(
        "the field \"{0}\" is not in its one valid form: the sender is broken, or these bytes are something else"
    )]
    Malformed(&'static str),
}

/// Takes fields off the front of some bytes.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Starts reading, if there are no more than `limit` bytes.
    pub(crate) fn new(bytes: &'a [u8], limit: usize) -> Result<Self, DecodeError> {
        if bytes.len() > limit {
            let size = bytes.len();
            return Err(DecodeError::TooLarge { size, limit });
        }
        Ok(Self(bytes))
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    /// Unix seconds that a [`UnixTime`](crate::UnixTime) can hold as they are.
    pub(crate) fn whole_seconds(&mut self) -> Result<u64, DecodeError> {
        let seconds = self.u64()?;
        if seconds > u64::MAX / 1000 {
            return Err(DecodeError::Malformed("time"));
        }
        Ok(seconds)
    }

    pub(crate) fn id(&mut self) -> Result<EndpointId, DecodeError> {
        self.array().map(|bytes| EndpointId::from_bytes(&bytes))
    }

    pub(crate) fn signature(&mut self) -> Result<Signature, DecodeError> {
        self.array().map(|bytes| Signature::from_bytes(&bytes))
    }

    /// A name in its one form: what is read from "User@…" prints otherwise, and is refused.
    pub(crate) fn name(&mut self) -> Result<Name, DecodeError> {
        let length = self.u8()?;
        let bytes = self.take(length.into())?;
        std::str::from_utf8(bytes)
            .ok()
            .and_then(|text| text.parse::<Name>().ok())
            .filter(|name| name.as_str().as_bytes() == bytes)
            .ok_or(DecodeError::Malformed("name"))
    }

    /// Ends reading: nothing may be left.
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        match self.0.len() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing(left)),
        }
    }
}

/// Writes a name behind its length. A [`Name`] has at most 253 bytes.
pub(crate) fn put_name(bytes: &mut Vec<u8>, name: &Name) {
    bytes.push(name.as_str().len() as u8);
    bytes.extend_from_slice(name.as_str().as_bytes());
}

/// What is really signed: the purpose, a zero byte, then the content. A purpose has no zero byte in it, so a
/// signature for one purpose is never one for another.
pub(crate) fn signed_message(purpose: &str, content: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(purpose.len() + 1 + content.len());
    message.extend_from_slice(purpose.as_bytes());
    message.push(0);
    message.extend_from_slice(content);
    message
}
