//! Which devices friends have, as far as they show them: what this machine's agent heard last, kept for when
//! nobody is there, in a file that the agent writes and other commands read.
//!
//! It is the friend's word and gives nobody a right. Only what the user names or notes is in the user's own
//! list.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use whimbrel_base::{EndpointId, Name, UnixTime};
use whimbrel_devices::Label;

use super::{Up, kept};

/// Devices of one friend.
pub(crate) const MOST_OF_ONE: usize = 128;
/// Devices of all friends together. The list that was heard longest ago makes room.
const MOST: usize = 2048;
/// A list holds for so long after it was heard. Agents that meet hear it again with each heartbeat. Where
/// none does, the friend may have taken back the right to see it, and nobody has told it here.
const HOLDS: Duration = Duration::from_secs(24 * 60 * 60);
/// A list that nobody has said again for so long is forgotten.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// What its file is called behind the user's key.
const ENDING: &str = "friends";
/// No file that the agent writes is larger.
const LARGEST: u64 = 1024 * 1024;

/// A device that a friend shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShownDevice {
    /// Its key.
    pub(crate) id: EndpointId,
    /// Its name for all the world, if it can be one of the friend's.
    pub(crate) name: Option<Name>,
    /// What the friend calls it.
    pub(crate) called: Option<Label>,
    /// Whether it was up.
    pub(crate) up: Option<Up>,
}

impl ShownDevice {
    /// What holds now.
    pub(crate) fn up(&self, now: UnixTime) -> Option<Up> {
        self.up.filter(|up| up.holds(now))
    }
}

/// What a friend shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct List {
    friend: EndpointId,
    /// The friend's device that said it.
    by: EndpointId,
    heard: u64,
    devices: Vec<ShownDevice>,
}

/// What all friends show, that which was heard last at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shown(Vec<List>);

impl Shown {
    /// A friend shows these devices, as one of them says, and no others. None at all: what was shown before
    /// is forgotten.
    pub(crate) fn hear(
        &mut self,
        friend: EndpointId,
        by: EndpointId,
        mut devices: Vec<ShownDevice>,
        now: UnixTime,
    ) {
        self.0.retain(|list| list.friend != friend);
        if devices.is_empty() {
            return;
        }
        devices.truncate(MOST_OF_ONE);
        self.0.push(List { friend, by, heard: now.as_secs(), devices });
        while self.0.iter().map(|list| list.devices.len()).sum::<usize>() > MOST {
            self.0.remove(0);
        }
    }

    /// A device says nothing any more: what it said of its user is forgotten.
    pub(crate) fn forget_from(&mut self, by: EndpointId) {
        self.0.retain(|list| list.by != by);
    }

    /// Forgets what is of nobody who is wanted, and what is too old.
    pub(crate) fn keep(&mut self, is_wanted: impl Fn(EndpointId) -> bool, now: UnixTime) {
        // A clock that was set back makes nothing older.
        let is_fresh = |list: &List| now.as_secs().saturating_sub(list.heard) < KEPT.as_secs();
        self.0.retain(|list| is_wanted(list.friend) && is_fresh(list));
    }

    /// For how long nobody has said a friend's list again, if it is so old that it does not hold any more.
    pub(crate) fn old(&self, friend: EndpointId, now: UnixTime) -> Option<Duration> {
        let list = self.0.iter().find(|list| list.friend == friend)?;
        // What was heard in the future was heard before the clock was set back, nobody knows when.
        let age = now.as_secs().checked_sub(list.heard).map(Duration::from_secs);
        match age {
            Some(age) => Some(age).filter(|age| *age >= HOLDS),
            None => Some(Duration::ZERO),
        }
    }

    /// What a friend shows, be it old or not.
    pub(crate) fn of(&self, friend: EndpointId) -> &[ShownDevice] {
        let list = self.0.iter().find(|list| list.friend == friend);
        list.map(|list| list.devices.as_slice()).unwrap_or_default()
    }

