//! The queue for the turns of one server on one network. Pure: the time is the caller's.

use super::{Rules, millis};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// Of what waits so many times longer than the limit nothing waits any more, though turns come.
const MOST_LIMITS: u32 = 6;
/// The shortest wait until it is asked again.
const LEAST_WAIT: Duration = Duration::from_millis(1);
/// What is not the first one asks again after this part of the time that a turn takes to rest, and not
/// sooner: where many turns come and go, one of them may rest every few milliseconds, and all would look.
const LOOKS: u32 = 8;

/// Those that have a turn, and those that wait for one. There are no more of them than clients' connections,
/// and parts of objects that these load.
#[derive(Default)]
pub(super) struct Queue {
    next: u64,
    at_work: Vec<AtWork>,
    waiting: VecDeque<Waiting>,
    /// When somebody's turn came last.
    came: Duration,
}

struct AtWork {
    ticket: u64,
    /// Until when it counts, in milliseconds.
    counts: Arc<AtomicU64>,
}

struct Waiting {
    ticket: u64,
    has_begun: bool,
    since: Duration,
    called: Arc<Notify>,
}

/// What becomes of one that asks whether it is its turn.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Begun,
    /// It has waited for long enough.
    Overdue,
    /// It asks again when it is called, or after this time.
    Waits(Duration),
}

impl Queue {
    /// Joins: behind all that have begun, or behind all. Returns the ticket.
    pub(super) fn join(&mut self, called: Arc<Notify>, has_begun: bool, now: Duration) -> u64 {
        self.next += 1;
        let at = match has_begun {
            true => self.waiting.iter().position(|other| !other.has_begun).unwrap_or(self.waiting.len()),
            false => self.waiting.len(),
        };
        self.waiting.insert(at, Waiting { ticket: self.next, has_begun, since: now, called });
        self.next
    }

    /// Begins, if it is the turn of this one and few enough are at work of which something came lately.
    pub(super) fn begin(
        &mut self,
        ticket: u64,
        counts: &Arc<AtomicU64>,
        rules: &Rules,
        now: Duration,
    ) -> Next {
        let Some(at) = self.waiting.iter().position(|one| one.ticket == ticket) else { return Next::Overdue };
        // Until when each of those at work counts.
        let until = self.at_work.iter().map(|one| Duration::from_millis(one.counts.load(Ordering::Relaxed)));
        let counting: usize = until.clone().filter(|until| *until > now).count();
        if at == 0 && counting < rules.each {
            self.waiting.pop_front();
            counts.store(millis(now.saturating_add(rules.rest)), Ordering::Relaxed);
            self.at_work.push(AtWork { ticket, counts: Arc::clone(counts) });
            self.came = now;
            if counting + 1 < rules.each {
                self.call();
            }
            return Next::Begun;
        }
        let due = self.due(at, rules);
        if due <= now {
            return Next::Overdue;
        }
        // By then this may be the first one, and a turn may rest: also one that begins from now on. So nobody
        // has to be woken to find that all turns are taken.
        let may_rest = until.filter(|until| *until > now).fold(now.saturating_add(rules.rest), Duration::min);
        let floor = if at == 0 { LEAST_WAIT } else { rules.rest / LOOKS };
        let again = due.min(may_rest.max(now.saturating_add(floor)));
        Next::Waits((again - now).max(LEAST_WAIT))
    }

    /// When the one at this place has waited for long enough: if nobody's turn has come for so long, and
    /// after some times as long anyway. A slow network on which turns come one after the other is waited for,
    /// since more at a time would only make it slower.
    fn due(&self, at: usize, rules: &Rules) -> Duration {
        let since = self.waiting[at].since;
        let most = rules.limit.saturating_mul(MOST_LIMITS);
        since.max(self.came).saturating_add(rules.limit).min(since.saturating_add(most))
    }

    /// Takes one out, wherever it is.
    pub(super) fn leave(&mut self, ticket: u64) {
        self.at_work.retain(|one| one.ticket != ticket);
        self.waiting.retain(|one| one.ticket != ticket);
        self.call();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at_work.is_empty() && self.waiting.is_empty()
    }

