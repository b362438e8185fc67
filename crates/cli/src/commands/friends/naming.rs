//! What the user calls friends and their devices. A device that a friend only shows is noted as one of the
//! friend's when it is named: the name is in the user's own list then, on all devices, whatever the friend
//! shows later.

use anyhow::Result;
use whimbrel_base::{EndpointId, Name, UnixTime};
use whimbrel_devices::{Group, Label, MAX_FRIEND_DEVICES, Op, Subject, WriteError};

use crate::failure::Failure;
use crate::own_group::{OwnGroup, call, check_free, find, refused};
use crate::presence::{self, Shown, ShownDevice};

/// Gives a friend, or a device of a friend, a personal name.
pub(super) fn name(own: &OwnGroup, wanted: &str, name: &Label) -> Result<()> {
    let group = own.look(|log| log.group().clone())?;
    if find(&group, wanted).is_err() {
        let now = presence::now();
        let shown = Shown::read(group.user(), now);
        if let Some((friend, device)) = meant(&group, &shown, wanted, now)? {
            return note(own, friend, device, name);
        }
    }
    call(own, wanted, name, true)
}

/// The device that a friend shows and a key or a whole name means, with the friend.
///
/// # Errors
/// When it was shown so long ago that it may not be the friend's any more.
fn meant<'s>(
    group: &Group,
    shown: &'s Shown,
    wanted: &str,
    now: UnixTime,
) -> Result<Option<(EndpointId, &'s ShownDevice)>> {
    let (id, name) = (wanted.parse::<EndpointId>().ok(), wanted.parse::<Name>().ok());
    let is_meant = |device: &ShownDevice| id == Some(device.id) || (name.is_some() && device.name == name);
    let found = shown.devices().find(|(friend, device)| is_meant(device) && group.friend(*friend).is_some());
    match found {
        Some((friend, device)) if shown.old(friend, now).is_some() => {
            let message = format!(
                "{wanted} was not shown for a day, and may not be a device of that friend's any more; name \
                 it once your agent has met one of the friend's, or say whose it is: `whimbrel friends \
                 device FRIEND {}`",
                device.id
            );
            Err(Failure::new(Failure::NOT_FOUND, message).into())
        }
        found => Ok(found),
    }
}

/// Notes a device of a friend, and what the user calls it.
fn note(own: &OwnGroup, friend: EndpointId, device: &ShownDevice, name: &Label) -> Result<()> {
    own.change(|log, key, now| {
        let whom = Subject::FriendDevice(friend, device.id);
        // A device without its name would be let in where the friend's are, and nobody would know it.
        check_free(log.group(), name, whom)?;
        let has_room = log.group().friend(friend).is_some_and(|friend| {
            friend.devices().count() < MAX_FRIEND_DEVICES || friend.devices().any(|(id, _)| id == device.id)
        });
        if !has_room {
            return Err(refused(WriteError::Full));
        }
        let noted = Op::AddFriendDevice { friend, device: device.id, name: device.name.clone() };
        // Both or neither: what was written before an error would stay.
        let mut named = log.clone();
        named.write(key, vec![noted], now).map_err(refused)?;
        named.write(key, vec![Op::Call { whom, name: name.clone() }], now).map_err(refused)?;
        *log = named;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::Duration;

    use whimbrel_base::SecretKey;
    use whimbrel_devices::{Log, Replica};

    use super::*;

    fn id(number: u8) -> EndpointId {
        SecretKey::from_bytes(&[number; 32]).id()
    }

    fn device(number: u8, name: Option<&str>) -> ShownDevice {
        ShownDevice { id: id(number), name: name.map(|name| name.parse().unwrap()), called: None, up: None }
    }

    /// The user 1 has the friend 2.
    fn own() -> OwnGroup {
        let key = SecretKey::from_bytes(&[1; 32]);
        let mut log = Log::new(key.id());
        let name = Some("bob@example.org".parse().unwrap());
        let friend = Op::AddFriend { friend: id(2), name };
        log.write(&key, vec![friend], UnixTime::from_secs(1_700_000_000)).unwrap();
        OwnGroup { key, replica: Arc::new(Replica::in_memory(log)), file: PathBuf::new() }
    }

    #[test]
    fn a_device_that_a_friend_shows_is_meant_by_its_key_or_its_whole_name_and_only_if_the_friend_is_one() {
        let (own, now) = (own(), UnixTime::from_secs(1_700_000_000));
        let group = own.look(|log| log.group().clone()).unwrap();
        let mut shown = Shown::default();
        shown.hear(id(2), id(2), vec![device(3, Some("desk.bob@example.org")), device(4, None)], now);
        shown.hear(id(9), id(9), vec![device(5, Some("desk.eve@example.org"))], now);
        let found = |text: &str| {
            let meant = meant(&group, &shown, text, now).unwrap();
            meant.map(|(friend, device)| (friend, device.id))
        };
        assert_eq!(found("desk.bob@example.org"), Some((id(2), id(3))));
        assert_eq!(found(&id(4).to_string()), Some((id(2), id(4))));
        for text in ["desk", "bob", "", "phone.bob@example.org", "desk.eve@example.org", &id(5).to_string()] {
            assert_eq!(found(text), None, "{text}");
        }
        // A day later nobody has shown them again.
        let later = now.saturating_add(Duration::from_secs(24 * 60 * 60));
        let error = meant(&group, &shown, "desk.bob@example.org", later).unwrap_err().to_string();
        assert!(error.contains("was not shown for a day") && error.contains(&id(3).to_string()), "{error}");
        assert!(meant(&group, &shown, "phone.bob@example.org", later).unwrap().is_none());
    }

    #[test]
    fn what_is_named_is_noted_and_is_not_if_the_name_is_taken() {
        let own = own();
        let seen = device(3, Some("desk.bob@example.org"));
        let taken = note(&own, id(2), &seen, &"bob".parse().unwrap()).unwrap_err().to_string();
        assert!(taken.contains("something else is called bob"), "{taken}");
        let noted = || own.look(|log| devices_of(log.group())).unwrap();
        assert!(noted().is_empty());
        note(&own, id(2), &seen, &"bobs-desk".parse().unwrap()).unwrap();
        assert_eq!(noted(), [(id(3), Some("desk.bob@example.org".to_owned()))]);
        let called = own.look(|log| log.group().called(&"bobs-desk".parse().unwrap())).unwrap();
        assert_eq!(called, Some(Subject::FriendDevice(id(2), id(3))));
        // It is changed as every other one is.
        name(&own, "bobs-desk", &"big".parse().unwrap()).unwrap();
        let called = own.look(|log| log.group().called(&"big".parse().unwrap())).unwrap();
        assert_eq!(called, Some(Subject::FriendDevice(id(2), id(3))));
    }

    #[test]
    fn no_more_devices_of_a_friend_are_noted_than_may_be() {
        let own = own();
        for number in 0..u8::try_from(MAX_FRIEND_DEVICES).unwrap() {
            let label = format!("d{number}").parse().unwrap();
            note(&own, id(2), &device(100 + number, None), &label).unwrap();
        }
        let error = note(&own, id(2), &device(3, None), &"more".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("no room"), "{error}");
        note(&own, id(2), &device(100, None), &"other".parse().unwrap()).unwrap();
    }

    fn devices_of(group: &Group) -> Vec<(EndpointId, Option<String>)> {
        let bob = group.friend(id(2)).unwrap();
        bob.devices().map(|(id, device)| (id, device.name().map(ToString::to_string))).collect()
    }
}
