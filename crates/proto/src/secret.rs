//! The connection secret and what it proves.
//!
//! Both sides contribute 32 random bytes inside the first TLS handshake (OPEN and ACCEPT), so the
//! secret is known to the two authenticated peers alone. A JOIN needs the secret *and* a TLS
//! handshake with the peer's key; a notice (UDP, outside TLS) needs the secret.

use hmac::digest::Key;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use whimbrel_base::{ConnectionId, EndpointId};

use crate::ids::PathId;

/// Shared by the two ends of one connection, never sent after the first path's handshake.
#[derive(Clone)]
pub(crate) struct Secret([u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// HMAC with a key that fits a block of the hash (RFC 2104 §2: shorter keys are padded with zeros).
pub(crate) fn keyed<const N: usize>(key: &[u8; N]) -> Hmac<Sha256> {
    const { assert!(N <= 64) };
    let mut block = Key::<Hmac<Sha256>>::default();
    block[..N].copy_from_slice(key);
    Hmac::new(&block)
}

fn hmac<const N: usize>(key: &[u8; N], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = keyed(key);
    for part in parts {
        mac.update(part);
    }
    mac
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
        let mac = hmac(
            b"whimbrel connection secret v1",
            &[connection.as_bytes(), client.as_bytes(), server.as_bytes(), client_random, server_random],
        );
        Self(mac.finalize().into_bytes().into())
    }

    fn join_mac(&self, connection: ConnectionId, path: PathId) -> Hmac<Sha256> {
        hmac(&self.0, &[b"whimbrel join v1", connection.as_bytes(), &path.0.to_be_bytes()])
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
    pub(crate) fn notice_key(&self) -> crate::notice::NoticeKey {
        let derive = |label: &[u8]| hmac(&self.0, &[label]).finalize().into_bytes();
        let mut tag = [0; 16];
        tag.copy_from_slice(&derive(b"whimbrel notice tag v1")[..16]);
        crate::notice::NoticeKey::new(tag, derive(b"whimbrel notice key v1").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231 §4.3.
    #[test]
    fn a_short_key_is_padded_as_the_standard_says() {
        let mac = hmac(b"Jefe", &[b"what do ya want ", b"for nothing?"]).finalize().into_bytes();
        let expected = [0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e];
        assert_eq!(mac[..8], expected);
    }
}
