//! Renews the delegations of the user's other devices, on a device that the user appointed: the user's key may
//! be away.
//!
//! Which devices there are, the user's list says. What each was given is read from its record, and remembered:
//! a device that is off for a week is renewed too.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::{Context as _, Result};
use whimbrel_base::{
    Appointment, Delegation, EndpointId, MAX_RENEWAL_TIME, MAX_RENEWED_TIME, Name, SignedRecord, UnixTime,
};
use whimbrel_devices::Group;
use whimbrel_names::ErrorCode;

use super::{Done, FORGOTTEN, LONGEST, Outcome, SHORTEST, now, tell};
use crate::appointed::Appointed;
use crate::failure::Failure;
use crate::network::Network;
use crate::{aside, own_group};

/// How often new devices, and those that could not be read, are looked for.
const LOOK: Duration = Duration::from_secs(60);

/// What this device is to do, by whose word.
struct Charge {
    appointment: Appointment,
    devices: Vec<(Name, EndpointId)>,
}

/// Renews in the background, for as long as it is polled.
pub(super) async fn run(network: &Network, appointed: &Appointed) -> Infallible {
    let mut told = None;
    loop {
        tell(run_once(network, appointed).await, &mut told);
        tokio::time::sleep(next_pass(appointed)).await;
    }
}

/// Renews what is due, if this device is appointed. Returns the devices for which something was done.
///
/// # Errors
/// If a file cannot be used, or the user's list does not say that this device may act for the user.
pub(crate) async fn run_once(network: &Network, appointed: &Appointed) -> Result<Vec<Done>> {
    let Some(charge) = charge(network, appointed).await? else { return Ok(Vec::new()) };
    appointed.keep_only(&charge.devices)?;
    let known = appointed.given()?;
    let of = |name: &Name| known.iter().find(|known| known.name() == name).cloned();
    let has_time = |(name, _): &(Name, EndpointId)| of(name).is_some_and(|known| is_fresh(&known, now()));
    if charge.devices.iter().all(has_time) {
        return Ok(Vec::new());
    }
    // Those that are off, or not shown to this device, are renewed from what is known of them.
    let user = charge.appointment.name().user();
    let shown = network.resolver()?.devices_of(&user).await.unwrap_or_default();
    let shown: Vec<&Delegation> = shown.iter().filter_map(SignedRecord::delegation).collect();
    let mut done = Vec::new();
    for (name, id) in &charge.devices {
        let is_its = |it: &&&Delegation| {
            it.name() == name && it.id() == *id && it.issuer() == charge.appointment.issuer()
        };
        let of_it = shown.iter().filter(is_its).map(|it| (*it).clone()).chain(of(name));
        let Some(newest) = newest(of_it) else { continue };
        let outcome = renew(network, appointed, &charge.appointment, &newest).await?;
        done.extend(outcome.map(|outcome| Done { name: name.clone(), outcome }));
    }
    Ok(done)
}

async fn charge(network: &Network, appointed: &Appointed) -> Result<Option<Charge>> {
    let (own, now) = (network.id(), now());
    let mut living = appointed.all()?;
    living.retain(|it| it.id() == own && !it.is_expired(now) && it.verify().is_ok());
    if living.is_empty() {
        return Ok(None);
    }
    let key = network.key.clone();
    let reading = aside::run(move || own_group::kept(&key));
    let group = reading.await.context("the process is ending")??;
    let found = group.and_then(|group| of_group(&group, own, living));
    found.map(Some).ok_or_else(|| {
        let text = "this device is appointed to renew others, but its list of devices does not say that it \
                    may act for the user: run `whimbrel devices trust` where the user's key is, and \
                    `whimbrel devices sync` here";
        Failure::new(Failure::REFUSED, text).into()
    })
}

/// What there is to do in a group, if this device may act for its user.
fn of_group(group: &Group, own: EndpointId, living: Vec<Appointment>) -> Option<Charge> {
    let user = group.user();
    let appointment = living.into_iter().find(|it| it.issuer() == user)?;
    if !group.is_member(own) || !group.is_trusted(own) {
        return None;
    }
    let others = group.devices().filter(|(id, _)| *id != own && *id != user && group.is_member(*id));
    let devices = others.map(|(id, device)| (device.name().clone(), id)).collect();
    Some(Charge { appointment, devices })
}

async fn renew(
    network: &Network,
    appointed: &Appointed,
    appointment: &Appointment,
    newest: &Delegation,
) -> Result<Option<Outcome>> {
    appointed.keep(newest)?;
    let from = now();
    let last = appointment.expires().min(newest.granted().saturating_add(MAX_RENEWED_TIME));
    let end = from.saturating_add(lifetime(newest)).min(last);
    // Near the end of the appointment, and of what the user's key gave, there is no more time to give.
    if !is_due(newest, from) || end <= newest.expires().max(from) {
        return Ok(None);
    }
    let renewed = match newest.renew(appointment, from, end, &network.key) {
        Ok(renewed) => renewed,
        Err(error) => return Ok(Some(Outcome::Failed { error: error.to_string() })),
    };
    Ok(Some(match network.resolver()?.renew(&renewed).await {
        Ok(_) => {
            appointed.keep(&renewed)?;
            Outcome::Renewed { until: renewed.expires().as_secs() }
        }
        Err(error) if matches!(error.code(), Some(ErrorCode::Revoked | ErrorCode::DelegationSuperseded)) => {
            appointed.forget(newest.name())?;
            Outcome::RevokedElsewhere
        }
        Err(error) => Outcome::Failed { error: error.to_string() },
    }))
}

