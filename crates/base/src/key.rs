//! Ed25519 keys (RFC 8032): who an endpoint is.
//!
//! An endpoint *is* its key pair: [`SecretKey`] stays with it, [`EndpointId`] is the public half that
//! everybody else knows it by. Both go into TLS as raw public keys (RFC 7250), for which the DER forms of RFC
//! 8410 are here.

use std::fmt;
use std::str::FromStr;

use ed25519_dalek::Signer as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{random, z32};

/// `PrivateKeyInfo`, version 1, algorithm id-Ed25519, holding an `OCTET STRING` of 32 bytes (RFC 8410 §7).
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// `SubjectPublicKeyInfo`, algorithm id-Ed25519, holding a `BIT STRING` of 32 bytes (RFC 8410 §4).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// How many characters an [`EndpointId`] has in print.
pub const ENDPOINT_ID_CHARS: usize = 52;

/// The secret half of an endpoint's identity: an Ed25519 seed.
///
/// Its memory is wiped when it is dropped, and its `Debug` form shows the public half only.
#[derive(Clone)]
pub struct SecretKey(ed25519_dalek::SigningKey);

impl SecretKey {
    /// Makes a new key from the operating system's randomness.
    ///
    /// # Panics
    /// When the operating system has no randomness to give (on a booted system it always has).
    pub fn generate() -> Self {
        Self::from_bytes(&random::array())
    }

    /// The key whose seed (RFC 8032 §5.1.5) is `seed`. Every seed is a key.
    pub fn from_bytes(seed: &[u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(seed))
    }

    /// The seed. Whoever has these 32 bytes is this endpoint: write them only where nobody else can read.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// The public half.
    pub fn id(&self) -> EndpointId {
        EndpointId(self.0.verifying_key().to_bytes())
    }

    /// Signs a message (pure Ed25519). Callers put a domain in front, so that a signature made for one
    /// purpose can never serve another.
    pub fn sign(&self, message: &[u8]) -> Signature {
        Signature(self.0.sign(message).to_bytes())
    }

    /// The X25519 key (RFC 7748) of this identity, with which it opens what was sealed for
    /// [`EndpointId::to_x25519`]. As secret as [`to_bytes`](Self::to_bytes). That one key may serve both is
    /// shown in "On using the same key pair for Ed25519 and an X25519 based KEM" (IACR ePrint 2021/509).
    pub fn to_x25519(&self) -> [u8; 32] {
        self.0.to_scalar_bytes()
    }

    /// The key as PKCS#8 version 1 DER (RFC 8410 §7, 48 bytes), the form that TLS libraries take. As secret
    /// as [`to_bytes`](Self::to_bytes).
    pub fn to_pkcs8_der(&self) -> Vec<u8> {
        let mut der = Vec::with_capacity(PKCS8_PREFIX.len() + 32);
        der.extend_from_slice(&PKCS8_PREFIX);
        der.extend_from_slice(self.0.as_bytes());
        der
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey(of {})", self.id())
    }
}

/// An endpoint's identity: its Ed25519 public key.
///
/// Prints as 52 characters of z-base-32, and is parsed from exactly that. Any 32 bytes can be held; bytes
/// that are no usable key simply verify nothing.
///
/// ```
/// use whimbrel_base::{EndpointId, SecretKey};
/// let id = SecretKey::from_bytes(&[7; 32]).id();
/// assert_eq!(id.to_string().parse::<EndpointId>().unwrap(), id);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId([u8; 32]);

