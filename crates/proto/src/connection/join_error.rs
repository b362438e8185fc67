//! Why a path is not let in.

use crate::error::CloseCode;

/// Why a path is not let into the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The proof of the connection secret is wrong.
    #[error("the proof of the connection secret is wrong")]
    BadProof,
    /// A path with this id was let in or called lost before, or the id is far below the highest one.
    #[error("the path id was used before")]
    PathIdReused,
    /// OPEN of a connection that was opened with another random, or by a client of before that has seen the
    /// answer.
    #[error("the connection is open already")]
    AlreadyOpen,
    /// Another copy of this client was read back, and has the connection.
    #[error("another copy of this client has the connection")]
    Superseded,
    /// The connection is over.
    #[error("the connection is over")]
    Closed,
    /// Another owner may be going on with this end.
    #[error("the connection is being handed over")]
    Held,
}

impl JoinError {
    /// The code for the refusal.
    #[must_use]
    pub const fn code(self) -> CloseCode {
        match self {
            Self::BadProof | Self::AlreadyOpen => CloseCode::BAD_PROOF,
            Self::PathIdReused => CloseCode::PATH_ID_REUSED,
            Self::Superseded => CloseCode::SUPERSEDED,
            Self::Closed => CloseCode::UNKNOWN_CONNECTION,
            Self::Held => CloseCode::BUSY,
        }
    }
}
