//! Personal names are unique in a group. Two devices may give one name to two things while they don't know of
//! each other; then the one that was called so first keeps it, and the other gets a number behind it.

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
}

/// What each thing in the group is called.
pub(crate) fn names(group: &Group) -> BTreeMap<Subject, Label> {
    let mut things = things(group);
    // What the user chose comes first, the earlier choice before the later one.
    order::by_key(&mut things, |thing| (thing.wanted.is_none(), thing.since(), thing.subject));
    let wishes = order::set(things.iter().filter_map(|thing| Some(thing.wanted?.name.clone())));
    let mut given: BTreeMap<Subject, Label> = BTreeMap::new();
    let mut taken = BTreeSet::new();
    let mut last = BTreeMap::new();
    for thing in things {
        let Some(label) = thing.label() else { continue };
        let name = free(&label, thing.wanted.is_some(), &taken, &wishes, &mut last);
        taken.insert(name.clone());
        given.insert(thing.subject, name);
    }
    given
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
        let (wanted, name) = (device.wanted.as_ref(), Some(&device.name));
        things.push(Thing { subject: Subject::Device(*id), wanted, name });
    }
    for (id, friend) in &group.friends {
        let (wanted, name) = (friend.wanted.as_ref(), friend.name.as_ref());
        things.push(Thing { subject: Subject::Friend(*id), wanted, name });
        for (device, known) in &friend.devices {
            let (wanted, name) = (known.wanted.as_ref(), known.name.as_ref());
            things.push(Thing { subject: Subject::FriendDevice(*id, *device), wanted, name });
        }
    }
    things
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
