//! How a path of which nothing is known is filled: as BBR does at its start-up
//! (draft-cardwell-iccrg-bbr-congestion-control §4.3.2). quinn's BBR asks a new path for its shortest round
//! trip first, with four packets in flight for 200 ms and a round trip, and takes acknowledgements that come
//! at once for a rate that no path has.

use std::time::{Duration, Instant};

use super::rate::rate;

/// The window for each byte that a round trip delivered: a sender at this gain doubles what it sends each
/// time.
const GAIN_PERCENT: u64 = 289;
/// A path is full if so many rounds in a row deliver less than this beyond the best before them.
const FULL_AFTER: u32 = 3;
const GROWTH_PERCENT: u64 = 125;

/// What is delivered between a packet that is sent and its acknowledgement.
#[derive(Debug, Clone, Copy)]
struct Round {
    since: Instant,
    acked: u64,
    /// Something else than the window held the sender up.
    app_limited: bool,
}

/// The window of a path that may not be full yet.
#[derive(Debug, Clone)]
pub(super) struct Startup {
    initial: u64,
    /// All that was acknowledged so far, of a handshake too.
    acked: u64,
    round: Option<Round>,
    /// The most bytes a second that came of a whole round trip.
    best: u64,
    /// That, when a round last delivered more than before.
    best_before: u64,
    without_growth: u32,
    shortest: Duration,
    is_over: bool,
}

impl Startup {
    pub(super) fn new(initial: u64) -> Self {
        Self {
            initial,
            acked: 0,
            round: None,
            best: 0,
            best_before: 0,
            without_growth: 0,
            shortest: Duration::MAX,
            is_over: false,
        }
    }

    /// A packet of `bytes` was acknowledged that was sent at `sent`; `shortest` is the shortest round trip.
    pub(super) fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        shortest: Duration,
    ) {
        if self.is_over {
            return;
        }
        self.shortest = shortest;
        self.acked = self.acked.saturating_add(bytes);
        let new = Round { since: now, acked: 0, app_limited: false };
        let mut round = *self.round.get_or_insert(new);
        if sent >= round.since && now > round.since {
            self.end(round);
            round = new;
        }
        round.acked += bytes;
        round.app_limited |= app_limited;
        // What comes at once was sent within a round trip all the same.
        let time = now.saturating_duration_since(round.since).max(shortest);
        self.best = self.best.max(rate(round.acked, time));
        self.round = Some(round);
    }

    fn end(&mut self, round: Round) {
        if u128::from(self.best) * 100 >= u128::from(self.best_before) * u128::from(GROWTH_PERCENT) {
            (self.best_before, self.without_growth) = (self.best, 0);
        } else if !round.app_limited {
            self.without_growth += 1;
            self.is_over = self.without_growth >= FULL_AFTER;
        }
    }

    /// The path does not take everything: the other controller knows what to do.
    pub(super) fn on_loss(&mut self) {
        self.is_over = true;
    }

    /// The window, until the path is full.
    pub(super) fn window(&self) -> Option<u64> {
        if self.is_over {
            return None;
        }
        let holds = u128::from(self.best) * self.shortest.as_nanos() / 1_000_000_000;
        let window = holds * u128::from(GAIN_PERCENT) / 100;
        // As in slow start, what a handshake had acknowledged counts, small as its rounds were (RFC 9002
        // §7.3.1).
        let least = self.initial + self.acked.min(self.initial);
        Some(u64::try_from(window).unwrap_or(u64::MAX).max(least))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const INITIAL: u64 = 12_000;
    const PACKET: u64 = 1_200;
    const BASE: Duration = Duration::from_millis(50);

    /// A path that carries `rate` bytes a second and holds the rest in a queue. Each round trip, what the
    /// window allows is sent at once, or `offered` bytes. Returns the windows, and how long the queue ever
    /// was.
    fn over(rate: u64, offered: u64, rounds: u32) -> (Vec<Option<u64>>, Duration) {
        let (mut startup, mut now, mut windows) = (Startup::new(INITIAL), Instant::now(), Vec::new());
        let mut longest = Duration::ZERO;
        for _ in 0..rounds {
            let window = startup.window();
            windows.push(window);
            let Some(window) = window else { break };
            let (sent, limited) = (now, offered < window);
            let packets = window.min(offered) / PACKET;
            for packet in 1..=packets {
                let took = BASE + Duration::from_nanos(packet * PACKET * 1_000_000_000 / rate);
                longest = longest.max(took - BASE);
                startup.on_ack(sent + took, sent, PACKET, limited, BASE);
                now = sent + took;
            }
        }
        (windows, longest)
    }

    #[test]
    fn what_a_round_trip_delivered_is_nearly_tripled_in_the_next() {
        let (windows, _) = over(1_000_000_000, u64::MAX, 5);
        for (window, next) in windows.iter().zip(&windows[1..]) {
            let (window, next) = (window.unwrap(), next.unwrap());
            assert!(next >= window * 27 / 10 && next <= window * 29 / 10, "{windows:?}");
        }
    }

    #[test]
    fn acknowledgements_that_come_at_once_promise_no_more_than_a_round_trip_delivered() {
        let (mut startup, sent) = (Startup::new(INITIAL), Instant::now());
        for _ in 0..10 {
            startup.on_ack(sent + BASE, sent, PACKET, false, BASE);
        }
        assert_eq!(startup.window(), Some(INITIAL * 289 / 100));
    }

    #[test]
    fn a_path_that_is_full_is_left_to_the_other_controller_after_three_rounds() {
        let (windows, longest) = over(1_250_000, u64::MAX, 20);
        assert_eq!(windows.last(), Some(&None), "{windows:?}");
        assert!(windows.len() <= 8, "{windows:?}");
        assert!(longest <= BASE * 3, "{longest:?}");
    }

    #[test]
    fn what_a_handshake_had_acknowledged_widens_the_first_window() {
        let (mut startup, sent) = (Startup::new(INITIAL), Instant::now());
        startup.on_ack(sent + BASE, sent, PACKET, true, BASE);
        startup.on_ack(sent + BASE, sent, PACKET, true, BASE);
        assert_eq!(startup.window(), Some(INITIAL + 2 * PACKET));
    }

    #[test]
    fn one_that_has_little_to_send_does_not_look_like_a_full_path() {
        let (windows, _) = over(1_250_000, 6_000, 100);
        assert!(windows.iter().all(Option::is_some), "{windows:?}");
    }

    #[test]
    fn what_is_lost_ends_it() {
        let mut startup = Startup::new(INITIAL);
        assert_eq!(startup.window(), Some(INITIAL));
        startup.on_loss();
        assert_eq!(startup.window(), None);
    }
}
