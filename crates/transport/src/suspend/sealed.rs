//! A suspended connection as bytes that only its owner can read, and nobody can change unnoticed.
//!
//! ```text
//! "WHS1" | owner's id (32) | salt (32) | AES-256-GCM(contents) with its tag
//! key = HMAC-SHA256(owner's secret key, "whimbrel suspended v1" | salt), used once; nonce 0; the first 68
//! bytes are authenticated too
//!
//! "WHH1" | id of the owner until now (32) | id of the next one (32) | encapsulated key (32)
//!        | HPKE(assignment | contents) with its tag | signature of the owner until now (64)
//! ```
//!
//! HPKE (RFC 9180) is DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM in its base mode, to the X25519
//! form of the next owner's key. Its `info` is "whimbrel handed over v1", and its `aad` are the first 68
//! bytes. The signature is of "whimbrel sealed hand-over v1" and all bytes before it.

use std::net::SocketAddr;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use hmac::{Hmac, KeyInit, Mac};
use rustls::crypto::aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_256 as HPKE;
use rustls::crypto::hpke::{EncapsulatedSecret, Hpke, HpkePrivateKey, HpkePublicKey};
use sha2::Sha256;
use whimbrel_base::{EndpointId, Name, SecretKey, Signature, random_bytes};
use whimbrel_proto::Assignment;

use crate::error::ResumeError;

const MAGIC: &[u8; 4] = b"WHS1";
const HEADER: usize = 4 + 32 + 32;
/// As [`MAGIC`], of a connection that was handed over.
const HANDED_OVER: &[u8; 4] = b"WHH1";
const INFO: &[u8] = b"whimbrel handed over v1";
const SIGNED: &[u8] = b"whimbrel sealed hand-over v1";

/// What a suspended connection consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) name: Option<Name>,
    /// Where the server may be.
    pub(super) places: Vec<SocketAddr>,
    /// Where the client hears notices.
    pub(super) notice_targets: Vec<SocketAddr>,
    /// From how near the peer was seen.
    pub(super) nearness: u8,
    /// The client was let in by a ticket.
    pub(super) by_ticket: bool,
    pub(super) snapshot: Vec<u8>,
}

impl Contents {
    pub(super) fn seal(&self, owner: &SecretKey) -> Vec<u8> {
        let salt: [u8; 32] = random_bytes();
        let mut out = Vec::with_capacity(HEADER + self.snapshot.len() + 1024);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(owner.id().as_bytes());
        out.extend_from_slice(&salt);
        let mut plain = Vec::with_capacity(self.snapshot.len() + 1024);
        self.encode(&mut plain);
        let aad = Aad::from(out.clone());
        key(owner, &salt)
            .seal_in_place_append_tag(Nonce::assume_unique_for_key([0; 12]), aad, &mut plain)
            .unwrap_or_else(|_| unreachable!("less than 64 GiB are sealed"));
        out.extend_from_slice(&plain);
        out
    }

    pub(super) fn open(bytes: &[u8], owner: &SecretKey) -> Result<Self, ResumeError> {
        if bytes.len() < HEADER || &bytes[..4] != MAGIC {
            return Err(ResumeError::NotSuspended);
        }
        let (header, sealed) = bytes.split_at(HEADER);
        let array = |at: usize| <[u8; 32]>::try_from(&header[at..at + 32]).unwrap_or_default();
        let of = EndpointId::from_bytes(&array(4));
        if of != owner.id() {
            return Err(ResumeError::OtherOwner { owner: of, here: owner.id() });
        }
        let mut plain = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        let opened = key(owner, &array(36)).open_in_place(nonce, Aad::from(header), &mut plain);
        let opened = opened.map_err(|_| ResumeError::Damaged)?;
        Self::decode(opened).ok_or(ResumeError::Damaged)
    }

    /// Seals it for another owner. `None` if that key can't be sealed for: it is no key.
    pub(super) fn seal_for(&self, owner: &SecretKey, assignment: &Assignment) -> Option<Vec<u8>> {
        let to = HpkePublicKey(assignment.to.to_x25519()?.to_vec());
        let mut out = Vec::with_capacity(HEADER + self.snapshot.len() + 1024);
        out.extend_from_slice(HANDED_OVER);
        out.extend_from_slice(owner.id().as_bytes());
        out.extend_from_slice(assignment.to.as_bytes());
        let mut plain = Vec::with_capacity(self.snapshot.len() + 1024);
        let mut signed = Vec::new();
        assignment.encode(&mut signed);
        put(&mut plain, &signed);
        self.encode(&mut plain);
        let (encapsulated, sealed) = HPKE.seal(INFO, &out, &plain, &to).ok()?;
        out.extend_from_slice(&encapsulated.0);
        out.extend_from_slice(&sealed);
        let signature = owner.sign(&[SIGNED, &out].concat());
        out.extend_from_slice(&signature.to_bytes());
        Some(out)
    }

