//! Renews the delegations of the user's other devices, and of services that have keys of their own on these,
//! on a device that the user appointed: the user's key may be away.
//!
//! The appointment is taken from the name service, where the user's key left it, unless it was accepted by
//! hand. Which devices there are, the user's list says. What each was given, and what services were, is read
//! from their records, and remembered: a device that is off for a week is renewed too.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use whimbrel_base::{
    Appointment, Delegation, MAX_RENEWAL_TIME, MAX_RENEWED_TIME, Name, NameKind, SignedRecord, UnixTime,
};
use whimbrel_devices::Group;
use whimbrel_names::{AskError, ErrorCode};

use super::{Done, FORGOTTEN, LONGEST, Outcome, SHORTEST, now, tell};
use crate::appointed::{Acceptance, Appointed};
use crate::failure::Failure;
use crate::network::Network;
use crate::{aside, own_group};

mod charge;

use self::charge::{Charge, may_act};

/// How often new devices, and those that could not be read, are looked for.
const LOOK: Duration = Duration::from_secs(60);
/// How often an appointment is asked for, and services that are new are looked for.
const SELDOM: Duration = Duration::from_secs(600);
/// When a name service that knows no appointments is asked again: it ends the connection over the question,
/// and may have been updated.
const REST: Duration = Duration::from_secs(24 * 60 * 60);

/// When one process asks the name service again.
#[derive(Default)]
struct Looks {
    /// For an appointment.
    appointment: Option<Instant>,
    /// For what the user's devices and their services have.
    names: Option<Instant>,
}

/// Renews in the background, for as long as it is polled.
pub(super) async fn run(network: &Network, appointed: &Appointed) -> Infallible {
    let (mut told, mut looks) = (None, Looks::default());
    loop {
        tell(pass(network, appointed, &mut looks).await, &mut told);
        tokio::time::sleep(next_pass(appointed)).await;
    }
}

/// Renews what is due, if this device is appointed. Returns the names for which something was done.
///
/// # Errors
/// If a file cannot be used, or the user's list does not say that this device may act for the user.
pub(crate) async fn run_once(network: &Network, appointed: &Appointed) -> Result<Vec<Done>> {
    pass(network, appointed, &mut Looks::default()).await
}

async fn pass(network: &Network, appointed: &Appointed, looks: &mut Looks) -> Result<Vec<Done>> {
    let Some(charge) = charge(network, appointed, looks).await? else { return Ok(Vec::new()) };
    appointed.retain(|known| charge.covers(known))?;
    let known = appointed.given()?;
    let is_known = |name: &Name| known.iter().any(|known| known.name() == name);
    let all_have_time =
        known.iter().all(|known| is_fresh(known, now())) && charge.devices().all(|(name, _)| is_known(name));
    if all_have_time && !is_time(looks.names) {
        return Ok(Vec::new());
    }
    // Whatever is answered: an older service ends the connection over the question.
    looks.names = Some(Instant::now() + SELDOM);
    // Those that are off, or not shown to this device, are renewed from what is known of them.
    let shown = network.resolver()?.devices_of(&charge.user()).await.unwrap_or_default();
    let shown = shown.iter().filter_map(SignedRecord::delegation).filter(|word| charge.covers(word)).cloned();
    let mut done = Vec::new();
    for newest in newest_of_each(shown.chain(known)) {
        let outcome = renew(network, appointed, charge.appointment(), &newest).await?;
        done.extend(outcome.map(|outcome| Done { name: newest.name().clone(), outcome }));
    }
    Ok(done)
}

async fn charge(network: &Network, appointed: &Appointed, looks: &mut Looks) -> Result<Option<Charge>> {
    let own = network.id();
    let key = network.key.clone();
    let reading = aside::run(move || own_group::kept(&key));
    let group = match reading.await.context("the process is ending")? {
        Ok(group) => group,
        // Where nothing is to be renewed, the list is not this one's to complain of.
        Err(_) if living(network, appointed)?.is_empty() => None,
        Err(error) => return Err(error),
    };
    if let Some(group) = group.as_ref().filter(|group| group.is_removed(own) && group.device(own).is_none()) {
        appointed.dismiss(group.user())?;
    }
    let group = group.filter(|group| may_act(group, own));
    if let Some(group) = group.as_ref().filter(|_| is_time(looks.appointment)) {
        take(network, appointed, group, looks).await?;
    }
    let living = living(network, appointed)?;
    if living.is_empty() {
        return Ok(None);
    }
    let found = group.and_then(|group| Charge::of(group, own, living));
    found.map(Some).ok_or_else(|| {
        let text = "this device is appointed to renew others, but its list of devices does not say that it \
                    may act for the user: run `whimbrel devices trust` where the user's key is, and \
                    `whimbrel devices sync` here";
        Failure::new(Failure::REFUSED, text).into()
    })
}

