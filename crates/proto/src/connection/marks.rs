//! What the peer has to be told about paths. All are idempotent statements of the newest value, so a lost one
//! is simply marked again.

use std::collections::BTreeSet;

use crate::content::Content;
use crate::ids::PathId;

#[derive(Debug, Default)]
pub(super) struct PathMarks {
    lost: BTreeSet<PathId>,
    retires: BTreeSet<PathId>,
    priorities: BTreeSet<PathId>,
}

impl PathMarks {
    pub(super) fn is_empty(&self) -> bool {
        self.priorities.is_empty() && self.lost.is_empty() && self.retires.is_empty()
    }

    /// The final count of a path has to be told.
    pub(super) fn lost(&mut self, id: PathId) {
        self.lost.insert(id);
    }

    /// It has been told otherwise, or nobody wants to know any more.
    pub(super) fn lost_told(&mut self, id: PathId) {
        self.lost.remove(&id);
    }

    pub(super) fn pop_lost(&mut self) -> Option<PathId> {
        self.lost.pop_first()
    }

    /// That a path retires has to be told.
    pub(super) fn retire(&mut self, id: PathId) {
        self.retires.insert(id);
    }

    pub(super) fn pop_retire(&mut self) -> Option<PathId> {
        self.retires.pop_first()
    }

    /// A path's priority has to be told.
    pub(super) fn priority(&mut self, id: PathId) {
        self.priorities.insert(id);
    }

    pub(super) fn priorities(&self) -> Vec<PathId> {
        self.priorities.iter().copied().collect()
    }

    /// True if a path's priority had to be told; now it is.
    pub(super) fn take_priority(&mut self, id: PathId) -> bool {
        self.priorities.remove(&id)
    }

    /// Has what a lost segment carried said again.
    pub(super) fn mark(&mut self, content: &Content) {
        match content {
            Content::PathLost(path) => self.lost(*path),
            Content::Retire(path) => self.retire(*path),
            Content::Priority(path) => self.priority(*path),
            _ => {}
        }
    }
}