    /// Opens what was sealed for this owner, by itself or by another one who handed it over.
    pub(super) fn open_any(
        bytes: &[u8],
        owner: &SecretKey,
    ) -> Result<(Self, Option<Assignment>), ResumeError> {
        if !bytes.starts_with(HANDED_OVER) {
            return Self::open(bytes, owner).map(|contents| (contents, None));
        }
        let (bytes, signature) = bytes.split_last_chunk::<64>().ok_or(ResumeError::NotSuspended)?;
        let (header, sealed) = bytes.split_at_checked(HEADER).ok_or(ResumeError::NotSuspended)?;
        let (encapsulated, sealed) = sealed.split_at_checked(32).ok_or(ResumeError::NotSuspended)?;
        let array = |at: usize| <[u8; 32]>::try_from(&header[at..at + 32]).unwrap_or_default();
        let (from, to) = (EndpointId::from_bytes(&array(4)), EndpointId::from_bytes(&array(36)));
        if to != owner.id() {
            return Err(ResumeError::OtherOwner { owner: to, here: owner.id() });
        }
        let signed = [SIGNED, bytes].concat();
        from.verify(&signed, &Signature::from_bytes(signature)).map_err(|_| ResumeError::Damaged)?;
        let key = HpkePrivateKey::from(owner.to_x25519().to_vec());
        let encapsulated = EncapsulatedSecret(encapsulated.to_vec());
        let plain = HPKE.open(&encapsulated, INFO, header, sealed, &key).map_err(|_| ResumeError::Damaged)?;
        let mut plain = plain.as_slice();
        let assignment = take(&mut plain).and_then(|bytes| Assignment::from_bytes(bytes).ok());
        let assignment = assignment.filter(|assignment| (assignment.from, assignment.to) == (from, to));
        let contents = Self::decode(plain).ok_or(ResumeError::Damaged)?;
        Ok((contents, Some(assignment.ok_or(ResumeError::Damaged)?)))
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let text = |list: &[SocketAddr]| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        put(out, self.name.as_ref().map(ToString::to_string).unwrap_or_default().as_bytes());
        put(out, text(&self.places).as_bytes());
        put(out, text(&self.notice_targets).as_bytes());
        put(out, &[self.nearness, self.by_ticket.into()]);
        put(out, &self.snapshot);
    }

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let name = text(&mut bytes)?;
        let places = text(&mut bytes)?;
        let notice_targets = text(&mut bytes)?;
        let (nearness, by_ticket) = match *take(&mut bytes)? {
            // As programs of before wrote it.
            [nearness] => (nearness, false),
            [nearness, by_ticket] => (nearness, by_ticket != 0),
            _ => return None,
        };
        let snapshot = take(&mut bytes)?.to_vec();
        let name = if name.is_empty() { None } else { Some(name.parse().ok()?) };
        let list = |text: &str| text.split_whitespace().map(|at| at.parse().ok()).collect::<Option<Vec<_>>>();
        let (places, notice_targets) = (list(places)?, list(notice_targets)?);
        bytes.is_empty().then_some(Self { name, places, notice_targets, nearness, by_ticket, snapshot })
    }
}

/// Decodes whatever comes as what was sealed, and as what is in it; what is understood is the same when it is
/// said again. For fuzzers.
#[cfg(feature = "fuzzing")]
pub(super) fn decode_anything(bytes: &[u8]) {
    // Making a key takes longer than all the rest.
    static OWNER: std::sync::LazyLock<SecretKey> =
        std::sync::LazyLock::new(|| SecretKey::from_bytes(&[1; 32]));
    assert!(Contents::open_any(bytes, &OWNER).is_err(), "somebody without the key has sealed it");
    if let Some(contents) = Contents::decode(bytes) {
        let mut again = Vec::new();
        contents.encode(&mut again);
        assert_eq!(Contents::decode(&again), Some(contents));
    }
}

/// The key for one suspended connection.
fn key(owner: &SecretKey, salt: &[u8; 32]) -> LessSafeKey {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&owner.to_bytes())
        .unwrap_or_else(|_| unreachable!("an HMAC takes a key of any length"));
    mac.update(b"whimbrel suspended v1");
    mac.update(salt);
    let key = UnboundKey::new(&AES_256_GCM, &mac.finalize().into_bytes())
        .unwrap_or_else(|_| unreachable!("32 bytes are the length of a key"));
    LessSafeKey::new(key)
}

fn put(out: &mut Vec<u8>, field: &[u8]) {
    out.extend_from_slice(&(field.len() as u64).to_be_bytes());
    out.extend_from_slice(field);
}

