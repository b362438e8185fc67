//! Shows the user's friends, which of their devices are up, and which devices they have, as far as they let
//! it be seen.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Map, Value, json};
use whimbrel_base::{EndpointId, UnixTime};
use whimbrel_devices::{Friend, Group, Label, Subject};

use crate::output;
use crate::own_group::OwnGroup;
use crate::presence::{self, Presence, Shown, ShownDevice, Up};

/// What there is to see at one moment.
struct Seen {
    group: Group,
    presence: Presence,
    shown: Shown,
    now: UnixTime,
}

/// Shows the list.
pub(super) fn run(own: &OwnGroup, as_json: bool) -> Result<()> {
    let group = own.look(|log| log.group().clone())?;
    let (user, now) = (group.user(), presence::now());
    let seen = Seen { group, presence: Presence::read(user), shown: Shown::read(user, now), now };
    if as_json { output::json(&seen.as_json()) } else { seen.lines().iter().try_for_each(output::line) }
}

impl Seen {
    /// Of the friend's own key and of the devices that are noted.
    fn up(&self, id: EndpointId, friend: &Friend) -> Vec<(EndpointId, Up)> {
        let keys = std::iter::once(id).chain(friend.devices().map(|(device, _)| device));
        keys.filter_map(|key| Some((key, self.presence.of(key, self.now)?))).collect()
    }

    /// Of a device that a friend shows: what it said itself, or else what the friend's other devices heard.
    fn up_of(&self, device: &ShownDevice) -> Option<Up> {
        self.presence.of(device.id, self.now).or_else(|| device.up(self.now))
    }

    fn as_json(&self) -> Value {
        let names = self.group.names();
        let called = |subject: Subject| names.get(&subject).map(Label::as_str);
        let friends = self.group.friends().map(|(id, friend)| {
            let devices: Vec<_> = friend.devices().map(|(device, _)| device.to_string()).collect();
            let mut up = Map::new();
            up.extend(self.up(id, friend).into_iter().map(|(key, up)| (key.to_string(), up.as_json())));
            let is_old = self.shown.old(id, self.now).is_some();
            let shows = self.shown.of(id).iter().map(|device| {
                json!({
                    "called": called(Subject::FriendDevice(id, device.id)),
                    "name": device.name.as_ref().map(ToString::to_string), "id": device.id.to_string(),
                    "called_there": device.called.as_ref().map(Label::as_str),
                    "presence": self.up_of(device).map(|up| up.as_json()), "old": is_old,
                })
            });
            let shows: Vec<Value> = shows.collect();
            json!({
                "called": called(Subject::Friend(id)), "name": friend.name().map(ToString::to_string),
                "id": id.to_string(), "devices": devices, "up": up, "shows": shows,
                "may_see": { "presence": friend.rights().presence, "devices": friend.rights().devices },
            })
        });
        json!({ "friends": friends.collect::<Vec<_>>() })
    }

    fn lines(&self) -> Vec<String> {
        let names = self.group.names();
        let called = |subject: Subject| names.get(&subject).map_or("-", Label::as_str);
        let mut lines = Vec::new();
        for (id, friend) in self.group.friends() {
            let name = friend.name().map_or_else(|| id.to_string(), ToString::to_string);
            let up = self.up(id, friend);
            // At one of the devices is enough.
            let best = up.iter().map(|(_, up)| up).min_by_key(|up| up.away);
            let best = best.map(|up| format!(", {up}")).unwrap_or_default();
            lines.push(format!("{}  {name}{best}", called(Subject::Friend(id))));
            let old = self.shown.old(id, self.now).map(described_as_old).unwrap_or_default();
            for device in self.shown.of(id) {
                let ours = called(Subject::FriendDevice(id, device.id));
                lines.push(format!("  {}{old}", describe(ours, device, self.up_of(device))));
            }
        }
        if lines.is_empty() {
            let none = "no friends yet; introduce yourselves with `whimbrel invite --as` and `whimbrel join`";
            lines.push(none.to_owned());
        }
        lines
    }
}

