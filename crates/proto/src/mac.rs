//! HMAC-SHA-256 under keys that fit a block, for proofs and notices.

use hmac::digest::Key;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// HMAC with a key that fits a block of the hash (RFC 2104 §2: shorter keys are padded with zeros).
fn keyed<const N: usize>(key: &[u8; N]) -> Hmac<Sha256> {
    const { assert!(N <= 64) };
    let mut block = Key::<Hmac<Sha256>>::default();
    block[..N].copy_from_slice(key);
    Hmac::new(&block)
}

/// The HMAC of `parts`, one behind the other, before it is finished.
pub(crate) fn over<const N: usize>(key: &[u8; N], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = keyed(key);
    for part in parts {
        mac.update(part);
    }
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231 §4.3.
    #[test]
    fn a_short_key_is_padded_as_the_standard_says() {
        let mac = over(b"Jefe", &[b"what do ya want ", b"for nothing?"]).finalize().into_bytes();
        let expected = [0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e];
        assert_eq!(mac[..8], expected);
    }
}
