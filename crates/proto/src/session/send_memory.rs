//! Memory for what was written and is not acknowledged yet.
//!
//! Each stream has a small share of its own; what it holds beyond counts against a limit for all. So streams
//! whose peers don't read, which hold little more than their share, don't keep the others from writing.

use super::credit::INDEPENDENT_STREAMS;

/// What each stream may hold whatever the others hold, in bytes.
const SHARE: u64 = 64 * 1024;

/// How much all streams of a connection hold for sending.
#[derive(Debug)]
pub(crate) struct SendMemory {
    held: u64,
    /// What streams hold beyond their shares.
    beyond: u64,
    stream_limit: u64,
    limit: u64,
    share: u64,
    /// A writer was refused because of the limit for all.
    starved: bool,
}

impl SendMemory {
    /// One stream may hold `stream_limit` bytes, and all together `limit` beyond their shares.
    pub(crate) fn new(stream_limit: u64, limit: u64) -> Self {
        let share = SHARE.min(stream_limit / 2).min(limit / 2);
        Self { held: 0, beyond: 0, stream_limit, limit, share, starved: false }
    }

    /// Returns what one stream may hold, and what all may beyond their shares.
    pub(crate) fn limits(&self) -> [u64; 2] {
        [self.stream_limit, self.limit]
    }

    /// Returns the bytes held by all streams.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }

    /// Returns how many bytes more a stream may hold that holds `held`.
    pub(crate) fn room(&mut self, held: u64) -> u64 {
        let own = self.share.saturating_sub(held);
        let most = self.limit.saturating_add(INDEPENDENT_STREAMS * self.share);
        let common = self.limit.saturating_sub(self.beyond).saturating_add(own);
        let common = common.min(most.saturating_sub(self.held));
        self.starved |= common == 0;
        common.min(self.stream_limit.saturating_sub(held))
    }

    /// Returns true if a stream that holds `held` has room again for a good part of what it may hold.
    pub(crate) fn has_room(&mut self, held: u64) -> bool {
        let own = held < self.share / 2;
        let common = own || self.is_relieved();
        self.starved |= !common;
        common && held <= self.stream_limit / 8 * 7
    }

    /// Notes that a stream holds `after` bytes instead of `before`.
    pub(crate) fn change(&mut self, before: u64, after: u64) {
        let beyond = |held: u64| held.saturating_sub(self.share);
        self.beyond = (self.beyond + beyond(after)).saturating_sub(beyond(before));
        self.held = (self.held + after).saturating_sub(before);
    }

    /// Returns true, once, if there is room again for writers that were refused because of the others.
    pub(crate) fn take_relief(&mut self) -> bool {
        let relief = self.starved && self.is_relieved();
        self.starved &= !relief;
        relief
    }

    fn is_relieved(&self) -> bool {
        let limit = self.limit.saturating_add(INDEPENDENT_STREAMS * self.share);
        self.beyond <= self.limit / 8 * 7 && self.held <= limit / 8 * 7
    }

    /// Forgets what was held.
    pub(crate) fn clear(&mut self) {
        (self.held, self.beyond) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1 << 20;

    #[test]
    fn streams_that_hold_their_share_leave_everything_to_the_others() {
        let mut memory = SendMemory::new(LIMIT / 2, LIMIT);
        for _ in 0..100 {
            memory.change(0, SHARE);
        }
        assert_eq!(memory.room(0), LIMIT / 2);
    }

    #[test]
    fn a_stream_has_its_share_when_the_rest_is_used_up() {
        let mut memory = SendMemory::new(LIMIT, LIMIT);
        memory.change(0, LIMIT);
        memory.change(0, 2 * SHARE);
        assert_eq!(memory.room(LIMIT), 0);
        assert_eq!(memory.room(0), SHARE);
        assert!(memory.has_room(0) && !memory.has_room(SHARE));
    }

    #[test]
    fn a_stream_has_room_again_once_an_eighth_of_it_is_free() {
        let mut memory = SendMemory::new(LIMIT, 8 * LIMIT);
        memory.change(0, LIMIT);
        assert!(memory.has_room(LIMIT / 8 * 7) && !memory.has_room(LIMIT / 8 * 7 + 1));
    }

    #[test]
    fn relief_is_told_once_and_only_to_those_who_wait() {
        let mut memory = SendMemory::new(LIMIT, LIMIT);
        assert!(!memory.take_relief());
        memory.change(0, LIMIT);
        memory.change(0, 2 * SHARE);
        assert_eq!(memory.room(SHARE), 0);
        assert!(!memory.take_relief());
        memory.change(LIMIT, LIMIT / 2);
        assert!(memory.take_relief() && !memory.take_relief());
    }

    #[test]
    fn all_streams_together_hold_no_more_than_the_bound() {
        let mut memory = SendMemory::new(LIMIT, LIMIT);
        let mut held = 0;
        for _ in 0..10_000 {
            let room = memory.room(0);
            memory.change(0, room);
            held += room;
        }
        assert_eq!(held, memory.held());
        assert!(held <= LIMIT + INDEPENDENT_STREAMS * SHARE, "{held}");
    }
}
