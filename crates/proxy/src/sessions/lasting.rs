//! Sessions that are halted, so that they go on later or in another process: with the server's connection, and all
//! that is under way.

use super::running::SessionRecord;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use whimbrel_transport::{RecvHalf, SendHalf, Stream};

/// The most bytes under way in one session.
pub const MAX_SESSION: usize = 32 * 1024 * 1024;

/// A session that was halted. It must be kept until the connection of its device sleeps: dropping a stream ends it.
pub struct HaltedSession {
    pub(super) piece: SessionPiece,
    pub(super) streams: Vec<(RecvHalf, SendHalf)>,
}

/// What another instance goes on with.
pub struct SessionPiece {
    /// How far everything is.
    pub head: SessionHead,
    /// The bytes under way.
    pub body: Vec<u8>,
    /// The server's connection.
    pub socket: TcpStream,
}

/// How far a session is, in a form that can be written with serde. Later versions add fields, which have defaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionHead(pub(super) SessionRecord);

impl HaltedSession {
    /// The streams to its device: none, one, or two.
    pub fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.streams.iter().map(|(read, _)| read.stream())
    }

    /// What another instance goes on with, once the connection of its device sleeps.
    pub fn into_piece(self) -> SessionPiece {
        self.piece
    }
}

/// Bytes that were under way, taken one part after the other.
pub(super) struct Body(Vec<u8>);

impl Body {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    pub(super) fn take(&mut self, n: usize) -> io::Result<Vec<u8>> {
        if n > self.0.len() {
            return Err(missing());
        }
        let rest = self.0.split_off(n);
        Ok(std::mem::replace(&mut self.0, rest))
    }
}

/// What is handed over is not what it says.
pub(super) fn missing() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "a session was handed over in part")
}
