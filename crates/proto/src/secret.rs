//! The connection secret and what it proves.
//!
//! Both sides contribute 32 random bytes inside the first TLS handshake (OPEN and ACCEPT), so the
//! secret is known to the two authenticated peers alone. A JOIN needs the secret *and* a TLS
//! handshake with the peer's key; a notice (UDP, outside TLS) needs the secret.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use whimbrel_base::{ConnectionId, EndpointId};

use crate::ids::PathId;
use crate::mac;
use crate::notice::NoticeKey;

/// Shared by the two ends of one connection, never sent after the first path's handshake.
#[derive(Clone)]
pub(crate) struct Secret([u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Derives the secret from both sides' randoms and the identities (HKDF-extract, RFC 5869).
    pub(crate) fn derive(
        connection: ConnectionId,
        client: EndpointId,
        server: EndpointId,
        client_random: &[u8; 32],
        server_random: &[u8; 32],
    ) -> Self {
        let mac = mac::over(
            b"whimbrel connection secret v1",
            &[connection.as_bytes(), client.as_bytes(), server.as_bytes(), client_random, server_random],
        );
        Self(mac.finalize().into_bytes().into())
    }

    fn join_mac(&self, connection: ConnectionId, path: PathId) -> Hmac<Sha256> {
        mac::over(&self.0, &[b"whimbrel join v1", connection.as_bytes(), &path.0.to_be_bytes()])
    }

    /// The proof that JOIN carries.
    pub(crate) fn join_proof(&self, connection: ConnectionId, path: PathId) -> [u8; 32] {
        self.join_mac(connection, path).finalize().into_bytes().into()
    }

    /// Checks a JOIN's proof in constant time.
    pub(crate) fn proves_join(&self, connection: ConnectionId, path: PathId, proof: &[u8; 32]) -> bool {
        self.join_mac(connection, path).verify_slice(proof).is_ok()
    }

    /// The key and the public tag of this connection's notices (see [`crate::notice`]).
    pub(crate) fn notice_key(&self) -> NoticeKey {
        let derive = |label: &[u8]| mac::over(&self.0, &[label]).finalize().into_bytes();
        let mut tag = [0; 16];
        tag.copy_from_slice(&derive(b"whimbrel notice tag v1")[..16]);
        NoticeKey::new(tag, derive(b"whimbrel notice key v1").into())
    }
}
