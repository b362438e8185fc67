//! Appointments that a user's key leaves for its devices: each is handed out to the key that it appoints, and
//! to nobody else.
//!
//! What the device may do with one, [`renew`](Registry::renew) decides each time. So a service that hands
//! none out delays what the user wants, and one that hands out an old one gives no right that the user did
//! not give.

use whimbrel_base::{Appointment, EndpointId, Name, UnixTime};

use super::Registry;
use super::ownership::CLOCK_SKEW;
use crate::error::{AppointmentRefusal, NamesError};
use crate::store::MAX_APPOINTMENTS;

impl Registry {
    /// Keeps an appointment until it ends, in place of an older one of the same device. `peer` must be the
    /// user's key, which made it. Says until when it counts.
    ///
    /// # Errors
    /// [`NamesError::BadAppointment`] says what is wrong; [`NamesError::Unavailable`].
    pub async fn appoint(
        &self,
        peer: EndpointId,
        appointment: &[u8],
        now: UnixTime,
    ) -> Result<UnixTime, NamesError> {
        let appointment = Appointment::decode(appointment).map_err(AppointmentRefusal::Malformed)?;
        let (name, issuer) = (appointment.name(), appointment.issuer());
        // The same for a user whom nobody has registered: strangers are not told which there are.
        if issuer != peer || self.user_key(name, now).await? != Some(issuer) {
            return Err(AppointmentRefusal::NotTheUsers(name.clone()).into());
        }
        if appointment.is_expired(now) || appointment.issued() > now.saturating_add(CLOCK_SKEW) {
            return Err(AppointmentRefusal::Times(name.clone()).into());
        }
        appointment.verify().map_err(|_| AppointmentRefusal::Forged(name.clone()))?;
        let expires = appointment.expires();
        match self.store.appointment(&issuer, name).await? {
            // Nothing is written again and again.
            Some(known) if known == appointment => return Ok(expires),
            Some(known) if known.issued() > appointment.issued() => {
                return Err(AppointmentRefusal::Older(name.clone()).into());
            }
            _ => {}
        }
        if self.store.appoint(appointment, now).await? {
            Ok(expires)
        } else {
            Err(AppointmentRefusal::TooMany(MAX_APPOINTMENTS).into())
        }
    }

    /// The appointment of a device that its user's key left for `peer`.
    ///
    /// # Errors
    /// [`NamesError::NotFound`] when none is kept for this key, or the name was taken back or given to
    /// another key; [`NamesError::Unavailable`].
    pub async fn appointment(
        &self,
        name: &Name,
        peer: EndpointId,
        now: UnixTime,
    ) -> Result<Appointment, NamesError> {
        let none = || NamesError::NotFound(name.clone());
        let user = self.user_key(name, now).await?.ok_or_else(none)?;
        let known = self.store.appointment(&user, name).await?;
        let known = known.filter(|known| known.id() == peer && !known.is_expired(now)).ok_or_else(none)?;
        let held = self.store.get(name).await?.filter(|held| held.entry.held_until > now);
        if held.is_some_and(|held| held.entry.owner() != peer) {
            return Err(none());
        }
        Ok(known)
    }
}