impl EndpointId {
    /// The id with these bytes.
    pub const fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self(*bytes)
    }

    /// The public key's 32 bytes (RFC 8032 §5.1.2).
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Checks that this endpoint signed `message`.
    ///
    /// # Errors
    /// [`BadSignature`] when it did not, and also when the key or the signature is one of the degenerate
    /// points for which a signature proves nothing.
    pub fn verify(&self, message: &[u8], signature: &Signature) -> Result<(), BadSignature> {
        // Strict: no small-order keys, no malleable signatures. The lax check would let one signature pass
        // for many.
        ed25519_dalek::VerifyingKey::from_bytes(&self.0)
            .and_then(|key| {
                let signature = ed25519_dalek::Signature::from_bytes(&signature.0);
                key.verify_strict(message, &signature)
            })
            .map_err(|_| BadSignature)
    }

    /// The X25519 public key (RFC 7748) of this identity; `None` if the bytes are no usable key. See
    /// [`SecretKey::to_x25519`].
    pub fn to_x25519(&self) -> Option<[u8; 32]> {
        let key = ed25519_dalek::VerifyingKey::from_bytes(&self.0).ok()?;
        (!key.is_weak()).then(|| key.to_montgomery().to_bytes())
    }

    /// The key as `SubjectPublicKeyInfo` DER (RFC 8410 §4, 44 bytes): a TLS raw public key (RFC 7250).
    pub fn to_spki_der(&self) -> Vec<u8> {
        let mut der = Vec::with_capacity(SPKI_PREFIX.len() + 32);
        der.extend_from_slice(&SPKI_PREFIX);
        der.extend_from_slice(&self.0);
        der
    }

    /// Reads what [`to_spki_der`](Self::to_spki_der) writes, and nothing else.
    ///
    /// # Errors
    /// [`NotEd25519Key`] for every other key type, encoding or length.
    pub fn from_spki_der(der: &[u8]) -> Result<Self, NotEd25519Key> {
        der.strip_prefix(&SPKI_PREFIX).and_then(|key| key.try_into().ok()).map(Self).ok_or(NotEd25519Key)
    }

    /// The first 8 characters, for logs. Not unique: never compare these.
    pub fn short(&self) -> String {
        z32::encode(&self.0[..5])
    }
}

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&z32::encode(&self.0))
    }
}

impl fmt::Debug for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EndpointId({self})")
    }
}

impl FromStr for EndpointId {
    type Err = EndpointIdError;

    fn from_str(text: &str) -> Result<Self, EndpointIdError> {
        let length = text.chars().count();
        if length != ENDPOINT_ID_CHARS {
            return Err(EndpointIdError::Length(length));
        }
        let bytes = z32::decode(text).map_err(|error| match error {
            z32::Z32Error::Character(character) => EndpointIdError::Character(character),
            z32::Z32Error::Length => EndpointIdError::Fill,
        })?;
        bytes.try_into().map(Self).map_err(|_| EndpointIdError::Fill)
    }
}

/// As text where people read it (JSON, TOML), as 32 bytes elsewhere.
impl Serialize for EndpointId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.0.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for EndpointId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = String::deserialize(deserializer)?;
            text.parse().map_err(serde::de::Error::custom)
        } else {
            <[u8; 32]>::deserialize(deserializer).map(Self)
        }
    }
}

/// An Ed25519 signature: 64 bytes (RFC 8032 §5.1.6). Only [`EndpointId::verify`] says whether it is a good
/// one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signature([u8; 64]);

impl Signature {
    /// How many bytes a signature has.
    pub const LENGTH: usize = 64;

    /// The signature with these bytes.
    pub const fn from_bytes(bytes: &[u8; 64]) -> Self {
        Self(*bytes)
    }

    /// The signature's bytes.
    pub const fn to_bytes(&self) -> [u8; 64] {
        self.0
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signature({}…)", z32::encode(&self.0[..5]))
    }
}

/// The signature was not made by this key over this message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signature is not this endpoint's: the content was changed or forged on the way; don't use it")]
pub struct BadSignature;

/// The DER bytes are not an Ed25519 public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the peer's key is not an Ed25519 public key (44 bytes of DER, RFC 8410); only such keys are endpoints"
)]
pub struct NotEd25519Key;

