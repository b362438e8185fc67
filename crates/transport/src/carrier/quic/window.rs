//! How many bytes the peer may send ahead of what was read: no more than the path turns out to need.

use std::time::{Duration, Instant};

/// What a peer starts with, and is left at if it never sends quickly: the first flight and some more.
pub(super) const FIRST_WINDOW: u32 = 80 * 1024;
/// The largest: 1 Gbit/s with a round trip of 64 ms.
const LARGEST_WINDOW: u32 = 8 << 20;
/// A window of which a quarter is used up within this, or within a round trip, may be what holds the sender
/// up: at its start a sender nearly triples what it sends, and what makes room for it takes another half of a
/// round trip.
const SOON: Duration = Duration::from_millis(10);
const PART: u32 = 4;
const GROWTH: u32 = 4;

/// The receive window of one QUIC connection, that grows with what is read. It is bounded, and what it grew
/// to is counted as held, because a peer that leaves a gap has QUIC keep a whole window that nobody can read.
#[derive(Debug)]
pub(super) struct Window {
    bytes: u32,
    /// Read since `since`.
    read: u64,
    /// Nothing was read yet if there is none.
    since: Option<Instant>,
    last: Option<Instant>,
}

impl Window {
    pub(super) fn new() -> Self {
        Self { bytes: FIRST_WINDOW, read: 0, since: None, last: None }
    }

    /// Takes note of bytes that were read; the new window if it is to grow. `rtt` is asked for seldom.
    pub(super) fn took(&mut self, bytes: usize, now: Instant, rtt: impl Fn() -> Duration) -> Option<u32> {
        if self.bytes == LARGEST_WINDOW {
            return None;
        }
        let since = self.since.unwrap_or(now);
        let took = now.saturating_duration_since(since);
        let rested = self.last.is_some_and(|last| now.saturating_duration_since(last) > SOON);
        // After a rest, what came before it says nothing of how quickly the sender begins.
        let begins = self.since.is_none() || rested && took > rtt();
        (self.read, self.since) = if begins { (0, Some(now)) } else { (self.read, self.since) };
        (self.read, self.last) = (self.read + bytes as u64, Some(now));
        if self.read < u64::from(self.bytes / PART) {
            return None;
        }
        (self.read, self.since) = (0, Some(now));
        let is_soon = begins || took <= SOON || took <= rtt();
        is_soon.then(|| {
            self.bytes = self.bytes.saturating_mul(GROWTH).min(LARGEST_WINDOW);
            self.bytes
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The window after a sender of `rate` bytes a second was read for `seconds`, in pieces of a millisecond.
    fn after(rate: u64, rtt: Duration, seconds: u64) -> u32 {
        let mut now = Instant::now();
        let mut window = Window::new();
        for _ in 0..seconds * 1000 {
            now += Duration::from_millis(1);
            window.took((rate / 1000) as usize, now, || rtt);
        }
        window.bytes
    }

    #[test]
    fn a_window_holds_what_its_path_needs_and_not_much_more() {
        let rtt = Duration::from_millis(50);
        assert_eq!(after(100_000, rtt, 60), FIRST_WINDOW, "1 Mbit/s");
        for rate in [1_000_000, 12_500_000, 60_000_000] {
            let (window, in_flight) = (u64::from(after(rate, rtt, 10)), rate / 20);
            assert!(window >= 2 * in_flight, "{rate}: {window}");
            assert!(window <= 16 * in_flight, "{rate}: {window}");
        }
        assert_eq!(after(1_000_000_000, rtt, 1), LARGEST_WINDOW);
    }

    #[test]
    fn a_sender_that_begins_after_a_handshake_is_never_held_up() {
        const PACKET: usize = 1200;
        let rtt = Duration::from_millis(100);
        let (mut window, mut now) = (Window::new(), Instant::now() + rtt);
        // As much more each round trip as BBR tries, from its initial window on.
        for round in 0..6 {
            let packets = (10.0 * 2.89_f64.powi(round)) as u32;
            let sent = packets * PACKET as u32;
            assert!(sent <= window.bytes, "round {round}: {sent} bytes, {window:?}");
            let begun = now;
            for packet in 0..packets {
                now = begun + rtt / 2 * packet / packets;
                window.took(PACKET, now, || rtt);
            }
            now = begun + rtt;
        }
    }

    #[test]
    fn a_peer_that_sends_little_at_a_time_gets_no_more_however_long_it_goes_on() {
        assert_eq!(after(10_000, Duration::from_millis(1), 3600), FIRST_WINDOW);
    }
}
