//! Appointments: a user's word that one of the user's devices may renew the delegations of the others.
//!
//! An appointed device gives more time to a key that the user gave a name to, and never a name to a key
//! ([`Delegation::renew`](crate::Delegation::renew)). Only the user's key appoints, for a bounded time; an
//! appointment is not renewed, and not passed on. It does nothing for the names of the appointed device
//! itself: who stole it cannot keep it alive.
//!
//! # Bytes
//! Integers are big-endian.
//!
//! | bytes | field |
//! | --- | --- |
//! | 1 | version: 1 |
//! | 1 + n | length of the name, then the name: lower-case ASCII, a device |
//! | 32 | endpoint id of the appointed device |
//! | 32 | issuer: endpoint id of the user's key, another one |
//! | 8 | issued, unix seconds |
//! | 8 | expires, unix seconds, later than issued by at most 90 days |
//! | 64 | the issuer's Ed25519 signature over `whimbrel appointment v1`, a zero byte, and all bytes above |
//!
//! As text: `whimbrel-appointment:` and these bytes in z-base-32.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::key::{BadSignature, EndpointId, SecretKey, Signature};
use crate::wire::{DecodeError, Reader, put_name, signed_message};
use crate::{Name, NameKind, UnixTime, z32};

/// The most bytes that an encoded appointment has.
pub const MAX_APPOINTMENT_BYTES: usize = 1 + 1 + 253 + 32 + 32 + 8 + 8 + 64;

/// The longest time that an appointment holds.
pub const MAX_APPOINTMENT_TIME: Duration = Duration::from_secs(90 * 24 * 60 * 60);

const VERSION: u8 = 1;
const PURPOSE: &str = "whimbrel appointment v1";
const SCHEME: &str = "whimbrel-appointment:";

/// A user's signed word that a device may renew the delegations of the user's others, until it expires.
///
/// One from outside is no more than well-formed until [`verify`](Self::verify) says that its issuer signed
/// it, and worth no more than its issuer is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Appointment {
    name: Name,
    id: EndpointId,
    issuer: EndpointId,
    issued: u64,
    expires: u64,
    signature: Signature,
}

impl Appointment {
    /// Appoints the device `name` with the key `id`, with the user's key. Times are kept in whole seconds,
    /// rounded down.
    ///
    /// # Errors
    /// [`AppointmentError`] for a name that is no device's, the user's own key, and times that cannot be.
    pub fn sign(
        name: Name,
        id: EndpointId,
        issued: UnixTime,
        expires: UnixTime,
        user: &SecretKey,
    ) -> Result<Self, AppointmentError> {
        let signature = Signature::from_bytes(&[0; Signature::LENGTH]);
        let (issued, expires) = (issued.as_secs(), expires.as_secs());
        let mut appointment = Self { name, id, issuer: user.id(), issued, expires, signature };
        appointment.check()?;
        appointment.signature = user.sign(&signed_message(PURPOSE, &appointment.content()));
        Ok(appointment)
    }

    /// The device that is appointed.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Its key.
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// The key that says so: the user's, if the user name is registered to it.
    pub fn issuer(&self) -> EndpointId {
        self.issuer
    }

    /// When it was made, in whole seconds.
    pub fn issued(&self) -> UnixTime {
        UnixTime::from_secs(self.issued)
    }

    /// When it ends, in whole seconds: nothing that the device renews holds longer.
    pub fn expires(&self) -> UnixTime {
        UnixTime::from_secs(self.expires)
    }

    /// Whether it has ended at `now`.
    pub fn is_expired(&self, now: UnixTime) -> bool {
        now >= self.expires()
    }

    /// Checks the issuer's signature.
    ///
    /// # Errors
    /// [`BadSignature`] when the issuer did not sign exactly this.
    pub fn verify(&self) -> Result<(), BadSignature> {
        self.issuer.verify(&signed_message(PURPOSE, &self.content()), &self.signature)
    }

    /// The bytes described in the [module's documentation](self).
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.content();
        bytes.extend_from_slice(&self.signature.to_bytes());
        bytes
    }

    /// Reads what [`encode`](Self::encode) writes, and nothing else. Does not verify.
    ///
    /// # Errors
    /// [`DecodeError`] says which field is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes, MAX_APPOINTMENT_BYTES)?;
        let appointment = Self::read(&mut reader)?;
        reader.finish()?;
        Ok(appointment)
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match reader.u8()? {
            VERSION => {}
            other => return Err(DecodeError::Version(other)),
        }
        let appointment = Self {
            name: reader.name()?,
            id: reader.id()?,
            issuer: reader.id()?,
            issued: reader.whole_seconds()?,
            expires: reader.whole_seconds()?,
            signature: reader.signature()?,
        };
        appointment.check().map_err(|_| DecodeError::Malformed("appointment"))?;
        Ok(appointment)
    }

    fn check(&self) -> Result<(), AppointmentError> {
        if self.name.kind() != NameKind::Device {
            return Err(AppointmentError::NotADevice(self.name.clone()));
        }
        if self.id == self.issuer {
            return Err(AppointmentError::UsersKey);
        }
        if self.issued >= self.expires {
            return Err(AppointmentError::Times);
        }
        if self.expires().since(self.issued()) > MAX_APPOINTMENT_TIME {
            return Err(AppointmentError::TooLong);
        }
        Ok(())
    }

    /// Everything but the signature.
    fn content(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MAX_APPOINTMENT_BYTES);
        bytes.push(VERSION);
        put_name(&mut bytes, &self.name);
        bytes.extend_from_slice(self.id.as_bytes());
        bytes.extend_from_slice(self.issuer.as_bytes());
        bytes.extend_from_slice(&self.issued.to_be_bytes());
        bytes.extend_from_slice(&self.expires.to_be_bytes());
        bytes
    }
}

