//! TLS 1.3 with raw public keys on both sides (RFC 7250): the peer's key *is* its identity.

mod channel;
mod config;
mod records;
mod sealed;
mod sessions;
mod verifier;

pub(crate) use channel::TlsChannel;
pub(crate) use config::TlsIdentity;
pub(crate) use records::Records;
pub(crate) use sealed::{Opener, Sealer};

/// Most early data that a server takes with a resumed handshake, in bytes of plaintext.
pub(crate) const MAX_EARLY_DATA: u32 = 16 * 1024;

/// Why a path's TLS channel failed.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The handshake or a record was refused.
    #[error("TLS failed: {0}")]
    Rustls(#[from] rustls::Error),
    /// The peer's key could not be read.
    #[error("the peer did not show an Ed25519 key")]
    NoIdentity,
    /// A buffer was too small or a state unexpected; a bug.
    #[error("TLS channel: {0}")]
    Internal(&'static str),
}
