//! The connection secret and what it proves.
//!
//! Both sides contribute 32 random bytes inside the first TLS handshake (OPEN and ACCEPT), so the
//! secret is known to the two authenticated peers alone. A JOIN needs the secret *and* a TLS
//! handshake with the peer's key; a notice (UDP, outside TLS) needs the secret.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use whimbrel_base::{ConnectionId, EndpointId};

use crate::error::DecodeError;
use crate::ids::{PathId, Side};
use crate::mac;
use crate::notice::NoticeKey;
use crate::varint::Reader;

/// Shared by the two ends of one connection, never sent after the first path's handshake.
#[derive(Clone)]
pub(crate) struct Secret([u8; 32]);

/// One end was read back, and claims the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Which end.
    pub(crate) side: Side,
    /// How often that end was read back, this time included.
    pub(crate) generation: u64,
    /// Fresh and unpredictable.
    pub(crate) nonce: [u8; 32],
}

/// Which copy of an end speaks in a take-over, and its half of the secret that follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stake {
    /// How often that end was read back.
    pub(crate) generation: u64,
    /// Fresh and unpredictable.
    pub(crate) nonce: [u8; 32],
}

/// A client's word in a take-over: who meets whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asking {
    pub(crate) client: EndpointId,
    pub(crate) server: EndpointId,
    pub(crate) stake: Stake,
}

/// Both sides' words in a take-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub(crate) asking: Asking,
    pub(crate) answer: Stake,
}

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

    fn claim_mac(&self, connection: ConnectionId, path: PathId, claim: &Claim) -> Hmac<Sha256> {
        let (path, generation) = (path.0.to_be_bytes(), claim.generation.to_be_bytes());
        let label: &[u8] = match claim.side {
            Side::Client => b"whimbrel resume v1",
            Side::Server => b"whimbrel resumed v1",
        };
        mac::over(&self.0, &[label, connection.as_bytes(), &path, &generation, &claim.nonce])
    }

    /// The proof that RESUME or RESUMED carries on a path.
    pub(crate) fn claim_proof(&self, connection: ConnectionId, path: PathId, claim: &Claim) -> [u8; 32] {
        self.claim_mac(connection, path, claim).finalize().into_bytes().into()
    }

    /// Checks the proof of a claim in constant time.
    pub(crate) fn proves_claim(
        &self,
        connection: ConnectionId,
        path: PathId,
        claim: &Claim,
        proof: &[u8; 32],
    ) -> bool {
        self.claim_mac(connection, path, claim).verify_slice(proof).is_ok()
    }

    /// The secret once a claim was taken.
    pub(crate) fn claimed(&self, claim: &Claim) -> Self {
        let side: &[u8] = match claim.side {
            Side::Client => &[0],
            Side::Server => &[1],
        };
        let generation = claim.generation.to_be_bytes();
        let label: &[u8] = b"whimbrel resumed secret v1";
        Self(mac::over(&self.0, &[label, side, &generation, &claim.nonce]).finalize().into_bytes().into())
    }

    fn take_over_mac(&self, connection: ConnectionId, path: PathId, asking: &Asking) -> Hmac<Sha256> {
        let (path, generation) = (path.0.to_be_bytes(), asking.stake.generation.to_be_bytes());
        let (client, server) = (asking.client.as_bytes(), asking.server.as_bytes());
        let label: &[u8] = b"whimbrel take over v1";
        let id = connection.as_bytes();
        mac::over(&self.0, &[label, id, &path, client, server, &generation, &asking.stake.nonce])
    }

    /// The proof that TAKE_OVER carries on a path.
    pub(crate) fn take_over_proof(
        &self,
        connection: ConnectionId,
        path: PathId,
        asking: &Asking,
    ) -> [u8; 32] {
        self.take_over_mac(connection, path, asking).finalize().into_bytes().into()
    }

    /// Checks a TAKE_OVER's proof in constant time.
    pub(crate) fn proves_take_over(
        &self,
        connection: ConnectionId,
        path: PathId,
        asking: &Asking,
        proof: &[u8; 32],
    ) -> bool {
        self.take_over_mac(connection, path, asking).verify_slice(proof).is_ok()
    }

    fn exchange_mac(&self, label: &[u8], id: ConnectionId, path: &[u8], exchange: &Exchange) -> Hmac<Sha256> {
        let Exchange { asking, answer } = exchange;
        let (client, server) = (asking.client.as_bytes(), asking.server.as_bytes());
        let (theirs, ours) = (asking.stake.generation.to_be_bytes(), answer.generation.to_be_bytes());
        let (their_nonce, our_nonce) = (&asking.stake.nonce, &answer.nonce);
        let id = id.as_bytes();
        mac::over(&self.0, &[label, id, path, client, server, &theirs, their_nonce, &ours, our_nonce])
    }

    /// The proof that TAKEN_OVER carries on a path.
    pub(crate) fn taken_over_proof(&self, id: ConnectionId, path: PathId, exchange: &Exchange) -> [u8; 32] {
        let mac = self.exchange_mac(b"whimbrel taken over v1", id, &path.0.to_be_bytes(), exchange);
        mac.finalize().into_bytes().into()
    }

    /// Checks a TAKEN_OVER's proof in constant time.
    pub(crate) fn proves_taken_over(
        &self,
        id: ConnectionId,
        path: PathId,
        exchange: &Exchange,
        proof: &[u8; 32],
    ) -> bool {
        let mac = self.exchange_mac(b"whimbrel taken over v1", id, &path.0.to_be_bytes(), exchange);
        mac.verify_slice(proof).is_ok()
    }

    /// The secret after a take-over, to which both sides have given a random.
    pub(crate) fn exchanged(&self, id: ConnectionId, exchange: &Exchange) -> Self {
        let mac = self.exchange_mac(b"whimbrel handed-over secret v1", id, &[], exchange);
        Self(mac.finalize().into_bytes().into())
    }

    /// The other one is the same. Not for what a peer has sent.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// Writes itself down, for a snapshot that is encrypted.
    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self(reader.array()?))
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