impl fmt::Display for Appointment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", z32::encode(&self.encode()))
    }
}

impl FromStr for Appointment {
    type Err = AppointmentError;

    fn from_str(text: &str) -> Result<Self, AppointmentError> {
        let encoded = text.strip_prefix(SCHEME).ok_or(AppointmentError::Scheme)?;
        let bytes =
            z32::decode_at_most(encoded, MAX_APPOINTMENT_BYTES).map_err(|_| AppointmentError::Text)?;
        Ok(Self::decode(&bytes)?)
    }
}

/// Why an appointment can't be made or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppointmentError {
    /// Only a device can be appointed.
    #[error("{0} is not the name of a device; give one, as in laptop.user@example.org")]
    NotADevice(Name),
    /// The user's own key renews without an appointment.
    #[error("the user's own key renews without an appointment; appoint another device's key")]
    UsersKey,
    /// It would expire before it begins.
    #[error("the appointment would end before it begins; choose a later end, or set this machine's clock")]
    Times,
    /// It would hold for more than 90 days.
    #[error("an appointment holds for 90 days at most; give a shorter time")]
    TooLong,
    /// The text does not begin with `whimbrel-appointment:`.
    #[error("an appointment begins with \"{SCHEME}\"; copy the whole line")]
    Scheme,
    /// The text behind the scheme is mistyped.
    #[error("the appointment is mistyped or cut off; copy the whole line again")]
    Text,
    /// The bytes in the text are not an appointment.
    #[error("this is not an appointment: {0}")]
    Decode(#[from] DecodeError),
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::bit_flips;
    use proptest::prelude::*;

    const NAME: &str = "desk.user@example.org";

    fn appoint(name: &str, id: EndpointId, secs: u64) -> Result<Appointment, AppointmentError> {
        let user = SecretKey::from_bytes(&[1; 32]);
        let (from, to) = (UnixTime::from_secs(1000), UnixTime::from_secs(1000 + secs));
        Appointment::sign(name.parse().unwrap(), id, from, to, &user)
    }

    fn desk() -> EndpointId {
        SecretKey::from_bytes(&[3; 32]).id()
    }

    #[test]
    fn only_a_device_with_a_key_of_its_own_is_appointed_and_for_90_days_at_most() {
        let longest = MAX_APPOINTMENT_TIME.as_secs();
        assert!(appoint(NAME, desk(), longest).is_ok());
        assert_eq!(appoint(NAME, desk(), longest + 1), Err(AppointmentError::TooLong));
        assert_eq!(appoint(NAME, desk(), 0), Err(AppointmentError::Times));
        let users = SecretKey::from_bytes(&[1; 32]).id();
        assert_eq!(appoint(NAME, users, 10), Err(AppointmentError::UsersKey));
        for other in ["user@example.org", "ssh.desk.user@example.org"] {
            let refused = AppointmentError::NotADevice(other.parse().unwrap());
            assert_eq!(appoint(other, desk(), 10), Err(refused));
        }
    }

    #[test]
    fn an_appointment_comes_back_from_its_text_and_no_other_text_is_one() {
        let appointment = appoint(NAME, desk(), 10).unwrap();
        let text = appointment.to_string();
        assert_eq!(text.parse(), Ok(appointment));
        assert_eq!(text[1..].parse::<Appointment>(), Err(AppointmentError::Scheme));
        assert!(text[..text.len() - 1].parse::<Appointment>().is_err());
        assert!(format!("{text}{text}").parse::<Appointment>().is_err());
    }

    #[test]
    fn every_bit_flip_of_an_appointment_is_noticed() {
        let bytes = appoint(NAME, desk(), 1000).unwrap().encode();
        bit_flips::are_noticed(&bytes, |bytes| {
            Appointment::decode(bytes).is_ok_and(|it| it.verify().is_ok())
        });
    }

    proptest! {
        #[test]
        fn decoding_an_appointment_never_panics_and_is_canonical(
            bytes in proptest::collection::vec(any::<u8>(), 0..500),
        ) {
            if let Ok(appointment) = Appointment::decode(&bytes) {
                prop_assert_eq!(appointment.encode(), bytes);
            }
        }
    }
}
