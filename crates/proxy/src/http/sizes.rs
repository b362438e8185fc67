//! How large the objects of servers were lately, to know how many bytes of the next one to expect.

use super::recent::Recent;
use crate::Destination;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// So many of the last objects count.
const KEPT: usize = 8;
/// Of fewer objects little is concluded: that of a page's text is small, and those of its pictures may not
/// be.
const LEAST: usize = 4;

/// So many tell something of the one that is missing: it counts as this many times the largest at most.
const TELL: usize = LEAST - 1;
const MORE: u64 = 2;

/// Of so many the next one's size is guessed where no more than a small object is lost by that.
const HINT: usize = 2;

/// What is known of all servers.
pub(super) struct Sizes {
    servers: Recent<Last>,
    /// Of whatever server.
    any: Mutex<Last>,
    news: Notify,
}

/// The sizes of the last objects.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    bytes: [u64; KEPT],
    seen: usize,
}

impl Sizes {
    /// Remembers so many servers, each for so long.
    pub(super) fn new(most: usize, lasts: Duration) -> Self {
        Self { servers: Recent::new(most, lasts), any: Mutex::default(), news: Notify::new() }
    }

    /// An object of this server has so many bytes.
    pub(super) fn learn(&self, server: &Destination, bytes: u64) {
        self.servers.put(server, self.servers.of(server).unwrap_or_default().after(bytes));
        {
            let mut any = self.any();
            *any = any.after(bytes);
        }
        self.news.notify_waiters();
    }

    /// How many of so many first bytes are to be expected of the server's next object: the average of its
    /// last ones. Where too little is known of it, that of all servers' last ones. Where it is of these too,
    /// those that are missing count as so many, or one of four as what the others tell. `None`: nothing is
    /// known of it.
    pub(super) fn average(&self, server: &Destination, most: u64) -> Option<u64> {
        let of = self.servers.of(server);
        let any = *self.any();
        let told = of.filter(|last| last.seen >= TELL).map(|last| last.filled(most));
        let known = told.or_else(|| any.average(most));
        known.or_else(|| of.or(Some(any)).filter(|last| last.seen > 0).map(|last| last.filled(most)))
    }

    /// Whether enough is known of this server itself to expect anything.
    pub(super) fn knows(&self, server: &Destination) -> bool {
        self.servers.of(server).is_some_and(|last| last.seen >= LEAST)
    }

    /// The most bytes to expect of the server's next object: as many as the largest of its last ones has.
    /// `None`: too little is known of it.
    pub(super) fn largest_of(&self, server: &Destination) -> Option<u64> {
        self.servers.of(server).and_then(|last| last.largest(LEAST))
    }

    /// The most bytes to expect of it, by however little is known of it, or of all servers.
    pub(super) fn hint(&self, server: &Destination) -> Option<u64> {
        self.servers.of(server).and_then(|last| last.largest(HINT)).or_else(|| self.any().largest(LEAST))
    }

    /// Waits until the size of another object is known. Cancel-safe.
    pub(super) async fn news(&self) {
        self.news.notified().await;
    }

    fn any(&self) -> MutexGuard<'_, Last> {
        self.any.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Last {
    /// The same after another object of so many bytes.
    fn after(mut self, bytes: u64) -> Self {
        self.bytes.rotate_right(1);
        self.bytes[0] = bytes;
        self.seen = self.seen.saturating_add(1);
        self
    }

    /// How many of so many first bytes they have on average.
    fn average(&self, most: u64) -> Option<u64> {
        (self.seen >= LEAST).then(|| self.filled(most))
    }

    /// The average where those that are missing have so many, or the last of them what the others tell.
    fn filled(&self, most: u64) -> u64 {
        let told = self.largest(TELL).map(|largest| largest.saturating_mul(MORE));
        let most = told.map_or(most, |told| told.min(most));
        let missing = LEAST.saturating_sub(self.seen);
        let known = self.bytes.iter().take(self.seen).map(|bytes| (*bytes).min(most));
        (known.sum::<u64>() + missing as u64 * most) / LEAST.max(self.seen.min(KEPT)) as u64
    }

    /// The largest, if at least so many are known: where one of many is large, waiting behind it on a slow
    /// network costs more than the way round.
    fn largest(&self, least: usize) -> Option<u64> {
        (self.seen >= least).then(|| self.bytes.into_iter().max()).flatten()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn after(sizes: impl IntoIterator<Item = u64>) -> Option<u64> {
        sizes.into_iter().fold(Last::default(), Last::after).largest(LEAST)
    }

    #[test]
    fn the_average_of_the_last_eight_is_expected_and_no_more_of_any_than_was_asked_about() {
        let average = |sizes: &[u64]| sizes.iter().copied().fold(Last::default(), Last::after).average(100);
        assert_eq!(average(&[10; 3]), None);
        assert_eq!(average(&[10, 20, 30, 40]), Some(25));
        assert_eq!(average(&[10, 20, 30, 4000]), Some(40));
        assert_eq!(average(&[1000, 1000, 8, 8, 8, 8, 8, 8, 8, 8]), Some(8));
    }

    #[test]
    fn the_largest_of_the_last_eight_is_expected_once_four_are_known() {
        assert_eq!(after([1000; 3]), None);
        assert_eq!(after([1000, 2000, 1000, 1000]), Some(2000));
        assert_eq!(after([14_000, 1, 2, 3, 4, 5, 6, 7]), Some(14_000));
        assert_eq!(after([14_000, 1, 2, 3, 4, 5, 6, 7, 6]), Some(7));
    }

    #[test]
    fn of_a_server_that_is_new_as_much_is_expected_as_of_the_others() {
        let sizes = Sizes::new(4, Duration::from_secs(60));
        let server = |n: u16| Destination::new("example.org", n).unwrap();
        (1..=3).for_each(|n| sizes.learn(&server(n), u64::from(n)));
        let average = |n| sizes.average(&server(n), 8);
        assert_eq!([sizes.hint(&server(9)), sizes.hint(&server(2))], [None; 2]);
        // (1 + 2 + 3 + 6) / 4, and (2 + 8 + 8 + 8) / 4: what is missing has all that there may be, or twice
        // the largest of three.
        assert_eq!((average(9), average(2)), (Some(3), Some(6)));
        sizes.learn(&server(1), 10);
        assert_eq!(sizes.hint(&server(1)), Some(10));
        // (1 + 2 + 3 + 8) / 4.
        assert_eq!((average(9), average(2)), (Some(3), Some(3)));
        (0..4).for_each(|_| sizes.learn(&server(2), 5));
        // (2 + 5 + 5 + 5 + 5) / 5, and (1 + 2 + 3 + 8 + 5 + 5 + 5 + 5) / 8.
        assert_eq!((average(2), average(9)), (Some(4), Some(4)));
        assert_eq!(sizes.largest_of(&server(1)), None);
    }
}
