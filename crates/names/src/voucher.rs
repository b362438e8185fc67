//! Vouchers: a service's signed word that a key has a name of a domain, for those who do not ask the service.
//!
//! A relay that serves those who have names of a domain is shown one by each server that wants a reservation.
//! It knows the service's key, and asks the service nothing. So no name is shown to a relay, and the service
//! does not learn who uses which relay. A voucher says of which domain, and not which name. It is of no use
//! to others: who shows it has to prove the key as well.
//!
//! # Bytes
//! Integers are big-endian.
//!
//! | bytes | field |
//! | --- | --- |
//! | 1 | version: 1 |
//! | 1 + n | length of the domain, then the domain in lower-case ASCII |
//! | 32 | endpoint id of the key that has the name |
//! | 8 | end, unix seconds: from then on it says nothing |
//! | 64 | the service's Ed25519 signature over `whimbrel voucher v1`, a zero byte, and all bytes above |

use std::time::Duration;

use whimbrel_base::{EndpointId, SecretKey, Signature, UnixTime};

use crate::admission::Domain;

/// No voucher is longer, in bytes.
pub const MAX_VOUCHER_BYTES: usize = 1 + 1 + 253 + 32 + 8 + Signature::LENGTH;

/// How long a voucher counts: a key that loses its name is taken for one that has it for so long.
pub const VOUCHED_FOR: Duration = Duration::from_secs(60 * 60);

const VERSION: u8 = 1;
const PURPOSE: &[u8] = b"whimbrel voucher v1\0";

/// That a key has a name of a domain, until then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voucher {
    /// The domain.
    pub domain: Domain,
    /// The key.
    pub id: EndpointId,
    /// From then on it says nothing: whole seconds.
    pub expires: UnixTime,
}

/// Why a voucher does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VoucherError {
    /// It is none.
    #[error("this is not a voucher of a name service")]
    Malformed,
    /// The service did not sign it.
    #[error("another name service has signed this voucher, or nobody")]
    Forged,
}

impl Voucher {
    /// The voucher's bytes, signed with the service's key.
    pub fn sign(&self, service: &SecretKey) -> Vec<u8> {
        let domain = self.domain.as_str().as_bytes();
        let mut bytes = vec![VERSION, domain.len() as u8];
        bytes.extend_from_slice(domain);
        bytes.extend_from_slice(self.id.as_bytes());
        bytes.extend_from_slice(&self.expires.as_secs().to_be_bytes());
        let signature = service.sign(&signed(&bytes));
        bytes.extend_from_slice(&signature.to_bytes());
        bytes
    }

    /// Reads what [`sign`](Self::sign) wrote with the key of that service, and nothing else. Whose it is and
    /// whether it has [ended](Self::is_expired) remains to be asked.
    ///
    /// # Errors
    /// [`VoucherError`].
    pub fn verify(bytes: &[u8], service: EndpointId) -> Result<Self, VoucherError> {
        let (content, signature) =
            bytes.split_last_chunk::<{ Signature::LENGTH }>().ok_or(VoucherError::Malformed)?;
        let voucher = Self::read(content).ok_or(VoucherError::Malformed)?;
        let signature = Signature::from_bytes(signature);
        service.verify(&signed(content), &signature).map_err(|_| VoucherError::Forged)?;
        Ok(voucher)
    }

    /// Whether it has ended at `now`.
    pub fn is_expired(&self, now: UnixTime) -> bool {
        self.expires <= now
    }

    /// Reads what is signed. There is one form of it alone.
    fn read(content: &[u8]) -> Option<Self> {
        let (&[version, length], rest) = content.split_first_chunk()?;
        let (domain, rest) = rest.split_at_checked(usize::from(length))?;
        let (id, rest) = rest.split_first_chunk()?;
        let expires = u64::from_be_bytes(rest.try_into().ok()?);
        let text = std::str::from_utf8(domain).ok()?;
        let domain: Domain = text.parse().ok()?;
        let is_plain = version == VERSION && domain.as_str() == text;
        is_plain.then(|| Self {
            domain,
            id: EndpointId::from_bytes(id),
            expires: UnixTime::from_secs(expires),
        })
    }
}

fn signed(content: &[u8]) -> Vec<u8> {
    [PURPOSE, content].concat()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(seed: u8) -> SecretKey {
        SecretKey::from_bytes(&[seed; 32])
    }

    fn voucher() -> Voucher {
        let (domain, expires) = ("example.org".parse().unwrap(), UnixTime::from_secs(1000));
        Voucher { domain, id: key(1).id(), expires }
    }

    #[test]
    fn a_voucher_is_its_services_and_each_changed_or_missing_byte_is_told() {
        let bytes = voucher().sign(&key(9));
        assert!(bytes.len() <= MAX_VOUCHER_BYTES);
        assert_eq!(Voucher::verify(&bytes, key(9).id()), Ok(voucher()));
        assert_eq!(Voucher::verify(&bytes, key(8).id()), Err(VoucherError::Forged));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Voucher::verify(&changed, key(9).id()).is_err(), "{at}");
            assert!(Voucher::verify(&bytes[..at], key(9).id()).is_err(), "{at}");
        }
        assert!(Voucher::verify(&[&bytes[..], &[0]].concat(), key(9).id()).is_err());
    }

    #[test]
    fn it_ends() {
        let at = UnixTime::from_secs;
        assert!(!voucher().is_expired(at(999)) && voucher().is_expired(at(1000)));
    }

    #[test]
    fn a_domain_is_written_in_one_form() {
        let content = |domain: &str| {
            let head = [VERSION, domain.len() as u8];
            [&head[..], domain.as_bytes(), key(1).id().as_bytes(), &1000_u64.to_be_bytes()].concat()
        };
        assert_eq!(Voucher::read(&content("example.org")), Some(voucher()));
        for wrong in ["Example.org", "@example.org", "", "a b"] {
            assert_eq!(Voucher::read(&content(wrong)), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Voucher::verify(&bytes, key(9).id());
            let _ = Voucher::read(&bytes);
        }
    }
}
