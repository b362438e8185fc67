//! Server names, as TLS has them.

use rustls::pki_types::ServerName;
use whimbrel_base::{EndpointId, RelayToken};

use super::TlsError;

/// The name under which a peer's key is expected and its tickets are kept; never sent.
pub(super) fn server_name(peer: EndpointId) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(peer.to_string()).map_err(|_| TlsError::NoIdentity)
}

/// The name that a relay reads.
pub(super) fn token_name(token: RelayToken) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(token.to_string()).map_err(|_| TlsError::Internal("a token that is no host name"))
}
