//! Messages on a byte stream: length, version, content.

use std::marker::PhantomData;

use bytes::{Buf as _, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Numbered, Reply};

/// The most bytes that a message has, its version byte included and its length not.
pub const MAX_MESSAGE: usize = 16 * 1024;

const VERSION: u8 = 1;
const LENGTH_BYTES: usize = 4;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Numbered {}
    impl Sealed for super::Reply {}
}

/// What travels in a frame of its own: [`Numbered`] requests one way, [`Reply`] the other.
pub trait Message: Serialize + DeserializeOwned + sealed::Sealed {}

impl Message for Numbered {}
impl Message for Reply {}

/// Frames a message.
///
/// # Errors
/// [`ProtocolError::TooLarge`] when it has more than [`MAX_MESSAGE`] bytes.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, ProtocolError> {
    let start = vec![0, 0, 0, 0, VERSION];
    let mut bytes =
        postcard::to_extend(message, start).map_err(|error| ProtocolError::Malformed(error.to_string()))?;
    let size = bytes.len() - LENGTH_BYTES;
    if size > MAX_MESSAGE {
        return Err(ProtocolError::TooLarge(size));
    }
    bytes[..LENGTH_BYTES].copy_from_slice(&(size as u32).to_be_bytes());
    Ok(bytes)
}

/// Finds the messages in a stream that comes in pieces.
///
/// Holds at most one incomplete message and what was [pushed](Self::push) last, so whoever feeds it pieces of
/// bounded size, and takes all messages after each, needs bounded memory. After an error the stream is of no
/// more use: every further call gives the same error.
#[derive(Debug)]
pub struct Decoder<M> {
    buffer: BytesMut,
    failed: Option<ProtocolError>,
    message: PhantomData<fn() -> M>,
}

impl<M: Message> Decoder<M> {
    /// A decoder at the beginning of a stream.
    pub fn new() -> Self {
        Self { buffer: BytesMut::new(), failed: None, message: PhantomData }
    }

    /// Takes the next piece of the stream.
    pub fn push(&mut self, piece: &[u8]) {
        if self.failed.is_none() {
            self.buffer.extend_from_slice(piece);
        }
    }

    /// The next message, if it is there as a whole.
    ///
    /// # Errors
    /// [`ProtocolError`] when what is there can't be the beginning of a message.
    pub fn next_message(&mut self) -> Result<Option<M>, ProtocolError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let message = self.read();
        if let Err(error) = &message {
            self.failed = Some(error.clone());
            self.buffer = BytesMut::new();
        }
        message
    }

    /// Ends decoding, and returns what was pushed behind the last message: for streams that go on in another
    /// form.
    pub fn into_rest(self) -> BytesMut {
        self.buffer
    }

    /// Whether the stream may end here: between messages.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    fn read(&mut self) -> Result<Option<M>, ProtocolError> {
        let Some(length) = self.buffer.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        // Refused as soon as it is announced, before anything is kept for it.
        let size = u32::from_be_bytes(*length) as usize;
        if size > MAX_MESSAGE {
            return Err(ProtocolError::TooLarge(size));
        }
        if self.buffer.len() < LENGTH_BYTES + size {
            return Ok(None);
        }
        self.buffer.advance(LENGTH_BYTES);
        let body = self.buffer.split_to(size);
        let (version, content) = body.split_first().ok_or_else(|| malformed("it is empty"))?;
        if *version != VERSION {
            return Err(ProtocolError::Version(*version));
        }
        let (message, rest) = postcard::take_from_bytes(content)
            .map_err(|error| ProtocolError::Malformed(error.to_string()))?;
        if !rest.is_empty() {
            return Err(malformed("something follows its end"));
        }
        Ok(Some(message))
    }
}

impl<M: Message> Default for Decoder<M> {
    fn default() -> Self {
        Self::new()
    }
}

fn malformed(what: &str) -> ProtocolError {
    ProtocolError::Malformed(what.to_owned())
}

/// The other side does not speak this protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A message is too large.
    #[error(
        "a message has {0} bytes, and {MAX_MESSAGE} is the limit; the sender must send less, or is no name service or resolver"
    )]
    TooLarge(usize),
    /// A message is of another version of the protocol.
    #[error(
        "a message has version {0} of the name protocol, and this program speaks {VERSION}; update the older side"
    )]
    Version(u8),
    /// A frame of a meeting has no bytes, or too many.
    #[error(
        "a frame of a meeting has {0} bytes, and 1 to {limit} are allowed; the sender must split what it sends",
        limit = super::MAX_MEETING_FRAME
    )]
    MeetingFrame(usize),
    /// A message makes no sense.
    #[error("a message is malformed ({0}); the sender is broken, or is no name service or resolver")]
    Malformed(String),
}
