//! What an appointed device is to renew, by whose word: pure decisions.

use whimbrel_base::{Appointment, Delegation, EndpointId, Name, NameKind};
use whimbrel_devices::Group;

/// What this device is to do, by whose word.
pub(super) struct Charge {
    own: EndpointId,
    appointment: Appointment,
    group: Group,
}

/// Whether a group says that one of its devices may act for its user. The user's own key is none.
pub(super) fn may_act(group: &Group, own: EndpointId) -> bool {
    own != group.user() && group.is_member(own) && group.is_trusted(own)
}

impl Charge {
    /// What there is to do in a group, if this device may act for its user, who appointed it.
    pub(super) fn of(group: Group, own: EndpointId, living: Vec<Appointment>) -> Option<Self> {
        let appointment = living.into_iter().find(|it| it.issuer() == group.user())?;
        may_act(&group, own).then_some(Self { own, appointment, group })
    }

    pub(super) fn appointment(&self) -> &Appointment {
        &self.appointment
    }

    /// The user's name.
    pub(super) fn user(&self) -> Name {
        self.appointment.name().user()
    }

    /// The user's other devices.
    pub(super) fn devices(&self) -> impl Iterator<Item = (&Name, EndpointId)> {
        let is_other =
            move |id: EndpointId| id != self.own && id != self.group.user() && self.group.is_member(id);
        let others = self.group.devices().filter(move |(id, _)| is_other(*id));
        others.map(|(id, device)| (device.name(), id))
    }

    /// Whether a delegation is to be renewed: by the user's key, and for one of these devices, or for a
    /// service on one of them with a key of its own.
    ///
    /// Services are not in the user's list, so that only the name service says when one was taken back. With
    /// its device all of them are given up, by the user's own word.
    pub(super) fn covers(&self, word: &Delegation) -> bool {
        let Some(device) = word.name().device() else { return false };
        if word.issuer() != self.group.user() || word.id() == self.own || device == *self.appointment.name() {
            return false;
        }
        let mut of_name = self.devices().filter(|(name, _)| **name == device);
        match word.name().kind() {
            NameKind::Device => of_name.any(|(_, id)| id == word.id()),
            _ => of_name.next().is_some() && !self.group.is_removed(word.id()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::{SecretKey, UnixTime};
    use whimbrel_devices::{Log, Op};

    use super::*;

    const DAY: u64 = 86_400;
    const DESK: &str = "desk.ada@example.org";
    const LAPTOP: &str = "laptop.ada@example.org";
    const SSH: &str = "ssh.laptop.ada@example.org";

    fn key(seed: u8) -> SecretKey {
        SecretKey::from_bytes(&[seed; 32])
    }

    fn at(days: u64) -> UnixTime {
        UnixTime::from_secs(1_700_000_000 + days * DAY)
    }

    fn word(name: &str, to: u8, user: u8) -> Delegation {
        Delegation::sign(name.parse().unwrap(), key(to).id(), at(0), at(7), &key(user)).unwrap()
    }

    fn add(device: u8, name: &str, trusted: bool) -> Op {
        Op::AddDevice { device: key(device).id(), name: name.parse().unwrap(), trusted }
    }

    /// Of the desk (key 3), by a user's key.
    fn charge(log: &Log, by: u8) -> Option<Charge> {
        let appointment =
            Appointment::sign(DESK.parse().unwrap(), key(3).id(), at(0), at(30), &key(by)).unwrap();
        Charge::of(log.group().clone(), key(3).id(), vec![appointment])
    }

    /// Of the user (key 1): the laptop (key 2), and the desk, which may act for her.
    fn with_devices() -> Log {
        let mut log = Log::new(key(1).id());
        log.write(&key(1), vec![add(3, DESK, true), add(2, LAPTOP, false)], at(0)).unwrap();
        log
    }

    #[test]
    fn only_who_may_act_for_the_user_renews_and_only_the_users_other_devices() {
        let mut log = Log::new(key(1).id());
        log.write(&key(1), vec![add(3, DESK, false), add(2, LAPTOP, false)], at(0)).unwrap();
        assert!(charge(&log, 1).is_none(), "it may not act for the user");
        log.write(&key(1), vec![Op::Trust { device: key(3).id() }], at(0)).unwrap();
        assert!(charge(&log, 9).is_none(), "another user appointed it");
        let found = charge(&log, 1).unwrap();
        let devices: Vec<_> = found.devices().collect();
        assert_eq!(devices, [(&LAPTOP.parse::<Name>().unwrap(), key(2).id())]);
        log.remove_device(&key(1), key(2).id(), at(0)).unwrap();
        assert_eq!(charge(&log, 1).unwrap().devices().count(), 0);
    }

    #[test]
    fn a_device_is_renewed_with_the_key_that_the_list_has_and_nothing_of_another_user() {
        let charge = charge(&with_devices(), 1).unwrap();
        assert!(charge.covers(&word(LAPTOP, 2, 1)));
        for (name, to, user) in [
            (LAPTOP, 5, 1),
            (LAPTOP, 2, 9),
            ("phone.ada@example.org", 2, 1),
            ("laptop.ada@example.com", 2, 1),
            (DESK, 3, 1),
            (DESK, 2, 1),
        ] {
            assert!(!charge.covers(&word(name, to, user)), "{name} {to} {user}");
        }
    }

    #[test]
    fn a_service_with_a_key_of_its_own_is_renewed_while_its_device_is_in_the_list() {
        let mut log = with_devices();
        let found = charge(&log, 1).unwrap();
        assert!(found.covers(&word(SSH, 5, 1)));
        for (name, to, user) in [
            (SSH, 5, 9),
            (SSH, 3, 1),
            ("ssh.desk.ada@example.org", 5, 1),
            ("ssh.phone.ada@example.org", 5, 1),
        ] {
            assert!(!found.covers(&word(name, to, user)), "{name} {to} {user}");
        }
        // What was removed as a device comes back under no other name.
        log.write(&key(1), vec![add(5, "phone.ada@example.org", false)], at(0)).unwrap();
        log.remove_device(&key(1), key(5).id(), at(0)).unwrap();
        let found = charge(&log, 1).unwrap();
        assert_eq!((found.covers(&word(SSH, 5, 1)), found.covers(&word(SSH, 6, 1))), (false, true));
        log.remove_device(&key(1), key(2).id(), at(0)).unwrap();
        assert!(!charge(&log, 1).unwrap().covers(&word(SSH, 6, 1)));
    }
}
