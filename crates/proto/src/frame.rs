//! Frames: what segments consist of. `docs/protocol.md` is the specification.
//!
//! Each frame is `type | length | body` with varints, so a reader can step over one that it does
//! not know: odd types are optional and skipped, even types must be understood.

mod decode;
mod encode;
mod message;

use std::net::SocketAddr;
use std::ops::Range;

use smallvec::SmallVec;
use whimbrel_base::ConnectionId;

use crate::assignment::Assignment;
use crate::error::CloseCode;
use crate::handover::{HandoverMode, Priority};
use crate::ids::{PathId, Side, StreamId};
use crate::params::Params;
use crate::secret::Claim;

pub use decode::decode;
pub(crate) use decode::{Step, StreamPiece, acks, step, stream};
pub(crate) use encode::{put, put_length_prefixed};
pub use message::{MessageHeader, Place, Skip};
pub(crate) use message::{Piece, piece, put_extent};

/// Protocol version in OPEN.
pub const VERSION: u8 = 1;
/// Most paths that one frame may report on.
pub(crate) const MAX_REPORTS: usize = 64;
/// Addresses that one side may announce have ids below this.
pub const MAX_ADDRESSES: u8 = 32;
/// Addresses in one CANDIDATES, at most.
pub const MAX_CANDIDATES: usize = 8;
/// Longest reason in CLOSE and REFUSE, in bytes; longer ones are cut.
pub const MAX_REASON: usize = 256;
/// Ranges of datagrams that one frame tells of.
pub(crate) const MAX_DATAGRAM_RANGES: usize = 32;
/// DATAGRAMS with as many.
pub(crate) const DATAGRAMS_SIZE: usize = 4 + 8 + 1 + MAX_DATAGRAM_RANGES * 2 * 8;

/// What arrived on each path, and by how many microseconds the newest of it was held back.
pub type Acks = SmallVec<[(PathReport, u64); 1]>;

pub(crate) mod kind {
    pub(crate) const OPEN: u64 = 0x00;
    pub(crate) const ACCEPT: u64 = 0x02;
    pub(crate) const JOIN: u64 = 0x04;
    pub(crate) const JOINED: u64 = 0x06;
    pub(crate) const REFUSE: u64 = 0x08;
    pub(crate) const ACK: u64 = 0x0a;
    pub(crate) const STREAM: u64 = 0x0c;
    pub(crate) const STREAM_FIN: u64 = 0x0e;
    pub(crate) const MAX_DATA: u64 = 0x10;
    pub(crate) const MAX_STREAM_DATA: u64 = 0x12;
    pub(crate) const MAX_STREAMS: u64 = 0x14;
    pub(crate) const RESET: u64 = 0x16;
    pub(crate) const STOP: u64 = 0x18;
    pub(crate) const PATH_LOST: u64 = 0x1a;
    pub(crate) const CLOSE: u64 = 0x1c;
    pub(crate) const CLOSE_ACK: u64 = 0x1e;
    pub(crate) const RETIRE: u64 = 0x20;
    pub(crate) const MESSAGE: u64 = 0x30;
    pub(crate) const MESSAGE_PIECE: u64 = 0x32;
    pub(crate) const SKIP: u64 = 0x34;
    pub(crate) const MAX_MESSAGES: u64 = 0x36;
    pub(crate) const DATAGRAMS: u64 = 0x40;
    pub(crate) const SUSPEND: u64 = 0x38;
    pub(crate) const RESUME: u64 = 0x3a;
    pub(crate) const RESUMED: u64 = 0x3c;
    pub(crate) const ASSIGN: u64 = 0x42;
    pub(crate) const TAKE_OVER: u64 = 0x44;
    pub(crate) const TAKEN_OVER: u64 = 0x46;
    pub(crate) const CANDIDATES: u64 = 0x4c;
    pub(crate) const OBSERVED: u64 = 0x4e;
    pub(crate) const PING: u64 = 0x21;
    pub(crate) const ADDRESSES: u64 = 0x23;
    pub(crate) const PATH_PRIORITY: u64 = 0x25;
    pub(crate) const ADD_ADDRESS: u64 = 0x27;
    pub(crate) const REMOVE_ADDRESS: u64 = 0x29;
    pub(crate) const HANDOVER: u64 = 0x2b;
}

