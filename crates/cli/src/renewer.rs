//! Renews the delegations of this user's devices, and the records of this user's groups, where the user's key
//! is; and the delegations of the user's other devices, where the user appointed this one.
//!
//! A name service that withholds a revocation keeps a lost device alive until its delegation ends, and no
//! longer: so delegations are short, and those of devices that are not lost are renewed.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use serde::Serialize;
use whimbrel::{Endpoint, UserError};
use whimbrel_base::{Name, UnixTime};
use whimbrel_names::ErrorCode;

use crate::devices::{Device, Devices, State};
use crate::groups::{Groups, OwnGroup, Renewal};
use crate::naming;
use crate::network::Network;

pub(crate) mod others;

/// The longest time between two looks at the registry, which other commands change.
const LONGEST: Duration = Duration::from_secs(3600);
/// The shortest.
const SHORTEST: Duration = Duration::from_secs(1);
/// Between attempts to renew a group whose record has half of its time left, or less.
const RETRY: Duration = Duration::from_secs(600);
/// A device whose delegation ended longer ago than this is not renewed any more: it is to be delegated by
/// hand.
const FORGOTTEN: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// What was done about a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// The service has a new delegation for it, until then (unix seconds).
    Renewed { until: u64 },
    /// The service had lost its revocation, and was told again.
    RevokedAgain,
    /// It was revoked, or given to another key, on another machine: it is renewed no more.
    RevokedElsewhere,
    /// It could not be done.
    Failed { error: String },
}

/// A device for which something was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Done {
    pub(crate) name: Name,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
}

/// Renews what is due, and says again what was revoked if the service has forgotten it. Returns the devices
/// for which something was done.
///
/// # Errors
/// If the registry cannot be used.
pub(crate) async fn run_once(endpoint: &Endpoint, devices: &Devices) -> Result<Vec<Done>> {
    let mut done = Vec::new();
    for device in devices.all()? {
        let outcome = match device.state {
            State::Renewed if is_due(&device, now()) => renew(endpoint, devices, &device).await?,
            State::Revoked => revoke_again(endpoint, &device).await,
            State::Renewed | State::RevokedElsewhere => None,
        };
        done.extend(outcome.map(|outcome| Done { name: device.name, outcome }));
    }
    Ok(done)
}

/// Renews in the background, for as long as it is polled.
pub(crate) async fn run(network: &Network) -> Infallible {
    let Ok(_) = network.resolver() else { return std::future::pending().await };
    let Some(devices) = &network.devices else { return std::future::pending().await };
    let groups = async {
        match &network.groups {
            Some(groups) => renew_groups(network, groups).await,
            None => std::future::pending().await,
        }
    };
    let others = async {
        match &network.appointed {
            Some(appointed) => others::run(network, appointed).await,
            None => std::future::pending().await,
        }
    };
    tokio::join!(renew_devices(network, devices), groups, others).0
}

async fn renew_groups(network: &Network, groups: &Groups) -> Infallible {
    let mut told = None;
    loop {
        let known = groups.all().unwrap_or_else(|error| {
            let text = crate::failure::line(&error);
            if told.as_ref() != Some(&text) {
                tracing::warn!(error = %text, "no group is renewed");
                told = Some(text);
            }
            Vec::new()
        });
        for group in known.iter().filter(|group| group.is_due_in(now()).is_zero()) {
            renew_group(network, groups, group).await;
        }
        let next = groups.all().unwrap_or_default().iter().map(|group| next_look_at(group, now())).min();
        tokio::time::sleep(next.unwrap_or(LONGEST)).await;
    }
}

async fn renew_group(network: &Network, groups: &Groups, group: &OwnGroup) {
    let name = &group.name;
    let renewed = match naming::known_permission(network, name) {
        Ok(delegation) => groups.renew(&network.endpoint, group, delegation, now()).await,
        Err(error) => Err(error),
    };
    match renewed {
        Ok(Renewal::Renewed) => tracing::info!(%name, "renewed the record of the group"),
        Ok(Renewal::Gone(why)) => tracing::warn!(%name, why, "the group is gone; it is renewed no more"),
        Err(error) => {
            let error = crate::failure::line(&error);
            tracing::warn!(%name, error, "cannot renew the record of the group yet");
        }
    }
}

/// How long to wait for the next look at a group. If it is due already, the service was not reached.
fn next_look_at(group: &OwnGroup, now: UnixTime) -> Duration {
    match group.is_due_in(now) {
        Duration::ZERO => RETRY,
        left => left.min(LONGEST),
    }
}

async fn renew_devices(network: &Network, devices: &Devices) -> Infallible {
    let mut told = None;
    loop {
        tell(run_once(&network.endpoint, devices).await, &mut told);
        let next = devices.all().unwrap_or_default().iter().map(|device| next_look(device, now())).min();
        tokio::time::sleep(next.unwrap_or(LONGEST)).await;
    }
}

