//! The first frame on a fresh path, read before it is known which connection the path belongs to.

use crate::error::{CloseCode, DecodeError};
use crate::frame::{self, Frame, Join, Open, Resume, TakeOver};
use crate::varint::Reader;

/// What a client wants with a fresh path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstFlight {
    /// A new connection.
    Open(Open),
    /// One more path for a connection that exists.
    Join(Join),
    /// The same, from a client that was written down and read back.
    Resume(Resume),
    /// The same, where one side or the other has another key than before.
    TakeOver(TakeOver),
}

impl FirstFlight {
    /// Reads the first frame of a path's first segment (without its length).
    ///
    /// # Errors
    /// [`DecodeError`] if it is malformed or neither OPEN, JOIN, RESUME nor TAKE_OVER.
    pub fn decode(segment: &[u8]) -> Result<Self, DecodeError> {
        match frame::decode(&mut Reader::new(segment))? {
            Some(Frame::Open(open)) => Ok(Self::Open(open)),
            Some(Frame::Join(join)) => Ok(Self::Join(join)),
            Some(Frame::Resume(resume)) => Ok(Self::Resume(resume)),
            Some(Frame::TakeOver(take_over)) => Ok(Self::TakeOver(take_over)),
            _ => Err(DecodeError::Invalid("first frame")),
        }
    }
}

/// A whole segment that refuses a path.
#[must_use]
pub fn refusal(code: CloseCode, reason: &str) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_length_prefixed(&mut out, |b| Frame::Refuse { code, reason }.encode(b));
    out
}
