//! What a session keeps, and how much that may be.

use super::{Holder, Session, SessionSettings};
use crate::sessions::budget::{LEAST_KEPT, LEAST_WAITING, Room};
use crate::sessions::server::READ;
use crate::sessions::window::Window;
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// A server that was held up is read again once there is room for so much, or for half of what may be kept
/// where that is less: each read costs something on both sides, however little comes.
const LEAST_READ: usize = LEAST_KEPT / 2;
/// Where much may be kept there must be room for such a part of that, or for what is read at once: its
/// program has all the rest to take meanwhile.
const PART_READ: usize = 8;
/// Where more sessions of a device keep something, each keeps no more than a part of what one of so many
/// might before it is known how fast its program takes it: a few would have all while theirs are slow.
const FEW: usize = 64;
const PARTS: u64 = 4;

impl Session {
    /// Tells others what there is to know of its bytes.
    pub(super) fn tell_figures(&mut self) {
        let figures = self.listing.figures();
        let tell = |of: &std::sync::atomic::AtomicU64, number| of.store(number, Ordering::Relaxed);
        tell(&figures.up, self.server.waiting().end());
        tell(&figures.down, self.server.kept().end());
        figures.is_tls.store(self.server.is_tls(), Ordering::Relaxed);
        // What was taken is kept if there is as much room besides. A device that takes the session may be
        // given it at this moment.
        let of_film = self.server.kept_of_film();
        if of_film > 0 && self.taking.is_none() && self.room().bytes < of_film as u64 {
            self.server.keep_less_of_film();
        }
        let kept = self.server.kept().len() + self.server.kept_of_film();
        self.listing.figures().kept.store(kept as u64, Ordering::Relaxed);
        self.listing.share().set((kept + self.server.waiting().len()) as u64);
    }

    /// Whether there is no room for what its programs sent.
    pub(super) fn is_full(&mut self) -> bool {
        if self.server.waiting().len() <= LEAST_WAITING {
            self.is_spared &= self.taking.is_some();
            return false;
        }
        !self.is_spared && self.room().bytes == 0
    }

    /// How much more may be kept for its device.
    fn room(&mut self) -> Room {
        let SessionSettings { most_bytes_each, most_bytes, .. } = self.settings;
        self.listing.share().room(most_bytes_each, most_bytes)
    }

    /// How much is kept of the server. What others keep may leave less than the settings do.
    pub(super) fn most_kept(&mut self) -> usize {
        let Room { bytes, sessions } = self.room();
        let room = usize::try_from(bytes).unwrap_or(usize::MAX);
        let possible = self.server.kept().len().saturating_add(room).max(self.growth.least());
        self.wanted(sessions).min(possible)
    }

    /// Whether the server is to be read, where so much may be kept: until that is all, so that it is known to
    /// be held up, and that an end is found if there is one.
    pub(super) fn has_room_to_read(&mut self, most: usize) -> bool {
        self.is_held_up = is_to_wait(self.server.kept(), most, self.is_held_up);
        !self.is_held_up
    }

    /// How much is to be kept, if there is room, where so many sessions of its device keep something.
    fn wanted(&self, sessions: usize) -> usize {
        self.growth.wanted().min(self.settings.most_grown).max(unmeasured(&self.settings, sessions))
    }

    /// Looks how fast the program takes what the server sends, of which `most` may be kept.
    pub(super) fn measure(&mut self, most: usize) {
        let Holder::Seat(seat) = &self.holder else { return };
        let kept = self.server.kept();
        let is_full = self.taking.is_none() && kept.len() >= most;
        self.growth.note((seat.said(), kept.base()), is_full, || seat.round_trip(), Instant::now());
    }
}

/// Whether a server is to wait of which so much is kept, and `most` may be. It `waits` by now, or does not.
fn is_to_wait(kept: &Window, most: usize, waits: bool) -> bool {
    let (room, least) = match waits {
        // Nothing is read into the place of bytes whose memory is still held with others of their piece.
        true => (most.saturating_sub(kept.held()), least_read(most)),
        false => (most.saturating_sub(kept.len()), 1),
    };
    room < least
}

/// For how much there must be room before a server that waits is read again, where `most` may be kept.
fn least_read(most: usize) -> usize {
    (most / PART_READ).clamp(LEAST_READ, READ).min(most / 2).max(1)
}

/// How much is to be kept of a server while it is not known how fast its program takes it.
fn unmeasured(settings: &SessionSettings, sessions: usize) -> usize {
    let SessionSettings { most_kept, most_bytes_each, .. } = *settings;
    if sessions <= FEW {
        return most_kept;
    }
    let part = most_bytes_each / u64::try_from(sessions).unwrap_or(u64::MAX).saturating_mul(PARTS);
    most_kept.min(usize::try_from(part).unwrap_or(usize::MAX).max(LEAST_KEPT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn a_server_that_waits_is_read_again_when_memory_is_free_and_not_when_bytes_were_counted() {
        let mut kept = Window::default();
        for length in [10_000, 16_384, 6384] {
            assert!(!is_to_wait(&kept, LEAST_KEPT, false), "there is room");
            kept.push(Bytes::from(vec![7; length]));
        }
        assert!(is_to_wait(&kept, LEAST_KEPT, false), "it is full");
        // The second piece is held until all of it was taken.
        for (taken, waits) in [(9999, true), (16_384, true), (26_383, true), (26_384, false), (30_000, false)]
        {
            assert!(kept.release(taken));
            assert_eq!(is_to_wait(&kept, LEAST_KEPT, true), waits, "{taken} were taken");
        }
    }

    #[test]
    fn where_much_may_be_kept_a_server_is_read_for_much_at_once_and_its_program_has_most_of_it_meanwhile() {
        for (most, least) in [
            (LEAST_KEPT, LEAST_READ),
            (128 * 1024, LEAST_READ),
            (512 * 1024, 64 * 1024),
            (1024 * 1024, READ),
            (8 * 1024 * 1024, READ),
        ] {
            assert_eq!(least_read(most), least, "{most} may be kept");
            let mut kept = Window::default();
            (0..most / LEAST_READ).for_each(|_| kept.push(Bytes::from(vec![7; LEAST_READ])));
            for (taken, waits) in [(0, true), (least - 1, true), (least, false)] {
                assert!(kept.release(taken as u64));
                assert_eq!(is_to_wait(&kept, most, true), waits, "{taken} of {most} were taken");
            }
        }
    }

    #[test]
    fn no_server_waits_once_its_program_has_taken_all_however_little_may_be_kept() {
        for most in [1, 2, 1000, LEAST_KEPT, 1024 * 1024] {
            let mut kept = Window::default();
            kept.push(Bytes::from(vec![7; most]));
            assert!(is_to_wait(&kept, most, false), "{most} may be kept, and are");
            assert!(kept.release(kept.end()));
            assert!(!is_to_wait(&kept, most, true), "{most} may be kept, and nothing is");
        }
    }

    #[test]
    fn a_few_sessions_may_keep_much_at_once_and_each_of_very_many_the_least() {
        let settings = SessionSettings::default();
        let kept = |sessions| unmeasured(&settings, sessions);
        assert_eq!([1, FEW].map(kept), [settings.most_kept; 2]);
        assert_eq!([128, 1000, usize::MAX].map(kept), [64 * 1024, LEAST_KEPT, LEAST_KEPT]);
        // No session keeps more than the settings allow.
        let little = SessionSettings { most_kept: 1000, ..settings };
        assert_eq!([1, 1000].map(|sessions| unmeasured(&little, sessions)), [1000; 2]);
    }
}
