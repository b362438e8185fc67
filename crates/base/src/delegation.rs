//! Delegations: a user's word that a key may speak for one of the user's devices or services.
//!
//! # Who may sign a record for a name
//! 1. A **user** name belongs to the first key that registers it. Its records are signed by that key, and
//!    carry no delegation.
//! 2. A **device** or **service** name belongs to its user. A record for it is signed either by the user's
//!    own key, or by another key that carries a delegation made by the user's key.
//! 3. A delegation is for one key and one name. One for a *device* covers the services on that device too: a
//!    laptop that was delegated `laptop.user@example.org` publishes `ssh.laptop.user@example.org` with the
//!    same delegation and key. A service with a key of its own needs a delegation of its own.
//! 4. Delegations are not passed on: only the user's key makes them. A device that the user's key
//!    [appointed](crate::appointment) may give more time to what it made, for a week at most, not behind
//!    the end of the appointment, and within a year of the user's own word; a name for another key, or more
//!    time for itself, it cannot give.
//! 5. The delegation made last wins: once a name service has seen one for another key (or a record of the
//!    user's own key) for a name, older ones no longer move the name to their keys. So a user takes a lost
//!    laptop's name away from it. What an appointed device renewed is as old as the user's own word in it.
//!
//! Signatures alone don't say which key is the user's:
//! [`SignedRecord::authority`](crate::SignedRecord::authority) is the key that *claims* to be, and whoever
//! knows the owner of the user name (the name service) compares.
//!
//! # Bytes
//! Integers are big-endian.
//!
//! | bytes | field |
//! | --- | --- |
//! | 1 | version: 1 |
//! | 1 + n | length of the name, then the name: lower-case ASCII, a device or a service |
//! | 32 | endpoint id of the key that is trusted with the name |
//! | 32 | issuer: endpoint id of the user's key |
//! | 8 | issued, unix seconds |
//! | 8 | expires, unix seconds, later than issued |
//! | 64 | the issuer's Ed25519 signature over `whimbrel delegation v1`, a zero byte, and all bytes above |
//!
//! One that an appointed device renewed has the user's own word in it:
//!
//! | bytes | field |
//! | --- | --- |
//! | 1 | version: 2 |
//! | 0 or more | the delegation by the user's key, as above |
//! | 0 or more | the [appointment](crate::appointment), by the same key, of another device of the same user |
//! | 8 | renewed, unix seconds, not before the delegation and the appointment were issued |
//! | 8 | expires, unix seconds, at most 7 days later, not behind the end of the appointment, nor more than 365 days after the delegation was issued |
//! | 64 | the appointed device's signature over `whimbrel renewal v1`, a zero byte, and all bytes above |
//!
//! As text: `whimbrel-delegation:` and these bytes in z-base-32.

use std::fmt;
use std::str::FromStr;

use self::renewal::Renewal;
use crate::appointment::Appointment;
use crate::key::{BadSignature, EndpointId, SecretKey, Signature};
use crate::wire::{DecodeError, Reader, put_name, signed_message};
use crate::{Name, NameKind, UnixTime, z32};

pub use self::renewal::{MAX_RENEWAL_TIME, MAX_RENEWED_TIME, RenewalError};

mod renewal;

/// The most bytes of one by the user's key.
const MAX_GIVEN_BYTES: usize = 1 + 1 + 253 + 32 + 32 + 8 + 8 + 64;
/// The most bytes that an encoded delegation has.
pub const MAX_DELEGATION_BYTES: usize = MAX_GIVEN_BYTES + renewal::MAX_BYTES;

const VERSION: u8 = 1;
const PURPOSE: &str = "whimbrel delegation v1";
const SCHEME: &str = "whimbrel-delegation:";

/// A user's signed word that a key may speak for a device (and the services on it) or for a service, until it
/// expires.
///
/// One from outside is no more than well-formed until [`verify`](Self::verify) says that its issuer signed
/// it, and worth no more than its issuer is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Delegation {
    name: Name,
    id: EndpointId,
    issuer: EndpointId,
    issued: u64,
    expires: u64,
    signature: Signature,
    /// More time than that.
    renewal: Option<Box<Renewal>>,
}

impl Delegation {
    /// Signs a delegation of `name` to the key `id`, with the user's key. Times are kept in whole seconds,
    /// rounded down.
    ///
    /// # Errors
    /// [`DelegationError::User`] for a user name, [`DelegationError::Times`] when it would expire before it
    /// begins.
    pub fn sign(
        name: Name,
        id: EndpointId,
        issued: UnixTime,
        expires: UnixTime,
        user: &SecretKey,
    ) -> Result<Self, DelegationError> {
        let (issued, expires) = (issued.as_secs(), expires.as_secs());
        check(&name, issued, expires)?;
        let signature = Signature::from_bytes(&[0; Signature::LENGTH]);
        let mut delegation = Self { name, id, issuer: user.id(), issued, expires, signature, renewal: None };
        delegation.signature = user.sign(&signed_message(PURPOSE, &delegation.content()));
        Ok(delegation)
    }

