//! Appointments: left by a user's key, and taken by the device that one appoints.

use std::time::Duration;

use whimbrel_base::{Appointment, EndpointId, Name};

use super::{AskError, NameResolver, accepted};
use crate::error::ErrorCode;
use crate::protocol::{Request, Response};

impl NameResolver {
    /// Leaves an appointment by this endpoint's key, the user's, for the device that it appoints. Says for
    /// how long it counts.
    ///
    /// # Errors
    /// [`AskError::Refused`] says why it is not kept; [`AskError::Unsupported`] by an older service.
    pub async fn leave_appointment(&self, appointment: &Appointment) -> Result<Duration, AskError> {
        accepted(self.core.ask(Request::Appoint { appointment: appointment.encode() }).await?)
    }

    /// The appointment that was left for the device `name` with this endpoint's key `id`. Its signature is
    /// good; whether its issuer is the user was not looked at. `None` if there is none.
    ///
    /// # Errors
    /// [`AskError`]; [`AskError::Unsupported`] by an older service.
    pub async fn appointment(&self, name: &Name, id: EndpointId) -> Result<Option<Appointment>, AskError> {
        match self.core.ask(Request::Appointed { name: name.clone() }).await {
            Ok(Response::Appointment { appointment }) => {
                let invalid = |why: String| AskError::Invalid(why);
                let left = Appointment::decode(&appointment).map_err(|error| invalid(error.to_string()))?;
                left.verify().map_err(|error| invalid(error.to_string()))?;
                if left.name() != name || left.id() != id {
                    return Err(invalid(format!("it appoints {} with the key {}", left.name(), left.id())));
                }
                Ok(Some(left))
            }
            Ok(_) => Err(AskError::unexpected()),
            Err(error) if error.code() == Some(ErrorCode::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
