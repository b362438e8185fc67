//! Changes that have their turn and are not on the disk yet.
//!
//! A change is ordered in memory: it is checked against the newest state of its name, gets its version, and
//! goes into the writer's queue, all under one lock. So the queue is in the order of the versions, and
//! whoever reads sees what will be on the disk. If a change cannot be stored, what was placed on it conflicts
//! in the file, and falls too.
//!
//! There are never more of them than the queue and one transaction hold.

use std::collections::HashMap;

use whimbrel_base::Name;

use super::change::Change;
use crate::store::{Stored, Version};

/// Tells one change from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn(u64);

/// The newest state of each name that has changes under way.
#[derive(Debug)]
pub(super) struct Ahead {
    newest: HashMap<Name, (Turn, Option<Stored>)>,
    turns: u64,
    version: u64,
}

impl Ahead {
    /// Nothing is under way; versions go on after `head`.
    pub(super) fn new(head: u64) -> Self {
        Self { newest: HashMap::new(), turns: 0, version: head }
    }

    /// The state of a name once its changes are stored; `None` if it has none under way.
    pub(super) fn get(&self, name: &Name) -> Option<&Option<Stored>> {
        self.newest.get(name).map(|(_, stored)| stored)
    }

    /// Notes a change that fits the newest state. Returns its turn, and the version that the name has then.
    pub(super) fn add(&mut self, change: &Change) -> (Turn, Version) {
        self.turns += 1;
        let turn = Turn(self.turns);
        let (version, stored) = match change {
            Change::Put { entry, .. } => {
                self.version += 1;
                let version = Version(self.version);
                (version, Some(Stored { version, entry: entry.as_ref().clone() }))
            }
            Change::Remove { expected, .. } => (*expected, None),
        };
        self.newest.insert(change.name().clone(), (turn, stored));
        (turn, version)
    }

    /// Forgets a change that is stored, or won't be: the file says what counts, unless there is a newer
    /// change.
    pub(super) fn settle(&mut self, name: &Name, turn: Turn) {
        if self.newest.get(name).is_some_and(|(newest, _)| *newest == turn) {
            self.newest.remove(name);
        }
    }
}