    /// The same with more time, by the device that the user appointed for that. What was renewed before is
    /// renewed from the user's own word. Times are kept in whole seconds, rounded down.
    ///
    /// # Errors
    /// [`RenewalError`] when the appointment does not allow it.
    pub fn renew(
        &self,
        appointment: &Appointment,
        issued: UnixTime,
        expires: UnixTime,
        appointed: &SecretKey,
    ) -> Result<Self, RenewalError> {
        let times = (issued.as_secs(), expires.as_secs());
        let renewal = Renewal::sign(self, appointment.clone(), times, appointed)?;
        Ok(Self { renewal: Some(Box::new(renewal)), ..self.clone() })
    }

    /// The device or service that is delegated.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The key that is trusted with it.
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// The key that says so: the user's, if the user name is registered to it.
    pub fn issuer(&self) -> EndpointId {
        self.issuer
    }

    /// The key that made it: the user's, or that of the device which renewed it.
    pub fn signer(&self) -> EndpointId {
        self.appointment().map_or(self.issuer, Appointment::id)
    }

    /// By what right it was renewed, if the user's key did not make it itself.
    pub fn appointment(&self) -> Option<&Appointment> {
        self.renewal.as_ref().map(|renewal| &renewal.appointment)
    }

    /// When it was made, or renewed, in whole seconds.
    pub fn issued(&self) -> UnixTime {
        UnixTime::from_secs(self.renewal.as_ref().map_or(self.issued, |renewal| renewal.issued))
    }

    /// When the user's key made it, in whole seconds: what the user gave or took back later counts more.
    pub fn granted(&self) -> UnixTime {
        UnixTime::from_secs(self.issued)
    }

    /// When it ends, in whole seconds.
    pub fn expires(&self) -> UnixTime {
        UnixTime::from_secs(self.renewal.as_ref().map_or(self.expires, |renewal| renewal.expires))
    }

    /// Whether it has ended at `now`.
    pub fn is_expired(&self, now: UnixTime) -> bool {
        now >= self.expires()
    }

    /// Whether it is for `name`: the same name, or the device that the service `name` runs on.
    pub fn covers(&self, name: &Name) -> bool {
        *name == self.name
            || (self.name.kind() == NameKind::Device && name.device().as_ref() == Some(&self.name))
    }

    /// Checks the issuer's signature; and, if it was renewed, the issuer's on the appointment and that of the
    /// appointed device.
    ///
    /// # Errors
    /// [`BadSignature`] when one of them did not sign exactly this.
    pub fn verify(&self) -> Result<(), BadSignature> {
        self.issuer.verify(&signed_message(PURPOSE, &self.content()), &self.signature)?;
        self.renewal.as_ref().map_or(Ok(()), |renewal| renewal.verify(self))
    }

    /// The bytes described in the [module's documentation](self).
    pub fn encode(&self) -> Vec<u8> {
        self.renewal.as_ref().map_or_else(|| self.encode_given(), |renewal| renewal.encode(self))
    }

    /// The user's own word.
    fn encode_given(&self) -> Vec<u8> {
        let mut bytes = self.content();
        bytes.extend_from_slice(&self.signature.to_bytes());
        bytes
    }

    /// Reads what [`encode`](Self::encode) writes, and nothing else. Does not verify.
    ///
    /// # Errors
    /// [`DecodeError`] says which field is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes, MAX_DELEGATION_BYTES)?;
        let delegation = Self::read(&mut reader)?;
        reader.finish()?;
        Ok(delegation)
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match reader.u8()? {
            VERSION => Self::read_given(reader),
            renewal::VERSION => Self::read_renewed(reader),
            other => Err(DecodeError::Version(other)),
        }
    }

    /// Reads what is behind version 2.
    fn read_renewed(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match reader.u8()? {
            VERSION => {}
            other => return Err(DecodeError::Version(other)),
        }
        let given = Self::read_given(reader)?;
        let renewal = Renewal::read(reader)?;
        renewal.check(&given).map_err(|_| DecodeError::Malformed("renewal"))?;
        Ok(Self { renewal: Some(Box::new(renewal)), ..given })
    }

    /// Reads what is behind version 1.
    fn read_given(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let delegation = Self {
            name: reader.name()?,
            id: reader.id()?,
            issuer: reader.id()?,
            issued: reader.u64()?,
            expires: reader.u64()?,
            signature: reader.signature()?,
            renewal: None,
        };
        check(&delegation.name, delegation.issued, delegation.expires)
            .map_err(|_| DecodeError::Malformed("delegation"))?;
        Ok(delegation)
    }

    /// Everything of the user's own word but the signature.
    fn content(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MAX_DELEGATION_BYTES);
        bytes.push(VERSION);
        put_name(&mut bytes, &self.name);
        bytes.extend_from_slice(self.id.as_bytes());
        bytes.extend_from_slice(self.issuer.as_bytes());
        bytes.extend_from_slice(&self.issued.to_be_bytes());
        bytes.extend_from_slice(&self.expires.to_be_bytes());
        bytes
    }
}

