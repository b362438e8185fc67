//! What was learnt of servers lately: a table with a bound.

use crate::Destination;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Something that is remembered of each of the servers met last.
pub(super) struct Recent<T> {
    most: usize,
    lasts: Duration,
    known: Mutex<HashMap<Destination, (T, Instant)>>,
}

impl<T: Clone> Recent<T> {
    /// Remembers it of so many servers, each for so long.
    pub(super) fn new(most: usize, lasts: Duration) -> Self {
        Self { most, lasts, known: Mutex::default() }
    }

    /// What is remembered of this server.
    pub(super) fn of(&self, server: &Destination) -> Option<T> {
        let known = self.lock();
        let (what, since) = known.get(server)?;
        (since.elapsed() < self.lasts).then(|| what.clone())
    }

    /// Remembers it. The server that was heard of longest ago is forgotten for it, if there are too many.
    pub(super) fn put(&self, server: &Destination, what: T) {
        let mut known = self.lock();
        if known.len() >= self.most && !known.contains_key(server) {
            let oldest = known.iter().min_by_key(|(_, (_, since))| *since).map(|(server, _)| server.clone());
            if let Some(oldest) = oldest {
                known.remove(&oldest);
            }
        }
        known.insert(server.clone(), (what, Instant::now()));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Destination, (T, Instant)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_and_all_after_a_while() {
        let server = |n: u16| Destination::new("example.org", n).unwrap();
        let recent = Recent::new(3, Duration::from_secs(60));
        for n in 1..=3 {
            recent.put(&server(n), n);
        }
        recent.put(&server(1), 10);
        recent.put(&server(4), 4);
        let known: Vec<_> = (1..=4).map(|n| recent.of(&server(n))).collect();
        assert_eq!(known, [Some(10), None, Some(3), Some(4)]);
        let short = Recent::new(3, Duration::ZERO);
        short.put(&server(1), 1);
        assert_eq!(short.of(&server(1)), None);
    }
}
