//! What goes wrong when an endpoint is set up.

use std::io;

use whimbrel_names::ServiceAddressError;
use whimbrel_transport as transport;

use crate::identity::IdentityError;

/// An endpoint that could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// What was given as the name service is none.
    #[error(transparent)]
    Names(#[from] ServiceAddressError),
    /// The key in a file can't be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The sockets or addresses can't be used.
    #[error(transparent)]
    Sockets(#[from] transport::BindError),
}

impl From<BindError> for io::Error {
    fn from(error: BindError) -> Self {
        match error {
            BindError::Names(error) => Self::new(io::ErrorKind::InvalidInput, error),
            BindError::Identity(error) => Self::new(io::ErrorKind::InvalidData, error),
            BindError::Sockets(error) => error.into(),
        }
    }
}