fn check(name: &Name, issued: u64, expires: u64) -> Result<(), DelegationError> {
    if name.kind() == NameKind::User {
        return Err(DelegationError::User(name.clone()));
    }
    if issued >= expires {
        return Err(DelegationError::Times);
    }
    Ok(())
}

impl fmt::Display for Delegation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", z32::encode(&self.encode()))
    }
}

impl FromStr for Delegation {
    type Err = DelegationError;

    fn from_str(text: &str) -> Result<Self, DelegationError> {
        let encoded = text.strip_prefix(SCHEME).ok_or(DelegationError::Scheme)?;
        let bytes = z32::decode_at_most(encoded, MAX_DELEGATION_BYTES).map_err(|_| DelegationError::Text)?;
        Ok(Self::decode(&bytes)?)
    }
}

/// Why a delegation can't be made or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DelegationError {
    /// A user name belongs to its key and can't be delegated.
    #[error("{0} is a user, and only devices and services can be delegated, as in laptop.user@example.org")]
    User(Name),
    /// It would expire before it begins.
    #[error("the delegation would expire before it begins; choose a later end, or set this machine's clock")]
    Times,
    /// The text does not begin with `whimbrel-delegation:`.
    #[error("a delegation begins with \"{SCHEME}\"; copy the whole line")]
    Scheme,
    /// The text behind the scheme is mistyped.
    #[error("the delegation is mistyped or cut off; copy the whole line again")]
    Text,
    /// The bytes in the text are not a delegation.
    #[error("this is not a delegation: {0}")]
    Decode(#[from] DecodeError),
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::bit_flips;
    use proptest::prelude::*;

    fn delegation(name: &str) -> Delegation {
        let device = SecretKey::from_bytes(&[2; 32]).id();
        let user = SecretKey::from_bytes(&[1; 32]);
        let (from, to) = (UnixTime::from_secs(1000), UnixTime::from_secs(2000));
        Delegation::sign(name.parse().unwrap(), device, from, to, &user).unwrap()
    }

    #[test]
    fn covers_the_device_and_its_services_only() {
        let device = delegation("laptop.user@example.org");
        let covers = |name: &str| device.covers(&name.parse().unwrap());
        assert!(covers("laptop.user@example.org"));
        assert!(covers("ssh.laptop.user@example.org"));
        assert!(!covers("user@example.org"));
        assert!(!covers("phone.user@example.org"));
        assert!(!covers("ssh.phone.user@example.org"));
        assert!(!covers("laptop.user@example.com"));
        let service = delegation("ssh.laptop.user@example.org");
        assert!(service.covers(service.name()));
        assert!(!service.covers(device.name()));
    }

    #[test]
    fn a_user_is_not_delegated() {
        let key = SecretKey::from_bytes(&[1; 32]);
        let name: Name = "user@example.org".parse().unwrap();
        let times = (UnixTime::from_secs(1), UnixTime::from_secs(2));
        let made = Delegation::sign(name.clone(), key.id(), times.0, times.1, &key);
        assert_eq!(made, Err(DelegationError::User(name)));
    }

    #[test]
    fn expiry() {
        let delegation = delegation("laptop.user@example.org");
        assert!(!delegation.is_expired(UnixTime::from_millis(1_999_999)));
        assert!(delegation.is_expired(UnixTime::from_secs(2000)));
    }

    #[test]
    fn text_round_trip() {
        let delegation = delegation("laptop.user@example.org");
        let text = delegation.to_string();
        assert_eq!(text.parse(), Ok(delegation));
        assert_eq!(text[1..].parse::<Delegation>(), Err(DelegationError::Scheme));
        assert!(text[..text.len() - 1].parse::<Delegation>().is_err());
        assert!(format!("{text}{text}").parse::<Delegation>().is_err());
    }

    #[test]
    fn every_bit_flip_is_noticed() {
        let bytes = delegation("laptop.user@example.org").encode();
        bit_flips::are_noticed(&bytes, |bytes| Delegation::decode(bytes).is_ok_and(|it| it.verify().is_ok()));
    }

    proptest! {
        #[test]
        fn decoding_never_panics_and_is_canonical(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            if let Ok(delegation) = Delegation::decode(&bytes) {
                prop_assert_eq!(delegation.encode(), bytes);
            }
        }
    }
}