/// Why a text is not an endpoint id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointIdError {
    /// The number of characters is wrong.
    #[error(
        "an endpoint id has {ENDPOINT_ID_CHARS} characters, this has {0}; copy the whole id that `whimbrel id` prints"
    )]
    Length(usize),
    /// A character outside the alphabet.
    #[error(
        "an endpoint id is made of the characters ybndrfg8ejkmcpqxot1uwisza345h769, which '{0}' is not one of"
    )]
    Character(char),
    /// The last character carries bits that belong to no byte.
    #[error("the last character of this endpoint id is mistyped; copy the whole id again")]
    Fill,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn hex<const N: usize>(text: &str) -> [u8; N] {
        let bytes: Vec<u8> =
            (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect();
        bytes.try_into().unwrap()
    }

    /// RFC 8032 §7.1, TEST 2.
    #[test]
    fn rfc_8032_vector() {
        let key =
            SecretKey::from_bytes(&hex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"));
        let id =
            EndpointId::from_bytes(&hex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"));
        let signature =
            Signature::from_bytes(&hex("92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da\
             085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"));
        assert_eq!(key.id(), id);
        assert_eq!(key.sign(&[0x72]), signature);
        assert_eq!(id.verify(&[0x72], &signature), Ok(()));
        assert_eq!(id.verify(&[0x73], &signature), Err(BadSignature));
    }

    /// A key of small order accepts a made-up signature under the lax rule of RFC 8032. Ours must not.
    #[test]
    fn degenerate_keys_verify_nothing() {
        let mut identity = [0; 32];
        identity[0] = 1;
        let mut signature = [0; 64];
        signature[0] = 1;
        let id = EndpointId::from_bytes(&identity);
        assert_eq!(id.verify(b"anything", &Signature::from_bytes(&signature)), Err(BadSignature));
        assert_eq!(id.to_x25519(), None);
    }

    #[test]
    fn der_forms() {
        let key = SecretKey::from_bytes(&[7; 32]);
        let pkcs8 = key.to_pkcs8_der();
        assert_eq!(pkcs8[..16], hex::<16>("302e020100300506032b657004220420"));
        assert_eq!(pkcs8[16..], [7; 32]);
        let spki = key.id().to_spki_der();
        assert_eq!(spki[..12], hex::<12>("302a300506032b6570032100"));
        assert_eq!(EndpointId::from_spki_der(&spki), Ok(key.id()));
        for cut in 0..spki.len() {
            assert!(EndpointId::from_spki_der(&spki[..cut]).is_err());
        }
        let longer = [spki.as_slice(), &[0]].concat();
        assert!(EndpointId::from_spki_der(&longer).is_err());
    }

    /// An independent reader of PKCS#8 and SPKI agrees with the hand-written prefixes.
    #[test]
    fn der_forms_as_others_read_them() {
        use ed25519_dalek::pkcs8::{DecodePrivateKey as _, DecodePublicKey as _};
        let key = SecretKey::generate();
        let read = ed25519_dalek::SigningKey::from_pkcs8_der(&key.to_pkcs8_der()).unwrap();
        assert_eq!(read.to_bytes(), key.to_bytes());
        let read = ed25519_dalek::VerifyingKey::from_public_key_der(&key.id().to_spki_der());
        assert_eq!(read.unwrap().as_bytes(), key.id().as_bytes());
    }

    #[test]
    fn debug_hides_the_secret() {
        let key = SecretKey::from_bytes(&[7; 32]);
        assert_eq!(format!("{key:?}"), format!("SecretKey(of {})", key.id()));
    }

    #[test]
    fn text_form() {
        let id = SecretKey::from_bytes(&[7; 32]).id();
        let text = id.to_string();
        assert_eq!(text.len(), ENDPOINT_ID_CHARS);
        assert_eq!(id.short(), text[..8]);
        assert_eq!(text[1..].parse::<EndpointId>(), Err(EndpointIdError::Length(51)));
        let upper = text.to_uppercase();
        assert!(matches!(upper.parse::<EndpointId>(), Err(EndpointIdError::Character(_))));
        // 52 characters carry 260 bits, four more than a key has.
        let fill = format!("{}9", &text[..51]);
        assert_eq!(fill.parse::<EndpointId>(), Err(EndpointIdError::Fill));
    }

    proptest! {
        #[test]
        fn text_round_trip(bytes: [u8; 32]) {
            let id = EndpointId::from_bytes(&bytes);
            prop_assert_eq!(id.to_string().parse::<EndpointId>(), Ok(id));
            let json = serde_json::to_string(&id).unwrap();
            prop_assert_eq!(&json, &format!("\"{id}\""));
            prop_assert_eq!(serde_json::from_str::<EndpointId>(&json).unwrap(), id);
            let binary = postcard::to_stdvec(&id).unwrap();
            prop_assert_eq!(&binary[..], &bytes[..]);
            prop_assert_eq!(postcard::from_bytes::<EndpointId>(&binary).unwrap(), id);
        }

        #[test]
        fn parsing_never_panics(text: String) {
            let _ = text.parse::<EndpointId>();
        }
    }
}