fn describe(ours: &str, device: &ShownDevice, up: Option<Up>) -> String {
    let name = device.name.as_ref().map_or_else(|| device.id.to_string(), ToString::to_string);
    let theirs = device.called.as_ref().map(|called| format!(", called {called} there")).unwrap_or_default();
    let up = up.map(|up| format!(", {up}")).unwrap_or_default();
    format!("{ours}  {name}{theirs}{up}")
}

/// What stands behind a device that was not shown again for so long.
fn described_as_old(age: Duration) -> String {
    const HOUR: u64 = 60 * 60;
    match age.as_secs() / HOUR {
        0 => ", old".to_owned(),
        hours => {
            let age = Duration::from_secs(hours * HOUR);
            format!(", old: not shown again for {}", humantime::format_duration(age))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::SecretKey;
    use whimbrel_devices::{Log, Op};

    use super::*;
    use crate::presence::Said;

    #[test]
    fn devices_that_a_friend_shows_stand_below_the_friend_with_what_is_known_of_them() {
        let [user, bob, carol, desk, phone] =
            [1, 2, 3, 4, 5].map(|number| SecretKey::from_bytes(&[number; 32]));
        let now = UnixTime::from_secs(1_700_000_000);
        let mut log = Log::new(user.id());
        for (friend, name) in [(&bob, "bob@example.org"), (&carol, "carol@example.org")] {
            let name = Some(name.parse().unwrap());
            log.write(&user, vec![Op::AddFriend { friend: friend.id(), name }], now).unwrap();
        }
        let noted = Op::AddFriendDevice { friend: bob.id(), device: phone.id(), name: None };
        log.write(&user, vec![noted], now).unwrap();
        let whom = Subject::FriendDevice(bob.id(), phone.id());
        log.write(&user, vec![Op::Call { whom, name: "bobs-phone".parse().unwrap() }], now).unwrap();
        let (mut presence, mut shown) = (Presence::default(), Shown::default());
        let away = Said { away: true, seconds: 60 };
        let device = |key: &SecretKey, name: Option<&str>| ShownDevice {
            id: key.id(),
            name: name.map(|name| name.parse().unwrap()),
            called: name.map(|_| "big".parse().unwrap()),
            up: Some(Up::told(away, 0, now)),
        };
        shown.hear(
            bob.id(),
            bob.id(),
            vec![device(&desk, Some("desk.bob@example.org")), device(&phone, None)],
            now,
        );
        presence.hear(phone.id(), Some(Said { away: false, seconds: 5 }), now);
        let seen = Seen { group: log.group().clone(), presence, shown, now };
        let lines = seen.lines();
        let at = lines.iter().position(|line| line == "bob  bob@example.org, present for 5s").unwrap();
        assert_eq!(lines[at + 1], "  -  desk.bob@example.org, called big there, away for 1m");
        assert_eq!(lines[at + 2], format!("  bobs-phone  {}, present for 5s", phone.id()));
        assert_eq!(lines.len(), 4);
        let json = seen.as_json();
        let friends = json["friends"].as_array().unwrap();
        let of = |name: &str| friends.iter().find(|friend| friend["name"] == name).unwrap();
        let shows = &of("bob@example.org")["shows"];
        assert_eq!((&shows[0]["id"], &shows[0]["called"]), (&json!(desk.id().to_string()), &Value::Null));
        assert_eq!(
            (&shows[0]["called_there"], &shows[0]["presence"]["state"]),
            (&json!("big"), &json!("away"))
        );
        assert_eq!((&shows[1]["called"], &shows[1]["name"]), (&json!("bobs-phone"), &Value::Null));
        assert_eq!(shows[0]["old"], json!(false));
        assert_eq!(of("carol@example.org")["shows"], json!([]));
        // It was not said again for more than a day.
        let now = now.saturating_add(Duration::from_secs(26 * 60 * 60 + 61));
        let seen = Seen { now, ..seen };
        let lines = seen.lines();
        let at = lines.iter().position(|line| line == "bob  bob@example.org").unwrap();
        let old = "  -  desk.bob@example.org, called big there, old: not shown again for 1day 2h";
        assert_eq!(lines[at + 1], old);
        let json = seen.as_json();
        let friends = json["friends"].as_array().unwrap();
        let bob = friends.iter().find(|friend| friend["name"] == "bob@example.org").unwrap();
        assert_eq!(bob["shows"][0]["old"], json!(true));
    }
}
