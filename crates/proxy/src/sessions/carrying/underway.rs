//! What a device has of a session's bytes, in both directions.

use super::super::budget::least_kept;
use super::super::frame::LONGEST;
use super::super::window::Window;
use super::SOON;
use bytes::Bytes;
use std::time::Duration;
use tokio::time::Instant;

/// A program that took nothing for so long is not known to be fast: its gateway may keep the least for it.
const RESTS: Duration = Duration::from_secs(1);

/// From the server to the program.
pub(super) struct Down {
    /// What came, and was not written yet. It begins at what was.
    pub(super) queue: Window,
    /// What came ahead, until its turn has come.
    pub(super) ahead: Window,
    /// So many bytes are not for the program.
    pub(super) skip: u64,
    pub(super) has_ended: bool,
    /// The program was told so.
    pub(super) is_shut: bool,
    /// What the gateway was told that the program has taken.
    pub(super) told: u64,
    /// What it was told that the program will have, whatever happens.
    pub(super) promised: u64,
    /// The server broke the connection behind what came. The program is told so then, or at this moment.
    pub(super) broken: Option<Instant>,
    pub(super) asked: Instant,
    pub(super) pace: Pace,
    /// When the first was written of what the gateway is to be told, and when that became much: a program
    /// that was asked at that moment could not have read it.
    pub(super) wrote: Instant,
    pub(super) full: Full,
    /// A program that reads nothing is asked less and less often.
    pub(super) stands: Duration,
}

/// How fast a program takes what comes.
pub(super) struct Pace {
    /// When it was known last that it had taken something.
    counted: Instant,
    /// Of the last two counts, bytes a second. The smaller one holds: the second count of what came at once
    /// finds a program that seems fast.
    rates: [u64; 2],
}

/// A program's kernel that had no room is asked again, less and less often: it does not say so by itself.
pub(super) struct Full {
    pub(super) until: Instant,
    pub(super) pause: Duration,
}

/// From the program to the server.
pub(super) struct Up {
    pub(super) sent: u64,
    /// What the server has taken of that.
    pub(super) taken: u64,
    pub(super) has_ended: bool,
}

impl Down {
    /// From this offset on, but for so many bytes.
    pub(super) fn new(offset: u64, skip: u64) -> Self {
        Self {
            queue: Window::at(offset),
            ahead: Window::default(),
            skip,
            has_ended: false,
            is_shut: false,
            told: offset,
            promised: 0,
            broken: None,
            asked: Instant::now(),
            pace: Pace::new(Instant::now()),
            wrote: Instant::now(),
            full: Full { until: Instant::now(), pause: SOON },
            stands: Duration::ZERO,
        }
    }

    /// Takes what came. Returns how many of these bytes are not for the program: they count as written.
    #[must_use]
    pub(super) fn push(&mut self, bytes: Bytes) -> u64 {
        self.queue.push(bytes);
        if !self.ahead.is_empty() && self.ahead.end() <= self.queue.end() {
            // The gateway has forgotten that it came.
            self.ahead = Window::default();
        }
        let skipped = self.skip.min(self.queue.len() as u64);
        if skipped > 0 {
            self.queue.release(self.queue.base() + skipped);
            self.skip -= skipped;
        }
        skipped
    }
}

impl Down {
    /// Whether what is next came ahead, up to this offset.
    pub(super) fn has_ahead(&self, to: u64) -> bool {
        let next = self.queue.end();
        self.ahead.base() <= next && next < to && to <= self.ahead.end()
    }

    /// Takes that, as if it came now. No more came ahead.
    #[must_use]
    pub(super) fn push_ahead(&mut self, to: u64) -> u64 {
        let ahead = std::mem::take(&mut self.ahead);
        let mut skipped = 0;
        while self.queue.end() < to {
            let left = usize::try_from(to - self.queue.end()).unwrap_or(usize::MAX);
            skipped += self.push(ahead.from(self.queue.end(), left));
        }
        skipped
    }
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self { counted: now, rates: [0; 2] }
    }

    /// It has taken so many bytes more.
    pub(super) fn takes(&mut self, bytes: u64, now: Instant) {
        let lasted = now.saturating_duration_since(self.counted).as_micros().max(1);
        let rate = u128::from(bytes) * 1_000_000 / lasted;
        self.rates = [self.rates[1], u64::try_from(rate).unwrap_or(u64::MAX)];
        self.counted = now;
    }

    /// So much is much for it: half of what a gateway keeps at least for such a program, which reads on while
    /// the other half is under way. A gateway finds a program fast a quarter of a second later, and may keep
    /// less until then: that is counted as seldom as little is, but fast enough for it to find that.
    pub(super) fn much(&self, now: Instant) -> u64 {
        let is_known = now.saturating_duration_since(self.counted) < RESTS;
        let rate = if is_known { self.rates[0].min(self.rates[1]) } else { 0 };
        least_kept(rate) as u64 / 2
    }
}

