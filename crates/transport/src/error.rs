//! Errors of the transport's public face; each says what to do.

use std::io;
use std::net::SocketAddr;

use whimbrel_base::{EndpointId, Name};
use whimbrel_proto::CloseCode;

use crate::report::CloseReason;

/// An endpoint that could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The sockets could not be bound.
    #[error("cannot listen on {address}: {source}; choose another port or stop who uses it")]
    Socket {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The address monitor could not be started.
    #[error("cannot watch this host's addresses: {0}")]
    Monitor(io::Error),
    /// The key was not accepted by TLS.
    #[error("the key cannot be used: {0}")]
    Tls(#[from] crate::TlsError),
}

/// A path that a connection does not have (any more).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection has no path {0}; it may be gone")]
pub struct NoSuchPath(
    /// Its number.
    pub u64,
);

/// A connection that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name is known to nobody, or its record has expired.
    #[error("{0}: no such name is registered, or its owner has not been heard of for too long")]
    NotFound(Name),
    /// Names cannot be resolved.
    #[error("cannot look up {name}: {source}")]
    Resolve {
        /// The name.
        name: Name,
        /// Why not.
        source: ResolveError,
    },
    /// A name was given, but the endpoint knows no name service.
    #[error("cannot look up {0}: no name service is configured; give one, or connect by ticket")]
    NoResolver(Name),
    /// No address is known.
    #[error("no address of {0} is known; it may be offline")]
    NoAddress(EndpointId),
    /// Nobody answered in time.
    #[error(
        "{peer} did not answer at {addresses} within the time limit; is it running, and is the way free?"
    )]
    TimedOut {
        /// Who.
        peer: EndpointId,
        /// Where it was tried.
        addresses: String,
    },
    /// The peer said no.
    #[error("{peer} refused the connection: {code}{}", with_reason(.reason))]
    Refused {
        /// Who.
        peer: EndpointId,
        /// Why.
        code: CloseCode,
        /// Why, in the peer's words.
        reason: String,
    },
    /// The endpoint was closed.
    #[error("this endpoint is closed")]
    EndpointClosed,
}

fn with_reason(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(" ({reason})") }
}

/// A listener that could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The sockets could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Another listener of this endpoint has the name.
    #[error("{0} is already listened for by this endpoint")]
    InUse(String),
    /// The name could not be published.
    #[error("cannot register {name}: {source}")]
    Publish {
        /// The name.
        name: Name,
        /// Why not.
        source: ResolveError,
    },
    /// The endpoint knows no name service.
    #[error("cannot register {0}: no name service is configured")]
    NoResolver(Name),
    /// The record could not be made.
    #[error("cannot make a record: {0}")]
    Record(#[from] whimbrel_base::RecordError),
    /// The endpoint was closed.
    #[error("this endpoint is closed")]
    EndpointClosed,
}

/// Why a name could not be looked up or published.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ResolveError {
    /// Nobody has registered it, or its record has expired.
    #[error("no such name is registered")]
    NotFound,
    /// The name service cannot be reached.
    #[error("the name service does not answer: {0}")]
    Unreachable(String),
    /// The name service said no.
    #[error("the name service refused: {0}")]
    Refused(String),
    /// The record is not what it should be.
    #[error("the record is not valid: {0}")]
    Invalid(String),
    /// The record contradicts what is known of the name's owner.
    #[error("{0}")]
    Untrusted(String),
}

/// The connection is over, or cannot do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// It was closed.
    #[error("the connection is closed: {0}")]
    Closed(CloseReason),
    /// It did not end in time.
    #[error("the peer did not confirm the end in time")]
    TimedOut,
}

impl From<ConnectionError> for io::Error {
    fn from(error: ConnectionError) -> Self {
        Self::new(io::ErrorKind::ConnectionAborted, error)
    }
}
