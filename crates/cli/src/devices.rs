//! The devices that were given names with a key on this machine: a file beside the key.
//!
//! Only what was delegated here is renewed here. What was revoked is remembered, so that nobody renews it and
//! a service that was restored from a backup is told again.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use whimbrel_base::{Delegation, EndpointId, Name, UnixTime};

use crate::ledger::Ledger;
use whimbrel_base::order;

/// The most devices that are remembered.
const MAX_DEVICES: usize = 256;

/// What becomes of a device's delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// This machine renews it.
    Renewed,
    /// It was revoked here.
    Revoked,
    /// The name service refused to renew it: it was revoked, or given to another key, on another machine.
    RevokedElsewhere,
}

/// One device (or service) and what is known of its delegation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Device {
    pub(crate) name: Name,
    /// The key that was given the name; unknown if it was only revoked here.
    pub(crate) id: Option<EndpointId>,
    /// When it was delegated by hand: unix seconds.
    since: u64,
    /// When its delegation ends: unix seconds.
    until: u64,
    /// For how many seconds each delegation holds.
    lifetime: u64,
    pub(crate) state: State,
}

impl Device {
    pub(crate) fn until(&self) -> UnixTime {
        UnixTime::from_secs(self.until)
    }

    pub(crate) fn since(&self) -> UnixTime {
        UnixTime::from_secs(self.since)
    }

    pub(crate) fn lifetime(&self) -> Duration {
        Duration::from_secs(self.lifetime)
    }
}

/// The registry of one key.
#[derive(Clone, Debug)]
pub(crate) struct Devices {
    ledger: Ledger<Device>,
}

impl Devices {
    /// The registry beside the key file.
    pub(crate) fn beside(identity: &Path) -> Self {
        let advice = "delegate again (`whimbrel id delegate`): until then no device is renewed";
        Self { ledger: Ledger::beside(identity, "devices", advice) }
    }

    /// All that is known, by name.
    pub(crate) fn all(&self) -> Result<Vec<Device>> {
        self.ledger.all()
    }

    /// Notes a delegation that was made by hand: it counts whatever was before.
    pub(crate) fn delegated(&self, delegation: &Delegation) -> Result<()> {
        self.change(|devices| {
            devices.retain(|known| known.name != *delegation.name());
            if devices.len() >= MAX_DEVICES {
                bail!(
                    "{} has {MAX_DEVICES} devices, and no more are renewed; take out some",
                    self.ledger.file().display()
                );
            }
            devices.push(Device {
                name: delegation.name().clone(),
                id: Some(delegation.id()),
                since: delegation.issued().as_secs(),
                until: delegation.expires().as_secs(),
                lifetime: delegation.expires().since(delegation.issued()).as_secs(),
                state: State::Renewed,
            });
            Ok(())
        })
    }

    /// Notes that the name service took a renewal. False if the device was revoked or given away meanwhile.
    pub(crate) fn renewed(&self, delegation: &Delegation) -> Result<bool> {
        self.change(|devices| {
            let found = devices.iter_mut().find(|known| {
                known.name == *delegation.name()
                    && known.id == Some(delegation.id())
                    && known.state == State::Renewed
            });
            let is_known = found.is_some();
            if let Some(known) = found {
                known.until = known.until.max(delegation.expires().as_secs());
            }
            Ok(is_known)
        })
    }

    /// The key that a name was given to here. A registry that can't be read says nothing.
    pub(crate) fn key_of(&self, name: &Name) -> Option<EndpointId> {
        self.all().ok()?.into_iter().find(|known| known.name == *name).and_then(|known| known.id)
    }

    /// Notes that the name service says that a device was revoked on another machine.
    pub(crate) fn revoked_elsewhere(&self, device: &Device) -> Result<()> {
        self.change(|devices| {
            for known in devices.iter_mut().filter(|known| *known == device) {
                known.state = State::RevokedElsewhere;
            }
            Ok(())
        })
    }

    /// Notes that names were revoked here, and those of the services on a device with it. Says whether the
    /// name was delegated here.
    pub(crate) fn revoke(&self, name: &Name) -> Result<bool> {
        self.change(|devices| {
            let mut is_known = false;
            for known in devices.iter_mut() {
                if known.name == *name || known.name.device().as_ref() == Some(name) {
                    known.state = State::Revoked;
                    is_known |= known.name == *name;
                }
            }
            Ok(is_known)
        })
    }

