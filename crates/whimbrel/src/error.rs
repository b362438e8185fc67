//! Errors of this crate's own face: what was given was not understood, or what lies below did not succeed.

use std::io;

use whimbrel_base::{NameError, TicketError};
use whimbrel_names::ServiceAddressError;
use whimbrel_transport as transport;

/// An endpoint that could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// What was given as the name service is none.
    #[error(transparent)]
    Names(#[from] ServiceAddressError),
    /// The sockets or addresses can't be used.
    #[error(transparent)]
    Endpoint(#[from] transport::BindError),
}

/// Why a text does not say whom to connect to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// It is not a name.
    #[error("{text:?} is neither a name nor a ticket: {source}")]
    Name {
        /// What was given.
        text: String,
        /// What is wrong with it as a name.
        source: NameError,
    },
    /// It begins like a ticket and is none.
    #[error(transparent)]
    Ticket(#[from] TicketError),
}

/// A connection that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// It is not clear to whom.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// It did not succeed.
    #[error(transparent)]
    Connect(#[from] transport::ConnectError),
}

/// A listener that could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// It is not clear under which name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// It did not succeed.
    #[error(transparent)]
    Listen(#[from] transport::ListenError),
}

impl From<BindError> for io::Error {
    fn from(error: BindError) -> Self {
        let kind = match &error {
            BindError::Names(_) => io::ErrorKind::InvalidInput,
            BindError::Endpoint(error) => bind_kind(error),
        };
        Self::new(kind, error)
    }
}

fn bind_kind(error: &transport::BindError) -> io::ErrorKind {
    match error {
        transport::BindError::Socket { source, .. } | transport::BindError::Monitor(source) => source.kind(),
        transport::BindError::Tls(_) => io::ErrorKind::InvalidInput,
    }
}

impl From<ConnectError> for io::Error {
    fn from(error: ConnectError) -> Self {
        use transport::ConnectError as E;
        let kind = match &error {
            ConnectError::Target(_) | ConnectError::Connect(E::NoResolver(_)) => io::ErrorKind::InvalidInput,
            ConnectError::Connect(error) => match error {
                E::NotFound(_) => io::ErrorKind::NotFound,
                E::Resolve { .. } | E::NoAddress(_) => io::ErrorKind::HostUnreachable,
                E::TimedOut { .. } => io::ErrorKind::TimedOut,
                E::Refused { .. } => io::ErrorKind::ConnectionRefused,
                _ => io::ErrorKind::NotConnected,
            },
        };
        Self::new(kind, error)
    }
}

impl From<ListenError> for io::Error {
    fn from(error: ListenError) -> Self {
        use transport::ListenError as E;
        let kind = match &error {
            ListenError::Name(_) => io::ErrorKind::InvalidInput,
            ListenError::Listen(error) => match error {
                E::Bind(error) => bind_kind(error),
                E::InUse(_) => io::ErrorKind::AddrInUse,
                E::Publish { .. } => io::ErrorKind::PermissionDenied,
                E::Record(_) | E::NoResolver(_) => io::ErrorKind::InvalidInput,
                E::EndpointClosed => io::ErrorKind::NotConnected,
            },
        };
        Self::new(kind, error)
    }
}