    /// All devices, each with the friend who shows it.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (EndpointId, &ShownDevice)> {
        self.0.iter().flat_map(|list| list.devices.iter().map(move |device| (list.friend, device)))
    }

    /// What the agent of this machine wrote last, without what is too old by now: the agent may have ended
    /// since. A file that is not there or makes no sense says nothing. Blocks.
    pub(crate) fn read(user: EndpointId, now: UnixTime) -> Self {
        let mut shown: Self = postcard::from_bytes(&kept::read(user, ENDING, LARGEST)).unwrap_or_default();
        shown.keep(|_| true, now);
        shown
    }

    /// Writes it for other commands and for the next start. Blocks.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn write(&self, user: EndpointId) -> Result<()> {
        kept::write(user, ENDING, &postcard::to_stdvec(self)?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Said;
    use super::*;

    fn id(number: u16) -> EndpointId {
        let mut secret = [9; 32];
        secret[..2].copy_from_slice(&number.to_be_bytes());
        whimbrel_base::SecretKey::from_bytes(&secret).id()
    }

    fn at(seconds: u64) -> UnixTime {
        UnixTime::from_secs(1_700_000_000 + seconds)
    }

    fn device(id: EndpointId) -> ShownDevice {
        ShownDevice { id, name: None, called: None, up: None }
    }

    #[test]
    fn the_last_list_of_a_friend_holds_and_an_empty_one_ends_it() {
        let mut shown = Shown::default();
        shown.hear(id(1), id(1), vec![device(id(2)), device(id(3))], at(0));
        shown.hear(id(4), id(4), vec![device(id(5))], at(0));
        shown.hear(id(1), id(2), vec![device(id(3))], at(1));
        assert_eq!(shown.of(id(1)), [device(id(3))]);
        assert_eq!(shown.devices().count(), 2);
        shown.forget_from(id(1));
        assert_eq!(shown.of(id(1)), [device(id(3))], "another device has said it since");
        shown.forget_from(id(2));
        assert_eq!((shown.of(id(1)), shown.of(id(4)).len()), (&[][..], 1));
        shown.hear(id(4), id(4), Vec::new(), at(2));
        assert_eq!(shown, Shown::default());
    }

    #[test]
    fn a_list_holds_for_a_day_after_it_was_heard_last() {
        let mut shown = Shown::default();
        let heard = |shown: &mut Shown, seconds| shown.hear(id(1), id(1), vec![device(id(2))], at(seconds));
        heard(&mut shown, 0);
        let day = HOLDS.as_secs();
        assert_eq!((shown.old(id(1), at(day - 1)), shown.old(id(1), at(day))), (None, Some(HOLDS)));
        assert_eq!(shown.old(id(1), UnixTime::from_secs(1)), Some(Duration::ZERO), "the clock was set back");
        heard(&mut shown, day);
        assert_eq!(shown.old(id(1), at(2 * day - 1)), None);
        assert_eq!(shown.old(id(3), at(0)), None, "there is none");
    }

    #[test]
    fn a_list_is_kept_for_a_week_and_of_friends_only() {
        let mut shown = Shown::default();
        shown.hear(id(1), id(1), vec![device(id(2))], at(0));
        shown.hear(id(3), id(3), vec![device(id(4))], at(0));
        shown.keep(|friend| friend == id(1), at(KEPT.as_secs() - 1));
        assert_eq!((shown.of(id(1)).len(), shown.of(id(3)).len()), (1, 0));
        shown.keep(|_| true, UnixTime::from_secs(1));
        assert_eq!(shown.of(id(1)).len(), 1, "the clock was set back");
        shown.keep(|_| true, at(KEPT.as_secs()));
        assert_eq!(shown, Shown::default());
    }

    #[test]
    fn no_more_devices_are_kept_than_may_be_and_the_oldest_list_makes_room() {
        let mut shown = Shown::default();
        let many = |from: u16, count: usize| -> Vec<ShownDevice> {
            (from..).take(count).map(|number| device(id(number))).collect()
        };
        shown.hear(id(1), id(1), many(1000, MOST_OF_ONE + 1), at(0));
        assert_eq!(shown.of(id(1)).len(), MOST_OF_ONE);
        let friends = u16::try_from(MOST / MOST_OF_ONE).unwrap();
        for friend in 2..=friends {
            shown.hear(id(friend), id(friend), many(1000, MOST_OF_ONE), at(0));
        }
        assert_eq!((shown.devices().count(), shown.of(id(1)).len()), (MOST, MOST_OF_ONE));
        shown.hear(id(500), id(500), many(5000, 1), at(1));
        assert_eq!((shown.of(id(1)).len(), shown.of(id(2)).len(), shown.of(id(500)).len()), (0, 128, 1));
    }

    /// A file that is as large as one can be is read again.
    #[test]
    fn what_is_written_is_read_again_however_much_it_is() {
        let mut shown = Shown::default();
        let name: Name = format!("{0}.{0}@{1}.org", "n".repeat(60), "d".repeat(60)).parse().unwrap();
        let up = Some(Up::told(Said { away: true, seconds: 300 }, 7, at(0)));
        let full = |number| ShownDevice {
            id: id(number),
            name: Some(name.clone()),
            called: Some("c".repeat(63).parse().unwrap()),
            up,
        };
        for friend in 0..u16::try_from(MOST / MOST_OF_ONE).unwrap() {
            shown.hear(id(friend), id(friend), (1000..1128).map(full).collect(), at(0));
        }
        let bytes = postcard::to_stdvec(&shown).unwrap();
        let longer = (whimbrel_base::name::MAX_NAME_BYTES - name.as_str().len()) * MOST;
        assert!(((bytes.len() + longer) as u64) < LARGEST, "{} {longer}", bytes.len());
        assert_eq!(postcard::from_bytes::<Shown>(&bytes).unwrap(), shown);
        let up = shown.of(id(1))[0].up(at(80)).unwrap();
        assert_eq!((up.state(), up.heard), ("away", at(0).as_secs() - 7));
        assert_eq!(shown.of(id(1))[0].up(at(83)), None, "it was heard by the friend's device 90 s ago");
    }
}
