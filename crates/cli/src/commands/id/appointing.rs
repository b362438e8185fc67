//! `whimbrel id appoint` and `whimbrel id accept`: words of the user's key for other keys.

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};
use serde_json::json;
use whimbrel::Identity;
use whimbrel_base::{Appointment, Delegation, EndpointId, Name, UnixTime};

use crate::appointed::Appointed;
use crate::devices::Devices;
use crate::failure::Failure;
use crate::{identity, output, places};

/// What `whimbrel id delegate` or `whimbrel id appoint` printed.
#[derive(Clone, Debug)]
pub(super) enum Word {
    Delegation(Box<Delegation>),
    Appointment(Box<Appointment>),
}

impl FromStr for Word {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("whimbrel-appointment:") {
            let appointment = text.parse::<Appointment>().map_err(|error| error.to_string())?;
            return Ok(Self::Appointment(Box::new(appointment)));
        }
        let delegation = text.parse::<Delegation>().map_err(|error| error.to_string())?;
        Ok(Self::Delegation(Box::new(delegation)))
    }
}

/// Appoints a device, and prints the appointment.
pub(super) fn appoint(
    identity: &Identity,
    quiet: bool,
    (name, to): (Name, EndpointId),
    duration: Duration,
    as_json: bool,
) -> Result<()> {
    let now = UnixTime::from(SystemTime::now());
    let appointment = Appointment::sign(name, to, now, now.saturating_add(duration), &identity.key)
        .map_err(|error| Failure::usage(error.to_string()))?;
    let name = appointment.name();
    if Devices::beside(&identity.file).key_of(name) != Some(to) {
        let text = format!(
            "{name} was not given to that key on this machine; it can renew once it has published that name"
        );
        output::note(quiet, text);
    }
    if as_json {
        return output::json(&json!({
            "appointment": appointment.to_string(), "name": name.to_string(), "to": to.to_string(),
            "expires": appointment.expires().as_secs(),
        }));
    }
    output::line(appointment.to_string())
}

/// Keeps what the user's key says to this one.
pub(super) fn accept(identity: &Identity, word: &Word, as_json: bool) -> Result<()> {
    match word {
        Word::Delegation(delegation) => accept_delegation(identity, delegation, as_json),
        Word::Appointment(appointment) => accept_appointment(identity, appointment, as_json),
    }
}

fn accept_delegation(identity: &Identity, delegation: &Delegation, as_json: bool) -> Result<()> {
    check_key("delegation", delegation.id(), identity)?;
    delegation.verify()?;
    if delegation.is_expired(SystemTime::now().into()) {
        bail!("the delegation has expired; have a new one made");
    }
    let file = identity::store_delegation(&places::config()?, delegation)?;
    if as_json {
        return output::json(&json!({ "name": delegation.name().to_string(), "file": file }));
    }
    output::line(format!("this key may use {} now", delegation.name()))
}

fn accept_appointment(identity: &Identity, appointment: &Appointment, as_json: bool) -> Result<()> {
    check_key("appointment", appointment.id(), identity)?;
    appointment.verify()?;
    if appointment.is_expired(SystemTime::now().into()) {
        bail!("the appointment has ended; have a new one made");
    }
    Appointed::beside(&identity.file).accept(appointment)?;
    let user = appointment.name().user();
    if as_json {
        let until = appointment.expires().as_secs();
        return output::json(&json!({ "appointed_by": user.to_string(), "until": until }));
    }
    output::line(format!("this key renews the other devices of {user} now"))
}

fn check_key(what: &str, of: EndpointId, identity: &Identity) -> Result<()> {
    let own = identity.key.id();
    if of != own {
        bail!("the {what} is for the key {of}, and this one is {own}; have it made for this one");
    }
    Ok(())
}