/// Logs what was done; what keeps a pass from it, once.
fn tell(pass: Result<Vec<Done>>, told: &mut Option<String>) {
    match pass {
        Ok(done) => {
            *told = None;
            done.iter().for_each(log);
        }
        Err(error) => {
            let text = crate::failure::line(&error);
            if told.as_ref() != Some(&text) {
                tracing::warn!(error = %text, "no device is renewed");
                *told = Some(text);
            }
        }
    }
}

fn log(done: &Done) {
    let name = &done.name;
    match &done.outcome {
        Outcome::Renewed { until } => tracing::info!(%name, until, "renewed the delegation"),
        Outcome::RevokedAgain => {
            tracing::warn!(%name, "the name service had lost the revocation of this name; revoked again");
        }
        Outcome::RevokedElsewhere => {
            tracing::warn!(%name, "the name was revoked on another machine; it is renewed no more");
        }
        Outcome::Failed { error } => tracing::warn!(%name, error, "cannot renew the delegation yet"),
    }
}

async fn renew(endpoint: &Endpoint, devices: &Devices, device: &Device) -> Result<Option<Outcome>> {
    let Some(id) = device.id else { return Ok(None) };
    match endpoint.renew(&device.name, id, device.lifetime()).await {
        Ok(delegation) => {
            let until = delegation.expires().as_secs();
            Ok(devices.renewed(&delegation)?.then_some(Outcome::Renewed { until }))
        }
        Err(UserError::Names(error))
            if matches!(error.code(), Some(ErrorCode::Revoked | ErrorCode::DelegationSuperseded)) =>
        {
            devices.revoked_elsewhere(device)?;
            Ok(Some(Outcome::RevokedElsewhere))
        }
        Err(error) => Ok(Some(Outcome::Failed { error: error.to_string() })),
    }
}

async fn revoke_again(endpoint: &Endpoint, device: &Device) -> Option<Outcome> {
    let known = endpoint.names()?.lookup_record(&device.name).await;
    if known.is_err_and(|error| error.code() == Some(ErrorCode::Revoked)) {
        return None;
    }
    Some(match endpoint.revoke(&device.name).await {
        Ok(_) => Outcome::RevokedAgain,
        Err(error) => Outcome::Failed { error: error.to_string() },
    })
}

/// Whether less than half of the delegation's time is left.
fn is_due(device: &Device, now: UnixTime) -> bool {
    let is_forgotten = now.since(device.until()) > FORGOTTEN;
    device.until().since(now) < device.lifetime() / 2 && !is_forgotten
}

/// How long to wait for the next look, as far as this device goes.
fn next_look(device: &Device, now: UnixTime) -> Duration {
    if device.state != State::Renewed || now.since(device.until()) > FORGOTTEN {
        return LONGEST;
    }
    let (left, half) = (device.until().since(now), device.lifetime() / 2);
    // If it is due already, the service was not reached.
    let next = if left > half { left.saturating_sub(half) } else { left / 8 };
    next.clamp(SHORTEST, LONGEST)
}

fn now() -> UnixTime {
    SystemTime::now().into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::{Delegation, SecretKey};

    use super::*;

    const WEEK: u64 = 604_800;
    const START: u64 = 1_700_000_000;

    /// A device that was delegated for a week.
    fn device(revoked: bool) -> Device {
        let folder = tempfile::tempdir().unwrap();
        let devices = Devices::beside(&folder.path().join("identity"));
        let (key, name) =
            (SecretKey::from_bytes(&[1; 32]), "laptop.ada@example.org".parse::<Name>().unwrap());
        let (from, to) = (UnixTime::from_secs(START), UnixTime::from_secs(START + WEEK));
        devices.delegated(&Delegation::sign(name.clone(), key.id(), from, to, &key).unwrap()).unwrap();
        if revoked {
            devices.revoke(&name).unwrap();
        }
        devices.all().unwrap().remove(0)
    }

    #[test]
    fn a_delegation_is_due_in_its_second_half_and_for_a_month_behind_its_end() {
        let device = device(false);
        let month = 30 * 86_400;
        for (after, due) in [
            (0, false),
            (WEEK / 2, false),
            (WEEK / 2 + 1, true),
            (WEEK, true),
            (WEEK + month, true),
            (WEEK + month + 1, false),
        ] {
            assert_eq!(is_due(&device, UnixTime::from_secs(START + after)), due, "{after}");
        }
    }

    #[test]
    fn the_next_look_is_when_it_is_due_and_within_an_hour() {
        let look = |device: &Device, after| next_look(device, UnixTime::from_secs(START + after)).as_secs();
        let (renewed, revoked) = (device(false), device(true));
        let after = [0, WEEK / 2 - 100, WEEK / 2, WEEK - 800, WEEK - 1, WEEK + 86_400 * 31];
        let looks: Vec<_> = after.into_iter().map(|after| look(&renewed, after)).collect();
        assert_eq!(looks, [3600, 100, 3600, 100, 1, 3600]);
        assert_eq!(look(&revoked, WEEK - 1), 3600);
    }
}
