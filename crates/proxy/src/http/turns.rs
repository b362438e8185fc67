//! Turns: how many objects of one server come over one network at the same time.
//!
//! Browsers keep to six connections for each server. Through a proxy some open 32, whichever servers they
//! are to: if as many went on to one server, their first windows together would be several times what a
//! network holds. An object therefore waits for its turn, and has it until its end.
//!
//! A turn is for what moves. One on which nothing has come for a while, such as a long poll, does not count
//! meanwhile. And where no turn comes for some time, what waits goes on without: nothing that a server does,
//! or leaves undone, holds up others for longer than that.

mod queue;

use crate::Destination;
use queue::{Next, Queue};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::timeout;

/// Servers and networks with turns, at once. For more there are none.
const MOST: usize = 4096;

/// A server, and the network that leads there; it has no name where nobody chose it.
type Way = (Destination, String);

/// What turns there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// So many for each server and network. 0: nothing waits.
    pub(super) each: usize,
    /// So for servers of this host too.
    pub(super) here: bool,
    /// A turn on which nothing has come for so long does not count.
    pub(super) rest: Duration,
    /// What has waited for so long, while nobody's turn came, goes on without; and so it does after six times
    /// as long anyway.
    pub(super) limit: Duration,
}

impl Rules {
    /// Nothing waits.
    pub(super) const NONE: Self = Self { each: 0, here: false, rest: Duration::ZERO, limit: Duration::ZERO };
}

/// All turns of a proxy.
pub(super) struct Turns {
    rules: Rules,
    began: Instant,
    ways: Mutex<HashMap<Way, Queue>>,
}

/// A turn, or a place in the queue for it, until this is dropped.
pub(super) struct Turn {
    turns: Arc<Turns>,
    way: Way,
    ticket: u64,
    /// Until when it counts, in milliseconds from the beginning.
    counts: Arc<AtomicU64>,
    /// It may be this one's turn now.
    called: Arc<Notify>,
}

impl Turns {
    pub(super) fn new(rules: Rules) -> Arc<Self> {
        Arc::new(Self { rules, began: Instant::now(), ways: Mutex::default() })
    }

    /// Whether servers of this host have turns too.
    pub(super) fn are_here(&self) -> bool {
        self.rules.here
    }

    /// Waits for a turn. What `has_begun` goes before what has not: the rest of an object before the first
    /// part of another. `None`: it goes on without. Cancel-safe.
    pub(super) async fn take(
        self: &Arc<Self>,
        to: &Destination,
        network: &str,
        has_begun: bool,
    ) -> Option<Turn> {
        let turn = self.join((to.clone(), network.to_owned()), has_begun)?;
        loop {
            let again = match turn.begin() {
                Next::Begun => return Some(turn),
                Next::Overdue => break,
                Next::Waits(again) => again,
            };
            // Called or not: it is looked again.
            let _ = timeout(again, turn.called.notified()).await;
        }
        tracing::debug!(%to, network, "an object goes on without waiting for its turn");
        None
    }

    fn join(self: &Arc<Self>, way: Way, has_begun: bool) -> Option<Turn> {
        if self.rules.each == 0 {
            return None;
        }
        let mut ways = self.lock();
        if ways.len() >= MOST && !ways.contains_key(&way) {
            return None;
        }
        let (counts, called) = (Arc::default(), Arc::new(Notify::new()));
        let queue = ways.entry(way.clone()).or_default();
        let ticket = queue.join(Arc::clone(&called), has_begun, self.began.elapsed());
        Some(Turn { turns: Arc::clone(self), way, ticket, counts, called })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Way, Queue>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Turn {
    /// Something came: the turn counts.
    pub(super) fn moved(&self) {
        let until = self.turns.began.elapsed().saturating_add(self.turns.rules.rest);
        self.counts.store(millis(until), Ordering::Relaxed);
    }

    /// Nothing is going to come for now: it does not count until something does.
    pub(super) fn rest(&self) {
        self.counts.store(0, Ordering::Relaxed);
        if let Some(queue) = self.turns.lock().get(&self.way) {
            queue.call();
        }
    }

    fn begin(&self) -> Next {
        let mut ways = self.turns.lock();
        let now = self.turns.began.elapsed();
        match ways.get_mut(&self.way) {
            Some(queue) => queue.begin(self.ticket, &self.counts, &self.turns.rules, now),
            // It is there for as long as this is.
            None => Next::Overdue,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut ways = self.turns.lock();
        if let Some(queue) = ways.get_mut(&self.way) {
            queue.leave(self.ticket);
            if queue.is_empty() {
                ways.remove(&self.way);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    /// What a future gives when it is asked once.
    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    fn with(each: usize) -> Arc<Turns> {
        Turns::new(Rules { each, here: false, rest: HOUR, limit: HOUR })
    }

    fn server(port: u16) -> Destination {
        Destination::new("example.org", port).unwrap()
    }

    #[tokio::test]
    async fn each_server_has_so_many_turns_on_each_network() {
        let turns = with(2);
        let mut held = Vec::new();
        for (to, network) in [(1, "wlan0"), (1, "wlan0"), (1, "usb0"), (2, "wlan0")] {
            held.push(now(turns.take(&server(to), network, false)).unwrap().unwrap());
        }
        assert!(now(turns.take(&server(1), "wlan0", false)).is_none());
        // What is not waited for any more has left the queue.
        drop(held.remove(0));
        let again = now(turns.take(&server(1), "wlan0", false)).unwrap();
        assert!(again.is_some());
        drop((held, again));
        assert!(turns.lock().is_empty());
    }

    #[tokio::test]
    async fn a_turn_that_is_given_back_is_the_next_ones() {
        let turns = with(1);
        let first = turns.take(&server(1), "", false).await.unwrap();
        let waiting = Arc::clone(&turns);
        let waiting = tokio::spawn(async move { waiting.take(&server(1), "", false).await.is_some() });
        let is_waiting = async {
            while turns.lock().values().all(|queue| queue.waiting() == 0) {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(20), is_waiting).await.unwrap();
        drop(first);
        assert!(waiting.await.unwrap());
    }

    #[tokio::test]
    async fn a_turn_that_rests_does_not_count_until_something_comes() {
        let turns = with(1);
        let first = now(turns.take(&server(1), "", false)).unwrap().unwrap();
        first.rest();
        let second = now(turns.take(&server(1), "", false)).unwrap().unwrap();
        drop(second);
        first.moved();
        assert!(now(turns.take(&server(1), "", false)).is_none());
    }

    #[tokio::test]
    async fn what_has_waited_for_long_enough_goes_on_without_a_turn() {
        let turns = Turns::new(Rules { each: 1, here: false, rest: HOUR, limit: Duration::from_millis(20) });
        let first = turns.take(&server(1), "", false).await;
        assert!(first.is_some() && turns.take(&server(1), "", false).await.is_none());
    }

    #[tokio::test]
    async fn without_turns_and_beyond_the_bound_nothing_waits() {
        let none = with(0);
        assert!(now(none.take(&server(1), "", false)).unwrap().is_none());
        let turns = with(1);
        let held: Vec<_> = (1..=MOST as u16)
            .map(|port| now(turns.take(&server(port), "", false)).unwrap().unwrap())
            .collect();
        assert!(now(turns.take(&server(MOST as u16 + 1), "", false)).unwrap().is_none());
        drop(held);
        assert!(turns.lock().is_empty());
    }
}
