//! Personal names are unique in a group. Two devices may give one name to two things while they don't know of
//! each other; then the one that was called so first keeps it, and the other gets a number behind it. What a
//! device without trust calls itself takes no name from anything else: it may have been stolen.

use std::collections::{BTreeMap, BTreeSet};

use whimbrel_base::Name;

use super::{Group, Stamp, Wanted};
use crate::label::Label;
use crate::op::Subject;
use whimbrel_base::order;

/// A thing that has a name: what it is to be called, or the name that the world has for it.
struct Thing<'a> {
    subject: Subject,
    wanted: Option<&'a Wanted>,
    name: Option<&'a Name>,
    rank: Rank,
}

/// Whose wish comes first where two things would be called the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// The user's.
    User,
    /// Nobody's: it has the name that the world has for it.
    World,
    /// Its own, without trust.
    Itself,
}

/// What each thing in the group is called.
pub(crate) fn names(group: &Group) -> BTreeMap<Subject, Label> {
    let mut things = things(group);
    // What the user chose comes first, the earlier choice before the later one.
    order::by_key(&mut things, |thing| (thing.rank, thing.since(), thing.subject));
    let of_user = things.iter().filter(|thing| thing.rank == Rank::User);
    let wishes = order::set(of_user.filter_map(|thing| Some(thing.wanted?.name.clone())));
    let mut given: BTreeMap<Subject, Label> = BTreeMap::new();
    let mut taken = BTreeSet::new();
    let mut last = BTreeMap::new();
    for thing in things {
        let Some(label) = thing.label() else { continue };
        let name = free(&label, thing.rank == Rank::User, &taken, &wishes, &mut last);
        taken.insert(name.clone());
        given.insert(thing.subject, name);
    }
    given
}

/// Whether a thing has its personal name by chance: the user has chosen none, and by the first part of its
/// name something else could be meant.
pub(crate) fn is_unclear(group: &Group, subject: Subject) -> bool {
    let things = things(group);
    let Some(it) = things.iter().find(|thing| thing.subject == subject) else { return false };
    if it.rank != Rank::World {
        return false;
    }
    let label = it.label();
    // The user's own devices come before friends, who do not choose what these are called.
    let is_own = matches!(subject, Subject::Device(_));
    let is_shared = things.iter().any(|other| {
        let is_beside = other.subject != subject && matches!(other.subject, Subject::Device(_)) == is_own;
        is_beside && other.rank == Rank::World && other.label() == label
    });
    is_shared || names(group).get(&subject) != label.as_ref()
}

/// The name itself, or with the first number that makes it one that nobody has or was meant to have. `last`
/// is the number that was given out last.
fn free(
    label: &Label,
    is_wanted: bool,
    taken: &BTreeSet<Label>,
    wishes: &BTreeSet<Label>,
    last: &mut BTreeMap<Label, usize>,
) -> Label {
    if !taken.contains(label) && (is_wanted || !wishes.contains(label)) {
        return label.clone();
    }
    let mut number = last.get(label).copied().unwrap_or(1);
    loop {
        number += 1;
        let name = label.numbered(number);
        if !taken.contains(&name) && !wishes.contains(&name) {
            last.insert(label.clone(), number);
            return name;
        }
    }
}

fn things(group: &Group) -> Vec<Thing<'_>> {
    let mut things = Vec::new();
    for (id, device) in &group.devices {
        things.push(thing(group, Subject::Device(*id), device.wanted.as_ref(), Some(&device.name)));
    }
    for (id, friend) in &group.friends {
        things.push(thing(group, Subject::Friend(*id), friend.wanted.as_ref(), friend.name.as_ref()));
        for (device, known) in &friend.devices {
            let subject = Subject::FriendDevice(*id, *device);
            things.push(thing(group, subject, known.wanted.as_ref(), known.name.as_ref()));
        }
    }
    things
}

fn thing<'a>(
    group: &Group,
    subject: Subject,
    wanted: Option<&'a Wanted>,
    name: Option<&'a Name>,
) -> Thing<'a> {
    let rank = match wanted {
        Some(_) if group.names_itself(subject) => Rank::Itself,
        Some(_) => Rank::User,
        None => Rank::World,
    };
    Thing { subject, wanted, name, rank }
}

impl Thing<'_> {
    fn since(&self) -> Option<Stamp> {
        self.wanted.map(|wanted| wanted.since)
    }

    /// What the user chose, or the first part of the name that the world has for it.
    fn label(&self) -> Option<Label> {
        if let Some(wanted) = self.wanted {
            return Some(wanted.name.clone());
        }
        self.name?.local().split('.').next()?.parse().ok()
    }
}
