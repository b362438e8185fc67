//! Endpoints of the same local network, without a name service and without the Internet.
//!
//! Each endpoint that listens under a name has its signed record told by mDNS (RFC 6762, RFC 6763), and finds
//! those of others there. [`Neighbours`] is a [`Resolver`](whimbrel_transport::Resolver) over that. An
//! endpoint that is to be found by its key alone is told by an [`Announcement`].
//!
//! What comes by mDNS comes from anybody. A record counts only if its signatures are right; a key that is
//! looked for must be shown by the endpoint that is dialled, in TLS; and which key a name may stand for is
//! for a [`Judge`] to say. So a forged answer can at most have a client dial a machine that it then does not
//! talk to.
//!
//! Everybody in the network sees the names, keys and addresses that are told. Nothing is said or asked over
//! interfaces whose bytes cost something.

mod announcement;
mod encoding;
mod neighbours;
mod table;
mod telling;

pub use announcement::{Announcement, name_of_key};
pub use neighbours::{Judge, LanError, Neighbours};

/// The decoders of what is told in the local network. What is here may change at any time.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    /// Decodes bytes as the strings of a neighbour.
    pub fn record(bytes: &[u8]) {
        crate::encoding::decode_anything(bytes);
    }
}
