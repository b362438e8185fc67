//! Which event comes next (6.2 to 6.4).
//!
//! The next event is found by looking at all timers. Only where two are set to the same moment does it depend
//! on the heap which comes first, entries of cancelled timers included. So what the heap would have gone
//! through is written down, and made up for once a tie asks for it: most predictions end before that.

use super::heap::{Entry, Heap};

/// Something that the heap has yet to go through.
#[derive(Debug, Clone, Copy)]
enum Step {
    Push(Entry),
    /// Entries are taken off until this one is.
    PopTo(u32),
}

/// The heap, and what it is behind.
#[derive(Debug, Clone, Default)]
pub(super) struct Events {
    heap: Heap,
    behind: Vec<Step>,
}

impl Events {
    pub(super) fn clear(&mut self) {
        self.heap.clear();
        self.behind.clear();
    }

    pub(super) fn copy_from(&mut self, other: &Self) {
        self.heap.copy_from(&other.heap);
        self.behind.clone_from(&other.behind);
    }

    /// A timer was set.
    #[inline]
    pub(super) fn push(&mut self, entry: Entry) {
        self.behind.push(Step::Push(entry));
    }

    /// This timer was the only one of its moment, and has been taken.
    #[inline]
    pub(super) fn took(&mut self, serial: u32) {
        self.behind.push(Step::PopTo(serial));
    }

    /// Take the first entry that is live.
    pub(super) fn pop(&mut self, is_live: impl Fn(&Entry) -> bool) -> Option<Entry> {
        self.catch_up();
        loop {
            let entry = self.heap.pop()?;
            if is_live(&entry) {
                return Some(entry);
            }
        }
    }

    /// Let the heap go through all that it is behind.
    pub(super) fn catch_up(&mut self) {
        for step in self.behind.drain(..) {
            match step {
                Step::Push(entry) => self.heap.push(entry),
                Step::PopTo(serial) => while self.heap.pop().is_some_and(|entry| entry.serial != serial) {},
            }
        }
    }
}
