//! `whimbrel id devices` and `whimbrel id renew`: the machines that have this user's names.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use serde_json::json;
use whimbrel::Identity;
use whimbrel_base::UnixTime;

use crate::appointed::Appointed;
use crate::devices::{Device, Devices, State};
use crate::failure::Failure;
use crate::network::{Network, Wish};
use crate::options::Globals;
use crate::renewer::{self, Done, Outcome};
use crate::{identity, output, places};

/// A delegation that ends sooner should have been renewed.
const NEAR: Duration = Duration::from_secs(2 * 24 * 60 * 60);
/// An appointment that ends sooner is to be made anew, by a key that may be far away.
const NEAR_APPOINTMENT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// One that ended longer ago than this was given up: nobody is to be warned of it for ever.
const GIVEN_UP: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Prints the devices that were given names here, and the names that this key was given.
pub(super) fn show(identity: &Identity, as_json: bool) -> Result<()> {
    let now = UnixTime::from(SystemTime::now());
    let devices = Devices::beside(&identity.file).all()?;
    let held = identity::held(&places::config()?, identity.key.id())?;
    let appointed = Appointed::beside(&identity.file).all()?;
    if as_json {
        let devices: Vec<_> = devices
            .iter()
            .map(|device| {
                let renewed_by = (device.state == State::Renewed).then_some("this machine");
                json!({
                    "name": device.name.to_string(), "id": device.id.map(|id| id.to_string()),
                    "since": device.since().as_secs(), "until": device.until().as_secs(),
                    "lifetime": device.lifetime().as_secs(), "state": device.state,
                    "revoked": device.state != State::Renewed, "renewed_by": renewed_by,
                })
            })
            .collect();
        let held: Vec<_> = held
            .iter()
            .map(|it| {
                json!({
                    "name": it.name().to_string(), "until": it.expires().as_secs(),
                    "renewed_by": it.signer().to_string(),
                })
            })
            .collect();
        let appointed: Vec<_> = appointed
            .iter()
            .map(|it| {
                json!({
                    "name": it.name().to_string(), "by": it.issuer().to_string(),
                    "until": it.expires().as_secs(),
                })
            })
            .collect();
        return output::json(&json!({ "devices": devices, "held": held, "appointed": appointed }));
    }
    for device in &devices {
        let id = device.id.map_or("a key that is not known here".to_owned(), |id| id.to_string());
        output::line(format!("{}  {id}\n      {}", device.name, state(device, now)))?;
    }
    for it in &held {
        let (name, signer) = (it.name(), it.signer());
        output::line(format!("{name}  this key\n      {}, renewed by {signer}", until(it.expires(), now)))?;
    }
    for it in &appointed {
        let (user, left) = (it.name().user(), it.expires().since(now).as_secs() / 3600);
        let until = match it.is_expired(now) {
            true => "not renewed by this key any more: its appointment has ended".to_owned(),
            false => format!("renewed by this key for {left} hours more"),
        };
        output::line(format!("{user}  other devices\n      {until}"))?;
    }
    if devices.is_empty() && held.is_empty() {
        output::line("no device has a name of this key; give one with `whimbrel id delegate`")?;
    }
    Ok(())
}

fn state(device: &Device, now: UnixTime) -> String {
    match device.state {
        State::Renewed => format!("{}, renewed by this machine", until(device.until(), now)),
        State::Revoked => "revoked".to_owned(),
        State::RevokedElsewhere => "revoked on another machine, and not renewed".to_owned(),
    }
}

/// Until when a delegation counts, in words.
fn until(end: UnixTime, now: UnixTime) -> String {
    let left = end.since(now).as_secs();
    match left {
        0 => "ended".to_owned(),
        1..120 => format!("delegated for {left} seconds more"),
        120..7200 => format!("delegated for {} minutes more", left / 60),
        7200..172_800 => format!("delegated for {} hours more", left / 3600),
        _ => format!("delegated for {} days more", left / 86_400),
    }
}

/// What ends within two days, or has ended, each with what to do about it.
pub(crate) fn warnings(identity: &Identity) -> Result<Vec<String>> {
    let now = UnixTime::from(SystemTime::now());
    let ends_soon = |end: UnixTime, lifetime: Duration| end.since(now) < NEAR.min(lifetime / 4);
    let mut found = Vec::new();
    for device in Devices::beside(&identity.file).all()? {
        if device.state == State::Renewed && ends_soon(device.until(), device.lifetime()) {
            let (name, until) = (&device.name, until(device.until(), now));
            found.push(format!("{name} is {until}; run `whimbrel id renew`, or `whimbrel id revoke {name}`"));
        }
    }
    for it in identity::held(&places::config()?, identity.key.id())? {
        if ends_soon(it.expires(), it.expires().since(it.issued())) {
            let (name, until) = (it.name(), until(it.expires(), now));
            found.push(format!(
                "{name} is {until} to this key; run `whimbrel id renew` where the user's key is"
            ));
        }
    }
    let appointed = Appointed::beside(&identity.file).all()?.into_iter();
    let own = appointed.filter(|it| it.id() == identity.key.id() && now.since(it.expires()) < GIVEN_UP);
    for it in own {
        let lifetime = it.expires().since(it.issued());
        if it.expires().since(now) < NEAR_APPOINTMENT.min(lifetime / 4) {
            let name = it.name();
            let how = if it.is_expired(now) { "has ended" } else { "ends soon" };
            found.push(format!(
                "the appointment of {name} {how}; run `whimbrel id appoint` where the user's key is"
            ));
        }
    }
    Ok(found)
}

/// Renews once what is due.
pub(super) async fn renew(globals: &Globals, identity: Identity, as_json: bool) -> Result<()> {
    let devices = Devices::beside(&identity.file);
    devices.all()?;
    let appointed = Appointed::beside(&identity.file);
    appointed.all()?;
    let network = Network::start(globals, identity.key, Wish::default()).await?;
    network.resolver()?;
    let done = renewer::run_once(&network.endpoint, &devices).await;
    let others = renewer::others::run_once(&network, &appointed).await;
    network.close().await;
    let mut done = done?;
    done.extend(others?);
    if as_json {
        output::json(&json!({ "done": done }))?;
    } else {
        done.iter().try_for_each(|done| output::line(describe(done)))?;
        if done.is_empty() {
            output::line("nothing is due")?;
        }
    }
    if done.iter().any(|done| matches!(done.outcome, Outcome::Failed { .. })) {
        return Err(Failure::silent(Failure::UNREACHABLE));
    }
    Ok(())
}

fn describe(done: &Done) -> String {
    let name = &done.name;
    match &done.outcome {
        Outcome::Renewed { .. } => format!("{name}: renewed"),
        Outcome::RevokedAgain => format!("{name}: the name service had lost its revocation; revoked again"),
        Outcome::RevokedElsewhere => format!("{name}: revoked on another machine; not renewed any more"),
        Outcome::Failed { error } => format!("{name}: {error}"),
    }
}
