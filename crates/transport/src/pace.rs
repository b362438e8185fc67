//! How many notices an endpoint sends, over all connections.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Datagrams sent at once, and then in each second. What a client states as its addresses may be those of
/// others, and many connections together may name one victim.
const BURST: u32 = 250;
const PER_SECOND: u32 = 1000;
const INTERVAL: Duration = Duration::from_nanos(1_000_000_000 / PER_SECOND as u64);

/// Gives each datagram its turn, in the order in which they ask. Whoever asks waits for its turn before it
/// asks again, so that no more are ahead than there are connections.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the next turn would be if none had been left out.
    next: Mutex<Option<Instant>>,
}

impl Pace {
    /// The time at which so many datagrams may leave.
    fn reserve(&self, count: u32, now: Instant) -> Instant {
        self.take(count, now, None).unwrap_or(now)
    }

    /// Whether a datagram may leave now; if not, none is counted.
    pub(crate) fn is_free(&self, now: Instant) -> bool {
        self.take(1, now, Some(now)).is_some()
    }

    fn take(&self, count: u32, now: Instant, latest: Option<Instant>) -> Option<Instant> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = now.checked_sub(INTERVAL * BURST).unwrap_or(now);
        let turn = next.map_or(idle, |next| next.max(idle)) + INTERVAL * (count - 1);
        if latest.is_some_and(|latest| turn > latest) {
            return None;
        }
        *next = Some(turn + INTERVAL);
        Some(turn)
    }

    /// Waits until so many datagrams, at least one, may leave. If it is dropped before, their turn is lost.
    pub(crate) async fn turn(&self, count: u32) {
        let now = Instant::now();
        let turn = self.reserve(count.max(1), now);
        if turn > now {
            tokio::time::sleep_until(turn.into()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_leaves_at_once_and_the_rest_at_its_pace_in_order() {
        let (pace, now) = (Pace::default(), Instant::now());
        let turns: Vec<_> = (0..BURST + PER_SECOND).map(|_| pace.reserve(1, now)).collect();
        assert!(turns.is_sorted());
        assert_eq!(turns.iter().filter(|turn| **turn < now).count(), BURST as usize);
        let last = turns.last().map(|turn| *turn - now);
        assert_eq!(last, Some(INTERVAL * (PER_SECOND - 1)));
        assert!(!pace.is_free(now) && pace.is_free(now + Duration::from_secs(2)));
    }

    #[test]
    fn many_at_once_take_as_many_turns() {
        let (pace, now) = (Pace::default(), Instant::now());
        (0..BURST / 10).for_each(|_| assert!(pace.reserve(10, now) <= now));
        assert!(pace.reserve(10, now) > now);
    }

    #[test]
    fn an_idle_time_gives_no_more_than_one_burst() {
        let (pace, now) = (Pace::default(), Instant::now());
        pace.reserve(1, now);
        let later = now + Duration::from_secs(3600);
        let at_once = (0..2 * BURST).filter(|_| pace.reserve(1, later) < later).count();
        assert_eq!(at_once, BURST as usize);
    }
}
