//! A letter: what a device says to all of its user's devices, as bytes that only they can read.
//!
//! ```text
//! "WHD1" | id of the device (32) | how many keys follow (2, big-endian)
//!        | for each reader: encapsulated key (32), HPKE(contents' key) with its tag (48)
//!        | AES-256-GCM(contents) with its tag | signature of the device (64)
//! ```
//!
//! HPKE (RFC 9180) is DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM in its base mode, to the X25519
//! form of a reader's key. Its `info` is "whimbrel batch v1" and the user's id, its `aad` the first 36 bytes.
//! The contents' key is random and used once, with nonce 0; what comes before the contents is authenticated
//! with them. The signature is of "whimbrel sealed batch v1", the user's id and all bytes before it. Whose
//! keys follow is not said: each reader tries. The contents are the readers, the update, and what it has of
//! checkpoints.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::crypto::aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_256 as HPKE;
use rustls::crypto::hpke::{EncapsulatedSecret, Hpke as _, HpkePrivateKey, HpkePublicKey};
use serde::{Deserialize, Serialize};
use whimbrel_base::{EndpointId, SecretKey, Signature, random_bytes};

use crate::checkpoint::Checkpoints;
use crate::group::MAX_DEVICES;
use crate::log::Update;
use crate::wire::{WireError, pack, parse, unpacked};

const MAGIC: &[u8; 4] = b"WHD1";
const INFO: &[u8] = b"whimbrel batch v1";
const SIGNED: &[u8] = b"whimbrel sealed batch v1";
const HEADER: usize = 4 + 32;
const SEALED_KEY: usize = 32 + 16;
/// The most bytes of contents, unpacked. A few more than the largest batch has, and most checkpoints: what is
/// read of a small letter must not take all memory.
const MAX_CONTENTS: usize = 2 * 1024 * 1024;

/// What is in a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Letter {
    /// Who can read it: those that were the user's devices when it was written.
    pub(super) readers: Vec<EndpointId>,
    pub(super) update: Update,
}

impl Letter {
    /// Whether others read so much.
    pub(super) fn is_read(&self) -> bool {
        let contents = postcard::to_stdvec(&(self, &self.update.checkpoints));
        contents.is_ok_and(|contents| contents.len() <= MAX_CONTENTS)
    }

    /// Seals it for its readers, by one of the user's devices.
    pub(super) fn seal(&self, key: &SecretKey, user: EndpointId) -> Result<Vec<u8>, WireError> {
        let info = [INFO, &user.as_bytes()[..]].concat();
        let contents_key: [u8; 32] = random_bytes();
        let mut out = [&MAGIC[..], &key.id().as_bytes()[..]].concat();
        let header = out.clone();
        let mut keys = Vec::new();
        // A key that is none reads nothing.
        for reader in self.readers.iter().filter_map(EndpointId::to_x25519) {
            let sealed = HPKE.seal(&info, &header, &contents_key, &HpkePublicKey(reader.to_vec()));
            let (encapsulated, sealed) = sealed.map_err(|_| WireError::Malformed)?;
            keys.push([encapsulated.0, sealed].concat());
        }
        let count = u16::try_from(keys.len()).map_err(|_| WireError::TooLarge)?;
        out.extend_from_slice(&count.to_be_bytes());
        out.extend(keys.concat());
        let mut contents = pack(&(self, &self.update.checkpoints))?;
        aead(&contents_key)?
            .seal_in_place_append_tag(nonce(), Aad::from(out.as_slice()), &mut contents)
            .map_err(|_| WireError::TooLarge)?;
        out.extend(contents);
        let signature = key.sign(&signed(user, &out));
        out.extend_from_slice(&signature.to_bytes());
        Ok(out)
    }

    /// Opens what was sealed for this device. `None` if it was not, or is not what its sender signed.
    pub(super) fn open(bytes: &[u8], key: &SecretKey, user: EndpointId) -> Option<Self> {
        let by = sender(bytes)?;
        let (bytes, signature) = bytes.split_last_chunk::<64>()?;
        by.verify(&signed(user, bytes), &Signature::from_bytes(signature)).ok()?;
        let (header, rest) = bytes.split_at_checked(HEADER)?;
        let (count, rest) = rest.split_first_chunk::<2>()?;
        let count = usize::from(u16::from_be_bytes(*count));
        if count > MAX_DEVICES + 1 {
            return None;
        }
        let (keys, sealed) = rest.split_at_checked(count * (32 + SEALED_KEY))?;
        let info = [INFO, &user.as_bytes()[..]].concat();
        let contents_key = keys.chunks(32 + SEALED_KEY).find_map(|sealed| {
            let (encapsulated, sealed) = sealed.split_at_checked(32)?;
            let own = HpkePrivateKey::from(key.to_x25519().to_vec());
            HPKE.open(&EncapsulatedSecret(encapsulated.to_vec()), &info, header, sealed, &own).ok()
        })?;
        let before = bytes.len() - sealed.len();
        let mut contents = sealed.to_vec();
        let aad = Aad::from(bytes.get(..before)?);
        let contents = aead(&contents_key).ok()?.open_in_place(nonce(), aad, &mut contents).ok()?;
        let contents = unpacked(contents).ok().filter(|contents| contents.len() <= MAX_CONTENTS)?;
        let (mut letter, checkpoints): (Self, Checkpoints) = parse(&contents).ok()?;
        letter.update.checkpoints = checkpoints;
        Some(letter)
    }
}

