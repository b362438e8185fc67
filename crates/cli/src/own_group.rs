//! The user's group on this machine: which it is, where it is kept, and how things in it are called on
//! command lines.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use whimbrel_base::{EndpointId, Name, NameKind, SecretKey, UnixTime};
use whimbrel_devices::{
    Device, FriendDevice, Group, Label, Log, Op, Replica, StoreError, Subject, WriteError,
};

use crate::failure::{self, Failure};
use crate::options::Globals;
use crate::{aside, identity, output, places};

/// The group of this machine's user, and this machine's key in it.
pub(crate) struct OwnGroup {
    pub(crate) key: SecretKey,
    pub(crate) replica: Arc<Replica>,
    /// Where it is kept.
    pub(crate) file: PathBuf,
}

impl OwnGroup {
    /// The group of this machine's user, by [`of`](Self::of).
    pub(crate) fn open(globals: &Globals) -> Result<Self> {
        Self::of(identity::of_user(globals)?.key)
    }

    /// The group of this key, if it wrote in one: nobody who gives it a name moves it to another group. Else
    /// of the user who gave it a device's name last; if nobody did, its own.
    pub(crate) fn of(key: SecretKey) -> Result<Self> {
        let directory = places::data()?.join("groups");
        identity::private_directory(&directory)?;
        let file = |user: EndpointId| directory.join(format!("{user}.redb"));
        let of_user = |user| Replica::in_file(&file(user), user);
        let given = given_by(&key, |user| file(user).exists())?;
        let user = match given {
            Some(user) if !file(key.id()).exists() || of_user(key.id()).look(has_nothing)? => user,
            _ => key.id(),
        };
        let replica = Arc::new(of_user(user).signing(key.clone()));
        Ok(Self { key, replica, file: file(user) })
    }

    /// The user whose group it is.
    pub(crate) fn user(&self) -> Result<EndpointId> {
        self.look(Log::user)
    }

    /// Looks at the log.
    pub(crate) fn look<T>(&self, run: impl FnOnce(&Log) -> T) -> Result<T> {
        Ok(self.replica.look(run)?)
    }

    /// Changes the log, or fails and leaves it as it is.
    pub(crate) fn change<T>(
        &self,
        run: impl FnOnce(&mut Log, &SecretKey, UnixTime) -> Result<T>,
    ) -> Result<T> {
        self.replica.with(|log| run(log, &self.key, SystemTime::now().into()))?
    }
}

/// Whether a log says nothing, and did not before it was damaged.
fn has_nothing(log: &Log) -> bool {
    log.is_empty() && log.lost().next().is_none()
}

/// The user who gave a key a device's name last. A delegation that ended counts where the group is here
/// already: it is renewed when the user's key is met again.
fn given_by(key: &SecretKey, is_here: impl Fn(EndpointId) -> bool) -> Result<Option<EndpointId>> {
    let now = UnixTime::from(SystemTime::now());
    let held = identity::held(&places::config()?, key.id())?;
    let given = held.iter().filter(|it| it.name().kind() == NameKind::Device && it.verify().is_ok());
    let living = given.filter(|it| !it.is_expired(now) || is_here(it.issuer()));
    Ok(living.max_by_key(|it| it.issued()).map(whimbrel_base::Delegation::issuer))
}

/// An error of writing, with the exit code that the program has for it.
pub(crate) fn refused(error: WriteError) -> anyhow::Error {
    let code = match error {
        WriteError::Unknown => Failure::NOT_FOUND,
        WriteError::NotMember
        | WriteError::Forked
        | WriteError::NotTrusted
        | WriteError::Itself
        | WriteError::Closed
        | WriteError::Removed => Failure::REFUSED,
        _ => 1,
    };
    Failure::new(code, error.to_string()).into()
}

/// Notes in the group that somebody was met. What was agreed with the other side stands also if that fails.
pub(crate) fn note(key: &SecretKey, quiet: bool, ops: Vec<Op>) {
    let noted = OwnGroup::of(key.clone())
        .and_then(|group| group.change(|log, key, now| log.write(key, ops, now).map_err(refused)));
    if let Err(error) = noted {
        let why = failure::line(&error);
        output::note(quiet, format!("warning: this is not in the list of your devices and friends: {why}"));
    }
}

/// Notes that a device got a name. It may not act for the user yet.
pub(crate) fn note_device(key: &SecretKey, quiet: bool, name: &Name, device: EndpointId) {
    if name.kind() == NameKind::Device && device != key.id() {
        note(key, quiet, vec![Op::AddDevice { device, name: name.clone(), trusted: false }]);
    }
}

