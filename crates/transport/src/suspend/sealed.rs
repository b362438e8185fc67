//! A suspended connection as bytes that only its owner can read, and nobody can change unnoticed.
//!
//! ```text
//! "WHS1" | owner's id (32) | salt (32) | AES-256-GCM(contents) with its tag
//! key = HMAC-SHA256(owner's secret key, "whimbrel suspended v1" | salt), used once; nonce 0; the first 68
//! bytes are authenticated too
//! ```

use std::net::SocketAddr;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use whimbrel_base::{EndpointId, Name, SecretKey, random_bytes};

use crate::error::ResumeError;

const MAGIC: &[u8; 4] = b"WHS1";
const HEADER: usize = 4 + 32 + 32;

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

    fn encode(&self, out: &mut Vec<u8>) {
        let text = |list: &[SocketAddr]| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        put(out, self.name.as_ref().map(ToString::to_string).unwrap_or_default().as_bytes());
        put(out, text(&self.places).as_bytes());
        put(out, text(&self.notice_targets).as_bytes());
        put(out, &[self.nearness]);
        put(out, &self.snapshot);
    }

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let name = text(&mut bytes)?;
        let places = text(&mut bytes)?;
        let notice_targets = text(&mut bytes)?;
        let &[nearness] = take(&mut bytes)? else { return None };
        let snapshot = take(&mut bytes)?.to_vec();
        let name = if name.is_empty() { None } else { Some(name.parse().ok()?) };
        let list = |text: &str| text.split_whitespace().map(|at| at.parse().ok()).collect::<Option<Vec<_>>>();
        let (places, notice_targets) = (list(places)?, list(notice_targets)?);
        bytes.is_empty().then_some(Self { name, places, notice_targets, nearness, snapshot })
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
        // An impostor who writes his own id into the header has another key.
        let mut renamed = sealed;
        renamed[4..36].copy_from_slice(other.id().as_bytes());
        assert!(matches!(Contents::open(&renamed, &other), Err(ResumeError::Damaged)));
    }
}
