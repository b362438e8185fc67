//! What a session keeps, and how much that may be.

use super::{Holder, Session, SessionSettings};
use crate::sessions::budget::{LEAST_KEPT, LEAST_WAITING};
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// A server that was held up is read again once there is room for so much, or for half of what may be kept where
/// that is less: each read costs something on both sides, however little comes.
const LEAST_READ: usize = LEAST_KEPT / 2;

impl Session {
    /// Tells others what there is to know of its bytes.
    pub(super) fn tell_figures(&mut self) {
        let figures = self.listing.figures();
        let tell = |of: &std::sync::atomic::AtomicU64, number| of.store(number, Ordering::Relaxed);
        tell(&figures.up, self.server.waiting().end());
        tell(&figures.down, self.server.kept().end());
        tell(&figures.kept, self.server.kept().len() as u64);
        figures.is_tls.store(self.server.is_tls(), Ordering::Relaxed);
        let bytes = self.server.kept().len() + self.server.waiting().len();
        self.listing.share().set(bytes as u64);
    }

    /// Whether there is no room for what its programs sent.
    pub(super) fn is_full(&mut self) -> bool {
        if self.server.waiting().len() <= LEAST_WAITING {
            self.is_spared &= self.taking.is_some();
            return false;
        }
        !self.is_spared && self.room() == 0
    }

    /// How much more may be kept for its device.
    fn room(&mut self) -> usize {
        let SessionSettings { most_bytes_each, most_bytes, .. } = self.settings;
        usize::try_from(self.listing.share().room(most_bytes_each, most_bytes)).unwrap_or(usize::MAX)
    }

    /// How much is kept of the server. What others keep may leave less than the settings do.
    pub(super) fn most_kept(&mut self) -> usize {
        let possible = self.server.kept().len().saturating_add(self.room()).max(LEAST_KEPT);
        self.wanted().min(possible)
    }

    /// Whether the server is to be read, where so much may be kept: until that is all, so that it is known to be
    /// held up, and that an end is found if there is one.
    pub(super) fn has_room_to_read(&mut self, most: usize) -> bool {
        let room = most.saturating_sub(self.server.kept().len());
        let least = if self.is_held_up { LEAST_READ.min(most / 2).max(1) } else { 1 };
        self.is_held_up = room < least;
        !self.is_held_up
    }

    /// How much is to be kept, whatever others keep.
    fn wanted(&self) -> usize {
        let SessionSettings { most_kept, most_grown, .. } = self.settings;
        self.growth.wanted().min(most_grown).max(most_kept)
    }

    /// Looks how fast the program takes what the server sends.
    pub(super) fn measure(&mut self) {
        let Holder::Seat(seat) = &self.holder else { return };
        let kept = self.server.kept();
        let is_full = self.taking.is_none() && kept.len() >= self.wanted();
        self.growth.note((seat.said(), kept.base()), is_full, || seat.round_trip(), Instant::now());
    }
}
