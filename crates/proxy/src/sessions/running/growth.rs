//! How much is kept of a server: twice what the program takes in a round trip, so that a long way to its
//! device holds nothing up.

use crate::sessions::budget::least_kept;
use std::time::Duration;
use tokio::time::Instant;

/// The round trip is asked for no more often: the kernel is asked with it.
const ASK: Duration = Duration::from_secs(1);
/// What a program takes in so long it may have kept whatever others keep. It is measured for as long: many
/// programs are fast for one round, while the others have not begun.
const LASTING: Duration = Duration::from_millis(250);

/// Measures how fast a device's program takes what a server sends.
#[derive(Default)]
pub(super) struct Growth {
    /// From a byte that was said to the device until it is counted.
    round: Option<Round>,
    /// Of the last two rounds, bytes a second.
    rates: [u64; 2],
    lasting: Lasting,
    round_trip: Option<(Duration, Instant)>,
}

/// How fast a program is for longer than a round.
#[derive(Default)]
struct Lasting {
    /// Since when that is measured, and what was counted then.
    begun: Option<(Instant, u64)>,
    /// Of the last two times, bytes a second. One that lasted for two is both: a program that rested is not
    /// known to be fast any more.
    rates: [u64; 2],
}

struct Round {
    begun: Instant,
    /// What was said to the device then, and what it had counted.
    said: u64,
    counted: u64,
}

impl Growth {
    /// The device was told of the server's bytes up to `said`, and has counted up to `counted`. What is kept
    /// holds the server up if `is_full`. `round_trip` is that of the device's connection.
    pub(super) fn note(
        &mut self,
        (said, counted): (u64, u64),
        is_full: bool,
        round_trip: impl FnOnce() -> Option<Duration>,
        now: Instant,
    ) {
        self.lasting.note(counted, now);
        if let Some(round) = &self.round {
            let lasted = now.duration_since(round.begun);
            if counted < round.said || lasted.is_zero() {
                return;
            }
            self.rates = [self.rates[1], a_second(counted.saturating_sub(round.counted), lasted)];
            self.round = None;
        }
        // A server that does not wait needs no more room than there is.
        if is_full && said > counted {
            if self.round_trip.is_none_or(|(_, asked)| now >= asked + ASK) {
                self.round_trip = round_trip().map(|it| (it, now));
            }
            self.round = Some(Round { begun: now, said, counted });
        }
    }

    /// How much is to be kept.
    pub(super) fn wanted(&self) -> usize {
        let Some((round_trip, _)) = self.round_trip else { return 0 };
        let bytes = 2 * u128::from(self.rate()) * round_trip.as_micros() / 1_000_000;
        // Counts come in steps, and what comes at a time costs as much however little it is.
        usize::try_from(bytes).unwrap_or(usize::MAX).saturating_add(self.least())
    }

    /// How much may be kept whatever others keep.
    pub(super) fn least(&self) -> usize {
        let [one, other] = self.lasting.rates;
        least_kept(one.max(other))
    }

    /// Bytes a second; 0 while that is not known.
    fn rate(&self) -> u64 {
        self.rates[0].max(self.rates[1])
    }

    /// Another device has the session.
    pub(super) fn begin_anew(&mut self) {
        *self = Self::default();
    }
}

impl Lasting {
    fn note(&mut self, counted: u64, now: Instant) {
        let Some((begun, before)) = self.begun else {
            self.begun = Some((now, counted));
            return;
        };
        let lasted = now.duration_since(begun);
        if lasted >= LASTING {
            let rate = a_second(counted.saturating_sub(before), lasted);
            self.rates = [if lasted < 2 * LASTING { self.rates[1] } else { rate }, rate];
            self.begun = Some((now, counted));
        }
    }
}

