//! The group: what follows from the log. One entry after the other is applied to it.

mod naming;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use whimbrel_base::{EndpointId, Name};

use crate::label::Label;
use crate::op::{Op, Rights, Subject, Visibility};
use crate::time::Hybrid;

/// The most devices of a user.
pub const MAX_DEVICES: usize = 256;
/// The most devices that are remembered as removed.
pub const MAX_REMOVED: usize = 4096;
/// The most friends.
pub const MAX_FRIENDS: usize = 4096;
/// The most devices of a friend.
pub const MAX_FRIEND_DEVICES: usize = 64;

/// The place of an entry among all others: its time, its author, its number. No two are the same, and an
/// entry's is behind that of every entry that its author knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// When.
    pub time: Hybrid,
    /// Whose entry.
    pub author: EndpointId,
    /// Its number in the author's log.
    pub sequence: u64,
}

/// A personal name that somebody wants something to have, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    pub(crate) name: Label,
    pub(crate) since: Stamp,
}

/// A device of the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub(crate) name: Name,
    pub(crate) trusted: bool,
    /// Whether two histories are signed with its key.
    pub(crate) forked: bool,
    pub(crate) since: Stamp,
    pub(crate) visibility: Visibility,
    pub(crate) wanted: Option<Wanted>,
}

impl Device {
    /// Its name for all the world.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Whether it may act for the user.
    pub fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// Whether two histories are signed with its key: it is told nothing and trusted with nothing, and the
    /// user should remove it.
    pub fn is_forked(&self) -> bool {
        self.forked
    }

    /// Since when it is a device of the user.
    pub fn since(&self) -> Hybrid {
        self.since.time
    }

    /// To whom it is shown whether it is up.
    pub fn visibility(&self) -> Visibility {
        self.visibility
    }
}

/// A friend's device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FriendDevice {
    pub(crate) name: Option<Name>,
    pub(crate) wanted: Option<Wanted>,
}

impl FriendDevice {
    /// Its name for all the world.
    pub fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }
}

/// A friend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Friend {
    pub(crate) name: Option<Name>,
    pub(crate) rights: Rights,
    pub(crate) wanted: Option<Wanted>,
    pub(crate) devices: BTreeMap<EndpointId, FriendDevice>,
}

impl Friend {
    /// The friend's user name.
    pub fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    /// What the friend may see.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The friend's devices.
    pub fn devices(&self) -> impl Iterator<Item = (EndpointId, &FriendDevice)> {
        self.devices.iter().map(|(id, device)| (*id, device))
    }
}

/// A user's devices and friends, and what they are called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    pub(crate) user: EndpointId,
    pub(crate) devices: BTreeMap<EndpointId, Device>,
    pub(crate) removed: BTreeSet<EndpointId>,
    pub(crate) friends: BTreeMap<EndpointId, Friend>,
}

impl Group {
    pub(crate) fn new(user: EndpointId) -> Self {
        Self { user, devices: BTreeMap::new(), removed: BTreeSet::new(), friends: BTreeMap::new() }
    }

    /// The user's key.
    pub fn user(&self) -> EndpointId {
        self.user
    }

    /// The user's devices.
    pub fn devices(&self) -> impl Iterator<Item = (EndpointId, &Device)> {
        self.devices.iter().map(|(id, device)| (*id, device))
    }

    /// A device of the user.
    pub fn device(&self, id: EndpointId) -> Option<&Device> {
        self.devices.get(&id)
    }

    /// Whether a key was a device of the user, and was removed.
    pub fn is_removed(&self, id: EndpointId) -> bool {
        self.removed.contains(&id)
    }

    /// The friends.
    pub fn friends(&self) -> impl Iterator<Item = (EndpointId, &Friend)> {
        self.friends.iter().map(|(id, friend)| (*id, friend))
    }

    /// A friend.
    pub fn friend(&self, id: EndpointId) -> Option<&Friend> {
        self.friends.get(&id)
    }

    /// Whether a key may write entries and is told of the group: the user's, and those of the user's devices
    /// that did not write two histories.
    pub fn is_member(&self, id: EndpointId) -> bool {
        id == self.user || self.devices.get(&id).is_some_and(|device| !device.forked)
    }

    /// Whether a key may act for the user.
    pub fn is_trusted(&self, id: EndpointId) -> bool {
        id == self.user || self.devices.get(&id).is_some_and(|device| device.trusted)
    }

    /// What everything is called: no two things by one name.
    pub fn names(&self) -> BTreeMap<Subject, Label> {
        naming::names(self)
    }

    /// What a personal name is for.
    pub fn called(&self, name: &Label) -> Option<Subject> {
        self.names().into_iter().find(|(_, known)| known == name).map(|(subject, _)| subject)
    }

