//! Renewals: more time for what a user's key delegated, by a device that the user appointed.

use std::time::Duration;

use super::Delegation;
use crate::appointment::{Appointment, MAX_APPOINTMENT_BYTES};
use crate::key::{BadSignature, SecretKey, Signature};
use crate::wire::{DecodeError, Reader, signed_message};

/// The longest time that a renewal by an appointed device holds.
pub const MAX_RENEWAL_TIME: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How long after the user's own word renewals of it may end. A name service remembers for as long what the
/// user took back: no appointed device brings it to life again after that.
pub const MAX_RENEWED_TIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The version of a delegation that was renewed so.
pub(super) const VERSION: u8 = 2;
const PURPOSE: &str = "whimbrel renewal v1";

/// The most bytes that a renewal adds to the delegation in it.
pub(super) const MAX_BYTES: usize = 1 + MAX_APPOINTMENT_BYTES + 8 + 8 + Signature::LENGTH;

/// What is behind the user's own word in a delegation that was renewed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Renewal {
    pub(super) appointment: Appointment,
    pub(super) issued: u64,
    pub(super) expires: u64,
    signature: Signature,
}

impl Renewal {
    /// Signs the renewal of `given`, the user's own word.
    pub(super) fn sign(
        given: &Delegation,
        appointment: Appointment,
        (issued, expires): (u64, u64),
        key: &SecretKey,
    ) -> Result<Self, RenewalError> {
        if appointment.id() != key.id() {
            return Err(RenewalError::OtherKey);
        }
        let signature = Signature::from_bytes(&[0; Signature::LENGTH]);
        let mut renewal = Self { appointment, issued, expires, signature };
        renewal.check(given)?;
        renewal.signature = key.sign(&signed_message(PURPOSE, &renewal.content(given)));
        Ok(renewal)
    }

    /// Checks everything but the signatures.
    pub(super) fn check(&self, given: &Delegation) -> Result<(), RenewalError> {
        let appointment = &self.appointment;
        if appointment.issuer() != given.issuer || appointment.name().user() != given.name.user() {
            return Err(RenewalError::OtherUser);
        }
        let is_of_itself = given.name.device().as_ref() == Some(appointment.name());
        if is_of_itself || appointment.id() == given.id {
            return Err(RenewalError::Itself);
        }
        if self.issued >= self.expires || self.issued < appointment.issued().as_secs().max(given.issued) {
            return Err(RenewalError::Times);
        }
        let is_long = self.expires - self.issued > MAX_RENEWAL_TIME.as_secs();
        if is_long || self.expires > appointment.expires().as_secs() {
            return Err(RenewalError::TooLong);
        }
        if self.expires > given.issued.saturating_add(MAX_RENEWED_TIME.as_secs()) {
            return Err(RenewalError::TooOld);
        }
        Ok(())
    }

    /// Checks the user's signature on the appointment, and the appointed device's on the rest.
    pub(super) fn verify(&self, given: &Delegation) -> Result<(), BadSignature> {
        self.appointment.verify()?;
        self.appointment.id().verify(&signed_message(PURPOSE, &self.content(given)), &self.signature)
    }

    pub(super) fn encode(&self, given: &Delegation) -> Vec<u8> {
        let mut bytes = self.content(given);
        bytes.extend_from_slice(&self.signature.to_bytes());
        bytes
    }

    /// Reads what is behind the user's own word.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            appointment: Appointment::read(reader)?,
            issued: reader.whole_seconds()?,
            expires: reader.whole_seconds()?,
            signature: reader.signature()?,
        })
    }

    /// Everything but the appointed device's signature.
    fn content(&self, given: &Delegation) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&given.encode_given());
        bytes.extend_from_slice(&self.appointment.encode());
        bytes.extend_from_slice(&self.issued.to_be_bytes());
        bytes.extend_from_slice(&self.expires.to_be_bytes());
        bytes
    }
}