    /// Remembers the revocation of a name that was delegated on another machine.
    pub(crate) fn remember(&self, name: &Name) -> Result<()> {
        let now = UnixTime::from(SystemTime::now()).as_secs();
        self.change(|devices| {
            if devices.iter().any(|known| known.name == *name) || devices.len() >= MAX_DEVICES {
                return Ok(());
            }
            let (name, state) = (name.clone(), State::Revoked);
            devices.push(Device { name, id: None, since: now, until: now, lifetime: 0, state });
            Ok(())
        })
    }

    fn change<T>(&self, decide: impl FnOnce(&mut Vec<Device>) -> Result<T>) -> Result<T> {
        self.ledger.change(|devices| {
            let result = decide(devices)?;
            order::by(devices, |one, other| one.name.as_str().cmp(other.name.as_str()));
            Ok(result)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use whimbrel_base::SecretKey;

    use super::*;

    fn delegation(name: &str, to: u8, until: u64) -> Delegation {
        let (user, to) = (SecretKey::from_bytes(&[1; 32]), SecretKey::from_bytes(&[to; 32]).id());
        let (from, until) = (UnixTime::from_secs(1000), UnixTime::from_secs(until));
        Delegation::sign(name.parse().unwrap(), to, from, until, &user).unwrap()
    }

    #[test]
    fn what_was_revoked_is_not_renewed_and_not_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let devices = Devices::beside(&folder.path().join("identity"));
        assert_eq!(devices.all().unwrap(), []);
        let laptop = delegation("laptop.ada@example.org", 2, 2000);
        devices.delegated(&laptop).unwrap();
        devices.delegated(&delegation("ssh.laptop.ada@example.org", 3, 2000)).unwrap();
        devices.delegated(&delegation("phone.ada@example.org", 4, 2000)).unwrap();
        assert!(devices.renewed(&delegation("laptop.ada@example.org", 2, 3000)).unwrap());
        assert!(!devices.renewed(&delegation("laptop.ada@example.org", 9, 9000)).unwrap(), "another key");
        assert!(devices.revoke(laptop.name()).unwrap());
        assert!(!devices.renewed(&delegation("laptop.ada@example.org", 2, 4000)).unwrap());
        let known: Vec<_> =
            devices.all().unwrap().into_iter().map(|it| (it.name, it.until, it.state)).collect();
        let name = |text: &str| text.parse::<Name>().unwrap();
        let expected = [
            (name("laptop.ada@example.org"), 3000, State::Revoked),
            (name("phone.ada@example.org"), 2000, State::Renewed),
            (name("ssh.laptop.ada@example.org"), 2000, State::Revoked),
        ];
        assert_eq!(known, expected);
        // By hand it counts again.
        devices.delegated(&laptop).unwrap();
        assert!(devices.renewed(&delegation("laptop.ada@example.org", 2, 5000)).unwrap());
        assert_eq!(fs::metadata(devices.ledger.file()).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_registry_is_told_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let devices = Devices::beside(&folder.path().join("identity"));
        devices.delegated(&delegation("laptop.ada@example.org", 2, 2000)).unwrap();
        let good = fs::read_to_string(devices.ledger.file()).unwrap();
        for damaged in [&good[..good.len() / 2], "", "{}", &good.replace("1000", "-1")] {
            fs::write(devices.ledger.file(), damaged).unwrap();
            for result in [
                devices.all().map(drop),
                devices.delegated(&delegation("phone.ada@example.org", 4, 2000)),
                devices.revoke(&"laptop.ada@example.org".parse().unwrap()).map(drop),
            ] {
                let error = format!("{:#}", result.unwrap_err());
                assert!(error.contains("identity.devices is damaged"), "{error}");
            }
            assert_eq!(fs::read_to_string(devices.ledger.file()).unwrap(), damaged);
        }
    }

    #[test]
    fn the_number_of_devices_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let devices = Devices::beside(&folder.path().join("identity"));
        for number in 0..MAX_DEVICES {
            devices.remember(&format!("d{number}.ada@example.org").parse().unwrap()).unwrap();
        }
        assert!(devices.delegated(&delegation("laptop.ada@example.org", 2, 2000)).is_err());
        devices.delegated(&delegation("d7.ada@example.org", 2, 2000)).unwrap();
        assert_eq!(devices.all().unwrap().len(), MAX_DEVICES);
    }
}