/// How many segments of a path were received. For a lost path the count is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathReport {
    /// The path.
    pub path: PathId,
    /// Segments received on it, from its first.
    pub received: u64,
}

/// The first frame of a connection's first path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// The connection's id, chosen by the client at random.
    pub connection: ConnectionId,
    /// This path's number: 0, or higher when an earlier attempt was cut off.
    pub path: PathId,
    /// The client's half of the connection secret.
    pub random: [u8; 32],
    /// Earlier attempts that the client gave up.
    pub lost: Vec<PathReport>,
    /// The client's parameters.
    pub params: Params,
}

/// The first frame of each further path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// The connection that the path belongs to.
    pub connection: ConnectionId,
    /// The path's number, never used before.
    pub path: PathId,
    /// Proof of the connection secret.
    pub proof: [u8; 32],
    /// What was received on paths that are gone.
    pub lost: Vec<PathReport>,
}

/// The first frame of a path of a client that was written down and read back: JOIN, and a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// The connection that the path belongs to.
    pub connection: ConnectionId,
    /// The path's number, never used before.
    pub path: PathId,
    /// How often this client was read back.
    pub generation: u64,
    /// What tells this copy of the client from others.
    pub nonce: [u8; 32],
    /// Proof of the connection secret.
    pub proof: [u8; 32],
    /// What was received on paths that are gone.
    pub lost: Vec<PathReport>,
}

impl Resume {
    pub(crate) fn claim(&self) -> Claim {
        Claim { side: Side::Client, generation: self.generation, nonce: self.nonce }
    }
}

/// The answer of a server that was written down and read back: JOINED, and a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumed {
    /// How often this server was read back.
    pub generation: u64,
    /// What tells this copy of the server from others.
    pub nonce: [u8; 32],
    /// Proof of the connection secret.
    pub proof: [u8; 32],
    /// What was received on paths that are gone.
    pub lost: Vec<PathReport>,
}

/// The first frame of a path of a client that has another key than before, or that meets a server which has:
/// RESUME, and a random for a new secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakeOver {
    /// The connection that the path belongs to.
    pub connection: ConnectionId,
    /// The path's number, never used before.
    pub path: PathId,
    /// How often this client was read back.
    pub generation: u64,
    /// The client's half of the new secret.
    pub nonce: [u8; 32],
    /// Proof of the connection secret.
    pub proof: [u8; 32],
    /// What was received on paths that are gone.
    pub lost: Vec<PathReport>,
    /// By which the client has this key.
    pub assignment: Option<Assignment>,
}

/// The answer to TAKE_OVER.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenOver {
    /// How often this server was read back.
    pub generation: u64,
    /// The server's half of the new secret.
    pub nonce: [u8; 32],
    /// Proof of the connection secret.
    pub proof: [u8; 32],
    /// What was received on paths that are gone.
    pub lost: Vec<PathReport>,
    /// By which the server has this key.
    pub assignment: Option<Assignment>,
}