/// Bytes a second, where so many took so long.
fn a_second(bytes: u64, lasted: Duration) -> u64 {
    let rate = u128::from(bytes) * 1_000_000 / lasted.as_micros().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const LEAST: usize = 1024 * 1024;
    const MOST: usize = 8 * 1024 * 1024;

    /// What is kept in the end, and the bytes a second then, over a way with this round trip (in
    /// milliseconds) that carries so many bytes a second, where the device counts each millisecond.
    fn run(round_trip: u64, rate: u64) -> (usize, u64) {
        let (mut growth, start) = (Growth::default(), Instant::now());
        let mut way = std::collections::VecDeque::from(vec![0; usize::try_from(round_trip).unwrap()]);
        let (mut arrived, mut counted, mut before, mut kept) = (0, 0, 0, LEAST);
        for millisecond in 0..=40_000 {
            let said = counted + kept as u64;
            arrived = said.min(arrived + rate / 1000);
            way.push_back(arrived);
            counted = way.pop_front().unwrap();
            let now = start + Duration::from_millis(millisecond);
            growth.note((said, counted), true, || Some(Duration::from_millis(round_trip)), now);
            kept = growth.wanted().clamp(LEAST, MOST);
            if millisecond == 30_000 {
                before = counted;
            }
        }
        (kept, (counted - before) / 10)
    }

    #[test]
    fn what_is_kept_grows_until_a_long_way_carries_all_that_it_can_and_no_further() {
        for (round_trip, rate) in [(300, 10_000_000), (100, 30_000_000), (740, 4_000_000)] {
            let product = usize::try_from(rate * round_trip / 1000).unwrap();
            let (kept, reached) = run(round_trip, rate);
            assert!(reached >= rate - rate / 100, "{reached} of {rate} bytes a second");
            assert!(kept <= 2 * product + 4 * 64 * 1024, "{kept} for {product}");
        }
        // A way that needs no more than what is kept at first.
        assert_eq!(run(10, 5_000_000), (LEAST, 5_000_000));
        assert_eq!(run(300, 1_000_000_000).0, MOST);
    }

    #[test]
    fn of_a_slow_program_s_server_hardly_more_is_kept_than_the_least_although_there_may_be_room() {
        let (mut growth, start, least) = (Growth::default(), Instant::now(), 32 * 1024);
        let round_trip = || Some(Duration::from_millis(50));
        growth.note((least, 0), true, round_trip, start);
        // One of a thousand that share 100 Mbit/s.
        growth.note((2 * least, least), true, round_trip, start + Duration::from_millis(2600));
        let wanted = growth.wanted() as u64;
        assert!((least + 1..=least + 2048).contains(&wanted), "{wanted}");
    }

    #[test]
    fn nothing_is_asked_of_the_kernel_for_each_count_nor_while_no_server_waits() {
        let (mut growth, start, mut asked) = (Growth::default(), Instant::now(), 0);
        for millisecond in 0..1000 {
            let now = start + Duration::from_millis(millisecond);
            let round_trip = || {
                asked += 1;
                Some(Duration::from_millis(1))
            };
            growth.note((1000 * (millisecond + 1), 1000 * millisecond), true, round_trip, now);
        }
        assert_eq!(asked, 1, "once a second");
        let mut idle = Growth::default();
        idle.note((1000, 0), false, || panic!("it is not full"), start);
        assert_eq!(idle.wanted(), 0);
    }

    #[test]
    fn a_program_may_have_more_of_what_others_keep_if_it_is_fast_for_a_while_and_not_for_one_round() {
        const KEPT: u64 = 32 * 1024;
        let after = |counts: &[(u64, u64)]| {
            let (mut growth, start) = (Growth::default(), Instant::now());
            let round_trip = || Some(Duration::from_millis(1));
            growth.note((KEPT, 0), true, round_trip, start);
            for (millis, counted) in counts {
                let now = start + Duration::from_millis(*millis);
                growth.note((counted + KEPT, *counted), true, round_trip, now);
            }
            assert!(growth.wanted() > growth.least(), "there may be room for more");
            growth.least()
        };
        assert_eq!(after(&[(10, KEPT)]), 32 * 1024, "it may be the only one that has begun");
        assert_eq!(after(&[(10, KEPT), (250, KEPT + 1000)]), 33_768);
        assert_eq!(after(&[(10, KEPT), (200, 500_000), (250, 600_000)]), 128 * 1024);
        assert_eq!(after(&[(250, 100_000)]), 100_000);
        // It is as slow twice.
        assert_eq!(after(&[(250, 100_000), (500, 110_000)]), 100_000);
        assert_eq!(after(&[(250, 100_000), (500, 110_000), (750, 120_000)]), 32 * 1024);
        // It rested.
        assert_eq!(after(&[(250, 100_000), (750, 110_000)]), 32 * 1024);
    }
}
