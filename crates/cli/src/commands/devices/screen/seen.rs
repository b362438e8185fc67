//! What there is at one moment: the user's devices, and the sessions here and at the gateway.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use whimbrel_base::order;
use whimbrel_devices::{Label, Log, Subject};
use whimbrel_proxy::{Listed, May, SessionsAt, Standing};

use super::page::{Device, Place, Session};
use crate::commands::sessions::{Ways, all_here};
use crate::moving::Elsewhere;
use crate::own_group::OwnGroup;
use crate::plain::plain;
use crate::presence::{self, Presence};
use crate::{aside, failure};

/// For a gateway to tell its sessions.
const LIMIT: Duration = Duration::from_secs(10);
/// Characters of a name.
const LONGEST: usize = 100;
/// Devices and sessions, each.
const MOST: usize = 1000;

/// What was seen.
pub(super) struct Seen {
    /// `None` if the list could not be read: what was known stays.
    pub(super) devices: Option<Vec<Device>>,
    pub(super) sessions: Vec<Session>,
    /// What is wrong, if anything is.
    pub(super) problem: Option<String>,
}

/// Looks at everything.
pub(super) async fn look(own: Arc<OwnGroup>, gateway: Option<&SessionsAt>) -> Seen {
    let reading = aside::run(move || devices(&own));
    let (read, here, kept) = tokio::join!(reading, all_here(), at_gateway(gateway));
    let mut problem = None;
    let devices = read.context("the process is ending").and_then(|read| read);
    let devices = devices.inspect_err(|error| problem = Some(failure::line(error))).ok();
    let here = here.inspect_err(|error| problem = Some(failure::line(error))).unwrap_or_default();
    let kept = kept.inspect_err(|error| problem = Some(failure::line(error))).unwrap_or_default();
    let known = devices.as_deref().unwrap_or_default();
    let kept = kept.iter().map(|listed| of_gateway(listed, known));
    let sessions = here.iter().map(of_this_host).chain(kept).take(MOST).collect();
    Seen { devices, sessions, problem }
}

async fn at_gateway(gateway: Option<&SessionsAt>) -> Result<Vec<Listed>> {
    let Some(gateway) = gateway else { return Ok(Vec::new()) };
    let listed = tokio::time::timeout(LIMIT, gateway.list()).await;
    Ok(listed.context("the gateway does not answer")??)
}

/// The devices as the list has them now, those of others first. Blocks.
fn devices(own: &OwnGroup) -> Result<Vec<Device>> {
    let this = own.key.id();
    own.look(|log| {
        let mut devices = in_log(log);
        devices.iter_mut().for_each(|device| device.is_this = device.id == this);
        order::by_key(&mut devices, |device| device.is_this);
        devices.truncate(MOST);
        devices
    })
}

fn in_log(log: &Log) -> Vec<Device> {
    let (group, names) = (log.group(), log.group().names());
    let presence = Presence::read(group.user());
    let up = |id| presence.of(id, presence::now()).map(|up| up.to_string());
    // A key that two histories are signed with was copied: nothing is handed to it from here.
    let members = group.devices().filter(|(id, _)| group.is_member(*id));
    let each = members.map(|(id, device)| {
        let name = device.name().to_string();
        let called = names.get(&Subject::Device(id)).map(Label::as_str);
        Device { id, called: called.unwrap_or(&name).to_owned(), up: up(id), is_this: false, name }
    });
    let mut devices: Vec<Device> = each.collect();
    let user = group.user();
    if let Some(up) = up(user).filter(|_| group.device(user).is_none()) {
        let name = "the machine with the user's key".to_owned();
        devices.push(Device { id: user, called: "user".to_owned(), up: Some(up), is_this: false, name });
    }
    devices
}

fn of_this_host(told: &Elsewhere) -> Session {
    Session {
        id: told.id.clone(),
        what: format!("{} {}", plain(&told.command, LONGEST), plain(&told.peer, LONGEST)),
        holder: None,
        carried: Ways { down: told.down, up: told.up },
        place: Place::Here,
        stays: None,
    }
}

fn of_gateway(listed: &Listed, known: &[Device]) -> Session {
    let holder = known.iter().find(|device| device.id == listed.holder);
    let stays = match (listed.may, listed.standing) {
        (_, Standing::Fixed) => Some("it stays there: its TLS ends in the program"),
        (_, Standing::Moving) => Some("it is moving"),
        (May::Own, _) => None,
        _ => Some("another device has it: `whimbrel take` brings it here"),
    };
    Session {
        id: listed.id.to_string(),
        what: plain(&listed.to.to_string(), LONGEST),
        holder: match holder {
            Some(device) if device.is_this => None,
            Some(device) => Some(device.called.clone()),
            None if listed.may == May::Own => None,
            None => Some(listed.holder.short()),
        },
        carried: Ways { down: listed.down, up: listed.up },
        place: Place::Gateway { id: listed.id, moves: listed.moves },
        stays,
    }
}