fn take<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_be_bytes(*length)).ok()?;
    let (field, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some(field)
}

fn text<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(take(bytes)?).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn contents() -> Contents {
        Contents {
            name: Some("ssh.laptop.user@example.org".parse().unwrap()),
            places: vec!["192.0.2.1:443".parse().unwrap(), "[2001:db8::1]:9".parse().unwrap()],
            notice_targets: Vec::new(),
            nearness: 1,
            by_ticket: true,
            snapshot: vec![7; 1000],
        }
    }

    #[test]
    fn the_owner_reads_what_was_sealed() {
        let owner = SecretKey::generate();
        let sealed = contents().seal(&owner);
        assert_eq!(Contents::open(&sealed, &owner).unwrap(), contents());
        assert!(!sealed.windows(8).any(|window| window == [7; 8]), "in clear");
        assert_ne!(sealed, contents().seal(&owner), "the same key was used twice");
    }

    #[test]
    fn only_the_next_owner_reads_what_was_handed_over_and_only_unchanged() {
        let (owner, next, other) = (SecretKey::generate(), SecretKey::generate(), SecretKey::generate());
        let connection = whimbrel_base::ConnectionId::random();
        let assignment = Assignment::sign(&owner, connection, whimbrel_proto::Side::Client, next.id(), 3);
        let sealed = contents().seal_for(&owner, &assignment).unwrap();
        assert_eq!(Contents::open_any(&sealed, &next).unwrap(), (contents(), Some(assignment)));
        assert!(!sealed.windows(8).any(|window| window == [7; 8]), "in clear");
        for key in [&owner, &other] {
            let refused = Contents::open_any(&sealed, key).unwrap_err();
            assert!(matches!(refused, ResumeError::OtherOwner { .. }), "{refused}");
        }
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(Contents::open_any(&changed, &next).is_err(), "byte {at}");
            assert!(Contents::open_any(&sealed[..at], &next).is_err(), "{at} bytes");
        }
        // Somebody else who signs it as his own, or names himself as the next owner, has not its key.
        let mut renamed = sealed[..sealed.len() - 64].to_vec();
        renamed[36..68].copy_from_slice(other.id().as_bytes());
        renamed[4..36].copy_from_slice(other.id().as_bytes());
        let signature = other.sign(&[SIGNED, &renamed].concat());
        renamed.extend_from_slice(&signature.to_bytes());
        assert!(matches!(Contents::open_any(&renamed, &other), Err(ResumeError::Damaged)));
        // What an owner keeps for itself is opened as before.
        let own = contents().seal(&owner);
        assert_eq!(Contents::open_any(&own, &owner).unwrap(), (contents(), None));
    }

    #[test]
    fn nothing_is_sealed_for_a_key_that_is_none() {
        let owner = SecretKey::generate();
        let weak = EndpointId::from_bytes(&[0; 32]);
        let id = whimbrel_base::ConnectionId::random();
        let assignment = Assignment::sign(&owner, id, whimbrel_proto::Side::Client, weak, 0);
        assert_eq!(contents().seal_for(&owner, &assignment), None);
    }

    #[test]
    fn each_changed_or_missing_byte_and_each_other_key_is_told() {
        let (owner, other) = (SecretKey::generate(), SecretKey::generate());
        let sealed = contents().seal(&owner);
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(Contents::open(&changed, &owner).is_err(), "byte {at}");
            assert!(Contents::open(&sealed[..at], &owner).is_err(), "{at} bytes");
        }
        let refused = Contents::open(&sealed, &other).unwrap_err();
        assert!(matches!(refused, ResumeError::OtherOwner { .. }), "{refused}");
        // As a version to come may write it, for itself or for another owner.
        let assignment = Assignment::sign(
            &owner,
            whimbrel_base::ConnectionId::random(),
            whimbrel_proto::Side::Client,
            other.id(),
            1,
        );
        let handed_over = contents().seal_for(&owner, &assignment).unwrap();
        for (bytes, magic, reader) in [(&sealed, b"WHS2", &owner), (&handed_over, b"WHH2", &other)] {
            assert_ne!(&bytes[..4], magic);
            let later = [&magic[..], &bytes[4..]].concat();
            let refused = Contents::open_any(&later, reader).unwrap_err();
            assert!(matches!(refused, ResumeError::NotSuspended), "{refused}");
            assert!(refused.to_string().contains("version"), "{refused}");
        }
        // An impostor who writes his own id into the header has another key.
        let mut renamed = sealed;
        renamed[4..36].copy_from_slice(other.id().as_bytes());
        assert!(matches!(Contents::open(&renamed, &other), Err(ResumeError::Damaged)));
    }
}