/// One decoded frame; byte strings borrow from the segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Opens a connection.
    Open(Open),
    /// Answers OPEN.
    Accept {
        /// The server's half of the connection secret.
        random: [u8; 32],
        /// What was received on earlier attempts.
        lost: Vec<PathReport>,
        /// The server's parameters.
        params: Params,
    },
    /// Adds a path.
    Join(Join),
    /// Answers JOIN.
    Joined {
        /// What was received on paths that are gone.
        lost: Vec<PathReport>,
    },
    /// Adds a path, and claims the connection for this copy of the client.
    Resume(Resume),
    /// Answers JOIN or RESUME, and claims the connection for this copy of the server.
    Resumed(Resumed),
    /// The sender, of this generation, will have no path until it is read back.
    Suspend(u64),
    /// The sender hands its end over.
    Assign {
        /// To whom.
        assignment: Assignment,
        /// Where the new owner can be reached, if that is known.
        addresses: Vec<SocketAddr>,
    },
    /// Adds a path under another key, or to a server under another key.
    TakeOver(TakeOver),
    /// Answers TAKE_OVER.
    TakenOver(TakenOver),
    /// Answers OPEN or JOIN: no.
    Refuse {
        /// Why.
        code: CloseCode,
        /// Why, for people.
        reason: &'a str,
    },
    /// Segments received, per path, and how long the newest of each waited for this frame (µs).
    Ack(Acks),
    /// Bytes of a stream.
    Stream {
        /// The stream.
        id: StreamId,
        /// Offset of the first byte.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
        /// The stream ends behind them.
        fin: bool,
    },
    /// A message, or a piece of one.
    Message {
        /// Which one.
        header: MessageHeader,
        /// Bytes of the whole message.
        size: u64,
        /// Offset of the first byte.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// A message will not come.
    Skip(Skip),
    /// Which datagrams of a path were received.
    Datagrams {
        /// The path.
        path: PathId,
        /// Ranges of their numbers, the newest at least.
        came: Vec<Range<u64>>,
    },
    /// Credit for messages: total cost.
    MaxMessages(u64),
    /// Credit over all streams: total bytes.
    MaxData(u64),
    /// Credit of one stream: total bytes.
    MaxStreamData(StreamId, u64),
    /// Streams that the receiver may have opened in total.
    MaxStreams(u64),
    /// The sender gives its half of the stream up.
    Reset {
        /// The stream.
        id: StreamId,
        /// Why.
        code: CloseCode,
        /// Bytes that count against credit.
        final_size: u64,
    },
    /// The receiver does not want the rest of the stream.
    Stop(StreamId, CloseCode),
    /// A path is given up; the count is final.
    PathLost(PathReport),
    /// The sender puts nothing on a path behind its first segments.
    Retire {
        /// The path.
        path: PathId,
        /// How many segments the sender has put on it.
        segments: u64,
    },
    /// The connection ends.
    Close {
        /// Why.
        code: CloseCode,
        /// Why, for people.
        reason: &'a str,
    },
    /// CLOSE arrived.
    CloseAck,
    /// Asks for an acknowledgement.
    Ping,
    /// The sender's notice addresses, replacing those with a lower sequence number.
    Addresses {
        /// Grows with each change.
        sequence: u64,
        /// UDP addresses.
        addresses: Vec<SocketAddr>,
    },
    /// Where the sender's UDP sockets may be reached, in the place of what it said before under a lower
    /// number.
    Candidates {
        /// Grows with each statement.
        sequence: u64,
        /// UDP addresses, best first.
        addresses: Vec<SocketAddr>,
    },
    /// Where the sender sees the receiver.
    Observed {
        /// Grows with each statement.
        sequence: u64,
        /// Of the newest path, over whichever protocol.
        address: SocketAddr,
    },
    /// Whether a path should carry data; the highest sequence number counts, the client's word if both are
    /// equal.
    PathPriority {
        /// The path.
        path: PathId,
        /// Grows with each change, by whichever side.
        sequence: u64,
        /// Its priority.
        priority: Priority,
    },
    /// An address at which the sender can be reached.
    AddAddress {
        /// Which address this is, below [`MAX_ADDRESSES`].
        id: u8,
        /// Grows with each change that the sender makes to any of its addresses.
        sequence: u64,
        /// What paths to it should be.
        priority: Priority,
        /// Where.
        address: SocketAddr,
    },
    /// An address at which the sender cannot be reached any more.
    RemoveAddress {
        /// Which one.
        id: u8,
        /// As in [`Frame::AddAddress`].
        sequence: u64,
    },
    /// The handover mode of the connection; what counts is decided as for [`Frame::PathPriority`].
    Handover {
        /// Grows with each change, by whichever side.
        sequence: u64,
        /// The mode.
        mode: HandoverMode,
    },
}
