//! Fields of messages, read one after the other.

use super::super::SessionId;
use crate::{BadMessage, Destination};
use std::io::{self, ErrorKind};
use whimbrel_base::EndpointId;

/// What is left of a message.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn bytes(&mut self, n: usize) -> Result<&'a [u8], BadMessage> {
        let (found, rest) = self.0.split_at_checked(n).ok_or(BadMessage::Length)?;
        self.0 = rest;
        Ok(found)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadMessage> {
        let (found, rest) = self.0.split_first_chunk().ok_or(BadMessage::Length)?;
        self.0 = rest;
        Ok(*found)
    }

    pub(super) fn u8(&mut self) -> Result<u8, BadMessage> {
        self.array().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, BadMessage> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, BadMessage> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, BadMessage> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn session(&mut self) -> Result<SessionId, BadMessage> {
        self.array().map(SessionId::from_bytes)
    }

    pub(super) fn device(&mut self) -> Result<EndpointId, BadMessage> {
        self.array().map(|bytes| EndpointId::from_bytes(&bytes))
    }

    /// A host in its one form, and a port.
    pub(super) fn destination(&mut self) -> Result<Destination, BadMessage> {
        let length = self.u8()?;
        let host = str::from_utf8(self.bytes(length.into())?).map_err(|_| BadMessage::Destination)?;
        let to = Destination::new(host, self.u16()?).map_err(|_| BadMessage::Destination)?;
        if to.host() == host { Ok(to) } else { Err(BadMessage::Destination) }
    }

    /// Nothing may follow.
    pub(super) fn end(&self) -> Result<(), BadMessage> {
        if self.0.is_empty() { Ok(()) } else { Err(BadMessage::Length) }
    }
}

pub(super) fn put_destination(out: &mut Vec<u8>, to: &Destination) {
    // A host has at most 253.
    out.push(u8::try_from(to.host().len()).unwrap_or(u8::MAX));
    out.extend_from_slice(to.host().as_bytes());
    out.extend_from_slice(&to.port().to_be_bytes());
}

pub(super) fn invalid(error: BadMessage) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}