/// Why an appointed device can't renew a delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RenewalError {
    /// The appointment is for another key.
    #[error("the appointment is for another key than this one; have the user appoint this device")]
    OtherKey,
    /// Another user's key made the delegation.
    #[error("the delegation is another user's than the appointment; renew it on a device of that user")]
    OtherUser,
    /// It is the appointed device's own, or that of a service on it.
    #[error(
        "a device does not renew its own delegation; have another appointed device do it, or the user's key"
    )]
    Itself,
    /// It would end before it begins, or begins before the appointment or the delegation does.
    #[error("the renewal would begin before the appointment, or behind its end; set this machine's clock")]
    Times,
    /// It would end behind the appointment, or hold for more than 7 days.
    #[error("a renewal holds for 7 days at most, and ends with the appointment; have the user appoint anew")]
    TooLong,
    /// It would end more than a year after the user's own word was given.
    #[error("the user's key gave this name a year ago; have it delegate the name anew")]
    TooOld,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{EndpointId, MAX_DELEGATION_BYTES, UnixTime, bit_flips};
    use proptest::prelude::*;

    const LAPTOP: &str = "laptop.user@example.org";
    const DESK: &str = "desk.user@example.org";
    const DAY: u64 = 86_400;

    fn key(seed: u8) -> SecretKey {
        SecretKey::from_bytes(&[seed; 32])
    }

    fn at(days: u64) -> UnixTime {
        UnixTime::from_secs(1_700_000_000 + days * DAY)
    }

    /// By the user's key, for a week from the start.
    fn given(name: &str, to: EndpointId, user: u8) -> Delegation {
        Delegation::sign(name.parse().unwrap(), to, at(0), at(7), &key(user)).unwrap()
    }

    /// Of the desk, for a month from the start.
    fn appointed(user: u8) -> Appointment {
        Appointment::sign(DESK.parse().unwrap(), key(3).id(), at(0), at(30), &key(user)).unwrap()
    }

    fn renew(given: &Delegation, from: u64, to: u64) -> Result<Delegation, RenewalError> {
        given.renew(&appointed(1), at(from), at(to), &key(3))
    }

    #[test]
    fn an_appointed_device_gives_more_time_to_the_same_key_and_nothing_else() {
        let given = given(LAPTOP, key(2).id(), 1);
        let renewed = renew(&given, 4, 11).unwrap();
        assert_eq!(renewed.verify(), Ok(()));
        assert_eq!(
            (renewed.name(), renewed.id(), renewed.issuer()),
            (given.name(), given.id(), given.issuer())
        );
        assert_eq!((renewed.issued(), renewed.expires(), renewed.granted()), (at(4), at(11), at(0)));
        assert_eq!((renewed.signer(), given.signer()), (key(3).id(), key(1).id()));
        assert!(renewed.is_expired(at(11)) && !renewed.is_expired(at(10)));
        // Once more: it rests on the user's word, not on the renewal before.
        let again = renew(&renewed, 9, 16).unwrap();
        assert_eq!(again, renew(&given, 9, 16).unwrap());
        assert_eq!(Delegation::decode(&again.encode()), Ok(again.clone()));
        assert_eq!(again.to_string().parse(), Ok(again));
    }

    #[test]
    fn a_renewal_ends_with_the_appointment_and_within_a_week() {
        let given = given(LAPTOP, key(2).id(), 1);
        assert!(renew(&given, 23, 30).is_ok());
        assert_eq!(renew(&given, 24, 31), Err(RenewalError::TooLong), "behind the appointment");
        assert_eq!(renew(&given, 4, 12), Err(RenewalError::TooLong), "eight days");
        assert_eq!(renew(&given, 4, 4), Err(RenewalError::Times));
        let later = Appointment::sign(DESK.parse().unwrap(), key(3).id(), at(5), at(30), &key(1)).unwrap();
        assert_eq!(given.renew(&later, at(4), at(11), &key(3)), Err(RenewalError::Times));
    }

    #[test]
    fn what_the_users_key_gave_long_ago_is_not_renewed() {
        let given = given(LAPTOP, key(2).id(), 1);
        let late = Appointment::sign(DESK.parse().unwrap(), key(3).id(), at(360), at(450), &key(1)).unwrap();
        let renew = |to: u64| given.renew(&late, at(360), at(to), &key(3));
        let last = renew(365).unwrap();
        assert_eq!(renew(366), Err(RenewalError::TooOld));
        // One that a device signs nevertheless is none.
        let mut bytes = last.encode();
        let end = bytes.len() - Signature::LENGTH;
        bytes[end - 8..end].copy_from_slice(&at(366).as_secs().to_be_bytes());
        assert_eq!(Delegation::decode(&bytes), Err(DecodeError::Malformed("renewal")));
    }

    #[test]
    fn nobody_renews_its_own_name_or_that_of_a_service_on_it() {
        for (name, to) in [(DESK, 3), (DESK, 2), ("ssh.desk.user@example.org", 2), (LAPTOP, 3)] {
            let own = given(name, key(to).id(), 1);
            assert_eq!(renew(&own, 4, 11), Err(RenewalError::Itself), "{name} {to}");
        }
    }

    #[test]
    fn a_service_with_a_key_of_its_own_is_renewed_by_a_device_that_it_is_not_on() {
        const SSH: &str = "ssh.laptop.user@example.org";
        let service = given(SSH, key(5).id(), 1);
        let renewed = renew(&service, 4, 11).unwrap();
        assert_eq!(renewed.verify(), Ok(()));
        assert_eq!((renewed.name().as_str(), renewed.id(), renewed.expires()), (SSH, key(5).id(), at(11)));
        // Not by the device that it is on.
        let laptop = Appointment::sign(LAPTOP.parse().unwrap(), key(2).id(), at(0), at(30), &key(1)).unwrap();
        assert_eq!(service.renew(&laptop, at(4), at(11), &key(2)), Err(RenewalError::Itself));
    }

    #[test]
    fn only_the_appointed_key_renews_and_only_what_the_same_user_gave() {
        let given_by_user = given(LAPTOP, key(2).id(), 1);
        let appointment = appointed(1);
        let thief = given_by_user.renew(&appointment, at(4), at(11), &key(9));
        assert_eq!(thief, Err(RenewalError::OtherKey));
        let strangers = given(LAPTOP, key(2).id(), 9);
        assert_eq!(renew(&strangers, 4, 11), Err(RenewalError::OtherUser));
        let elsewhere = given("laptop.user@example.com", key(2).id(), 1);
        assert_eq!(renew(&elsewhere, 4, 11), Err(RenewalError::OtherUser));
        // An appointment that the device made itself is another user's.
        let own = appointed(9);
        assert_eq!(given_by_user.renew(&own, at(4), at(11), &key(3)), Err(RenewalError::OtherUser));
    }

    #[test]
    fn every_bit_flip_of_a_renewed_delegation_is_noticed() {
        let bytes = renew(&given(LAPTOP, key(2).id(), 1), 4, 11).unwrap().encode();
        bit_flips::are_noticed(&bytes, |bytes| Delegation::decode(bytes).is_ok_and(|it| it.verify().is_ok()));
    }

    #[test]
    fn the_longest_renewed_delegation_has_the_bytes_that_are_allowed() {
        let domain = [["a".repeat(63), "b".repeat(63), "c".repeat(63)].join("."), "org".to_owned()].join(".");
        let name = |device: &str| format!("{device}.user@{domain}");
        let given = given(&name("laptop"), key(2).id(), 1);
        let desk = name("desk").parse().unwrap();
        let appointment = Appointment::sign(desk, key(3).id(), at(0), at(30), &key(1)).unwrap();
        let renewed = given.renew(&appointment, at(4), at(11), &key(3)).unwrap();
        let bytes = renewed.encode();
        assert!(bytes.len() <= MAX_DELEGATION_BYTES);
        assert_eq!(Delegation::decode(&bytes), Ok(renewed));
        let longer = [bytes, vec![0; MAX_DELEGATION_BYTES]].concat();
        assert!(matches!(Delegation::decode(&longer), Err(DecodeError::TooLarge { .. })));
    }

    proptest! {
        #[test]
        fn a_changed_renewal_is_refused_or_comes_back_exactly(
            at_byte in 0..400_usize, cut in 0..600_usize, value in any::<u8>(),
        ) {
            let mut bytes = renew(&given(LAPTOP, key(2).id(), 1), 4, 11).unwrap().encode();
            let place = at_byte % bytes.len();
            bytes[place] = value;
            bytes.truncate(cut);
            if let Ok(delegation) = Delegation::decode(&bytes) {
                prop_assert_eq!(delegation.encode(), bytes);
            }
        }
    }
}
