//! What is said in clear on a spare: the server's proof that it belongs to its reservation, and the relay's
//! word that a client is there. Behind the latter all bytes are the client's and the server's.
//!
//! ```text
//! server  "WHR1" | token (10) | origin (4) | number (8) | proof (32)
//! relay   "WHR2" | client's IPv6 address, or IPv4 mapped (16) | client's port (2) | proof (32)
//! ```
//!
//! Integers are big-endian. A proof is HMAC-SHA256 with the reservation's key over a purpose, a zero byte,
//! and what stands before it; the relay's has the spare's number behind the purpose. A number is used once.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use aws_lc_rs::{constant_time, hmac};
use whimbrel_base::RelayToken;

/// Bytes of a spare's first words.
pub const OFFER: usize = 4 + RelayToken::LENGTH + 4 + 8 + MAC;
/// Bytes of the relay's word that a client is there.
pub const START: usize = 4 + 16 + 2 + MAC;

const MAC: usize = 32;
/// What a spare begins with. TLS begins with 22.
pub const OFFERS: &[u8; 4] = b"WHR1";
const STARTS: &[u8; 4] = b"WHR2";
const OFFER_PURPOSE: &[u8] = b"whimbrel relay spare v1\0";
const START_PURPOSE: &[u8] = b"whimbrel relay start v1\0";

/// A reservation's key, which the relay made. Clones share it: a MAC is begun with most of a kilobyte.
#[derive(Clone)]
pub struct Key(Arc<Secret>);

struct Secret {
    bytes: [u8; 32],
    hmac: hmac::Key,
}

impl Key {
    /// A key of these bytes.
    pub fn new(bytes: &[u8; 32]) -> Self {
        Self(Arc::new(Secret { bytes: *bytes, hmac: hmac::Key::new(hmac::HMAC_SHA256, bytes) }))
    }

    /// Its bytes, for the relay that goes on in this one's place.
    pub(crate) fn to_bytes(&self) -> [u8; 32] {
        self.0.bytes
    }

    pub(crate) fn sign(&self, parts: &[&[u8]]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.0.hmac);
        parts.iter().for_each(|part| context.update(part));
        context.sign()
    }

    fn holds(&self, parts: &[&[u8]], proof: &[u8]) -> bool {
        constant_time::verify_slices_are_equal(self.sign(parts).as_ref(), proof).is_ok()
    }

    /// Whether `proof` is the beginning of this key's word on the parts: with fewer bytes, where each packet
    /// has it.
    pub(crate) fn begins(&self, parts: &[&[u8]], proof: &[u8]) -> bool {
        let whole = self.sign(parts);
        let start = whole.as_ref().get(..proof.len());
        start.is_some_and(|start| constant_time::verify_slices_are_equal(start, proof).is_ok())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// A spare, as its server offers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// For whom.
    pub token: RelayToken,
    /// From which of the server's addresses it comes, by a number: what comes from one that the server has
    /// left is dead.
    pub origin: u32,
    /// Its number, used once with a key.
    pub number: u64,
}

impl Offer {
    fn content(&self) -> Vec<u8> {
        let mut bytes = OFFERS.to_vec();
        bytes.extend(self.token.as_bytes());
        bytes.extend(self.origin.to_be_bytes());
        bytes.extend(self.number.to_be_bytes());
        bytes
    }

    /// The first words of a spare.
    pub fn encode(&self, key: &Key) -> Vec<u8> {
        let mut bytes = self.content();
        let proof = key.sign(&[OFFER_PURPOSE, &bytes]);
        bytes.extend(proof.as_ref());
        bytes
    }

    /// Reads the first words of a spare. Whether they are true tells [`is_of`](Self::is_of).
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; OFFER] = bytes.try_into().ok()?;
        if &bytes[..4] != OFFERS {
            return None;
        }
        let token = RelayToken::from_bytes(bytes[4..14].try_into().ok()?);
        let origin = u32::from_be_bytes(bytes[14..18].try_into().ok()?);
        let number = u64::from_be_bytes(bytes[18..26].try_into().ok()?);
        Some(Self { token, origin, number })
    }

    /// Whether the holder of the key has written these words.
    pub fn is_of(&self, key: &Key, bytes: &[u8]) -> bool {
        bytes.len() == OFFER && key.holds(&[OFFER_PURPOSE, &self.content()], &bytes[OFFER - MAC..])
    }
}