/// Removes the devices that a name was taken back from: those with the name, and the key that it was given to
/// here. Returns how many there were.
///
/// # Errors
/// If one stays in the list.
pub(crate) fn remove_revoked(key: &SecretKey, name: &Name, given_to: Option<EndpointId>) -> Result<usize> {
    let failed =
        || format!("{name} is still in the list of your devices; `whimbrel devices remove` removes it");
    let removed = OwnGroup::of(key.clone()).and_then(|group| {
        group.change(|log, key, now| {
            let is_it = |id, device: &Device| device.name() == name || Some(id) == given_to;
            let known: Vec<EndpointId> =
                log.group().devices().filter(|(id, device)| is_it(*id, device)).map(|(id, _)| id).collect();
            for device in &known {
                log.remove_device(key, *device, now).map_err(refused)?;
            }
            Ok(known.len())
        })
    });
    removed.with_context(failed)
}

/// What somebody means by a personal name, a name or a key.
pub(crate) fn find(group: &Group, text: &str) -> Result<Subject> {
    // A key first: nobody can make something else be meant by calling it like one.
    let by_label = || text.parse::<Label>().ok().and_then(|label| group.called(&label));
    let found = by_id(group, text).or_else(by_label).or_else(|| by_name(group, text));
    found.ok_or_else(|| {
        let message = format!(
            "{text} is no device or friend; `whimbrel devices list` and `whimbrel friends list` show them"
        );
        Failure::new(Failure::NOT_FOUND, message).into()
    })
}

/// Refuses a personal name that is not the user's word.
///
/// # Errors
/// When a device without trust gave it itself, or nobody chose it and something else could be meant.
pub(crate) fn check_word(group: &Group, label: &str, subject: Subject) -> Result<()> {
    if group.names_itself(subject) {
        let message = format!(
            "{label} is what a device calls itself that may not act for you; name it on another device (`whimbrel \
             devices name`), or give its id"
        );
        return Err(Failure::new(Failure::UNTRUSTED, message).into());
    }
    if group.is_unclear(subject) {
        return Err(Failure::usage(format!(
            "{label} could be another one, for you have not chosen that name; choose one (`whimbrel friends name`, \
             `whimbrel devices name`), or give the whole name"
        )));
    }
    Ok(())
}

fn by_id(group: &Group, text: &str) -> Option<Subject> {
    let id: EndpointId = text.parse().ok()?;
    if group.device(id).is_some() {
        return Some(Subject::Device(id));
    }
    let friend = group.friend(id).map(|_| Subject::Friend(id));
    friend.or_else(|| friends_device(group, |device, _| device == id))
}

fn by_name(group: &Group, text: &str) -> Option<Subject> {
    let name: Name = text.parse().ok()?;
    let device = group.devices().find(|(_, device)| *device.name() == name);
    let friend = || group.friends().find(|(_, friend)| friend.name() == Some(&name));
    let theirs = || friends_device(group, |_, device| device.name() == Some(&name));
    device
        .map(|(id, _)| Subject::Device(id))
        .or_else(|| friend().map(|(id, _)| Subject::Friend(id)))
        .or_else(theirs)
}

/// The first device that is noted of a friend and is meant.
fn friends_device(group: &Group, is_meant: impl Fn(EndpointId, &FriendDevice) -> bool) -> Option<Subject> {
    let mut all = group
        .friends()
        .flat_map(|(friend, known)| known.devices().map(move |(id, device)| (friend, id, device)));
    all.find(|(_, id, device)| is_meant(*id, device)).map(|(friend, id, _)| Subject::FriendDevice(friend, id))
}

/// Gives something a personal name.
pub(crate) fn call(group: &OwnGroup, wanted: &str, name: &Label, of_friends: bool) -> Result<()> {
    group.change(|log, key, now| {
        let whom = find(log.group(), wanted)?;
        if of_friends == matches!(whom, Subject::Device(_)) {
            let other = if of_friends { "devices" } else { "friends" };
            return Err(Failure::usage(format!("{wanted} is named with `whimbrel {other} name`")));
        }
        check_free(log.group(), name, whom)?;
        log.write(key, vec![Op::Call { whom, name: name.clone() }], now).map_err(refused)
    })
}

/// Refuses a personal name that something else has.
///
/// # Errors
/// When something else is called so. What a device without trust calls itself is free for the user.
pub(crate) fn check_free(group: &Group, name: &Label, whom: Subject) -> Result<()> {
    let other = group.called(name).filter(|known| *known != whom);
    if other.is_some_and(|other| !group.names_itself(other)) {
        return Err(Failure::usage(format!("something else is called {name}; choose another name")));
    }
    Ok(())
}

