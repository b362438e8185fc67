//! Personal names on command lines: what this machine's user calls a device or a friend, and things of
//! theirs.
//!
//! What has an '@', an id, a ticket and `any` mean themselves: nothing is called like them. So a personal
//! name never stands in the way of a real one.

use anyhow::{Context as _, Result};
use whimbrel_base::{EndpointId, Name, SecretKey};
use whimbrel_devices::{Group, Label, Subject};
use whimbrel_names::Origin;

use super::{Network, now};
use crate::failure::Failure;
use crate::options::Globals;
use crate::{aside, identity, own_group};

/// The most labels: a service, a device and a friend.
const MOST: usize = 3;

/// `desk`, or `web.desk` for a service there, or `web.home.bobby` for one of a friend's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Personal {
    /// Of the thing that is meant.
    before: Option<String>,
    /// What the user calls a device or a friend.
    label: Label,
}

/// What a personal name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Name(Name),
    /// Of something that has no name.
    Key(EndpointId),
}

/// What a personal name stands for, and whose that is.
struct Meant {
    place: Place,
    /// The user, and the user's key.
    user: Option<(Name, EndpointId)>,
}

impl Personal {
    /// `None` for what nothing can be called like.
    pub(super) fn read(text: &str) -> Option<Self> {
        let labels = text.split('.').map(str::parse::<Label>).collect::<Result<Vec<Label>, _>>().ok()?;
        let (label, before) = labels.split_last()?;
        let before = before.iter().map(Label::as_str).collect::<Vec<_>>().join(".");
        let before = (!before.is_empty()).then_some(before);
        (labels.len() <= MOST).then(|| Self { before, label: label.clone() })
    }

    /// Fails early if nothing is called so.
    ///
    /// # Errors
    /// As [`place`](Self::place).
    pub(super) fn check(&self, globals: &Globals) -> Result<()> {
        // A mistyped name makes no key.
        if !own_group::is_any_kept()? {
            return Err(self.unknown());
        }
        self.meant(&identity::of_user(globals)?.key).map(drop)
    }

    /// What it stands for. Whose that is, the user has said: the name service cannot say otherwise.
    ///
    /// # Errors
    /// When nothing is called so, or it has not what is asked for; when another key is known to be that
    /// user's.
    pub(super) async fn place(&self, network: &Network) -> Result<Place> {
        let (personal, key) = (self.clone(), network.key.clone());
        let looking = aside::run(move || personal.meant(&key));
        let Meant { place, user } = looking.await.context("the process is ending")??;
        if let Some((user, owner)) = user {
            network.known.confirm(&user, owner, Origin::Ticket, now())?;
        }
        Ok(place)
    }

    fn meant(&self, key: &SecretKey) -> Result<Meant> {
        let group = own_group::kept(key)?.ok_or_else(|| self.unknown())?;
        self.meant_in(&group)
    }

    fn meant_in(&self, group: &Group) -> Result<Meant> {
        let subject = group.called(&self.label).ok_or_else(|| self.unknown())?;
        own_group::check_word(group, self.label.as_str(), subject)?;
        let (id, owner, name) = match subject {
            Subject::Device(id) => (id, group.user(), group.device(id).map(|device| device.name().clone())),
            Subject::Friend(id) => (id, id, group.friend(id).and_then(|friend| friend.name().cloned())),
            Subject::FriendDevice(friend, id) => {
                let known = group.friend(friend).and_then(|friend| {
                    let device = friend.devices().find(|(device, _)| *device == id);
                    device.and_then(|(_, device)| device.name().cloned())
                });
                (id, friend, known)
            }
        };
        let Some(name) = name else {
            return match &self.before {
                None => Ok(Meant { place: Place::Key(id), user: None }),
                Some(_) => Err(Failure::usage(format!(
                    "{} has no name here that {self} could be one of; give a whole name",
                    self.label
                ))),
            };
        };
        let name: Name = match &self.before {
            None => name,
            Some(before) => {
                format!("{before}.{name}").parse().map_err(|error: whimbrel_base::NameError| {
                    Failure::usage(format!("{self} would be {before}.{name}: {error}"))
                })?
            }
        };
        let user = Some((name.user(), owner));
        Ok(Meant { place: Place::Name(name), user })
    }

    fn unknown(&self) -> anyhow::Error {
        Failure::usage(format!(
            "{self} is no name, which has an '@', and no device or friend of yours is called {}; `whimbrel devices \
             list` and `whimbrel friends list` show them",
            self.label
        ))
    }
}

