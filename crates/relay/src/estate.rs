//! What a relay leaves to the one that goes on in its place, in this process or another one of its host.
//!
//! An [`Estate`] is a list of [`Piece`]s in the order of the table. Each has a head, which is written with
//! serde (the program writes JSON), bytes of its body as they were on the wire, and open sockets. Times are
//! milliseconds before the moment in which it was written. Later versions add fields, which have defaults.
//!
//! | head | how many | body | sockets |
//! | --- | --- | --- | --- |
//! | `relay` | 1, the first | | |
//! | `turns` | any | | |
//! | `reservation` | one a token | | |
//! | `control` | one a server that is connected | what came of its next message, and then what it is still to be told | |
//! | `spare` | any, behind their reservation | | 1 |
//! | `client` | any that wait, behind their reservation | what it has sent | 1 |
//! | `splice` | any | what waits to the server, and then what waits to the client | 2: the client's, the server's |
//! | `stranger` | any that have sent too little to be told apart | what it has sent | 1 |
//! | `server` | one a server that takes QUIC | | |
//! | `flows` | any, behind their server, at most [`BATCH`] in each | | |

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use whimbrel_base::EndpointId;

/// The most sockets of one piece.
pub const MAX_SOCKETS: usize = 2;
/// The longest body: a buffer each way, or a client's first words.
pub const MAX_BODY: usize = 256 * 1024;
/// The most pieces: more than any limits of a relay that fits a host amount to.
pub const MAX_PIECES: usize = 1 << 20;
/// The most bytes of all bodies.
pub const MAX_BYTES: usize = 1 << 30;
/// The most flows, or turns, in one piece.
pub const BATCH: usize = 64;

/// The bounds, in words.
const BYTES: &str = "1 GiB of bytes under way, or 256 KiB of one connection";
const PIECES: &str = "a million connections, flows and turns";

/// What a piece is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Head {
    /// The relay as a whole.
    Relay(Counters),
    /// What sources have left of their turns.
    Turns(Turns),
    /// A reservation.
    Reservation(Reservation),
    /// The connection of a server.
    Control(Control),
    /// A spare that waits.
    Spare(Spare),
    /// A client that waits.
    Client(Client),
    /// A client and a server that are connected.
    Splice(Splice),
    /// A connection that has sent little yet.
    Stranger {
        /// Where it comes from.
        remote: SocketAddr,
    },
    /// Where a server takes QUIC.
    Server(Server),
    /// Places that clients send QUIC from.
    Flows(Vec<Flow>),
}

impl Head {
    /// How many sockets come with it.
    #[must_use]
    pub fn sockets(&self) -> usize {
        match self {
            Self::Spare(_) | Self::Client(_) | Self::Stranger { .. } => 1,
            Self::Splice(_) => 2,
            _ => 0,
        }
    }
}

/// What has been counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // As in `RelayStats`.
pub struct Counters {
    /// Of the reservations, so that each has a number of its own.
    pub generations: u64,
    /// Of the clients that waited.
    pub clients: u64,
    pub spliced: u64,
    pub clients_refused: u64,
    pub spares_refused: u64,
    pub reservations_refused: u64,
    /// Of splices that have ended.
    pub bytes: u64,
    pub wait_ms: u64,
    pub splice_ms: u64,
    pub servers: u64,
    pub flowed: u64,
    pub flow_bytes: u64,
    pub dropped: u64,
}

/// Turns of new clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turns {
    /// Of QUIC, or of TCP.
    pub quic: bool,
    /// Whose.
    pub of: Whose,
    /// What is left.
    pub buckets: Vec<Bucket>,
}

/// Whose turns they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whose {
    /// Of addresses.
    Addresses,
    /// Of addresses, as long as they come now and then.
    Seldom,
    /// Of reservations, for addresses that come now and then.
    ForSeldom,
    /// Of reservations, for all.
    ForAll,
}

/// What is left of somebody's turns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// A token, or the 8 bytes of a source.
    pub key: Vec<u8>,
    /// Thousandths of turns.
    pub left: u64,
    /// When that was so.
    pub ago_ms: u64,
}

/// A reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Its token.
    pub token: [u8; 10],
    /// Whose it is.
    pub owner: EndpointId,
    /// Which of its owner's.
    pub generation: u64,
    /// Its key.
    pub key: [u8; 32],
    /// The newest number of a spare, and which of those below were used.
    pub used: (u64, [u64; 2]),
}

/// What a server and the relay say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Control {
    /// Which of the connections that were handed over beside, from 0.
    pub connection: usize,
    /// Its stream, if it was accepted.
    pub stream: Option<u64>,
    /// Of the body: what came and was no whole message.
    pub came: usize,
    /// The reservation's token and generation, if there is one.
    pub holds: Option<([u8; 10], u64)>,
}

/// A spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spare {
    /// Of which reservation.
    pub token: [u8; 10],
    /// From which of the server's addresses.
    pub origin: u32,
    /// Its number.
    pub number: u64,
}

