//! Why an appointment is not kept for its device.

use whimbrel_base::{DecodeError, Name};

/// Why the name service does not keep an appointment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppointmentRefusal {
    /// The bytes are not an appointment.
    #[error("this is not an appointment: {0}")]
    Malformed(#[source] DecodeError),
    /// It comes from another key than the one that the user name is registered for.
    #[error("only the key that {} is registered for here may appoint {}; do it with that key", .0.user(), .0)]
    NotTheUsers(Name),
    /// Its issuer did not sign exactly this.
    #[error("the appointment of {0} is not signed by the user's key that it names; have a new one made")]
    Forged(Name),
    /// It has ended, or begins in the future.
    #[error(
        "the appointment of {0} has ended, or begins in the future; set this machine's clock and appoint anew"
    )]
    Times(Name),
    /// A newer one of the device is there.
    #[error("a newer appointment of {0} is here already; set this machine's clock and appoint anew")]
    Older(Name),
    /// The user has too many.
    #[error("a user has at most {0} appointed devices here; revoke one, or wait until one's time ends")]
    TooMany(usize),
}