/// What the user's key gave last; of that, what ends last.
fn newest(all: impl Iterator<Item = Delegation>) -> Option<Delegation> {
    all.max_by_key(|it| (it.granted(), it.expires()))
}

/// For how long one is renewed.
fn lifetime(delegation: &Delegation) -> Duration {
    delegation.expires().since(delegation.issued()).min(MAX_RENEWAL_TIME)
}

/// Whether it is too early to look for a newer one. One that was forgotten may have been given anew.
fn is_fresh(delegation: &Delegation, now: UnixTime) -> bool {
    delegation.expires().since(now) >= lifetime(delegation) / 2
}

/// Whether so little time is left that a renewal gives more, and the device is not forgotten.
fn is_due(delegation: &Delegation, now: UnixTime) -> bool {
    let is_forgotten = now.since(delegation.expires()) > FORGOTTEN;
    !is_fresh(delegation, now) && !is_forgotten
}

/// How long to wait for the next pass.
fn next_pass(appointed: &Appointed) -> Duration {
    if !appointed.all().is_ok_and(|all| !all.is_empty()) {
        return LONGEST;
    }
    let given = appointed.given().unwrap_or_default();
    let next = given.iter().map(|it| next_look(it, now())).min();
    next.unwrap_or(LOOK).min(LOOK)
}

/// How long to wait for the next look, as far as this device goes.
fn next_look(delegation: &Delegation, now: UnixTime) -> Duration {
    if now.since(delegation.expires()) > FORGOTTEN {
        return LONGEST;
    }
    let (left, half) = (delegation.expires().since(now), lifetime(delegation) / 2);
    // If it is due already, the service was not reached; if it is over, there is no hurry any more.
    let next = match left {
        Duration::ZERO => LOOK,
        left if left > half => left.saturating_sub(half),
        left => left / 8,
    };
    next.clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::SecretKey;
    use whimbrel_devices::{Log, Op};

    use super::*;

    const DAY: u64 = 86_400;
    const DESK: &str = "desk.ada@example.org";

    fn key(seed: u8) -> SecretKey {
        SecretKey::from_bytes(&[seed; 32])
    }

    fn at(days: u64) -> UnixTime {
        UnixTime::from_secs(1_700_000_000 + days * DAY)
    }

    fn given(from: u64, to: u64) -> Delegation {
        let name = "laptop.ada@example.org".parse().unwrap();
        Delegation::sign(name, key(2).id(), at(from), at(to), &key(1)).unwrap()
    }

    fn appointment(user: u8) -> Appointment {
        Appointment::sign(DESK.parse().unwrap(), key(3).id(), at(0), at(30), &key(user)).unwrap()
    }

    #[test]
    fn a_week_is_renewed_in_its_second_half_and_a_year_in_its_last_days() {
        for (word, after, due) in [
            (given(0, 7), 3, false),
            (given(0, 7), 4, true),
            (given(0, 7), 37, true),
            (given(0, 7), 38, false),
            (given(0, 365), 300, false),
            (given(0, 365), 362, true),
        ] {
            assert_eq!(is_due(&word, at(after)), due, "{after}");
        }
        let (early, forgotten) = (is_fresh(&given(0, 7), at(3)), is_fresh(&given(0, 7), at(38)));
        assert!(early && !forgotten, "what was forgotten is looked for: it may be given anew");
        assert_eq!(next_look(&given(0, 7), at(3)), LONGEST);
        assert_eq!(next_look(&given(0, 7), UnixTime::from_secs(at(7).as_secs() - 1)), SHORTEST);
        assert_eq!(next_look(&given(0, 7), at(8)), LOOK, "whoever is refused asks no more often");
    }

    #[test]
    fn what_the_user_gave_last_counts_and_of_that_what_ends_last() {
        let (old, new) = (given(0, 30), given(5, 12));
        let renewed = new.renew(&appointment(1), at(9), at(16), &key(3)).unwrap();
        let of = |all: &[&Delegation]| newest(all.iter().map(|it| (*it).clone()));
        assert_eq!(of(&[&new, &old]), Some(new.clone()));
        assert_eq!(of(&[&renewed, &new, &old]), Some(renewed.clone()));
        assert_eq!(of(&[&old, &new, &renewed]), Some(renewed.clone()));
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn only_who_may_act_for_the_user_renews_and_only_the_users_other_devices() {
        let (user, desk, laptop) = (key(1), key(3).id(), key(2).id());
        let mut log = Log::new(user.id());
        let add =
            |device, name: &str, trusted| Op::AddDevice { device, name: name.parse().unwrap(), trusted };
        let ops = vec![add(desk, DESK, false), add(laptop, "laptop.ada@example.org", false)];
        log.write(&user, ops, at(0)).unwrap();
        let charge = |log: &Log, by: u8| of_group(log.group(), desk, vec![appointment(by)]);
        assert!(charge(&log, 1).is_none(), "it may not act for the user");
        log.write(&user, vec![Op::Trust { device: desk }], at(0)).unwrap();
        assert!(charge(&log, 9).is_none(), "another user appointed it");
        let found = charge(&log, 1).unwrap();
        assert_eq!(found.devices, [("laptop.ada@example.org".parse::<Name>().unwrap(), laptop)]);
        log.remove_device(&user, laptop, at(0)).unwrap();
        assert_eq!(charge(&log, 1).unwrap().devices, []);
    }
}
