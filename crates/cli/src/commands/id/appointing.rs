//! `whimbrel id appoint` and `whimbrel id accept`: words of the user's key for other keys.

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};
use serde_json::json;
use whimbrel::Identity;
use whimbrel_base::{Appointment, Delegation, EndpointId, Name, UnixTime};

use crate::appointed::{Acceptance, Appointed};
use crate::devices::Devices;
use crate::failure::{self, Failure};
use crate::network::{Network, Wish};
use crate::options::Globals;
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

/// The device that is to be appointed.
pub(super) struct Appointee {
    pub(super) name: Name,
    pub(super) to: EndpointId,
}

/// How an appointment gets to its device.
pub(super) struct Way {
    /// It is carried, and left with nobody.
    pub(super) by_hand: bool,
    /// It is printed as JSON.
    pub(super) json: bool,
}

/// Appoints a device, leaves the appointment with the name service, and prints it.
pub(super) async fn appoint(
    globals: &Globals,
    identity: &Identity,
    Appointee { name, to }: Appointee,
    duration: Duration,
    way: Way,
) -> Result<()> {
    let quiet = globals.quiet;
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
    let is_left = !way.by_hand && leave(globals, identity, &appointment).await;
    if way.json {
        return output::json(&json!({
            "appointment": appointment.to_string(), "name": name.to_string(), "to": to.to_string(),
            "expires": appointment.expires().as_secs(), "left": is_left,
        }));
    }
    output::line(appointment.to_string())
}

/// Leaves an appointment with the name service, where its device takes it. What keeps it from that is told:
/// it is carried then.
async fn leave(globals: &Globals, identity: &Identity, appointment: &Appointment) -> bool {
    let left = leave_it(globals, identity, appointment).await;
    let name = appointment.name();
    let text = match &left {
        Ok(()) => format!("left with the name service: {name} takes it once it may act for the user"),
        Err(error) => {
            let why = failure::line(error);
            format!("not left with a name service; give it to {name} for `whimbrel id accept`: {why}")
        }
    };
    output::note(globals.quiet, text);
    left.is_ok()
}

async fn leave_it(globals: &Globals, identity: &Identity, appointment: &Appointment) -> Result<()> {
    let network = Network::start(globals, identity.key.clone(), Wish::default()).await?;
    let left = match network.resolver() {
        Ok(resolver) => resolver.leave_appointment(appointment).await.map_err(anyhow::Error::from),
        Err(error) => Err(error),
    };
    network.close().await;
    left.map(drop)
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
    if Appointed::beside(&identity.file).accept(appointment)? == Acceptance::Older {
        bail!("a newer appointment by the same key is kept here already; have a new one made");
    }
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
