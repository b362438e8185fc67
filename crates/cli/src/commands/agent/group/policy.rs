//! Which device is told what, and when. No clock, no network, no file.

use std::time::Duration;

use whimbrel_base::EndpointId;
use whimbrel_base::order;
use whimbrel_devices::{Digest, Friend, Group, Visibility};

/// Between two heartbeats, before what chance adds or takes.
pub(super) const PERIOD: Duration = Duration::from_secs(30);
/// After a change: so that many of them are told at once.
const SOON: Duration = Duration::from_millis(100);
/// Before a device is called again that did not answer, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5 * 60));
/// Devices that are called.
pub(super) const MOST_CALLED: usize = 128;

/// What a peer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// The version of the group, and what it lacks of it.
    pub(super) group: bool,
    /// Whether this device is up.
    pub(super) presence: bool,
    /// Which devices the user has.
    pub(super) devices: bool,
}

impl Told {
    /// Nothing yet; the peer is not left for that.
    pub(super) const NOTHING: Self = Self { group: false, presence: false, devices: false };
    /// What tells nothing of this device.
    pub(super) const GROUP: Self = Self { group: true, ..Self::NOTHING };
}

/// What a device tells a peer; `None` for strangers, who are not answered at all.
pub(super) fn told(group: &Group, own: EndpointId, peer: EndpointId, visible: bool) -> Option<Told> {
    let shown = shown_to(group, own);
    if group.is_member(peer) {
        return Some(Told { presence: visible && shown != Visibility::Nobody, ..Told::GROUP });
    }
    let rights = friend_of(group, peer).map(|(_, friend)| friend.rights()).unwrap_or_default();
    let is_told = rights.presence && visible && shown == Visibility::Friends;
    // A device that was removed is nobody's friend's.
    let told = Told { presence: true, devices: rights.devices, ..Told::NOTHING };
    (is_told && !group.is_removed(peer)).then_some(told)
}

/// To whom a device of the user is shown. The user's own key has no such setting: what friends may see
/// decides.
pub(super) fn shown_to(group: &Group, id: EndpointId) -> Visibility {
    match group.device(id) {
        Some(device) => device.visibility(),
        None if id == group.user() => Visibility::Friends,
        None => Visibility::Nobody,
    }
}

/// The friend whose key this is, or that of a device.
fn friend_of(group: &Group, peer: EndpointId) -> Option<(EndpointId, &Friend)> {
    if let Some(friend) = group.friend(peer) {
        return Some((peer, friend));
    }
    let has = |friend: &Friend| friend.devices().any(|(id, _)| id == peer);
    group.friends().find(|(_, friend)| has(friend))
}

/// The friend whose devices a peer is asked for. A device of the user has the list.
pub(super) fn friend_to_ask(group: &Group, peer: EndpointId) -> Option<EndpointId> {
    let is_ours = group.is_member(peer) || group.is_removed(peer);
    friend_of(group, peer).filter(|_| !is_ours).map(|(friend, _)| friend)
}

/// Whether a key is that of a device whose word on whether it is up is kept: the user's and friends'.
pub(super) fn may_be_heard(group: &Group, peer: EndpointId) -> bool {
    group.is_member(peer) || friend_of(group, peer).is_some()
}

/// Whom a device calls: the user's others, and of friends those that are told anything. So nobody learns by a
/// call that this device is up who may not know.
pub(in crate::commands::agent) fn called(group: &Group, own: EndpointId, visible: bool) -> Vec<EndpointId> {
    let members = group.devices().map(|(id, _)| id).filter(|id| *id != group.user());
    let mut called: Vec<EndpointId> = std::iter::once(group.user()).chain(members).collect();
    called.retain(|id| *id != own && group.is_member(*id));
    called.extend(friends(group, own, visible));
    called.truncate(MOST_CALLED);
    called
}

/// The keys of friends that are told whether this device is up, as [`told`] has it. There may be very many.
fn friends(group: &Group, own: EndpointId, visible: bool) -> Vec<EndpointId> {
    if !visible || shown_to(group, own) != Visibility::Friends {
        return Vec::new();
    }
    let mut may_see = order::map(group.friends().map(|(id, friend)| (id, friend.rights().presence)));
    for (_, friend) in group.friends() {
        for (device, _) in friend.devices() {
            may_see.entry(device).or_insert(friend.rights().presence);
        }
    }
    let is_told = |id: &EndpointId| *id != own && !group.is_member(*id) && !group.is_removed(*id);
    may_see.into_iter().filter(|(_, may)| *may).map(|(id, _)| id).filter(is_told).collect()
}

