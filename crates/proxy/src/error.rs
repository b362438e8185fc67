//! Why a destination is not reached.

use crate::Destination;
use std::io;

/// Why a destination was not reached. What each of them is to a program is said by its protocol: a status of
/// HTTP, a reply of SOCKS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// The rules do not let anybody go there.
    #[error("{to} is refused: {why}")]
    Refused {
        /// Where to.
        to: String,
        /// By which rule.
        why: String,
    },
    /// Nothing is known by this name, or no network leads there.
    #[error("there is no way to {to}: {why}")]
    NoWay {
        /// Where to.
        to: String,
        /// Why.
        why: String,
    },
    /// It was not reached.
    #[error("{to} is not reached: {source}")]
    Unreachable {
        /// Where to.
        to: String,
        /// What the system says.
        source: io::Error,
    },
}

/// What to say of a host that stands for a name, where names as hosts are not known.
pub(crate) fn not_here(to: &Destination) -> UpstreamError {
    let why = "it stands for a name, and none is listed here (--host)".to_owned();
    UpstreamError::NoWay { to: to.to_string(), why }
}