/// Says whose log was written twice.
pub(crate) fn warn_of_forks(quiet: bool, log: &Log) {
    for id in log.forked() {
        let text = format!(
            "warning: two histories are signed with the key {id}: it was copied, or its machine was restored \
             from a backup. What it says is void from there on; remove it, and let it make a new key"
        );
        output::note(quiet, text);
    }
    for id in log.lost() {
        let text = format!(
            "warning: what {id} wrote is damaged in the file of your devices and friends; run `whimbrel \
             devices sync` before you change anything: it comes back from another device"
        );
        output::note(quiet, text);
    }
}

/// This user's other devices that may act for the user.
pub(crate) fn other_devices(key: &SecretKey) -> Result<Vec<EndpointId>> {
    let own = key.id();
    // Looking would make one.
    if !is_kept(&places::data()?.join("groups"))? {
        return Ok(Vec::new());
    }
    OwnGroup::of(key.clone())?.look(|log| acting(log.group(), own))
}

/// The keys that may act for the user: neither devices without trust nor such as wrote two histories.
fn acting(group: &Group, own: EndpointId) -> Vec<EndpointId> {
    // The user's own key has a device too.
    let listed = group.devices().map(|(id, _)| id).chain([group.user()]);
    listed.filter(|id| *id != own && group.is_member(*id) && group.is_trusted(*id)).collect()
}

/// The devices of these users, as far as this machine's list has them: those of its own user, and of friends.
pub(crate) fn devices_of(
    key: &SecretKey,
    users: &[EndpointId],
) -> Result<HashMap<EndpointId, Vec<EndpointId>>> {
    // Looking would make one.
    if !is_kept(&places::data()?.join("groups"))? {
        return Ok(users.iter().map(|user| (*user, Vec::new())).collect());
    }
    let group = OwnGroup::of(key.clone())?;
    group.look(|log| users.iter().map(|user| (*user, devices_in(log.group(), *user))).collect())
}

/// Whether this machine's list says that a key is no device of its user any more: it was removed, or wrote
/// two histories.
pub(crate) fn is_out(key: &SecretKey, device: EndpointId) -> Result<bool> {
    // Looking would make one.
    if !is_kept(&places::data()?.join("groups"))? {
        return Ok(false);
    }
    OwnGroup::of(key.clone())?.look(|log| was_device(log.group(), device))
}

/// Whether a key was a device of the group's user, and is none.
fn was_device(group: &Group, device: EndpointId) -> bool {
    group.is_removed(device) || (group.device(device).is_some() && !group.is_member(device))
}

/// A user's devices in a group. Neither such as were removed nor such as wrote two histories.
fn devices_in(group: &Group, user: EndpointId) -> Vec<EndpointId> {
    if group.user() == user {
        return group.devices().map(|(id, _)| id).filter(|id| group.is_member(*id)).collect();
    }
    let friend = group.friend(user);
    friend.map_or_else(Vec::new, |friend| friend.devices().map(|(id, _)| id).collect())
}

/// Whether any group is kept in this folder. One that cannot be read says nothing: it is an error.
fn is_kept(groups: &Path) -> Result<bool> {
    match std::fs::read_dir(groups) {
        Ok(mut groups) => Ok(groups.next().is_some()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).context("cannot look for the list of this user's devices"),
    }
}

/// Whether any group is kept on this machine.
pub(crate) fn is_any_kept() -> Result<bool> {
    is_kept(&places::data()?.join("groups"))
}

/// The group of this machine's user as it is now. `None` where none is kept: looking would make one.
pub(crate) fn kept(key: &SecretKey) -> Result<Option<Group>> {
    if !is_any_kept()? {
        return Ok(None);
    }
    OwnGroup::of(key.clone())?.look(|log| log.group().clone()).map(Some)
}