    /// Whether a device has its personal name by itself, and may not act for the user: the name is not the
    /// user's word.
    pub fn names_itself(&self, subject: Subject) -> bool {
        let Subject::Device(id) = subject else { return false };
        let wanted = self.devices.get(&id).and_then(|device| device.wanted.as_ref());
        let is_trusted = self.is_member(id) && self.is_trusted(id);
        wanted.is_some_and(|wanted| wanted.since.author == id) && !is_trusted
    }

    /// What the user has chosen to call a device. Nothing where nobody chose, or only the device itself,
    /// without trust.
    pub fn chosen(&self, device: EndpointId) -> Option<&Label> {
        let wanted = self.devices.get(&device)?.wanted.as_ref()?;
        (!self.names_itself(Subject::Device(device))).then_some(&wanted.name)
    }

    /// Whether the user has chosen no personal name for a thing, and something else has the same first part
    /// of its name: a new friend, who has chosen it, would be meant in place of an old one.
    pub fn is_unclear(&self, subject: Subject) -> bool {
        naming::is_unclear(self, subject)
    }

    /// Applies a valid entry. What is about things that are not there says nothing.
    pub(crate) fn apply(&mut self, op: &Op, at: Stamp) {
        match op {
            Op::Seen => {}
            Op::AddDevice { device, name, trusted } => self.add_device(*device, name, *trusted, at),
            Op::RemoveDevice { device, .. } => {
                self.devices.remove(device);
                if *device != self.user && self.removed.len() < MAX_REMOVED {
                    self.removed.insert(*device);
                }
            }
            Op::Trust { device } => self.change_device(*device, |known| known.trusted = true),
            Op::Distrust { device, .. } => self.change_device(*device, |known| known.trusted = false),
            Op::Show { device, to } => self.change_device(*device, |known| known.visibility = *to),
            Op::AddFriend { friend, name } => self.add_friend(*friend, name.as_ref()),
            Op::RemoveFriend { friend } => drop(self.friends.remove(friend)),
            Op::Allow { friend, rights } => {
                self.change_friend(*friend, |known| known.rights = *rights);
            }
            Op::AddFriendDevice { friend, device, name } => self.change_friend(*friend, |known| {
                if known.devices.len() < MAX_FRIEND_DEVICES || known.devices.contains_key(device) {
                    let new = FriendDevice { name: None, wanted: None };
                    let known = known.devices.entry(*device).or_insert(new);
                    known.name = name.clone().or(known.name.take());
                }
            }),
            Op::RemoveFriendDevice { friend, device } => {
                self.change_friend(*friend, |known| drop(known.devices.remove(device)));
            }
            Op::Call { whom, name } => {
                if let Some(wanted) = self.wanted_mut(*whom) {
                    *wanted = Some(Wanted { name: name.clone(), since: at });
                }
            }
        }
    }

    fn add_device(&mut self, device: EndpointId, name: &Name, trusted: bool, at: Stamp) {
        let has_room = self.devices.len() < MAX_DEVICES || self.devices.contains_key(&device);
        if self.removed.contains(&device) || !has_room {
            return;
        }
        let visibility = Visibility::default();
        let new = Device { name: name.clone(), trusted, forked: false, since: at, visibility, wanted: None };
        let known = self.devices.entry(device).or_insert(new);
        known.name = name.clone();
        known.trusted |= trusted;
    }

    fn add_friend(&mut self, friend: EndpointId, name: Option<&Name>) {
        if self.friends.len() < MAX_FRIENDS || self.friends.contains_key(&friend) {
            let new =
                Friend { name: None, rights: Rights::default(), wanted: None, devices: BTreeMap::new() };
            let known = self.friends.entry(friend).or_insert(new);
            known.name = name.cloned().or(known.name.take());
        }
    }

    fn change_device(&mut self, device: EndpointId, change: impl FnOnce(&mut Device)) {
        if let Some(known) = self.devices.get_mut(&device) {
            change(known);
        }
    }

    fn change_friend(&mut self, friend: EndpointId, change: impl FnOnce(&mut Friend)) {
        if let Some(known) = self.friends.get_mut(&friend) {
            change(known);
        }
    }

    fn wanted_mut(&mut self, whom: Subject) -> Option<&mut Option<Wanted>> {
        match whom {
            Subject::Device(id) => self.devices.get_mut(&id).map(|device| &mut device.wanted),
            Subject::Friend(id) => self.friends.get_mut(&id).map(|friend| &mut friend.wanted),
            Subject::FriendDevice(friend, id) => {
                self.friends.get_mut(&friend)?.devices.get_mut(&id).map(|device| &mut device.wanted)
            }
        }
    }
}
