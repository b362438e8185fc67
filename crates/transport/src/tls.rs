//! TLS 1.3 with raw public keys on both sides (RFC 7250): the peer's key *is* its identity.

#[cfg(feature = "fuzzing")]
mod anything;
mod channel;
mod clients;
mod config;
mod names;
mod passed_on;
mod records;
mod sealed;
mod sessions;
mod tickets;
mod verifier;

use std::sync::Once;

use aws_lc_rs::rand;

#[cfg(feature = "fuzzing")]
pub(crate) use anything::{open_anything, remember_anything};
pub(crate) use channel::TlsChannel;
pub(crate) use clients::PeerClients;
pub(crate) use config::TlsIdentity;
pub use passed_on::TlsSessions;
pub(crate) use records::Records;
pub(crate) use sealed::{Opener, Sealer};
pub(crate) use sessions::{ArrivingSessions, ServerTls};

/// Most early data that a server takes with a resumed handshake, in bytes of plaintext.
pub(crate) const MAX_EARLY_DATA: u32 = 16 * 1024;

/// Tickets that a server gives with each handshake. A move may dial several dead addresses before one
/// answers, and each attempt uses a ticket up, since a ticket that was shown twice would tell that both came
/// from the same client (RFC 8446 §C.4).
pub(crate) const TICKETS: usize = 8;

/// Tickets that a client asks for over TCP (RFC 9149) while it has [`TICKETS`] of them: one for that which it
/// uses, and one more. Making eight costs both sides as much as the rest of a handshake.
const FEW_TICKETS: u8 = 2;

/// Has the library gather what randomness it begins with, which takes some 20 ms once in a process: beside
/// the caller, not in the first handshake.
pub(crate) fn prepare() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        // Without it the first handshake is slower, and no more.
        drop(std::thread::Builder::new().name("randomness".into()).spawn(|| rand::fill(&mut [0; 32])));
    });
}

/// Why a path's TLS channel failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