/// Who says that it sealed a letter.
pub(super) fn sender(bytes: &[u8]) -> Option<EndpointId> {
    let rest = bytes.strip_prefix(MAGIC)?;
    rest.first_chunk::<32>().map(EndpointId::from_bytes)
}

fn signed(user: EndpointId, bytes: &[u8]) -> Vec<u8> {
    [SIGNED, &user.as_bytes()[..], bytes].concat()
}

fn aead(key: &[u8]) -> Result<LessSafeKey, WireError> {
    UnboundKey::new(&AES_256_GCM, key).map(LessSafeKey::new).map_err(|_| WireError::Malformed)
}

/// Each key is used once.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::UnixTime;

    use super::*;
    use crate::{Log, Op};

    fn key(number: u8) -> SecretKey {
        SecretKey::from_bytes(&[number; 32])
    }

    fn letter(readers: &[u8]) -> Letter {
        let mut log = Log::new(key(1).id());
        log.write(&key(1), vec![Op::Seen; 40], UnixTime::from_secs(1_700_000_000)).unwrap();
        let readers = readers.iter().map(|number| key(*number).id()).collect();
        Letter { readers, update: log.missing(&crate::Vector::default()) }
    }

    #[test]
    fn each_reader_opens_a_letter_and_nobody_else_does() {
        let (user, letter) = (key(1).id(), letter(&[1, 2, 3]));
        let sealed = letter.seal(&key(2), user).unwrap();
        assert_eq!(sender(&sealed), Some(key(2).id()));
        for reader in [1, 2, 3] {
            assert_eq!(Letter::open(&sealed, &key(reader), user).as_ref(), Some(&letter), "{reader}");
        }
        assert_eq!(Letter::open(&sealed, &key(4), user), None);
        // Nor does a reader take it for another user's.
        assert_eq!(Letter::open(&sealed, &key(3), key(4).id()), None);
        assert_ne!(sealed, letter.seal(&key(2), user).unwrap(), "the same key was used twice");
    }

    #[test]
    fn a_letter_says_nobody_whom_it_is_for_and_shows_nothing_of_what_is_in_it() {
        let sealed = letter(&[1, 3]).seal(&key(2), key(1).id()).unwrap();
        for hidden in [key(1).id(), key(3).id()] {
            assert!(!sealed.windows(8).any(|window| hidden.as_bytes().starts_with(window)), "{hidden}");
        }
    }

    #[test]
    fn a_letter_that_was_changed_or_cut_or_whose_sender_is_another_is_none() {
        let user = key(1).id();
        let sealed = letter(&[2]).seal(&key(1), user).unwrap();
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(Letter::open(&changed, &key(2), user), None, "byte {at}");
            assert_eq!(Letter::open(&sealed[..at], &key(2), user), None, "{at} bytes");
        }
        // Somebody else signs it as his own.
        let mut renamed = sealed[..sealed.len() - 64].to_vec();
        renamed[4..36].copy_from_slice(key(9).id().as_bytes());
        let signature = key(9).sign(&signed(user, &renamed));
        renamed.extend_from_slice(&signature.to_bytes());
        assert_eq!(Letter::open(&renamed, &key(2), user), None);
    }

    #[test]
    fn a_key_that_is_none_reads_nothing_and_keeps_nobody_from_reading() {
        let mut letter = letter(&[2]);
        letter.readers.insert(0, EndpointId::from_bytes(&[0; 32]));
        let sealed = letter.seal(&key(1), key(1).id()).unwrap();
        assert_eq!(Letter::open(&sealed, &key(2), key(1).id()), Some(letter));
    }

    #[test]
    fn a_small_letter_that_unpacks_to_a_huge_one_is_none() {
        let mut letter = letter(&[2]);
        letter.update.runs = vec![letter.update.runs[0].clone(); 20_000];
        let sealed = letter.seal(&key(1), key(1).id()).unwrap();
        assert!(sealed.len() < MAX_CONTENTS / 20, "{}", sealed.len());
        assert!(!letter.is_read());
        assert_eq!(Letter::open(&sealed, &key(2), key(1).id()), None);
    }
}
