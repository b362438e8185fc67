//! Messages that went, and came, on a path in datagrams of its carrier: outside of its segments, and in any
//! order. Each side counts the datagrams with messages that it sends on a path from 0; the other one tells
//! which of them it has.

mod arriving;
mod leaving;

use std::time::{Duration, Instant};

pub(crate) use arriving::Arriving;
pub(crate) use leaving::{Flying, Leaver, Leavers, Leaving};

/// Both directions.
#[derive(Debug)]
pub(crate) struct Datagrams {
    /// Bytes that the carrier takes in one now; 0: it takes none.
    room: u64,
    pub(crate) leaving: Leaving,
    pub(crate) arriving: Arriving,
}

impl Datagrams {
    /// `rtt_hint` is what opening the carrier took.
    pub(super) fn new(now: Instant, rtt_hint: Option<Duration>) -> Self {
        Self { room: 0, leaving: Leaving::new(now, rtt_hint), arriving: Arriving::default() }
    }

    /// The carrier takes datagrams of so many bytes now.
    pub(crate) fn set_room(&mut self, room: u64) {
        self.room = room;
    }

    /// Bytes that one with a message may have now.
    pub(crate) fn room(&self) -> u64 {
        if self.leaving.is_full() { 0 } else { self.room }
    }

    /// Bytes that one with answers may have now.
    pub(crate) fn answer_room(&self) -> u64 {
        self.room
    }
}
