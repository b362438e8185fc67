//! What becomes of a datagram.

use std::net::SocketAddr;

use crate::udp::wire::{DATA_HEADER, FIRST_HEADER};

/// Why a datagram goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Dropped {
    /// No reservation has the token, or its server has not opened its flow.
    #[error("no server takes packets for this token")]
    NoServer,
    /// Too many clients come, or are there.
    #[error("too many flows")]
    TooMany,
    /// The proof is wrong, or the number was used.
    #[error("the proof is wrong, or was used before")]
    Forged,
    /// There is no such flow, or it is another server's.
    #[error("no such flow")]
    NoFlow,
    /// The client has not shown yet that it hears the server.
    #[error("more than three times what the client sent")]
    Unproven,
    /// The reservation has had its share of the line for now.
    #[error("more than a reservation may take of the line")]
    TooMuch,
}

/// Where a packet goes, and what is to stand before it.
#[derive(Debug, PartialEq, Eq)]
pub struct Forward<O> {
    /// How it leaves.
    pub out: O,
    /// To whom.
    pub to: SocketAddr,
    /// What stands before it.
    pub header: Header,
}

/// What stands before a forwarded packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Header {
    /// To clients.
    None,
    /// To a server that knows the flow.
    Data([u8; DATA_HEADER]),
    /// To a server that may not.
    First([u8; FIRST_HEADER]),
}

impl AsRef<[u8]> for Header {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Data(header) => header,
            Self::First(header) => header,
        }
    }
}