/// The relay's word that a client is on a spare.
pub fn encode_start(key: &Key, number: u64, client: SocketAddr) -> Vec<u8> {
    let ip = match client.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = STARTS.to_vec();
    bytes.extend(ip.octets());
    bytes.extend(client.port().to_be_bytes());
    let proof = key.sign(&[START_PURPOSE, &number.to_be_bytes(), &bytes]);
    bytes.extend(proof.as_ref());
    bytes
}

/// Where the client is, if these are the relay's words for the spare of that number.
pub fn decode_start(key: &Key, number: u64, bytes: &[u8; START]) -> Option<SocketAddr> {
    let (content, proof) = bytes.split_at(START - MAC);
    if &content[..4] != STARTS || !key.holds(&[START_PURPOSE, &number.to_be_bytes(), content], proof) {
        return None;
    }
    let ip: [u8; 16] = content[4..20].try_into().ok()?;
    let port = u16::from_be_bytes(content[20..22].try_into().ok()?);
    Some(SocketAddr::new(IpAddr::V6(Ipv6Addr::from(ip)).to_canonical(), port))
}

/// The numbers that were used: the newest, and which of the 127 below it. Others are too old.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    newest: u64,
    /// Bit n is for the number n below the newest.
    mask: u128,
}

impl Used {
    /// The newest number, and the mask in two halves, the upper one first.
    pub(crate) fn to_parts(self) -> (u64, [u64; 2]) {
        (self.newest, [(self.mask >> 64) as u64, self.mask as u64])
    }

    pub(crate) fn from_parts((newest, [upper, lower]): (u64, [u64; 2])) -> Self {
        Self { newest, mask: (u128::from(upper) << 64) | u128::from(lower) }
    }

    /// Notes a number. False if it was used before, or is too old to tell.
    pub fn note(&mut self, number: u64) -> bool {
        if self.mask == 0 || number > self.newest {
            let ahead = if self.mask == 0 { 128 } else { number - self.newest };
            self.mask = if ahead < 128 { self.mask << ahead } else { 0 };
            self.mask |= 1;
            self.newest = number;
            return true;
        }
        let behind = self.newest - number;
        let bit = if behind < 128 { 1u128 << behind } else { return false };
        let is_new = self.mask & bit == 0;
        self.mask |= bit;
        is_new
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TOKEN: RelayToken = RelayToken::from_bytes([7; 10]);

    #[test]
    fn an_offer_round_trips_and_each_changed_byte_is_told() {
        let (key, other) = (Key::new(&[1; 32]), Key::new(&[2; 32]));
        let offer = Offer { token: TOKEN, origin: 3, number: 1 << 40 };
        let bytes = offer.encode(&key);
        assert_eq!(bytes.len(), OFFER);
        assert_eq!(Offer::decode(&bytes), Some(offer));
        assert!(offer.is_of(&key, &bytes) && !offer.is_of(&other, &bytes));
        for at in 0..OFFER {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Offer::decode(&changed).is_none_or(|offer| !offer.is_of(&key, &changed)), "byte {at}");
        }
    }

    #[test]
    fn a_start_is_of_one_spare_and_each_changed_byte_is_told() {
        let key = Key::new(&[1; 32]);
        for client in ["192.0.2.1:5", "[2001:db8::1]:65535"] {
            let client: SocketAddr = client.parse().unwrap();
            let bytes: [u8; START] = encode_start(&key, 9, client).try_into().unwrap();
            assert_eq!(decode_start(&key, 9, &bytes), Some(client));
            assert_eq!(decode_start(&key, 8, &bytes), None, "another spare's");
            for at in 0..START {
                let mut changed = bytes;
                changed[at] ^= 1;
                assert_eq!(decode_start(&key, 9, &changed), None, "byte {at}");
            }
        }
    }

    #[test]
    fn a_number_is_used_once_in_whatever_order() {
        let mut used = Used::default();
        for number in [5, 3, 4, 200, 100, 90, 1 << 50, (1 << 50) - 127] {
            assert!(used.note(number), "{number}");
            assert!(!used.note(number), "{number} again");
        }
        for mut used in [used, Used::from_parts(used.to_parts())] {
            for number in [5, 200, (1 << 50) - 127, (1 << 50) - 128, 0] {
                assert!(!used.note(number), "{number} is old");
            }
            assert!(used.note((1 << 50) - 126));
        }
        let mut fresh = Used::default();
        assert!(fresh.note(0) && !fresh.note(0) && fresh.note(1));
    }
}