/// Whether two devices with these versions meet. Two that could not agree try again once either has another
/// one.
pub(super) fn should_meet(own: Digest, theirs: Digest, in_vain: Option<(Digest, Digest)>) -> bool {
    own != theirs && in_vain != Some((own, theirs))
}

/// Until the next heartbeat: between 0.8 and 1.2 of the period.
pub(super) fn pause(chance: u16) -> Duration {
    PERIOD * 4 / 5 + spread(PERIOD * 2 / 5, chance)
}

/// Between a change and its heartbeat.
pub(super) fn soon(chance: u16) -> Duration {
    SOON + spread(SOON * 2, chance)
}

/// Before a device is called again after so many failures in a row: a half of it at least.
pub(super) fn again(failures: u32, chance: u16) -> Duration {
    let whole = AGAIN.0.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(AGAIN.1);
    whole / 2 + spread(whole / 2, chance)
}

fn spread(whole: Duration, chance: u16) -> Duration {
    whole * u32::from(chance) / u32::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::{SecretKey, UnixTime};
    use whimbrel_devices::{Log, Op, Rights};

    use super::*;

    fn key(number: u8) -> SecretKey {
        SecretKey::from_bytes(&[number; 32])
    }

    fn id(number: u8) -> EndpointId {
        key(number).id()
    }

    fn now() -> UnixTime {
        UnixTime::from_secs(1_700_000_000)
    }

    /// The user 1 has the devices 2 and 3, and the friend 4 with the device 5.
    fn log() -> Log {
        let mut log = Log::new(id(1));
        for device in [2, 3] {
            let name = format!("d{device}.ada@example.org").parse().unwrap();
            log.add_device(&key(1), id(device), name, false, now()).unwrap();
        }
        let friend = Op::AddFriend { friend: id(4), name: None };
        let device = Op::AddFriendDevice { friend: id(4), device: id(5), name: None };
        log.write(&key(1), vec![friend], now()).unwrap();
        log.write(&key(1), vec![device], now()).unwrap();
        log
    }

    fn write(log: &mut Log, op: Op) {
        log.write(&key(1), vec![op], now()).unwrap();
    }

    fn allow(log: &mut Log, presence: bool) {
        write(log, Op::Allow { friend: id(4), rights: Rights { presence, devices: false } });
    }

    const ALL: Option<Told> = Some(Told { group: true, presence: true, devices: false });
    const UNSEEN: Option<Told> = Some(Told { group: true, presence: false, devices: false });
    const PRESENCE: Option<Told> = Some(Told { group: false, presence: true, devices: false });
    const DEVICES: Option<Told> = Some(Told { group: false, presence: true, devices: true });

    #[test]
    fn devices_are_told_of_the_group_and_a_removed_one_and_strangers_nothing() {
        let mut log = log();
        for peer in [1, 3] {
            assert_eq!(told(log.group(), id(2), id(peer), true), ALL);
            assert_eq!(told(log.group(), id(2), id(peer), false), UNSEEN, "invisible");
        }
        assert_eq!(told(log.group(), id(2), id(9), true), None);
        log.remove_device(&key(1), id(3), now()).unwrap();
        assert_eq!(told(log.group(), id(2), id(3), true), None);
        assert!(!called(log.group(), id(2), true).contains(&id(3)));
        // Not by becoming a friend's device either.
        write(&mut log, Op::AddFriendDevice { friend: id(4), device: id(3), name: None });
        allow(&mut log, true);
        write(&mut log, Op::Show { device: id(2), to: Visibility::Friends });
        assert_eq!(told(log.group(), id(2), id(3), true), None);
    }

    #[test]
    fn a_friend_is_told_only_with_the_right_and_of_devices_that_show_themselves() {
        let mut log = log();
        let friends = |log: &Log, visible| [4, 5].map(|peer| told(log.group(), id(2), id(peer), visible));
        assert_eq!(friends(&log, true), [None; 2]);
        allow(&mut log, true);
        assert_eq!(friends(&log, true), [None; 2], "the device shows itself to devices only");
        assert_eq!(called(log.group(), id(2), true), [id(1), id(3)]);
        write(&mut log, Op::Show { device: id(2), to: Visibility::Friends });
        assert_eq!(friends(&log, true), [PRESENCE; 2]);
        assert_eq!(friends(&log, false), [None; 2], "invisible");
        assert_eq!(told(log.group(), id(3), id(4), true), None, "another device");
        assert!(called(log.group(), id(2), true).contains(&id(5)));
        assert_eq!(called(log.group(), id(2), false), [id(1), id(3)]);
        allow(&mut log, false);
        assert_eq!(friends(&log, true), [None; 2], "the right was taken back");
        allow(&mut log, true);
        write(&mut log, Op::Show { device: id(2), to: Visibility::Nobody });
        assert_eq!(told(log.group(), id(2), id(3), true), UNSEEN);
        assert_eq!(friends(&log, true), [None; 2]);
    }

    #[test]
    fn a_friend_is_told_which_devices_there_are_only_with_that_right_and_where_presence_is_told() {
        let mut log = log();
        let allow = |log: &mut Log, presence, devices| {
            write(log, Op::Allow { friend: id(4), rights: Rights { presence, devices } });
        };
        // The user's own key, which has no setting, and a device.
        let friends = |log: &Log, own| [4, 5].map(|peer| told(log.group(), id(own), id(peer), true));
        allow(&mut log, true, true);
        assert_eq!((friends(&log, 1), friends(&log, 2)), ([DEVICES; 2], [None; 2]));
        write(&mut log, Op::Show { device: id(2), to: Visibility::Friends });
        assert_eq!(friends(&log, 2), [DEVICES; 2]);
        assert_eq!(told(log.group(), id(1), id(4), false), None, "invisible");
        assert_eq!(told(log.group(), id(1), id(9), true), None, "a stranger");
        allow(&mut log, false, true);
        assert_eq!((friends(&log, 1), friends(&log, 2)), ([None; 2], [None; 2]), "it would tell who is up");
        allow(&mut log, true, false);
        assert_eq!(friends(&log, 2), [PRESENCE; 2], "the right was taken back");
    }

    #[test]
    fn friends_devices_are_asked_and_no_device_of_the_user() {
        let mut log = log();
        let asked = |log: &Log, peer| friend_to_ask(log.group(), id(peer));
        assert_eq!([4, 5].map(|peer| asked(&log, peer)), [Some(id(4)); 2]);
        assert_eq!([1, 2, 9].map(|peer| asked(&log, peer)), [None; 3]);
        // Not by becoming a friend's device, nor once it was removed.
        write(&mut log, Op::AddFriendDevice { friend: id(4), device: id(3), name: None });
        assert_eq!(asked(&log, 3), None);
        log.remove_device(&key(1), id(3), now()).unwrap();
        assert_eq!(asked(&log, 3), None);
    }

    #[test]
    fn friends_are_called_exactly_if_they_are_told_also_if_a_device_is_of_two_of_them() {
        let mut log = log();
        // 6 is a friend without the right, whose key is noted as a device of 4 too; 7 is a device of both.
        write(&mut log, Op::AddFriend { friend: id(6), name: None });
        for (friend, device) in [(4, 6), (4, 7), (6, 7), (6, 8)] {
            write(&mut log, Op::AddFriendDevice { friend: id(friend), device: id(device), name: None });
        }
        allow(&mut log, true);
        for to in [Visibility::Nobody, Visibility::Devices, Visibility::Friends] {
            write(&mut log, Op::Show { device: id(2), to });
            for visible in [true, false] {
                let all = called(log.group(), id(2), visible);
                for number in 4..10 {
                    let is_told = told(log.group(), id(2), id(number), visible).is_some();
                    assert_eq!(all.contains(&id(number)), is_told, "{number} {to:?} {visible}");
                }
            }
        }
        let all = called(log.group(), id(2), true);
        assert_eq!([4, 5, 6, 8].map(|number| all.contains(&id(number))), [true, true, false, false]);
    }

    #[test]
    fn a_device_that_knows_nothing_yet_calls_the_users_key_and_shows_itself_to_nobody() {
        let log = Log::new(id(1));
        assert_eq!(called(log.group(), id(2), true), [id(1)]);
        assert_eq!(told(log.group(), id(2), id(1), true), UNSEEN);
        assert_eq!(told(log.group(), id(2), id(3), true), None);
    }

    #[test]
    fn devices_meet_when_their_versions_differ_and_not_again_in_vain() {
        let own = log().vector().digest();
        let theirs = Log::new(id(1)).vector().digest();
        assert!(!should_meet(own, own, None));
        assert!(should_meet(own, theirs, None));
        assert!(!should_meet(own, theirs, Some((own, theirs))));
        assert!(should_meet(theirs, own, Some((own, theirs))), "one of them has another one now");
    }

    #[test]
    fn pauses_are_bounded_and_spread() {
        assert_eq!([pause(0), pause(u16::MAX)].map(|pause| pause.as_secs()), [24, 36]);
        assert_eq!([soon(0), soon(u16::MAX)], [SOON, SOON * 3]);
        assert_eq!([again(1, 0), again(1, u16::MAX)], [AGAIN.0 / 2, AGAIN.0]);
        assert_eq!([again(u32::MAX, 0), again(u32::MAX, u16::MAX)], [AGAIN.1 / 2, AGAIN.1]);
        assert!(again(0, 0) > Duration::ZERO);
    }
}