/// The appointments of this device that count.
fn living(network: &Network, appointed: &Appointed) -> Result<Vec<Appointment>> {
    let (own, now) = (network.id(), now());
    let mut living = appointed.all()?;
    living.retain(|it| it.id() == own && !it.is_expired(now) && it.verify().is_ok());
    Ok(living)
}

/// Takes what the user's key left at the name service for this device. A service that has none, or says an
/// old one, changes nothing here.
async fn take(network: &Network, appointed: &Appointed, group: &Group, looks: &mut Looks) -> Result<()> {
    let (own, resolver) = (network.id(), network.resolver()?);
    let Some(device) = group.device(own) else { return Ok(()) };
    let left = resolver.appointment(device.name(), own).await;
    looks.appointment = Some(Instant::now() + rest(&left));
    let is_good = |left: &Appointment| left.issuer() == group.user() && !left.is_expired(now());
    if let Ok(Some(left)) = left
        && is_good(&left)
        && appointed.accept(&left)? == Acceptance::New
    {
        let (user, until) = (left.name().user(), left.expires().as_secs());
        tracing::info!(%user, until, "this device is appointed to renew the user's other devices");
    }
    Ok(())
}

/// How long the answer about an appointment is good for.
fn rest(answer: &Result<Option<Appointment>, AskError>) -> Duration {
    if matches!(answer, Err(AskError::Unsupported(_))) { REST } else { SELDOM }
}

/// Whether it is time for what is to be asked again then.
fn is_time(again: Option<Instant>) -> bool {
    again.is_none_or(|at| at <= Instant::now())
}

async fn renew(
    network: &Network,
    appointed: &Appointed,
    appointment: &Appointment,
    newest: &Delegation,
) -> Result<Option<Outcome>> {
    if !appointed.keep(newest)? {
        let error = "this device renews as many names as it can; revoke those that are not used any more";
        return Ok(Some(Outcome::Failed { error: error.to_owned() }));
    }
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

/// Of each name what the user's key gave last, and of that what ends last. Devices come before services:
/// should there be no room for all, these have it.
fn newest_of_each(all: impl Iterator<Item = Delegation>) -> Vec<Delegation> {
    let rank = |word: &Delegation| (word.granted(), word.expires());
    let mut newest: Vec<Delegation> = Vec::new();
    for word in all {
        match newest.iter().position(|known| known.name() == word.name()) {
            Some(at) if rank(&newest[at]) >= rank(&word) => {}
            Some(at) => newest[at] = word,
            None => newest.push(word),
        }
    }
    let is_device = |word: &Delegation| word.name().kind() == NameKind::Device;
    let (mut ordered, services): (Vec<_>, Vec<_>) = newest.into_iter().partition(is_device);
    ordered.extend(services);
    ordered
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
        return SELDOM;
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

    use super::*;

    const DAY: u64 = 86_400;
    const DESK: &str = "desk.ada@example.org";

    fn key(seed: u8) -> SecretKey {
        SecretKey::from_bytes(&[seed; 32])
    }

    fn at(days: u64) -> UnixTime {
        UnixTime::from_secs(1_700_000_000 + days * DAY)
    }

    fn word(name: &str, from: u64, to: u64) -> Delegation {
        Delegation::sign(name.parse().unwrap(), key(2).id(), at(from), at(to), &key(1)).unwrap()
    }

    fn given(from: u64, to: u64) -> Delegation {
        word("laptop.ada@example.org", from, to)
    }

    fn appointment() -> Appointment {
        Appointment::sign(DESK.parse().unwrap(), key(3).id(), at(0), at(30), &key(1)).unwrap()
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
        let renewed = new.renew(&appointment(), at(9), at(16), &key(3)).unwrap();
        let of = |all: &[&Delegation]| newest_of_each(all.iter().map(|it| (*it).clone()));
        assert_eq!(of(&[&new, &old]), std::slice::from_ref(&new));
        assert_eq!(of(&[&renewed, &new, &old]), std::slice::from_ref(&renewed));
        assert_eq!(of(&[&old, &new, &renewed]), std::slice::from_ref(&renewed));
        assert_eq!(of(&[]), []);
        // Each name by itself, and devices first.
        let service = word("ssh.laptop.ada@example.org", 0, 7);
        let phone = word("phone.ada@example.org", 0, 7);
        assert_eq!(of(&[&service, &renewed, &phone, &new]), [renewed, phone, service]);
    }

    #[test]
    fn a_service_is_asked_for_an_appointment_at_once_and_seldom_after_that_and_an_older_one_hardly_ever() {
        assert!(is_time(Looks::default().appointment) && is_time(Some(Instant::now())));
        assert!(!is_time(Some(Instant::now() + SELDOM)));
        assert_eq!(rest(&Ok(None)), SELDOM);
        assert_eq!(rest(&Ok(Some(appointment()))), SELDOM);
        assert_eq!(rest(&Err(AskError::Busy)), SELDOM);
        assert_eq!(rest(&Err(AskError::Unsupported("appointments"))), REST);
    }
}