impl std::fmt::Display for Personal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.before {
            Some(before) => write!(f, "{before}.{}", self.label),
            None => self.label.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::UnixTime;
    use whimbrel_devices::{Log, Op};

    use super::super::Peer;
    use super::*;

    fn read(text: &str) -> Personal {
        Personal::read(text).unwrap()
    }

    #[test]
    fn only_what_cannot_be_a_name_is_a_personal_one() {
        for text in ["desk", "web.desk", "web.home.bobby"] {
            assert_eq!(read(text).to_string(), text);
            assert_eq!(text.parse::<Peer>().unwrap().as_argument(), text);
        }
        for text in ["", ".", "a@b", "a+b", "a b", "a.", ".a", "a.b.c.d", "whimbrel:x", "a=b", "ä"] {
            assert_eq!(Personal::read(text), None, "{text}");
        }
        let id = SecretKey::from_bytes(&[7; 32]).id();
        assert_eq!(id.to_string().parse(), Ok(Peer::Key(id)));
    }

    #[test]
    fn what_a_device_without_trust_calls_itself_is_not_the_users_word() {
        let (user, now) = (SecretKey::from_bytes(&[1; 32]), UnixTime::from_secs(1_700_000_000));
        let laptop = SecretKey::from_bytes(&[2; 32]);
        let mut log = Log::new(user.id());
        let name = "laptop.ada@example.org".parse().unwrap();
        log.write(&user, vec![Op::AddDevice { device: laptop.id(), name, trusted: false }], now).unwrap();
        assert!(read("laptop").meant_in(log.group()).is_ok());
        let whom = Subject::Device(laptop.id());
        let call = |name: &str| vec![Op::Call { whom, name: name.parse().unwrap() }];
        log.write(&laptop, call("bank"), now).unwrap();
        let error = read("bank").meant_in(log.group()).err().unwrap().to_string();
        assert!(error.contains("bank is what a device calls itself"), "{error}");
        log.write(&user, call("bank"), now).unwrap();
        assert!(read("bank").meant_in(log.group()).is_ok());
    }

    #[test]
    fn devices_and_friends_and_what_they_have_are_meant() {
        let (user, now) = (SecretKey::from_bytes(&[1; 32]), UnixTime::from_secs(1_700_000_000));
        let [laptop, bob, phone, carol] =
            [2, 3, 4, 5].map(|number| SecretKey::from_bytes(&[number; 32]).id());
        let name = |text: &str| text.parse::<Name>().unwrap();
        let mut log = Log::new(user.id());
        let ops = vec![
            Op::AddDevice { device: laptop, name: name("laptop.ada@example.org"), trusted: false },
            Op::Call { whom: Subject::Device(laptop), name: "desk".parse().unwrap() },
            Op::AddFriend { friend: bob, name: Some(name("bob@example.org")) },
            Op::AddFriendDevice { friend: bob, device: phone, name: None },
            Op::Call { whom: Subject::FriendDevice(bob, phone), name: "bobs-phone".parse().unwrap() },
            Op::AddFriend { friend: carol, name: None },
            Op::Call { whom: Subject::Friend(carol), name: "carol".parse().unwrap() },
        ];
        for op in ops {
            log.write(&user, vec![op], now).unwrap();
        }
        let meant = |text: &str| read(text).meant_in(log.group());
        for (text, name, owner) in [
            ("desk", "laptop.ada@example.org", user.id()),
            ("web.desk", "web.laptop.ada@example.org", user.id()),
            ("bob", "bob@example.org", bob),
            ("inbox.home.bob", "inbox.home.bob@example.org", bob),
        ] {
            let meant = meant(text).unwrap();
            let name: Name = name.parse().unwrap();
            assert_eq!(meant.place, Place::Name(name.clone()), "{text}");
            assert_eq!(meant.user, Some((name.user(), owner)), "{text}");
        }
        for (text, id) in [("bobs-phone", phone), ("carol", carol)] {
            assert_eq!(meant(text).unwrap().place, Place::Key(id));
        }
        let error = |text: &str| meant(text).err().unwrap().to_string();
        assert!(error("laptop").contains("no device or friend of yours is called laptop"));
        assert!(error("web.carol").contains("carol has no name here"));
        assert!(error("web.x.desk").contains("web.x.laptop.ada@example.org"));
    }
}