/// A store that can't be used is no reason to keep a stranger waiting.
pub(crate) async fn is_member(replica: Arc<Replica>, peer: EndpointId) -> bool {
    let asked = aside::run(move || replica.look(|log| log.group().is_member(peer)));
    let answer: Result<Result<bool, StoreError>> = asked.await.context("the process is ending");
    answer.is_ok_and(|answer| answer.unwrap_or(false))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_key_means_its_owner_also_if_something_else_is_called_like_it() {
        let (user, now) = (SecretKey::from_bytes(&[1; 32]), UnixTime::from_secs(1_700_000_000));
        let [one, other] = [2, 3].map(|number| SecretKey::from_bytes(&[number; 32]).id());
        let mut log = Log::new(user.id());
        for friend in [one, other] {
            log.write(&user, vec![Op::AddFriend { friend, name: None }], now).unwrap();
        }
        let name = one.to_string().parse().unwrap();
        log.write(&user, vec![Op::Call { whom: Subject::Friend(other), name }], now).unwrap();
        assert_eq!(find(log.group(), &one.to_string()).unwrap(), Subject::Friend(one));
    }

    #[test]
    fn a_device_that_was_noted_of_a_friend_is_meant_by_its_key_and_by_its_name() {
        let (user, now) = (SecretKey::from_bytes(&[1; 32]), UnixTime::from_secs(1_700_000_000));
        let [friend, device, stranger] = [2, 3, 4].map(|number| SecretKey::from_bytes(&[number; 32]).id());
        let mut log = Log::new(user.id());
        let name = |text: &str| Some(text.parse::<Name>().unwrap());
        let friend_is = Op::AddFriend { friend, name: name("bob@example.org") };
        log.write(&user, vec![friend_is], now).unwrap();
        let noted = Op::AddFriendDevice { friend, device, name: name("desk.bob@example.org") };
        log.write(&user, vec![noted], now).unwrap();
        for text in [device.to_string().as_str(), "desk.bob@example.org", "desk"] {
            assert_eq!(find(log.group(), text).unwrap(), Subject::FriendDevice(friend, device), "{text}");
        }
        assert!(find(log.group(), &stranger.to_string()).is_err());
        assert!(find(log.group(), "phone.bob@example.org").is_err());
        let desk = "desk".parse().unwrap();
        assert!(check_free(log.group(), &desk, Subject::Friend(friend)).is_err());
        assert!(check_free(log.group(), &desk, Subject::FriendDevice(friend, device)).is_ok());
    }

    #[test]
    fn a_folder_that_cannot_be_read_is_not_taken_for_one_without_groups() {
        let folder = tempfile::tempdir().unwrap();
        let groups = folder.path().join("groups");
        assert!(!is_kept(&groups).unwrap(), "there is none");
        std::fs::create_dir(&groups).unwrap();
        assert!(!is_kept(&groups).unwrap(), "it is empty");
        let file = groups.join("user.redb");
        std::fs::write(&file, "").unwrap();
        assert!(is_kept(&groups).unwrap());
        // Nobody reads a file as a folder, not even root.
        for other in [file.clone(), file.join("groups")] {
            let error = is_kept(&other).unwrap_err().to_string();
            assert!(error.contains("cannot look for the list"), "{error}");
        }
    }

    #[test]
    fn the_devices_of_the_user_and_of_friends_are_known_and_nobody_elses() {
        let (user, now) = (SecretKey::from_bytes(&[1; 32]), UnixTime::from_secs(1_700_000_000));
        let [one, other, friend, theirs, stranger] =
            [2, 3, 4, 5, 6].map(|number| SecretKey::from_bytes(&[number; 32]).id());
        let mut log = Log::new(user.id());
        for (device, name) in [(one, "one"), (other, "other")] {
            let name = format!("{name}.ada@example.org").parse().unwrap();
            log.write(&user, vec![Op::AddDevice { device, name, trusted: false }], now).unwrap();
        }
        log.write(&user, vec![Op::AddFriend { friend, name: None }], now).unwrap();
        let device = Op::AddFriendDevice { friend, device: theirs, name: None };
        log.write(&user, vec![device], now).unwrap();
        let own = devices_in(log.group(), user.id());
        assert!(own.contains(&one) && own.contains(&other) && !own.contains(&theirs), "{own:?}");
        assert_eq!(devices_in(log.group(), friend), [theirs]);
        assert_eq!(devices_in(log.group(), stranger), []);
        log.remove_device(&user, one, now).unwrap();
        assert!(!devices_in(log.group(), user.id()).contains(&one));
        let out = [one, other, friend, stranger].map(|key| was_device(log.group(), key));
        assert_eq!(out, [true, false, false, false]);
    }

    #[test]
    fn devices_without_trust_do_not_act_for_the_user() {
        let (user, now) = (SecretKey::from_bytes(&[1; 32]), UnixTime::from_secs(1_700_000_000));
        let [own, one, other] = [2, 3, 4].map(|number| SecretKey::from_bytes(&[number; 32]).id());
        let mut log = Log::new(user.id());
        for (device, name, trusted) in [(own, "own", true), (one, "one", true), (other, "other", false)] {
            let name = format!("{name}.ada@example.org").parse().unwrap();
            log.write(&user, vec![Op::AddDevice { device, name, trusted }], now).unwrap();
        }
        let sorted = |mut ids: Vec<EndpointId>| {
            ids.sort();
            ids
        };
        assert_eq!(sorted(acting(log.group(), own)), sorted(vec![one, user.id()]));
        log.remove_device(&user, one, now).unwrap();
        assert_eq!(acting(log.group(), own), [user.id()]);
    }
}
