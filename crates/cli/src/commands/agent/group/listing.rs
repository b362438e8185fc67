//! Which devices the user has, as friends are told it who may see that.
//!
//! A stream that begins with [`LIST`] asks for it. The answer is its length (two bytes, big-endian) and a
//! postcard value. Who may not see it is answered like a friend of somebody who has no devices.
//! `docs/protocol.md` has the bytes.

use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_base::{EndpointId, Name, NameKind, UnixTime, order};
use whimbrel_devices::{Device, Group, Label, Visibility};
use whimbrel_transport::{Connection, Stream};

use super::policy;
use super::pulse::WORD_LIMIT;
use crate::presence::{MOST_OF_ONE, Said, ShownDevice, Up};

/// What a stream begins with on which a friend asks for the list.
pub(super) const LIST: &[u8; 4] = b"WHB3";

/// What a device said of itself, as another one tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Retold {
    pub(super) said: Said,
    /// So many seconds ago.
    pub(super) ago: u32,
}

/// A device, as a friend is told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Listed {
    id: EndpointId,
    name: Name,
    /// What the user has chosen to call it.
    called: Option<Label>,
    presence: Option<Retold>,
}

/// What a friend is told who may see the user's devices: those that were not removed and did not write two
/// histories, those first that were devices first. `up` says what is known of a device; only of such as are
/// shown to friends it is told.
pub(super) fn of(group: &Group, up: impl Fn(EndpointId) -> Option<Retold>) -> Vec<Listed> {
    let mut devices: Vec<(EndpointId, &Device)> =
        group.devices().filter(|(id, _)| group.is_member(*id)).collect();
    order::by_key(&mut devices, |(_, device)| device.since());
    devices.truncate(MOST_OF_ONE);
    let listed = devices.into_iter().map(|(id, device)| {
        // A name that nobody chose may have a number, and tell so that something else is called like it.
        let called = group.chosen(id).cloned();
        let is_shown = policy::shown_to(group, id) == Visibility::Friends;
        let presence = if is_shown { up(id) } else { None };
        Listed { id, name: device.name().clone(), called, presence }
    });
    listed.collect()
}

/// What is kept of a friend's list: no key that is this user's, another friend's or noted as one of another
/// friend's devices, each key once, and no name of another user.
pub(super) fn believed(
    group: &Group,
    friend: EndpointId,
    listed: Vec<Listed>,
    now: UnixTime,
) -> Vec<ShownDevice> {
    if listed.is_empty() {
        return Vec::new();
    }
    let user = group.friend(friend).and_then(|friend| friend.name());
    let others = group.friends().filter(|(other, _)| *other != friend);
    let others = order::set(others.flat_map(|(other, known)| {
        let devices = known.devices().map(|(device, _)| device);
        std::iter::once(other).chain(devices)
    }));
    let is_ours = |id: EndpointId| id == group.user() || group.device(id).is_some() || group.is_removed(id);
    let is_of_friend = |name: &Name| name.kind() == NameKind::Device && Some(&name.user()) == user;
    let mut devices: Vec<ShownDevice> = Vec::new();
    for Listed { id, name, called, presence } in listed {
        let is_known = devices.iter().any(|known| known.id == id);
        if is_known || is_ours(id) || others.contains(&id) {
            continue;
        }
        let up = presence.map(|told| Up::told(told.said, told.ago, now));
        devices.push(ShownDevice { id, name: Some(name).filter(is_of_friend), called, up });
    }
    devices
}

/// Asks for the list.
pub(super) async fn ask(connection: &Connection) -> io::Result<Vec<Listed>> {
    let asking = async {
        let mut stream = connection.open_stream().await.map_err(io::Error::other)?;
        stream.write_all(LIST).await?;
        let mut bytes = vec![0_u8; stream.read_u16().await?.into()];
        stream.read_exact(&mut bytes).await?;
        decode(&bytes).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "the friend's agent says something else")
        })
    };
    tokio::time::timeout(WORD_LIMIT, asking).await.map_err(io::Error::from)?
}

/// Answers who asked.
pub(super) async fn say(list: &[Listed], stream: &mut Stream) -> io::Result<()> {
    let bytes = postcard::to_stdvec(list).map_err(io::Error::other)?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], bytes.as_slice()].concat()).await?;
    stream.flush().await
}