impl Up {
    /// What may be read of the program at once, if so much may be sent before the server has taken it.
    pub(super) fn room(&self, most: u64) -> usize {
        let room = most.saturating_sub(self.sent - self.taken);
        usize::try_from(room).map_or(LONGEST, |room| room.min(LONGEST))
    }

    pub(super) fn is_taken(&self) -> bool {
        self.taken == self.sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::carrying::UP_STOPPING;

    #[test]
    fn what_is_not_for_the_program_is_skipped_and_told_once() {
        let mut down = Down::new(1000, 50);
        assert_eq!(
            (down.push(Bytes::from_static(&[1; 30])), down.queue.base(), down.queue.len()),
            (30, 1030, 0)
        );
        assert_eq!(
            (down.push(Bytes::from_static(&[2; 30])), down.queue.base(), down.queue.len()),
            (20, 1050, 10)
        );
        assert_eq!(
            (down.push(Bytes::from_static(&[3; 30])), down.queue.base(), down.queue.len()),
            (0, 1050, 40)
        );
    }

    #[test]
    fn what_came_ahead_is_taken_from_where_the_rest_is_and_only_once() {
        let mut down = Down::new(1000, 3);
        down.ahead = Window::at(1010);
        down.ahead.push(Bytes::from_static(b"abcdefghij"));
        assert!(!down.has_ahead(1020), "what is before is missing");
        assert_eq!(down.push(Bytes::from_static(&[1; 12])), 3);
        assert!(!down.has_ahead(1021) && !down.has_ahead(1012) && down.has_ahead(1018));
        assert_eq!(down.push_ahead(1018), 0);
        assert_eq!(down.queue.to_vec()[9..], b"cdefgh"[..]);
        assert!(!down.has_ahead(1020));
        assert_eq!(down.push(Bytes::from_static(b"ij")), 0);
        assert_eq!((down.queue.base(), down.queue.end()), (1003, 1020));
        // A gateway that has forgotten it says it once more.
        let mut down = Down::new(1000, 0);
        down.ahead = Window::at(1001);
        down.ahead.push(Bytes::from_static(b"abc"));
        assert_eq!((down.push(Bytes::from_static(b"xab")), down.ahead.len()), (0, 3));
        assert_eq!((down.push(Bytes::from_static(b"cd")), down.ahead.len()), (0, 0));
        // It may all be for nobody.
        let mut down = Down::new(1010, 4);
        down.ahead = Window::at(1008);
        down.ahead.push(Bytes::from_static(b"yyabcd"));
        assert_eq!((down.has_ahead(1014), down.push_ahead(1014), down.queue.len()), (true, 4, 0));
    }

    #[test]
    fn a_fast_program_is_counted_in_larger_steps_and_in_small_ones_again_once_it_is_slow() {
        const LEAST: u64 = 16 * 1024;
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        assert_eq!(pace.much(now), LEAST);
        for (bytes, millis, much) in [
            (LEAST, 3, LEAST),
            (LEAST, 3, 4 * LEAST),
            (4 * LEAST, 5, 4 * LEAST),
            // 400 000 bytes a second.
            (100_000, 250, 50_000),
            (4 * LEAST, 5, 50_000),
            (LEAST, 1000, LEAST),
            // The second part of what came together.
            (LEAST, 5, LEAST),
            (LEAST, 300, LEAST),
        ] {
            now += Duration::from_millis(millis);
            pace.takes(bytes, now);
            assert_eq!(pace.much(now), much, "after {bytes} bytes in {millis} ms");
        }
    }

    #[test]
    fn a_program_that_rested_is_counted_in_small_steps_at_first() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        for _ in 0..2 {
            pace.takes(10_000_000, start + Duration::from_millis(1));
        }
        let much = |millis| pace.much(start + Duration::from_millis(millis));
        assert_eq!([1, 900, 1100].map(much), [65_536, 65_536, 16_384]);
    }

    #[test]
    fn a_device_never_sends_a_byte_more_than_the_gateway_allows() {
        for odd in [1, 1000, LONGEST as u64 - 1, LONGEST as u64] {
            let mut up = Up { sent: 7, taken: 7, has_ended: false };
            while up.room(UP_STOPPING) > 0 {
                up.sent += odd.min(up.room(UP_STOPPING) as u64);
            }
            assert_eq!((up.sent - up.taken, up.is_taken()), (UP_STOPPING, false));
            assert_eq!(UP_STOPPING, crate::sessions::seat::MOST_UP as u64);
        }
    }
}
