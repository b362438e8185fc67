//! Sessions that are halted, so that they go on later or in another process: with the server's connection,
//! and all that is under way.

use super::seat::SeatRecord;
use super::server::ServerRecord;
use serde::{Deserialize, Serialize};
use std::net::TcpStream;
use whimbrel_base::EndpointId;
use whimbrel_transport::{RecvHalf, SendHalf, Stream};

/// The most bytes under way in one session.
pub const MAX_SESSION: usize = 32 * 1024 * 1024;

/// A session that was halted. It must be kept until the connection of its device sleeps: dropping a stream
/// ends it.
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

/// How far a session is, in a form that can be written with serde. Later versions add fields, which have
/// defaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionHead(pub(super) SessionRecord);

/// How far a session is. Times are in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SessionRecord {
    pub(super) to: String,
    pub(super) entry: EntryRecord,
    pub(super) server: ServerRecord,
    pub(super) seat: Option<SeatRecord>,
    /// For how long it is held, if no device has it.
    pub(super) held: u64,
    /// When bytes came or went last.
    pub(super) busy: u64,
    pub(super) is_cut: bool,
}

impl SessionRecord {
    pub(super) fn holder(&self) -> EndpointId {
        self.entry.holder()
    }
}

/// Whose a session is, and who may take it. Times are milliseconds before and behind the moment in which it
/// was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EntryRecord {
    pub(super) id: [u8; 16],
    pub(super) holder: [u8; 32],
    pub(super) moves: u32,
    pub(super) age: u64,
    pub(super) rule: Vec<[u8; 32]>,
    pub(super) permission: Option<([u8; 32], u64)>,
    pub(super) lender: Option<LenderRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LenderRecord {
    pub(super) device: [u8; 32],
    pub(super) rule: Vec<[u8; 32]>,
    pub(super) left: u64,
    pub(super) was_kept_off: bool,
}

impl EntryRecord {
    pub(super) fn holder(&self) -> EndpointId {
        EndpointId::from_bytes(&self.holder)
    }

    pub(super) fn moves(&self) -> u32 {
        self.moves
    }
}

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
