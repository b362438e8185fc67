//! Events that wait for the driver. However slowly it polls and whatever the peer does, there are
//! few: each stream is readable, writable or drained once, and only the newest addresses count.

use std::collections::{BTreeSet, VecDeque};
use std::mem::replace;

use super::Event;
use crate::ids::StreamId;

#[derive(Debug, Default)]
pub(crate) struct Events {
    queue: VecDeque<Event>,
    readable: BTreeSet<StreamId>,
    writable: BTreeSet<StreamId>,
    drained: BTreeSet<StreamId>,
    /// An event about addresses waits.
    addresses: bool,
    /// An event about an address with an id may wait.
    by_id: bool,
}

impl Events {
    pub(crate) fn push(&mut self, event: Event) {
        let fresh = match &event {
            Event::Readable(id) => self.readable.insert(*id),
            Event::Writable(id) => self.writable.insert(*id),
            Event::Drained(id) => self.drained.insert(*id),
            Event::PeerAddresses(_) => {
                if replace(&mut self.addresses, true) {
                    self.queue.retain(|e| !matches!(e, Event::PeerAddresses(_)));
                }
                true
            }
            Event::PeerAddress { id, .. } => {
                // The newest word on an address counts, and is said again.
                if replace(&mut self.by_id, true) {
                    self.queue.retain(|e| !matches!(e, Event::PeerAddress { id: of, .. } if of == id));
                }
                true
            }
            Event::HandoverChanged(_) => {
                self.queue.retain(|e| !matches!(e, Event::HandoverChanged(_)));
                true
            }
            Event::PriorityChanged(path, _) => {
                self.queue.retain(|e| !matches!(e, Event::PriorityChanged(of, _) if of == path));
                true
            }
            _ => self.queue.back() != Some(&event),
        };
        if fresh {
            self.queue.push_back(event);
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Event> {
        let event = self.queue.pop_front()?;
        self.by_id &= !self.queue.is_empty();
        match &event {
            Event::Readable(id) => drop(self.readable.remove(id)),
            Event::Writable(id) => drop(self.writable.remove(id)),
            Event::Drained(id) => drop(self.drained.remove(id)),
            Event::PeerAddresses(_) => self.addresses = false,
            _ => {}
        }
        Some(event)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }
}