/// A list that takes all of these bytes and is not too long.
fn decode(bytes: &[u8]) -> Option<Vec<Listed>> {
    let (list, rest): (Vec<Listed>, &[u8]) = postcard::take_from_bytes(bytes).ok()?;
    (rest.is_empty() && list.len() <= MOST_OF_ONE).then_some(list)
}

/// Decodes whatever comes as a list; what is understood can be said again, and is kept without a device
/// twice.
#[cfg(feature = "fuzzing")]
pub(super) fn decode_anything(bytes: &[u8]) {
    let Some(list) = decode(bytes) else { return };
    let said = postcard::to_stdvec(&list).unwrap_or_default();
    assert_eq!(decode(&said).as_ref(), Some(&list));
    let user = whimbrel_base::SecretKey::from_bytes(&[1; 32]).id();
    let log = whimbrel_devices::Log::new(user);
    let kept = believed(log.group(), user, list, UnixTime::from_secs(1));
    let keys = order::set(kept.iter().map(|device| device.id));
    assert_eq!((keys.len(), keys.contains(&user)), (kept.len(), false));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::SecretKey;
    use whimbrel_base::name::MAX_NAME_BYTES;
    use whimbrel_devices::{Log, Op, Subject};

    use super::*;

    const AWAY: Retold = Retold { said: Said { away: true, seconds: 300 }, ago: 7 };

    fn key(number: u8) -> SecretKey {
        SecretKey::from_bytes(&[number; 32])
    }

    fn id(number: u8) -> EndpointId {
        key(number).id()
    }

    fn now() -> UnixTime {
        UnixTime::from_secs(1_700_000_000)
    }

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    /// The user 1 has the devices 2, 3 and 4.
    fn log() -> Log {
        let mut log = Log::new(id(1));
        for device in [2, 3, 4] {
            let name = name(&format!("d{device}.ada@example.org"));
            log.add_device(&key(1), id(device), name, false, now()).unwrap();
        }
        log
    }

    fn listed(device: u8, called: Option<&str>, presence: Option<Retold>) -> Listed {
        let called = called.map(|called| called.parse().unwrap());
        Listed { id: id(device), name: name(&format!("d{device}.ada@example.org")), called, presence }
    }

    /// What is written here is written in `docs/protocol.md`.
    #[test]
    fn the_bytes_of_a_list_are_those_of_the_protocol_and_nothing_else_is_one() {
        let list = vec![listed(2, Some("desk"), Some(AWAY))];
        let bytes = postcard::to_stdvec(&list).unwrap();
        let text = b"\x12d2.ada@example.org\x01\x04desk\x01\x01\xac\x02\x07";
        assert_eq!(bytes, [&[1_u8][..], id(2).as_bytes(), text].concat());
        assert_eq!(decode(&bytes), Some(list));
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end]), None, "{end}");
        }
        assert_eq!(decode(&[&bytes[..], b"x"].concat()), None);
        // A friend without the right gets this, and so does a friend of somebody without devices.
        assert_eq!(postcard::to_stdvec(&of(Log::new(id(1)).group(), |_| None)).unwrap(), b"\0");
        assert_eq!(decode(b"\0"), Some(Vec::new()));
    }

    #[test]
    fn a_list_has_no_more_devices_than_are_kept_and_fits_its_length_whatever_their_names() {
        let local = format!("{0}.{0}.{0}", "n".repeat(63));
        let domain = format!("{}.org", "d".repeat(MAX_NAME_BYTES - local.len() - 1 - 4));
        let long = Listed {
            id: id(2),
            name: name(&format!("{local}@{domain}")),
            called: Some("c".repeat(63).parse().unwrap()),
            presence: Some(Retold { said: Said { away: true, seconds: u32::MAX }, ago: u32::MAX }),
        };
        assert_eq!(long.name.as_str().len(), MAX_NAME_BYTES);
        let full = postcard::to_stdvec(&vec![long.clone(); MOST_OF_ONE]).unwrap();
        assert_eq!(full.len(), 46_594, "so docs/devices.md says, with the length");
        assert!(full.len() <= u16::MAX.into());
        assert_eq!(decode(&full).unwrap().len(), MOST_OF_ONE);
        let more = postcard::to_stdvec(&vec![long; MOST_OF_ONE + 1]).unwrap();
        assert_eq!(decode(&more), None);
        // A length that nothing stands behind.
        assert_eq!(decode(b"\xff\xff\xff\xff\x0f"), None);
    }

    #[test]
    fn a_user_with_very_many_devices_shows_those_that_were_first() {
        let mut log = Log::new(id(1));
        for number in 0..u64::try_from(MOST_OF_ONE).unwrap() + 1 {
            let mut secret = [5; 32];
            secret[..8].copy_from_slice(&number.to_be_bytes());
            let (device, name) =
                (SecretKey::from_bytes(&secret).id(), name(&format!("d{number}.ada@example.org")));
            let at = UnixTime::from_secs(1_700_000_000 + number);
            log.write(&key(1), vec![Op::AddDevice { device, name, trusted: false }], at).unwrap();
        }
        let list = of(log.group(), |_| None);
        let last = format!("d{MOST_OF_ONE}.ada@example.org");
        let first = list.iter().map(|device| device.name.as_str()).collect::<Vec<_>>();
        assert_eq!(
            (first.len(), first[0], first.contains(&last.as_str())),
            (MOST_OF_ONE, "d0.ada@example.org", false)
        );
    }

    #[test]
    fn devices_that_were_not_removed_are_told_and_whether_those_are_up_that_friends_may_see() {
        let mut log = log();
        let write = |log: &mut Log, op| log.write(&key(1), vec![op], now()).unwrap();
        write(&mut log, Op::Show { device: id(2), to: Visibility::Friends });
        write(&mut log, Op::Call { whom: Subject::Device(id(2)), name: "desk".parse().unwrap() });
        // The device 3 has a number behind its name by that, and friends are not told why.
        write(&mut log, Op::AddFriend { friend: id(5), name: None });
        write(&mut log, Op::Call { whom: Subject::Friend(id(5)), name: "d3".parse().unwrap() });
        log.remove_device(&key(1), id(4), now()).unwrap();
        let all = |log: &Log| of(log.group(), |_| Some(AWAY));
        assert_eq!(all(&log), [listed(2, Some("desk"), Some(AWAY)), listed(3, None, None)]);
        assert_eq!(of(log.group(), |_| None)[0], listed(2, Some("desk"), None), "nothing is known of it");
        // The device 3 may not act for the user.
        let call = Op::Call { whom: Subject::Device(id(3)), name: "bank".parse().unwrap() };
        log.write(&key(3), vec![call], now()).unwrap();
        assert_eq!(all(&log)[1].called, None);
    }

    #[test]
    fn a_friend_cannot_pass_off_keys_and_names_of_others_as_the_own_ones() {
        let mut log = log();
        for (friend, user) in [(5, "bob@example.org"), (6, "carol@example.org")] {
            let op = Op::AddFriend { friend: id(friend), name: Some(name(user)) };
            log.write(&key(1), vec![op], now()).unwrap();
        }
        let noted = Op::AddFriendDevice { friend: id(6), device: id(11), name: None };
        log.write(&key(1), vec![noted], now()).unwrap();
        log.remove_device(&key(1), id(4), now()).unwrap();
        let of = |device: u8, text: &str| Listed {
            id: id(device),
            name: name(text),
            called: None,
            presence: None,
        };
        let said = vec![
            of(1, "home.bob@example.org"),
            of(2, "home.bob@example.org"),
            of(4, "home.bob@example.org"),
            of(6, "home.bob@example.org"),
            of(11, "home.bob@example.org"),
            of(5, "home.bob@example.org"),
            of(7, "home.carol@example.org"),
            of(7, "desk.bob@example.org"),
            of(8, "bob@example.org"),
            of(9, "web.desk.bob@example.org"),
            Listed { presence: Some(AWAY), ..of(10, "desk.bob@example.org") },
        ];
        let kept = believed(log.group(), id(5), said, now());
        let names = kept.iter().map(|device| (device.id, device.name.as_ref().map(Name::as_str)));
        let expected = [
            (id(5), Some("home.bob@example.org")),
            (id(7), None),
            (id(8), None),
            (id(9), None),
            (id(10), Some("desk.bob@example.org")),
        ];
        assert_eq!(names.collect::<Vec<_>>(), expected);
        assert_eq!(kept[4].up, Some(Up::told(AWAY.said, 7, now())));
    }
}
