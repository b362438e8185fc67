//! How a session with a relay ends.

use std::io;

use whimbrel_transport::ConnectError;

/// Why a session with a relay ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("the relay cannot be found: {0}")]
    Unknown(io::Error),
    #[error("the relay cannot be reached: {0}")]
    Unreachable(#[from] ConnectError),
    #[error("the relay gives no reservation: {0}")]
    Refused(String),
    #[error("the relay is about to stop")]
    Draining,
    #[error("the relay does not answer")]
    Silent,
    #[error("the connection to the relay ended: {0}")]
    Lost(#[from] io::Error),
}
