//! Operations: what an entry of the log says.

use serde::{Deserialize, Serialize};
use whimbrel_base::{EndpointId, Name};

use crate::label::Label;

/// An entry of a device's log, named by its hash: the last one of that device that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Last {
    /// Its number; 0 if none counts.
    pub sequence: u64,
    /// Its hash.
    pub hash: [u8; 32],
}

/// What can have a personal name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Subject {
    /// A device of the user.
    Device(EndpointId),
    /// A friend, by the friend's user key.
    Friend(EndpointId),
    /// A friend's device: the friend's user key, the device's key.
    FriendDevice(EndpointId, EndpointId),
}

/// To whom it is shown whether a device is up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Visibility {
    /// Nobody.
    Nobody,
    /// The user's own devices.
    #[default]
    Devices,
    /// Friends who may see presence, too.
    Friends,
}

/// What a friend may see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// Which of the user's devices are up, where those allow it.
    pub presence: bool,
    /// Which devices the user has.
    pub devices: bool,
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Nothing: all before it was seen.
    Seen,
    /// A device belongs to the user.
    AddDevice {
        /// The device's key.
        device: EndpointId,
        /// Its name for all the world.
        name: Name,
        /// Whether it may act for the user.
        trusted: bool,
    },
    /// A device no longer belongs to the user, for good: its key does not come back.
    RemoveDevice {
        /// The device's key.
        device: EndpointId,
        /// The last of its entries that counts.
        last: Last,
    },
    /// A device may act for the user from now on.
    Trust {
        /// The device's key.
        device: EndpointId,
    },
    /// A device may no longer act for the user.
    Distrust {
        /// The device's key.
        device: EndpointId,
        /// The last of its entries that counts as the user's word.
        last: Last,
    },
    /// To whom it is shown whether a device is up.
    Show {
        /// The device's key.
        device: EndpointId,
        /// To whom.
        to: Visibility,
    },
    /// Somebody is a friend.
    AddFriend {
        /// The friend's user key.
        friend: EndpointId,
        /// The friend's user name.
        name: Option<Name>,
    },
    /// Somebody is no friend any more.
    RemoveFriend {
        /// The friend's user key.
        friend: EndpointId,
    },
    /// What a friend may see.
    Allow {
        /// The friend's user key.
        friend: EndpointId,
        /// What.
        rights: Rights,
    },
    /// A friend has a device.
    AddFriendDevice {
        /// The friend's user key.
        friend: EndpointId,
        /// The device's key.
        device: EndpointId,
        /// The device's name for all the world.
        name: Option<Name>,
    },
    /// A friend has a device no more.
    RemoveFriendDevice {
        /// The friend's user key.
        friend: EndpointId,
        /// The device's key.
        device: EndpointId,
    },
    /// What the user calls somebody or something.
    Call {
        /// Whom.
        whom: Subject,
        /// The personal name.
        name: Label,
    },
}

impl Op {
    /// Whether this is more than a device may say of itself.
    pub(crate) fn needs_trust(&self, author: EndpointId) -> bool {
        match self {
            Self::Seen => false,
            Self::Show { device, .. } | Self::Call { whom: Subject::Device(device), .. } => *device != author,
            _ => true,
        }
    }
}
