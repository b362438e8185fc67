//! Appointments of this key to renew the delegations of its user's other devices, and the newest of those
//! that it has seen: two files beside the key.

use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use whimbrel_base::{Appointment, Delegation, EndpointId, Name};

use crate::ledger::Ledger;

/// The most users who appointed this key.
const MAX_APPOINTMENTS: usize = 16;
/// The most names that are renewed, of devices and of services with keys of their own.
const MAX_GIVEN: usize = 256;

/// What became of an appointment that was to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acceptance {
    /// It is kept now.
    New,
    /// It was kept already.
    Known,
    /// A newer one by the same key is kept.
    Older,
}

/// By whom a key is appointed, and what it renews.
#[derive(Clone, Debug)]
pub(crate) struct Appointed {
    appointments: Ledger<String>,
    given: Ledger<String>,
}

impl Appointed {
    /// The files beside the key file.
    pub(crate) fn beside(identity: &Path) -> Self {
        let again = "have the user appoint this device again (`whimbrel id appoint`)";
        let anew =
            "run `whimbrel id renew` while the user's other devices are up: what they have is read anew";
        Self {
            appointments: Ledger::beside(identity, "appointments", again),
            given: Ledger::beside(identity, "renewing", anew),
        }
    }

    /// All appointments, ended ones too.
    pub(crate) fn all(&self) -> Result<Vec<Appointment>> {
        read(&self.appointments)
    }

    /// Keeps an appointment in place of an earlier one by the same key.
    pub(crate) fn accept(&self, appointment: &Appointment) -> Result<Acceptance> {
        self.appointments.change(|texts| {
            let mut known = texts.iter().filter_map(|text| text.parse::<Appointment>().ok());
            match known.find(|known| known.issuer() == appointment.issuer()) {
                Some(known) if known == *appointment => return Ok(Acceptance::Known),
                Some(known) if known.issued() > appointment.issued() => return Ok(Acceptance::Older),
                _ => {}
            }
            texts.retain(|text| by(text).is_some_and(|issuer| issuer != appointment.issuer()));
            if texts.len() >= MAX_APPOINTMENTS {
                let file = self.appointments.file().display();
                bail!("{file} has {MAX_APPOINTMENTS} appointments, and no more are kept; take out some");
            }
            texts.push(appointment.to_string());
            Ok(Acceptance::New)
        })
    }

    /// Forgets what this user's key appointed this one to.
    pub(crate) fn dismiss(&self, user: EndpointId) -> Result<()> {
        self.appointments.change(|texts| {
            texts.retain(|text| by(text) != Some(user));
            Ok(())
        })
    }

    /// The newest delegation of each name that was seen or made.
    pub(crate) fn given(&self) -> Result<Vec<Delegation>> {
        read(&self.given)
    }

    /// Keeps a delegation as the newest of its name. False if there is no room for one more name.
    pub(crate) fn keep(&self, delegation: &Delegation) -> Result<bool> {
        self.given.change(|texts| {
            texts.retain(|text| of(text).is_some_and(|known| known.name() != delegation.name()));
            let has_room = texts.len() < MAX_GIVEN;
            if has_room {
                texts.push(delegation.to_string());
            }
            Ok(has_room)
        })
    }

    /// Forgets the delegation of a name, which counts no more.
    pub(crate) fn forget(&self, name: &Name) -> Result<()> {
        self.retain(|known| known.name() != name)
    }

    /// Forgets what is not to be renewed any more.
    pub(crate) fn retain(&self, stays: impl Fn(&Delegation) -> bool) -> Result<()> {
        self.given.change(|texts| {
            texts.retain(|text| of(text).is_some_and(|known| stays(&known)));
            Ok(())
        })
    }
}

/// Whose appointment a text is.
fn by(text: &str) -> Option<EndpointId> {
    Some(text.parse::<Appointment>().ok()?.issuer())
}

/// Which delegation a text is.
fn of(text: &str) -> Option<Delegation> {
    text.parse().ok()
}