    /// The first one asks again.
    pub(super) fn call(&self) {
        if let Some(first) = self.waiting.front() {
            first.called.notify_one();
        }
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules =
        Rules { each: 2, here: false, rest: Duration::from_secs(2), limit: Duration::from_secs(10) };

    /// A queue of which all is seen.
    #[derive(Default)]
    struct Seen {
        queue: Queue,
        counts: Vec<Arc<AtomicU64>>,
    }

    impl Seen {
        /// Joins at the beginning.
        fn join(&mut self, has_begun: bool) -> u64 {
            self.counts.push(Arc::default());
            self.queue.join(Arc::default(), has_begun, Duration::ZERO)
        }

        fn begin(&mut self, ticket: u64, now: u64) -> Next {
            let counts = Arc::clone(&self.counts[ticket as usize - 1]);
            self.queue.begin(ticket, &counts, &RULES, Duration::from_millis(now))
        }

        fn moves(&self, ticket: u64, now: u64) {
            self.counts[ticket as usize - 1].store(now + 2000, Ordering::Relaxed);
        }
    }

    fn waits(millis: u64) -> Next {
        Next::Waits(Duration::from_millis(millis))
    }

    #[test]
    fn turns_are_taken_in_order_and_what_has_begun_goes_first() {
        let mut seen = Seen::default();
        let tickets = [false, false, false, true, true].map(|has_begun| seen.join(has_begun));
        assert_eq!(tickets, [1, 2, 3, 4, 5]);
        // The fourth and the fifth have begun.
        assert_eq!(seen.begin(1, 0), waits(2000));
        assert_eq!((seen.begin(4, 0), seen.begin(5, 0)), (Next::Begun, Next::Begun));
        assert_eq!(seen.begin(1, 500), waits(1500));
        seen.queue.leave(5);
        assert_eq!(seen.begin(2, 500), waits(1500), "it may be the first one by then");
        assert_eq!(seen.begin(1, 500), Next::Begun);
        // One that does not wait any more holds nobody up.
        seen.queue.leave(2);
        seen.queue.leave(4);
        assert_eq!(seen.begin(3, 500), Next::Begun);
        seen.queue.leave(1);
        assert!(!seen.queue.is_empty());
        seen.queue.leave(3);
        assert!(seen.queue.is_empty());
    }

    #[test]
    fn a_turn_counts_while_something_comes() {
        let mut seen = Seen::default();
        let [first, second, third, fourth] = [(); 4].map(|()| seen.join(false));
        assert_eq!((seen.begin(first, 0), seen.begin(second, 0)), (Next::Begun, Next::Begun));
        // Something comes on the second alone, so that the third gets the turn of the first.
        seen.moves(second, 1900);
        assert_eq!(seen.begin(third, 1999), waits(1));
        assert_eq!(seen.begin(third, 2000), Next::Begun);
        // The first one moves again: three are at work, and the fourth waits until two of them rest.
        seen.moves(first, 3000);
        seen.moves(third, 3500);
        assert_eq!(seen.begin(fourth, 3500), waits(400));
        assert_eq!(seen.begin(fourth, 3900), waits(1100));
        assert_eq!(seen.begin(fourth, 5000), Next::Begun);
    }

    #[test]
    fn the_first_one_looks_as_soon_as_a_turn_may_rest_and_the_others_now_and_then() {
        let mut seen = Seen::default();
        let [first, second, third, fourth] = [(); 4].map(|()| seen.join(false));
        assert_eq!((seen.begin(first, 0), seen.begin(second, 0)), (Next::Begun, Next::Begun));
        assert_eq!((seen.begin(third, 1990), seen.begin(fourth, 1990)), (waits(10), waits(250)));
        // However soon a turn rests, nothing waits for longer than it should.
        seen.moves(first, 9_900);
        seen.moves(second, 7_910);
        assert_eq!((seen.begin(third, 9_900), seen.begin(fourth, 9_900)), (waits(10), waits(100)));
    }

    #[test]
    fn nothing_waits_for_long_where_no_turn_comes_and_longer_where_they_come_slowly() {
        let mut seen = Seen::default();
        let all = [(); 12].map(|()| seen.join(false));
        assert_eq!((seen.begin(all[0], 0), seen.begin(all[1], 0)), (Next::Begun, Next::Begun));
        // Two that go on and on.
        seen.moves(all[0], 9_999);
        seen.moves(all[1], 9_999);
        assert_eq!((seen.begin(all[2], 9_999), seen.begin(all[3], 9_999)), (waits(1), waits(1)));
        assert_eq!((seen.begin(all[2], 10_000), seen.begin(all[3], 10_000)), (Next::Overdue, Next::Overdue));
        // If one of them ends, the queue moves, and the others wait for it.
        seen.queue.leave(all[0]);
        assert_eq!((seen.begin(all[2], 10_000), seen.begin(all[3], 10_000)), (Next::Begun, waits(1999)));
        for (n, at) in [(3, 19_000), (4, 28_000), (5, 37_000), (6, 46_000), (7, 55_000)] {
            seen.queue.leave(all[n - 1]);
            assert_eq!(seen.begin(all[n], at), Next::Begun);
            // The other one goes on.
            seen.moves(all[1], at);
            assert_eq!(seen.begin(all[11], at), waits(2000));
        }
        // It waits for those that come, and looks again each time one of them could rest.
        assert_eq!(seen.begin(all[11], 59_999), waits(1));
        // For a minute.
        assert_eq!(seen.begin(all[11], 60_000), Next::Overdue);
    }

    #[tokio::test]
    async fn the_first_one_is_called_when_it_may_be_its_turn_and_not_before() {
        let (mut queue, counts) = (Queue::default(), Arc::default());
        let called: Vec<Arc<Notify>> = (0..3).map(|_| Arc::default()).collect();
        for one in &called {
            queue.join(Arc::clone(one), false, Duration::ZERO);
        }
        let begin = |queue: &mut Queue, ticket| queue.begin(ticket, &counts, &RULES, Duration::ZERO);
        assert_eq!(begin(&mut queue, 1), Next::Begun);
        called[1].notified().await;
        assert_eq!(begin(&mut queue, 2), Next::Begun);
        let early = tokio::time::timeout(Duration::ZERO, called[2].notified()).await;
        assert!(early.is_err(), "there is no turn for it");
        assert_eq!(begin(&mut queue, 3), waits(2000));
        queue.leave(1);
        called[2].notified().await;
        assert_eq!(begin(&mut queue, 3), Next::Begun);
    }
}