/// A client that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// For which reservation.
    pub token: [u8; 10],
    /// Its number.
    pub number: u64,
    /// Where it comes from.
    pub remote: SocketAddr,
    /// Since when it waits.
    pub ago_ms: u64,
}

/// A client and a server that are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Splice {
    /// The spare that it was.
    pub spare: Spare,
    /// Of the reservation then.
    pub generation: u64,
    /// To the server.
    pub there: Way,
    /// To the client.
    pub back: Way,
    /// Bytes so far.
    pub bytes: u64,
}

/// How far one direction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// Of the body: bytes that were read and not written yet.
    pub waiting: usize,
    /// The end was passed on.
    pub ended: bool,
}

/// What sends from a socket of the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Out {
    /// Where the socket is bound.
    pub bound: SocketAddr,
    /// The address that is sent from, if that is one of several.
    pub source: Option<IpAddr>,
}

/// Where a server takes QUIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Its token.
    pub token: [u8; 10],
    /// The reservation's key.
    pub key: [u8; 32],
    /// What its connection ids are checked with.
    pub ids: [u8; 32],
    /// The number of the newest `open`.
    pub newest: Option<u64>,
    /// Where it takes packets, and when it was heard of.
    pub at: Option<(Out, SocketAddr, u64)>,
    /// Where it says that it is: with the number of its `open`, and what it is to repeat.
    pub claimed: Option<(Out, SocketAddr, u64, u64)>,
}

/// A place that a client sends QUIC from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Its number.
    pub number: u32,
    /// Whose client it is.
    pub token: [u8; 10],
    /// What stands before its packets until the server knows it.
    pub first: Vec<u8>,
    /// Where the client is.
    pub client: SocketAddr,
    /// How it is reached.
    pub out: Out,
    /// Bytes from it, until it is proven.
    pub came: u64,
    /// Bytes to it, until it is proven.
    pub went: u64,
    /// The server has answered.
    pub answered: bool,
    /// What the server is called by.
    pub told: Option<[u8; 20]>,
    /// The client has shown that it hears the server.
    pub proven: bool,
    /// When it was heard last.
    pub ago_ms: u64,
}

/// A part of an estate.
#[derive(Debug)]
pub struct Piece {
    /// What it is.
    pub head: Head,
    /// Bytes that are under way.
    pub body: Vec<u8>,
    /// Open sockets.
    pub sockets: Vec<OwnedFd>,
}

/// Why an estate is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadEstate {
    /// Something does not fit together.
    #[error("the relay hands over something else than it should ({0}); restart it instead")]
    Malformed(&'static str),
    /// It is beyond the bounds of what is handed over.
    #[error("the relay has more to hand over than {0}; restart it instead, or wait until it has less to do")]
    TooLarge(&'static str),
}

/// As times are written.
pub(crate) fn millis(ago: Duration) -> u64 {
    u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)
}

/// The moment so long before `now`, as far as the clock goes back.
pub(crate) fn before(now: Instant, ago_ms: u64) -> Instant {
    now.checked_sub(Duration::from_millis(ago_ms)).unwrap_or(now)
}

/// All that a relay leaves.
#[derive(Debug, Default)]
pub struct Estate {
    pieces: Vec<Piece>,
    bytes: usize,
}

impl Estate {
    /// Adds a piece.
    ///
    /// # Errors
    /// [`BadEstate`] if there is too much of anything.
    pub fn add(&mut self, piece: Piece) -> Result<(), BadEstate> {
        if piece.sockets.len() != piece.head.sockets() {
            return Err(BadEstate::Malformed("sockets"));
        }
        let is_first = matches!(piece.head, Head::Relay(_));
        if is_first != self.pieces.is_empty() {
            return Err(BadEstate::Malformed("order"));
        }
        if piece.body.len() > MAX_BODY {
            return Err(BadEstate::TooLarge(BYTES));
        }
        self.push(piece);
        if self.bytes > MAX_BYTES {
            return Err(BadEstate::TooLarge(BYTES));
        }
        if self.pieces.len() > MAX_PIECES {
            return Err(BadEstate::TooLarge(PIECES));
        }
        Ok(())
    }

    /// The pieces, in order.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Whether nothing was left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(crate) fn into_pieces(self) -> Vec<Piece> {
        self.pieces
    }

    /// Adds what is there, whether or not it is within the bounds.
    pub(crate) fn push(&mut self, piece: Piece) {
        self.bytes += piece.body.len();
        self.pieces.push(piece);
    }

    /// Whether another process may have it.
    ///
    /// # Errors
    /// [`BadEstate::TooLarge`].
    pub fn check(&self) -> Result<(), BadEstate> {
        if self.bytes > MAX_BYTES || self.pieces.iter().any(|piece| piece.body.len() > MAX_BODY) {
            return Err(BadEstate::TooLarge(BYTES));
        }
        if self.pieces.len() > MAX_PIECES {
            return Err(BadEstate::TooLarge(PIECES));
        }
        Ok(())
    }
}