fn read<T: FromStr>(ledger: &Ledger<String>) -> Result<Vec<T>>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    let texts = ledger.all()?;
    let parsed: Result<Vec<T>, T::Err> = texts.iter().map(|text| text.parse::<T>()).collect();
    parsed.with_context(|| format!("{} is damaged; restore it, or move it aside", ledger.file().display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use whimbrel_base::{SecretKey, UnixTime};

    use super::*;

    const DESK: &str = "desk.ada@example.org";

    fn key(seed: u8) -> SecretKey {
        SecretKey::from_bytes(&[seed; 32])
    }

    fn appointment(user: u8, until: u64) -> Appointment {
        let (from, to) = (UnixTime::from_secs(1000), UnixTime::from_secs(until));
        Appointment::sign(DESK.parse().unwrap(), key(3).id(), from, to, &key(user)).unwrap()
    }

    fn delegation(name: &str, until: u64) -> Delegation {
        let (from, to) = (UnixTime::from_secs(1000), UnixTime::from_secs(until));
        Delegation::sign(name.parse().unwrap(), key(2).id(), from, to, &key(1)).unwrap()
    }

    #[test]
    fn one_appointment_of_each_user_is_kept_and_the_number_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let appointed = Appointed::beside(&folder.path().join("identity"));
        assert_eq!(appointed.all().unwrap(), []);
        appointed.accept(&appointment(1, 2000)).unwrap();
        appointed.accept(&appointment(4, 2000)).unwrap();
        appointed.accept(&appointment(1, 3000)).unwrap();
        assert_eq!(appointed.all().unwrap(), [appointment(4, 2000), appointment(1, 3000)]);
        assert_eq!(fs::metadata(appointed.appointments.file()).unwrap().mode() & 0o777, 0o600);
        for user in 5..5 + MAX_APPOINTMENTS as u8 - 2 {
            appointed.accept(&appointment(user, 2000)).unwrap();
        }
        let error = appointed.accept(&appointment(99, 2000)).unwrap_err().to_string();
        assert!(error.contains("identity.appointments has 16 appointments"), "{error}");
        appointed.accept(&appointment(1, 4000)).unwrap();
    }

    #[test]
    fn a_newer_appointment_takes_the_place_of_an_older_one_and_not_the_other_way_round() {
        let folder = tempfile::tempdir().unwrap();
        let appointed = Appointed::beside(&folder.path().join("identity"));
        let issued = |at: u64| {
            let (from, to) = (UnixTime::from_secs(at), UnixTime::from_secs(5000));
            Appointment::sign(DESK.parse().unwrap(), key(3).id(), from, to, &key(1)).unwrap()
        };
        appointed.accept(&appointment(4, 2000)).unwrap();
        for (at, became) in [
            (2000, Acceptance::New),
            (2000, Acceptance::Known),
            (1999, Acceptance::Older),
            (2001, Acceptance::New),
        ] {
            assert_eq!(appointed.accept(&issued(at)).unwrap(), became, "{at}");
        }
        assert_eq!(appointed.all().unwrap(), [appointment(4, 2000), issued(2001)]);
        appointed.dismiss(key(1).id()).unwrap();
        assert_eq!(appointed.all().unwrap(), [appointment(4, 2000)]);
    }

    #[test]
    fn the_names_that_are_renewed_are_bounded_and_those_that_are_known_stay() {
        let folder = tempfile::tempdir().unwrap();
        let appointed = Appointed::beside(&folder.path().join("identity"));
        let of = |number: usize, until| delegation(&format!("s{number}.laptop.ada@example.org"), until);
        let texts: Vec<String> = (0..MAX_GIVEN).map(|number| of(number, 2000).to_string()).collect();
        let full = serde_json::json!({ "format": 1, "renewing": texts });
        fs::write(appointed.given.file(), full.to_string()).unwrap();
        assert!(!appointed.keep(&of(MAX_GIVEN, 2000)).unwrap());
        assert!(appointed.keep(&of(7, 3000)).unwrap());
        let given = appointed.given().unwrap();
        assert_eq!((given.len(), given.contains(&of(7, 3000))), (MAX_GIVEN, true));
    }

    #[test]
    fn the_newest_delegation_of_a_device_is_kept_until_it_is_none_of_the_users_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let appointed = Appointed::beside(&folder.path().join("identity"));
        let (laptop, phone) = ("laptop.ada@example.org", "phone.ada@example.org");
        for (name, until) in [(laptop, 2000), (phone, 2000), (laptop, 3000)] {
            appointed.keep(&delegation(name, until)).unwrap();
        }
        assert_eq!(appointed.given().unwrap(), [delegation(phone, 2000), delegation(laptop, 3000)]);
        appointed.forget(&phone.parse().unwrap()).unwrap();
        assert_eq!(appointed.given().unwrap(), [delegation(laptop, 3000)]);
        appointed.retain(|known| known.id() == key(2).id()).unwrap();
        assert_eq!(appointed.given().unwrap(), [delegation(laptop, 3000)]);
        appointed.retain(|known| known.id() == key(9).id()).unwrap();
        assert_eq!(appointed.given().unwrap(), []);
    }

    #[test]
    fn a_damaged_file_of_appointments_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let appointed = Appointed::beside(&folder.path().join("identity"));
        appointed.accept(&appointment(1, 2000)).unwrap();
        let good = fs::read_to_string(appointed.appointments.file()).unwrap();
        for damaged in [good.replace("whimbrel-appointment:", ""), good[..good.len() / 2].to_owned()] {
            fs::write(appointed.appointments.file(), damaged).unwrap();
            let error = format!("{:#}", appointed.all().unwrap_err());
            assert!(error.contains("identity.appointments is damaged"), "{error}");
        }
    }
}
